"""The classic examples run as a user runs them, say what docs/classics.md shows, and show what it claims."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "classics.md").read_text()
NAMES = ("classic_policies", "classic_capacity", "classic_rates")


@cache
def output(name: str) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(name: str, part: int = 0) -> dict[str, list[float]]:
    """A table's rows by their first cell; percentages as numbers from 0 to 100."""
    lines = output(name).strip().split("\n\n")[part].splitlines()[1:]
    cells = [re.split(r"\s{2,}", line.strip()) for line in lines]
    return {first: [float(cell.rstrip("%").replace(",", "")) for cell in rest] for first, *rest in cells}


@pytest.mark.parametrize("name", NAMES)
def test_the_page_shows_what_it_prints(name: str) -> None:
    shown = PAGE.split(f"python examples/{name}.py\n```")[1].split("```text\n")[1].split("\n```")[0]
    assert shown.splitlines() == [line.rstrip() for line in output(name).rstrip().splitlines()]


def test_nobody_wins_on_uniform_requests() -> None:
    _, *rates, optimum = rows("classic_policies")["uniform"]
    assert all(abs(rate - 20) < 1 for rate in rates)  # capacity / population; 0.4 is one standard deviation
    assert optimum > 50


def test_half_a_point_on_the_power_law() -> None:
    _, lru, lfu, _, optimum = rows("classic_policies")["power law"]
    assert (lru, lfu) == pytest.approx((98.2, 98.7), abs=0.15)
    assert optimum < 99.5


def test_where_lfu_wins_and_where_it_loses() -> None:
    _, lru, plain, ageing, _ = rows("classic_policies")["zipf, half one-shot"]
    assert plain > lru + 10
    assert plain > ageing > lru
    _, lru, plain, ageing, optimum = rows("classic_policies")["popularity shifts"]
    assert lru == optimum > 90
    assert plain < 25
    assert plain + 50 < ageing < lru


def test_where_lru_falls_off() -> None:
    for ratio, (bound, loop, random, zipf) in rows("classic_capacity").items():
        if float(ratio) <= 1:
            assert bound == loop == random == zipf
        else:
            assert loop == 0
            assert random == pytest.approx(bound / float(ratio), abs=3.5)
            assert random < zipf < bound


def test_what_running_requests_leave() -> None:
    table = rows("classic_capacity", part=1)
    plain = [row[2] for row in table.values()]
    answers_first = [row[3] for row in table.values()]
    assert plain == sorted(plain)  # nothing is lost with plain LRU
    below = [row[3] for row in table.values() if row[0] < 1]
    assert below == sorted(below, reverse=True)
    assert answers_first[0] - plain[0] > 10
    assert len(below) == len(plain) - 1
    assert below[-1] - plain[len(below) - 1] < 6
    assert [row[4] > 0 for row in table.values()] == [row[0] > 1 for row in table.values()]


def test_one_token_rate_and_two_servers() -> None:
    table = rows("classic_rates")
    token, full, some, median = zip(table["repeats"], table["documents"], strict=True)
    assert token == (87.5, 87.5)
    assert full == (87.5, 12.5)
    assert some == full
    assert median == (100, 0)
    assert table["greeting"] == [3.2, 0, 100, 3.2]


@pytest.mark.parametrize("name", NAMES)
def test_help_is_quick_and_says_what_it_is(name: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py"), "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert f"python examples/{name}.py" in done.stdout
