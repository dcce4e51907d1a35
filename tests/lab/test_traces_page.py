"""docs/traces.md shows one line of each format; each is read as that format."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headstart.lab.traces.openai_logs import WRAPPERS
from headstart.lab.traces.texts import PromptReader
from headstart.lab.traces.trace import TraceFormat
from tests.trace_files import read

PAGE = (Path(__file__).parents[2] / "docs/traces.md").read_text()
ROWS = re.findall(r"^\| `(\w+)` \| `([^`]+)`(?: behind the header `([^`]+)`)? \|", PAGE, re.MULTILINE)


def test_every_format_has_an_example() -> None:
    assert {name for name, _, _ in ROWS} == set(TraceFormat) - {TraceFormat.DECISION_LOG}
    assert "\n| `decision-log` |" in PAGE  # its lines are many, and tests/lab/test_traces_decision_log.py's


@pytest.mark.parametrize(("name", "line", "header"), ROWS, ids=[name for name, _, _ in ROWS])
def test_the_example_is_read(
    tmp_path: Path, tiny_reader: PromptReader, name: str, line: str, header: str
) -> None:
    trace = read(tmp_path / "t", *([header] if header else []), line, reader=tiny_reader, strict=True)
    assert trace.format is TraceFormat(name)
    assert len(trace.requests) == 1


def test_the_example_with_all_fields_is_read(tmp_path: Path) -> None:
    [line] = re.findall(r"^```json\n(.*)\n```", PAGE, re.MULTILINE)
    [request] = read(tmp_path / "t", line, strict=True).requests
    assert (request.num_prompt_tokens, request.num_output_tokens, request.session) == (3, 2, "a")
    assert request.namespace.salt == "tom"


def test_all_wrappers_are_named() -> None:
    assert all(f"`{name}`" in PAGE for name in WRAPPERS)
