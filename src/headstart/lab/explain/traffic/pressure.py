"""A pool that is too small: what eviction costs, and how large the pool would have to be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from typing import NamedTuple

from headstart.lab.explain.finding import Candidate, FindingKind
from headstart.lab.explain.traffic.case import Case
from headstart.lab.replay.outcome import Setting
from headstart.lab.traces.paths import Paths, number_blocks, stack_distances

WON_BACK = 0.9
"""The share of what eviction costs that a larger pool is to win back."""
_STEP = 1.1
_TRIES = 4
"""Of pools smaller than one that is enough: each is a whole replay."""


def find_eviction_pressure(case: Case) -> Iterator[Candidate]:
    """What an unbounded pool would hit beyond this one, and the smallest pool that hits most of it.

    LRU's stack distances say where to look for that pool; replays with the setting itself decide.
    """
    capacity = case.setting.capacity_blocks
    if capacity is None:
        return
    unbounded = case.gain(replace(case.setting, capacity_blocks=None))
    if not case.is_worth(unbounded.num_tokens):
        return
    paths = number_blocks(case.trace, case.block_symbols)
    needed = _enough(case, capacity, paths, unbounded.num_tokens)
    num_unique = paths.num_unique
    each = " on each replica" if case.setting.replicas > 1 else ""
    what = (
        f"eviction costs {unbounded.num_tokens:,} tokens ({case.share(unbounded.num_tokens)} of all): the "
        f"prompts have {num_unique:,} different blocks, {num_unique / capacity:.1f} times the capacity of "
        f"{case.pool(capacity)}{each}; {paths.num_reused:,} of them come back"
    )
    fix = (
        f"{case.pool(needed.num_blocks)}{each}, {needed.num_blocks / capacity:.1f} times the capacity, would "
        f"win back {needed.share:.0%} of it: more memory for KV, a smaller KV type, or fewer other prompts."
    )
    yield case.candidate(
        FindingKind.EVICTION_PRESSURE,
        what,
        fix,
        unbounded,
        setting=replace(case.setting, capacity_blocks=needed.num_blocks),
    )


class _Pool(NamedTuple):
    """A capacity, and the share of the loss that it wins back."""

    num_blocks: int
    share: float


def _enough(case: Case, capacity: int, paths: Paths, lost: int) -> _Pool:
    """The smallest pool tried that wins back enough: up from the guess until one does, then down again."""

    def tried(num_blocks: int) -> _Pool:
        larger = replace(case.setting, capacity_blocks=num_blocks)
        return _Pool(num_blocks, case.gain(larger).num_tokens / lost)

    largest = max(capacity + 1, paths.num_slots)
    pool = tried(min(largest, max(capacity + 1, _guess(case.setting, capacity, paths))))
    while pool.share < WON_BACK and pool.num_blocks < largest:
        pool = tried(min(largest, ceil(pool.num_blocks * _STEP)))
    for _ in range(_TRIES):
        smaller = int(pool.num_blocks / _STEP)
        if smaller <= capacity or (next_pool := tried(smaller)).share < WON_BACK:
            break
        pool = next_pool
    return pool


def _guess(setting: Setting, capacity: int, paths: Paths) -> int:
    """The capacity that would win back enough under LRU, one request after the other."""
    depths: list[int] = []
    for blocks, found in zip(paths.requests, stack_distances(paths.slots), strict=True):
        depths += [depth for depth in found[: len(blocks)] if depth is not None]
    depths.sort()
    missed = [depth for depth in depths if depth > capacity * setting.replicas]
    if not missed:
        return capacity
    return ceil(missed[ceil(WON_BACK * len(missed)) - 1] / setting.replicas)
