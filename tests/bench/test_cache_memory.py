from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from bench import cache_memory
from bench.cache_memory import NUM_BLOCKS, STRETCHES, Figures, distinct_prompt


def test_growth_is_the_furthest_from_the_first_part() -> None:
    assert Figures("radix", [100.0, 104.0, 94.0, 101.0]).growth == pytest.approx(-0.06)
    assert [Figures("radix", [100.0, mib]).reached for mib in (94.9, 95.1, 104.9, 105.1)] == [
        False,
        True,
        True,
        False,
    ]


def test_no_two_prompts_are_equal_and_a_tenth_is_salted() -> None:
    chance = random.Random(0)
    prompts = [distinct_prompt(number, chance) for number in (*range(200), *range(50_000, 50_200))]
    assert len({prompt.run(0, 2) for prompt in prompts}) == 400
    assert {40 <= prompt.num_tokens <= 100 for prompt in prompts} == {True}
    assert sum(prompt.namespace.salt is not None for prompt in prompts) == 40


def test_a_short_run_writes_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "bench").mkdir()
    page = tmp_path / "docs" / "benchmarks.md"
    page.write_text("before\n<!-- bench:cache-memory -->\n<!-- /bench -->\nafter\n")
    monkeypatch.setattr(cache_memory, "ROOT", tmp_path)
    app = typer.Typer()
    app.command()(cache_memory.main)
    done = CliRunner().invoke(app, ["--prompts", "2000", "--write"])
    results = json.loads((tmp_path / "bench" / "results" / "cache_memory.json").read_text())
    assert [each["index"] for each in results["figures"]] == ["radix", "hash"]
    assert [len(each["stretches_mib"]) for each in results["figures"]] == [STRETCHES] * 2
    assert done.exit_code == (0 if results["goal"]["reached"] else 1)
    assert f"{NUM_BLOCKS:,} blocks" in page.read_text()
    assert f"| up to {2000:,} prompts |" in page.read_text()
