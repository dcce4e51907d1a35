"""How long a sweep will take and how much memory, measured on a slice of the trace."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headstart.lab.replay.costs import PRESET, CostModel
from headstart.lab.replay.outcome import Setting
from headstart.lab.replay.point import replay_point
from headstart.lab.traces.trace import Trace, TraceRequest

_SLICE = 50
"""One part in so many is tried."""
_AT_ONCE = 1_500_000
"""So many symbols, of all points together, take less than a minute with the slowest policy."""
_LONG_S = 60.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of the whole sweep, and bytes of all its processes together, beyond what they start with."""

    seconds: float
    num_bytes: int

    @property
    def is_long(self) -> bool:
        """Whether it should be said before."""
        return self.seconds > _LONG_S

    def __str__(self) -> str:
        time = f"{self.seconds:.0f} s" if self.seconds < 2 * _LONG_S else f"{self.seconds / 60:,.0f} min"
        return (
            f"about {time} and {max(1, self.num_bytes >> 20):,} MiB of memory, going by a slice of the trace"
        )


def estimate(
    trace: Trace, points: Sequence[Setting], jobs: int, costs: CostModel = PRESET
) -> Estimate | None:
    """What the sweep will take; None where it is short, so that trying would only make it longer.

    Each policy and index is tried once on the first requests, with a capacity that is as much smaller.  Time
    and memory grow with what a trace holds.
    """
    total = sum(request.num_symbols for request in trace.requests)
    if total * len(points) < _AT_ONCE:
        return None
    part = replace(trace, requests=_first(trace, total // _SLICE))
    share = total / max(1, sum(request.num_symbols for request in part.requests))
    seconds: dict[Setting, float] = {}
    for point in points:
        kind = replace(point, capacity_blocks=None)
        if kind not in seconds:
            seconds[kind] = replay_point(part, _smaller(point, share), costs=costs).seconds * share
    num_jobs = min(jobs, len(points))
    whole = sum(seconds[replace(point, capacity_blocks=None)] for point in points) / num_jobs
    if whole <= _LONG_S:
        return Estimate(whole, 0)
    return Estimate(whole, int(num_jobs * share * _memory(part, [_smaller(each, share) for each in points])))


def _first(trace: Trace, num_symbols: int) -> list[TraceRequest]:
    requests = []
    for request in trace.requests:
        requests.append(request)
        num_symbols -= request.num_symbols
        if num_symbols <= 0:
            break
    return requests


def _smaller(point: Setting, share: float) -> Setting:
    capacity = point.capacity_blocks
    return replace(point, capacity_blocks=None if capacity is None else max(1, round(capacity / share)))


def _memory(trace: Trace, points: Sequence[Setting]) -> int:
    """The most bytes that a point takes at its peak, the trace itself included."""
    largest = max(points, key=lambda each: (each.capacity_blocks is None, each.capacity_blocks or 0))
    gc.collect()  # what is garbage by now is not this point's
    tracemalloc.start()
    try:
        replay_point(trace, largest)
        own = sum(len(request.symbols) for request in trace.requests)
        return tracemalloc.get_traced_memory()[1] + own
    finally:
        tracemalloc.stop()
