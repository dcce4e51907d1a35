"""How long until a block is used again, and how long a pool keeps one that nobody uses."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from headstart.lab.traces.paths import Paths


@dataclass(frozen=True, slots=True)
class Residence:
    """Medians over blocks, in the unit of the clock that `residence` was given.

    ``reuse_gap`` is from one use of a block to the next, whether it was still there or not; None if no block
    came back.  ``stay`` is from a block's last use to its eviction; None if none was evicted.
    ``reuse_gap_blocks`` and ``stay_blocks`` are the same in blocks taken from the pool meanwhile.
    """

    reuse_gap: float | None
    stay: float | None
    reuse_gap_blocks: float | None
    stay_blocks: float | None
    num_evicted: int


def residence(paths: Paths, capacity_blocks: int | None, clock: Sequence[float]) -> Residence:
    """Plays the requests through an LRU pool, one after the other; ``clock`` has each one's time.

    A prompt's blocks are let go last one first.  O(1) a block.
    """
    resident: OrderedDict[int, None] = OrderedDict()  # the oldest first
    last_use: dict[int, tuple[float, int]] = {}
    gaps: list[tuple[float, int]] = []
    stays: list[tuple[float, int]] = []
    taken = 0
    for now, blocks in zip(clock, paths.slots, strict=True):
        gaps += [_since(last_use[number], now, taken) for number in blocks if number in last_use]
        for number in reversed(blocks):
            if number not in resident:
                taken += 1
                resident[number] = None
            else:
                resident.move_to_end(number)
        for number in blocks:
            last_use[number] = (now, taken)
        while capacity_blocks is not None and len(resident) > capacity_blocks:
            gone, _ = resident.popitem(last=False)
            stays.append(_since(last_use[gone], now, taken))
    return Residence(
        reuse_gap=median(gap for gap, _ in gaps) if gaps else None,
        stay=median(stay for stay, _ in stays) if stays else None,
        reuse_gap_blocks=median(gap for _, gap in gaps) if gaps else None,
        stay_blocks=median(stay for _, stay in stays) if stays else None,
        num_evicted=len(stays),
    )


def _since(then: tuple[float, int], now: float, taken: int) -> tuple[float, int]:
    return now - then[0], taken - then[1]
