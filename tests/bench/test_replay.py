"""The benchmark of replays: what it measures, and what it says of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from rich.progress import Progress

from bench.replay import Figure, best, figure, markdown


def test_the_best_of_some_runs() -> None:
    runs: list[int] = []
    seconds, last = best(3, lambda: runs.append(len(runs)) or len(runs))
    assert (len(runs), last) == (3, 3)
    assert seconds >= 0


def test_a_trace_gives_times_and_memory_that_grows_with_its_blocks(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [
        {
            "timestamp": at,
            "input_length": 4 * 512,
            "output_length": 1,
            "hash_ids": [0, *range(3 * at, 3 * at + 3)],
        }
        for at in range(1, 401)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = figure(path, capacity=50, repeats=1, progress=Progress(disable=True))
    assert (found.trace, found.num_requests) == ("trace", 400)
    assert list(found.memory) == [301, 601, 1201]
    sizes = list(found.memory.values())
    assert sizes == sorted(sizes)


def test_the_figures_in_a_document() -> None:
    one = Figure("t", 1200, 64, 0.1, 0.2, 0.3, 0.4, {100: 2**20, 200: 2**21})
    assert one.bytes_per_block == [2**20 / 100, 2**21 / 200]
    text = markdown([one], 3, datetime(2026, 12, 1, tzinfo=UTC))
    assert "| t | 1,200 | 64 | 0.10 | 0.20 | 0.30 | 0.40 |" in text
    assert "| t | 200 | 2.0 | 10,486 |" in text
