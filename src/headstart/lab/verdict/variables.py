"""The variables that decide whether prefix caching pays, each with its limits and a word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf, isinf
from statistics import median
from typing import Any

from headstart.lab.replay.outcome import Setting
from headstart.lab.replay.residence import residence
from headstart.lab.traces.paths import Paths
from headstart.lab.traces.trace import Trace


class Word(StrEnum):
    """What a variable, or all of them, come to."""

    GOOD = "good"
    MARGINAL = "marginal"
    BAD = "bad"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Limits:
    """From where a variable is good, and from where it is marginal; what is beyond both is bad."""

    good: float
    marginal: float

    @property
    def more_is_better(self) -> bool:
        """Whether it is; else less is."""
        return self.good > self.marginal

    def word(self, value: float | None) -> Word:
        """The value's."""
        if value is None:
            return Word.UNKNOWN
        sign = 1 if self.more_is_better else -1
        if sign * value >= sign * self.good:
            return Word.GOOD
        return Word.MARGINAL if sign * value >= sign * self.marginal else Word.BAD


SHARED_REQUESTS = Limits(good=0.5, marginal=0.2)
SHARED_TOKENS = Limits(good=0.3, marginal=0.1)
PREFIX_BLOCKS = Limits(good=4.0, marginal=1.0)
PRESSURE = Limits(good=1.0, marginal=3.0)
GAP = Limits(good=0.5, marginal=1.0)


@dataclass(frozen=True, slots=True)
class Variable:
    """One of them: ``value`` is what the limits judge, None where it cannot be told.

    ``what`` says in words what is judged, and ``shown`` what the value is made of.  ``is_share`` is for
    values that read as percentages.  ``problem`` says what is wrong where the word is not good.
    """

    name: str
    what: str
    value: float | None
    limits: Limits
    shown: str
    problem: str
    is_share: bool = False

    @property
    def word(self) -> Word:
        """Good, marginal, bad, or unknown."""
        return self.limits.word(self.value)

    @property
    def figure(self) -> str:
        """The value, as a table shows it."""
        if self.value is None:
            return "?"
        if isinf(self.value):
            return "∞"
        return f"{self.value:.1%}" if self.is_share else f"{self.value:,.2f}"

    def limit(self, value: float) -> str:
        """One of the limits, as a table shows it."""
        sign = "≥" if self.limits.more_is_better else "≤"
        return f"{sign} {value:.0%}" if self.is_share else f"{sign} {value:g}"

    def fields(self) -> dict[str, Any]:
        """In JSON's types; a value beyond all numbers is null, and its word bad."""
        value = None if self.value is None or isinf(self.value) else self.value
        limits = {"good": self.limits.good, "marginal": self.limits.marginal}
        return {"name": self.name, "value": value, **limits, "word": self.word, "shown": self.shown}


def variables_of(
    trace: Trace, setting: Setting, paths: Paths, shared: Sequence[int], num_unique: int
) -> list[Variable]:
    """All of them.  ``shared`` is how many tokens of each prompt an earlier one begins with.

    ``num_unique`` is U, the blocks that must be computed once, as `bounds_of` counts them for a replay.
    """
    size = setting.block_size
    counted = [found - found % size for found in shared] if setting.prefix_index == "hash" else shared
    return [
        _shared_requests(shared, size),
        _shared_tokens(counted, trace.num_prompt_tokens),
        _prefix_length(shared, size),
        _pressure(paths, setting.capacity_blocks, num_unique),
        _reuse_gap(trace, paths, setting.capacity_blocks),
    ]


def _shared_requests(shared: Sequence[int], size: int) -> Variable:
    number = sum(found >= size for found in shared)
    return Variable(
        "shared_requests",
        "requests with a shared prefix",
        number / len(shared),
        SHARED_REQUESTS,
        f"{number:,} of {len(shared):,} begin like an earlier one, for a block ({size:,} tokens) or more",
        "few requests begin like an earlier one",
        is_share=True,
    )


def _shared_tokens(shared: Sequence[int], num_tokens: int) -> Variable:
    return Variable(
        "shared_tokens",
        "tokens in shared prefixes",
        sum(shared) / num_tokens if num_tokens else 0.0,
        SHARED_TOKENS,
        f"{sum(shared):,} of {num_tokens:,}: the most that any pool hits",
        "little of the prompts is shared with earlier ones",
        is_share=True,
    )


def _prefix_length(shared: Sequence[int], size: int) -> Variable:
    some = [found for found in shared if found]
    length = median(some) if some else 0
    problem = "shared prefixes are shorter than a block" if length < size else "shared prefixes are short"
    return Variable(
        "prefix_length",
        "length of a shared prefix / block size",
        length / size,
        PREFIX_BLOCKS,
        f"{length:,.0f} tokens in the median, and {size:,} in a block",
        problem if some else "no prompt begins like an earlier one",
    )


def _pressure(paths: Paths, capacity: int | None, num_unique: int) -> Variable:
    reused = paths.num_reused
    shown = f"{reused:,} of {paths.num_unique:,} different blocks come back"
    if capacity is not None:
        shown += f"; the pool has {capacity:,} (U/C {num_unique / capacity:,.2f})"
    return Variable(
        "pressure",
        "shared prefixes' blocks / capacity",
        None if capacity is None else reused / capacity,
        PRESSURE,
        f"{shown}{_ASKS if capacity is None else ''}",
        "the prefixes that come back do not fit into the pool",
    )


def _reuse_gap(trace: Trace, paths: Paths, capacity: int | None) -> Variable:
    times = [request.arrival_s for request in trace.requests if request.arrival_s is not None]
    timed = len(times) == len(trace.requests) and times[-1] > times[0]
    held = residence(paths, capacity, times if timed else range(len(trace.requests)))

    gap, stay = (held.reuse_gap, held.stay) if timed else (held.reuse_gap_blocks, held.stay_blocks)

    def words(amount: float) -> str:
        return f"{amount:,.1f} s" if timed else f"{amount:,.0f} blocks taken"

    value: float | None
    if gap is None:
        value, shown = inf, "nothing comes back"
    else:
        shown = f"a block comes back after {words(gap)}"
        if capacity is None:
            value, shown = None, f"{shown}{_ASKS}"
        elif stay is None:
            value, shown = 0.0, f"{shown}, and none is evicted"
        else:
            value = gap / stay if stay else inf
            shown = f"{shown}; unused it stays for {words(stay)} (medians)"
    return Variable(
        "reuse_gap",
        "reuse gap / residence time",
        value,
        GAP,
        shown,
        "prefixes come back later than the pool can keep them",
    )


_ASKS = "; --capacity lets it be judged"
