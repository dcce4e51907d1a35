from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.cache import Adapter, Namespace
from headstart.cache.keys import SHARED
from headstart.cache.tokens import ints_of
from headstart.errors import TraceError
from headstart.lab.traces.read import read_traces
from tests.trace_files import read, tokens, unused, whys

TOKENS = st.integers(-(2**31), 2**31 - 1)


@given(prompts=st.lists(st.lists(TOKENS, min_size=1), min_size=1), data=st.data())
def test_what_was_written_is_read(
    prompts: list[list[int]], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    spellings = [
        lambda ids: ids,
        lambda ids: {"token_ids": ids},
        lambda ids: {"prompt_token_ids": ids},
        lambda ids: {"tokens": ids},
    ]
    lines = [json.dumps(data.draw(st.sampled_from(spellings))(ids)) for ids in prompts]
    path = tmp_path_factory.mktemp("tokens") / "trace.jsonl"
    path.write_text(data.draw(st.sampled_from(["\n", "\r\n", "\n\n"])).join(lines))
    trace = read_traces([str(path)], strict=True, reader=unused)
    assert [tokens(request) for request in trace.requests] == prompts
    assert [request.num_prompt_tokens for request in trace.requests] == list(map(len, prompts))
    assert not trace.has_times


def test_all_that_a_line_may_say(tmp_path: Path) -> None:
    trace = read(
        tmp_path / "t",
        {"token_ids": [1, 2], "timestamp": "2026-01-31T12:00:01Z", "cache_salt": "tom", "session": 7},
        {"tokens": [3], "timestamp": "2026-01-31T12:00:00Z", "output_token_ids": [4, 5], "session_id": "s"},
        {"tokens": [6], "timestamp": "2026-01-31T12:00:03Z", "num_output_tokens": 9, "unknown": {}},
    )
    second, first, third = trace.requests
    assert (first.arrival_s, first.namespace, first.session) == (1.0, Namespace(salt="tom"), "7")
    assert (first.num_output_tokens, first.output) == (None, None)
    assert (second.arrival_s, second.namespace, second.session) == (0.0, SHARED, "s")
    assert second.num_output_tokens == 2
    assert ints_of(second.output or b"") == [4, 5]
    assert (third.arrival_s, third.num_output_tokens, third.output) == (3.0, 9, None)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ([1, 2**31], "Expected `int` <= 2147483647"),
        ({"tokens": [-(2**31) - 1]}, "Expected `int` >= -2147483648"),
        ({"tokens": [1], "output_token_ids": [2**40]}, "Expected `int` <= 2147483647"),
        ([], "the prompt has no tokens"),
        ({"token_ids": []}, "the prompt has no tokens"),
        ([1, "a"], "Expected `int`, got `str`"),
        ([1.5], "Expected `int`, got `float`"),
        ({"prompt": "a"}, "it has 0 of the fields token_ids, prompt_token_ids or tokens, and must have one"),
        ({"tokens": [1], "token_ids": [1]}, "it has 2 of the fields"),
        ({"tokens": [1], "timestamp": "soon"}, "its time is neither a number nor a date"),
        ({"tokens": [1], "cache_salt": ""}, "cache_salt must be a non-empty string"),
        ({"tokens": [1], "num_output_tokens": -1}, "Expected `int` >= 0"),
        ("[1, 2", "it is no JSON: "),
        ("1, 2", "Expected `object`, got `int`"),
        ('"words"', "Expected `object`, got `str`"),
    ],
)
def test_a_malformed_line(tmp_path: Path, line: Any, why: str) -> None:
    trace = read(tmp_path / "t", [1, 2], line, [3])
    [(number, told)] = whys(trace)
    assert number == 2
    assert told.startswith(why)
    assert len(trace.requests) == 2
    with pytest.raises(TraceError, match=":2: "):
        read(tmp_path / "t", [1, 2], line, strict=True)


def test_models_share_nothing(tmp_path: Path) -> None:
    def line(model: str | None) -> dict[str, Any]:
        return {"tokens": [1, 2], "model": model}

    one_model = read(tmp_path / "t", line("a"), line("a"))
    assert {request.namespace for request in one_model.requests} == {SHARED}
    assert one_model.notes == []
    several = read(tmp_path / "t", line("a"), line("b"), line(None), {**line("b"), "cache_salt": "s"})
    assert [request.namespace for request in several.requests] == [
        Namespace(Adapter("a", "")),
        Namespace(Adapter("b", "")),
        SHARED,
        Namespace(Adapter("b", ""), "s"),
    ]
    assert several.notes[0].startswith("3 models were asked (a, b, one without a name): they share nothing")


def test_times_that_some_lack_are_not_used(tmp_path: Path) -> None:
    trace = read(tmp_path / "t", {"tokens": [1], "timestamp": 9}, [2], {"tokens": [3], "timestamp": 1})
    assert [tokens(request) for request in trace.requests] == [[1], [2], [3]]
    assert [request.arrival_s for request in trace.requests] == [None] * 3
    assert trace.notes == [
        "1 of 3 requests have no time, so none is used: they come as they stand in the file"
    ]


def test_milliseconds_are_told(tmp_path: Path) -> None:
    path = tmp_path / "t"
    trace = read(path, *({"tokens": [1], "timestamp": 1_769_860_800_000 + 500 * n} for n in range(3)))
    assert [request.arrival_s for request in trace.requests] == [0, 0.5, 1]
    assert trace.notes == [f"the times of {path} are read in units of 0.001 s"]
