from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from bench.timing_attack import (
    SETTINGS,
    WARMUP,
    Finding,
    Try,
    auc,
    interval,
    markdown,
    plan,
    rank_correlation,
)


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.timing_attack.RESAMPLES", 300)


def tries(setting: str, right_ms: float, wrong_ms: float, count: int = 300) -> list[Try]:
    """Normal noise of 5 ms about the two, and of 5 ms about 100 for the victim."""
    rng = np.random.default_rng(3)
    made = []
    for number in range(2 * count):
        right = number % 2 == 0
        mean = right_ms if right else wrong_ms
        made.append(Try(setting, right, rng.normal(mean, 5) / 1000, rng.normal(100, 5) / 1000, 0))  # type: ignore[arg-type]
    return made


def test_the_auc_counts_pairs() -> None:
    assert auc([1, 2], [3, 4]) == 1.0
    assert auc([3, 4], [1, 2]) == 0.0
    assert auc([1, 1], [1, 1]) == 0.5
    rng = random.Random(1)
    faster, slower = ([rng.randrange(9) for _ in range(count)] for count in (13, 17))
    pairs = [(a < b) + (a == b) / 2 for a in faster for b in slower]
    assert auc(faster, slower) == pytest.approx(sum(pairs) / len(pairs))


def test_the_interval_holds_the_auc_and_shrinks_with_the_number_of_tries() -> None:
    def width(count: int) -> float:
        rng = np.random.default_rng(2)
        right, wrong = rng.normal(0, 1, count), rng.normal(0, 1, count)
        low, high = interval(list(right), list(wrong), seed=1)
        assert low < auc(list(right), list(wrong)) < high
        return high - low

    assert 0.07 < width(300) < 0.12  # 2 * 1.96 * sqrt((2n + 1) / 12n²) is 0.092
    assert width(1200) < width(300)


def test_values_that_rise_with_the_tries_are_seen() -> None:
    assert rank_correlation([1.0, 2.0, 3.0, 9.0]) == pytest.approx(1.0)
    assert rank_correlation([4.0, 3.0, 2.0, 1.0]) == pytest.approx(-1.0)


def test_what_tells_nothing_is_within_the_goal_and_what_tells_is_not() -> None:
    silent = Finding.of("isolated", tries("isolated", 100, 100), seed=0)
    assert silent.reached
    assert not Finding.of("isolated", tries("isolated", 97, 100), seed=0).reached
    assert not Finding.of("isolated", tries("isolated", 103, 100), seed=0).reached  # slower tells, too
    assert Finding.of("shared", tries("shared", 20, 100), seed=0).reached
    assert not Finding.of("shared", tries("shared", 100, 100), seed=0).reached
    assert 0.45 < silent.control < 0.55
    assert (silent.num_right, silent.num_wrong) == (300, 300)


def test_only_tries_of_the_setting_count() -> None:
    mixed = [*tries("isolated", 100, 100), *tries("shared", 20, 100)]
    assert Finding.of("isolated", mixed, seed=0) == Finding.of("isolated", mixed[:600], seed=0)
    table = markdown([Finding.of(setting, mixed, seed=0) for setting in SETTINGS], "Measured here.")
    assert [line.split("|")[1].strip() for line in table.splitlines()[2:4]] == list(SETTINGS)
    assert table.endswith("\n\nMeasured here.")


def test_all_kinds_are_tried_equally_often_in_random_order() -> None:
    kinds = plan(50, random.Random(1))
    assert set(Counter(kinds[WARMUP:]).values()) == {50}
    assert len(set(Counter(kinds[WARMUP:]))) == 4
    places = [place for place, kind in enumerate(kinds) if kind == ("isolated", True)]
    assert 80 < sum(places) / len(places) < 130
