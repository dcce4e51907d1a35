"""What the charts of a report show, computed from a replay's outcomes: bins and quantiles, no raw points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headstart.cache.reasons import MissReason
from headstart.lab.replay.outcome import OPTIMAL, Outcome, Rates, Served, Setting, sum_misses
from headstart.lab.replay.wording import series_of
from headstart.lab.traces.trace import Trace


@dataclass(frozen=True, slots=True)
class Result:
    """An outcome with its sums, which are made once: there are many requests."""

    outcome: Outcome
    setting: Setting
    rates: Rates
    misses: dict[MissReason, int]

    @classmethod
    def of(cls, outcome: Outcome) -> Result:
        """Of this outcome."""
        return cls(outcome, outcome.setting, outcome.rates, outcome.misses)


def baseline_of(results: Sequence[Result]) -> Result | None:
    """The result that stands for the present state, where nobody says which.

    LRU if it was tried, the first index, block size and routing of the sweep, and of its capacities the one
    in the middle.  None where there is nothing but the optimum.
    """
    real = [one for one in results if one.setting.policy != OPTIMAL]
    if not real:
        return None
    first = next((one for one in real if one.setting.policy == "lru"), real[0])
    alike = [one for one in real if series_of(one.setting) == series_of(first.setting)]
    limited = [one for one in alike if one.setting.capacity_blocks is not None]
    if not limited:
        return first
    limited.sort(key=lambda one: one.setting.capacity_blocks or 0)
    return limited[(len(limited) - 1) // 2]


@dataclass(frozen=True, slots=True)
class Series:
    """One line of the capacity curve: a setting without its capacity, and a rate for each capacity."""

    setting: Setting
    capacities: list[int]
    rates: list[float]
    unbounded: float | None = None


def capacity_series(results: Sequence[Result]) -> list[Series]:
    """Token rates by capacity, in the order in which the settings appear."""
    found: dict[Setting, dict[int | None, float]] = {}
    for one in results:
        line = found.setdefault(series_of(one.setting), {})
        line[one.setting.capacity_blocks] = one.rates.token_hit_rate
    series = []
    for setting, line in found.items():
        limited = sorted((blocks, rate) for blocks, rate in line.items() if blocks is not None)
        series.append(
            Series(setting, [blocks for blocks, _ in limited], [rate for _, rate in limited], line.get(None))
        )
    return series


@dataclass(frozen=True, slots=True)
class TimeBin:
    """Requests in a row: the first and last one's number in the trace, and when they came, if that is known.

    ``misses`` are tokens.
    """

    first: int
    last: int
    start_s: float | None
    end_s: float | None
    num_prompt_tokens: int
    num_hit_tokens: int
    misses: dict[MissReason, int]

    @property
    def hit_share(self) -> float:
        """Of the prompt tokens."""
        return self.num_hit_tokens / self.num_prompt_tokens if self.num_prompt_tokens else 0.0

    def miss_share(self, reason: MissReason) -> float:
        """Of the prompt tokens."""
        missed = self.misses.get(reason, 0)
        return missed / self.num_prompt_tokens if self.num_prompt_tokens else 0.0


def over_time(outcome: Outcome, trace: Trace, most_bins: int = 60) -> list[TimeBin]:
    """Hits and misses in the order of the trace, in bins of equally many requests (but for the last one)."""
    served = sorted(outcome.served, key=lambda one: one.number)
    size = max(1, -(-len(served) // most_bins))
    return [_time_bin(served[start : start + size], trace) for start in range(0, len(served), size)]


def _time_bin(served: Sequence[Served], trace: Trace) -> TimeBin:
    first, last = served[0].number, served[-1].number
    return TimeBin(
        first,
        last,
        trace.requests[first].arrival_s,
        trace.requests[last].arrival_s,
        sum(one.num_prompt_tokens for one in served),
        sum(one.num_hit_tokens for one in served),
        sum_misses(one.misses for one in served),
    )


@dataclass(frozen=True, slots=True)
class LengthBucket:
    """Requests whose prompts have ``low`` to ``high`` tokens (exclusive).

    ``quantiles`` are the 10th, 25th, 50th, 75th and 90th percentile of the share of a prompt that was hit,
    each request counting once; ``token_rate`` counts each token once.
    """

    low: int
    high: int
    num_requests: int
    num_prompt_tokens: int
    token_rate: float
    full_hit_rate: float
    quantiles: tuple[float, ...]


def by_prompt_length(served: Sequence[Served], most_buckets: int = 10) -> list[LengthBucket]:
    """Hit shares by prompt length, in buckets whose ends are powers of two.

    What is shorter than the longest ``most_buckets`` powers goes into the first bucket.  Prompts without
    tokens are left out.
    """
    powers = [one.num_prompt_tokens.bit_length() - 1 for one in served if one.num_prompt_tokens]
    if not powers:
        return []
    lowest = max(min(powers), max(powers) - most_buckets + 1)
    buckets = []
    for power in range(lowest, max(powers) + 1):
        low = 1 << (power if power > lowest else min(powers))
        inside = [one for one in served if low <= one.num_prompt_tokens < 2 << power]
        if inside:
            buckets.append(_bucket(low, 2 << power, inside))
    return buckets


def _bucket(low: int, high: int, served: Sequence[Served]) -> LengthBucket:
    tokens = sum(one.num_prompt_tokens for one in served)
    shares = hit_shares(served)
    return LengthBucket(
        low,
        high,
        len(served),
        tokens,
        sum(one.num_hit_tokens for one in served) / tokens,
        sum(one.is_full_hit for one in served) / len(served),
        tuple(float(value) for value in np.percentile(shares, [10, 25, 50, 75, 90])),
    )


def hit_shares(served: Sequence[Served]) -> list[float]:
    """Each request's share of hit tokens; prompts without tokens are left out."""
    return [one.num_hit_tokens / one.num_prompt_tokens for one in served if one.num_prompt_tokens]


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts between ``edges`` (one more than counts; the upper one is exclusive), and how many are zero."""

    edges: list[int]
    counts: list[int]
    num_zero: int

    @property
    def total(self) -> int:
        """All that was counted."""
        return sum(self.counts) + self.num_zero


def histogram(values: npt.NDArray[np.int64], smallest: int = 1) -> Histogram:
    """Of whole numbers from 0, in bins that double: ``smallest`` to twice that, and so on.

    Numbers from 1 to below ``smallest`` go into the first bin.
    """
    positive = values[values > 0]
    if not len(positive):
        return Histogram([smallest], [], len(values))
    edges = [smallest]
    while edges[-1] <= max(smallest, int(positive.max())):
        edges.append(edges[-1] * 2)
    counts, _ = np.histogram(np.maximum(positive, smallest), bins=edges)
    return Histogram(edges, counts.tolist(), int(np.sum(values == 0)))
