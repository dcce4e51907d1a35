"""What several replicas hit together, each with a pool of its own.

Replicas share nothing.  Traffic that is spread without regard to prefixes has every prefix computed by every
replica, and kept in every pool: hits are diluted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

from headstart.lab.replay.costs import PRESET, CostModel
from headstart.lab.replay.outcome import Outcome, Served, Setting
from headstart.lab.replay.replay import replay
from headstart.lab.replay.routers import make_router
from headstart.lab.replay.scheduled import replay_scheduled
from headstart.lab.traces.trace import Trace, TraceRequest


def route(trace: Trace, setting: Setting, *, seed: int = 0) -> list[int]:
    """Each request's replica."""
    router = make_router(trace, setting, seed=seed)
    return [router.choose(request) for request in trace.requests]


def replay_routed(
    trace: Trace,
    setting: Setting,
    costs: CostModel = PRESET,
    *,
    warmup: int = 0,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
    one_replica: Callable[[Trace, Setting], Outcome] | None = None,
) -> Outcome:
    """What the trace would have hit, spread over ``replicas`` pools of the setting's capacity each.

    Every replica replays its part of the trace as `replay_scheduled` does where ``max_num_seqs`` is set, and
    as `replay` does where it is not, or as ``one_replica`` does.  The first ``warmup`` requests of the whole
    trace do not count.  ``progress`` is told how many requests are done, now and then.  Raises
    ``ConfigError`` for a setting that the trace cannot be replayed with.
    """
    started = perf_counter()
    chosen = route(trace, setting, seed=seed)
    parts: list[Outcome] = []
    served: list[Served] = []
    done = 0
    for replica in range(setting.replicas):
        numbers = [number for number, where in enumerate(chosen) if where == replica]
        part = replace(trace, requests=[_timed(trace, setting, number) for number in numbers])
        if one_replica is not None:
            outcome = one_replica(part, setting)
        else:
            num_first = bisect_left(numbers, warmup)
            outcome = _replay_part(part, setting, costs, num_first, _after(progress, done))
        parts.append(outcome)
        served += [one._replace(number=numbers[one.number], replica=replica) for one in outcome.served]
        done += len(numbers)
    return Outcome(
        setting,
        sorted((one for one in served if one.number >= warmup), key=lambda one: one.number),
        sum(part.num_evicted_blocks for part in parts),
        sum(part.num_preemptions for part in parts),
        sum(part.refused for part in parts),
        perf_counter() - started,
    )


def _replay_part(
    part: Trace, setting: Setting, costs: CostModel, warmup: int, progress: Callable[[int], None] | None
) -> Outcome:
    if setting.max_num_seqs is None:
        return replay(part, setting, warmup=warmup, progress=progress)
    return replay_scheduled(part, setting, costs, warmup=warmup, progress=progress)


def _timed(trace: Trace, setting: Setting, number: int) -> TraceRequest:
    """The request; one after the other, without times, its place in the whole trace is its time."""
    request = trace.requests[number]
    if setting.max_num_seqs is None and request.arrival_s is None:
        return replace(request, arrival_s=float(number))
    return request


def _after(progress: Callable[[int], None] | None, done: int) -> Callable[[int], None] | None:
    return None if progress is None else lambda number: progress(done + number)
