"""Bins, buckets and quantiles of outcomes made by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.cache.reasons import MissReason
from headstart.lab.replay.analysis import (
    Result,
    baseline_of,
    by_prompt_length,
    capacity_series,
    histogram,
    over_time,
)
from headstart.lab.replay.outcome import OPTIMAL, Outcome, Served, Setting
from tests.replayed import outcome_of, trace_of


def results_of(*settings: Setting) -> list[Result]:
    return [Result.of(Outcome(setting, [Served(0, 10, 5, 9, {})])) for setting in settings]


def chosen(*settings: Setting) -> Setting | None:
    found = baseline_of(results_of(*settings))
    return None if found is None else found.setting


def test_the_baseline_is_lru_at_the_middle_capacity() -> None:
    sweep = [Setting(p, "hash", 16, c) for p in (OPTIMAL, "lfu", "lru") for c in (400, 100, 200, None)]
    assert chosen(*sweep) == Setting("lru", "hash", 16, 200)
    assert chosen(*sweep[:8]) == Setting("lfu", "hash", 16, 200)
    assert chosen(*sweep[:4]) is None
    assert chosen(Setting(), Setting(prefix_index="hash", capacity_blocks=5)) == Setting()
    assert chosen() is None


def test_series_have_a_rate_for_each_capacity_in_order() -> None:
    outcomes = [outcome_of((100, hit), capacity=blocks) for hit, blocks in ((30, 64), (10, 16), (40, None))]
    outcomes.append(outcome_of((100, 20), capacity=16, policy="lfu"))
    lru, lfu = capacity_series([Result.of(one) for one in outcomes])
    assert (lru.capacities, lru.rates, lru.unbounded) == ([16, 64], [0.1, 0.3], 0.4)
    assert (lfu.setting.policy, lfu.capacities, lfu.rates, lfu.unbounded) == ("lfu", [16], [0.2], None)


def test_time_bins_hold_equally_many_requests_in_order() -> None:
    trace = trace_of([[1] * 10] * 7)
    outcome = outcome_of(*[(10, number) for number in range(7)], misses={MissReason.COLD: 3})
    outcome.served.reverse()  # replicas end in any order
    bins = over_time(outcome, trace, most_bins=3)
    assert [(one.first, one.last) for one in bins] == [(0, 2), (3, 5), (6, 6)]
    assert [(one.start_s, one.end_s) for one in bins] == [(0, 2), (3, 5), (6, 6)]
    assert [one.num_hit_tokens for one in bins] == [3, 12, 6]
    assert bins[0].hit_share == pytest.approx(0.1)
    assert bins[0].miss_share(MissReason.COLD) == pytest.approx(0.3)
    assert bins[0].miss_share(MissReason.EVICTED) == 0
    assert over_time(outcome_of(), trace) == []


def test_prompt_lengths_double() -> None:
    outcome = outcome_of((5, 4), (9, 0), (12, 6), (15, 15), (100, 50), (0, 0))
    short, middle, long = by_prompt_length(outcome.served)
    assert [(one.low, one.high, one.num_requests) for one in (short, middle, long)] == [
        *((4, 8, 1), (8, 16, 3), (64, 128, 1)),
    ]
    assert middle.token_rate == pytest.approx(21 / 36)
    assert middle.quantiles == pytest.approx((0.1, 0.25, 0.5, 0.75, 0.9))
    assert middle.full_hit_rate == pytest.approx(1 / 3)
    assert by_prompt_length(outcome_of((0, 0)).served) == []


def test_the_shortest_prompts_share_a_bucket_when_there_are_too_many() -> None:
    served = outcome_of(*[(1 << power, 0) for power in range(12)]).served
    buckets = by_prompt_length(served, most_buckets=10)
    assert len(buckets) == 10
    assert (buckets[0].low, buckets[0].high, buckets[0].num_requests) == (1, 8, 3)


@given(st.lists(st.integers(0, 10**6), max_size=50), st.sampled_from([1, 16, 512]))
def test_a_histogram_counts_everything_once(values: list[int], smallest: int) -> None:
    bins = histogram(np.array(values, np.int64), smallest)
    assert bins.total == len(values)
    assert bins.num_zero == values.count(0)
    assert len(bins.edges) == len(bins.counts) + 1
    for place, (low, high) in enumerate(zip(bins.edges, bins.edges[1:], strict=False)):
        lowest = 1 if place == 0 else low
        assert bins.counts[place] == sum(lowest <= value < high for value in values)
