"""The benchmark of estimates: what it reads, and what it counts as an error."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
import typer
from rich.progress import Progress

from bench.whatif import Figure, figures, markdown, read_prompts, replay
from headstart.cache import CacheRequest


def trace(path: Path, prompts: list[list[int]]) -> Path:
    path.write_text("".join(json.dumps({"timestamp": 0, "hash_ids": prompt}) + "\n" for prompt in prompts))
    return path


def test_ids_become_tokens(tmp_path: Path) -> None:
    prompts = read_prompts(trace(tmp_path / "t.jsonl", [[5, 6], [], [5, 7]]))
    assert [CacheRequest("r", prompt).token_ids() for prompt in prompts] == [[5, 6], [5, 7]]


@pytest.mark.parametrize("text", ["", "no JSON\n", "[1]\n", '{"hash_ids": ["x"]}\n', '{"hash_ids": []}\n'])
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    with pytest.raises(typer.BadParameter, match=r"t\.jsonl"):
        read_prompts(path)


def test_a_prompt_that_does_not_fit_hits_nothing_and_counts() -> None:
    prompts = [CacheRequest("r", ids).run(0, len(ids)) for ids in ([1, 2], [1, 3], [1, 2, 3, 4, 5])]
    assert replay(prompts, num_blocks=4) == pytest.approx(100 * 1 / 9)


def test_a_trace_gives_a_figure_for_each_share(tmp_path: Path) -> None:
    path = trace(tmp_path / "t.jsonl", [[number % 20, 1000 + number] for number in range(100)])
    with Progress(disable=True) as progress:
        found = figures(path, 2, progress)
    assert [(each.share, each.num_blocks) for each in found] == [(2, 2), (5, 6), (10, 12), (20, 24)]
    assert found[-1].exact == pytest.approx([0, 0, 40, 40])  # 20 other prompts of two blocks come in between
    assert [len(each.estimates) for each in found] == [2] * 4
    assert max(error for each in found for error in each.errors()) == pytest.approx(0)  # all in the sample


def test_errors_leave_out_what_is_measured() -> None:
    figure = Figure("t", 5, 10, [10.0, 20.0, 30.0, 40.0], [[11.0, 0.0, 30.5, 37.0]])
    assert figure.errors() == [1.0, 0.5, 3.0]
    text = markdown([figure], figure.errors(), 1, datetime(2026, 12, 1, tzinfo=UTC))
    assert "| t, 5 % | 10 | 11.0 (10.0) | 0.0 (20.0) | 30.5 (30.0) | 37.0 (40.0) | 3.00 |" in text
    assert "mean 1.50 points (goal: 1.5), worst 3.00 (goal: 3)" in text
