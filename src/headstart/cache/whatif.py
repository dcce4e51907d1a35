"""What the prefix cache would hit with another capacity, estimated while it runs, under LRU.

LRU keeps what was used last: a cache of C blocks holds the C blocks on top of one stack, whatever C is.  So
one look at a block's place in that stack, before its use moves it to the top, says for every capacity at
once whether the block would be a hit (Mattson et al., 1970).  The stack has two bounds here.  It ends at four
times the capacity; and only a sample of blocks stands in it, chosen by a hash of their content and of all
that precedes it, so that a block is always in the sample or never, and a place in the sample stands for
1 / rate places (SHARDS: Waldspurger et al., FAST 2015).

A block is a hit only together with all blocks before it in its prompt.  They need no second look: a prompt's
blocks leave the cache last block first, so the ones before it stand higher in the stack than a block itself.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from xxhash import xxh3_64_intdigest

from headstart.cache.keys import CacheRequest, Namespace
from headstart.cache.tokens import TOKEN_BYTES

CAPACITIES = (0.5, 1.0, 2.0, 4.0)
"""For which multiples of the capacity there is an estimate, ascending."""
SAMPLE_SIZE = 2048
"""The most blocks in the sample: a quarter of a megabyte.  Of a pool a quarter as large it has all blocks."""
WINDOW = 1000
"""Over how many requests the rates are taken (the mean age of a request in them), as vLLM's log does."""

_LABELS = 1 << 64


class LruStack:
    """Labels, the last touched on top, in segments that end at the given ranks; deeper ones are forgotten.

    ``bounds`` are ranks from the top, ascending.  O(bounds) for each call.
    """

    def __init__(self, bounds: Sequence[int]) -> None:
        self._sizes = [deeper - bound for bound, deeper in pairwise((0, *bounds))]
        self._segments: list[OrderedDict[int, None]] = [OrderedDict() for _ in bounds]  # oldest first

    def segment_of(self, label: int) -> int:
        """In which segment the label stands; their number if in none."""
        for number, segment in enumerate(self._segments):
            if label in segment:
                return number
        return len(self._segments)

    def touch(self, labels: Iterable[int]) -> None:
        """Put each label on top, the last one topmost."""
        top = self._segments[0]
        for label in labels:
            if label in top:
                top.move_to_end(label)
            else:
                self._lift(label)

    def _lift(self, label: int) -> None:
        number = self.segment_of(label)
        if number < len(self._segments):
            del self._segments[number][label]
        for segment, size in zip(self._segments, self._sizes, strict=True):
            segment[label] = None
            if len(segment) <= size:  # always so where the label came from
                return
            label, _ = segment.popitem(last=False)

    def clear(self) -> None:
        """Forget all labels."""
        for segment in self._segments:
            segment.clear()


@dataclass(frozen=True, slots=True)
class _Sampled:
    """A block of the sample, the nearest one before it on its path, and how many there are with itself."""

    label: int
    above: _Sampled | None
    count: int

    def path(self) -> Iterator[int]:
        """The labels on its path, the last block's first."""
        step: _Sampled | None = self
        while step is not None:
            yield step.label
            step = step.above


@dataclass(slots=True)
class _Running:
    """A request that holds blocks: the deepest sampled one, and how many of its prompt's could be a hit."""

    deepest: _Sampled | None = None
    num_readable_blocks: int = 0


@dataclass(slots=True)
class _Sums:
    """What the rates are made of: tokens, weighted by their age.

    ``found`` counts sampled blocks that were looked up, by the segment of the stack they were in.
    """

    queries: float = 0.0
    hits: float = 0.0
    found: list[float] = field(default_factory=lambda: [0.0] * (len(CAPACITIES) + 1))

    def age(self, kept: float) -> None:
        self.queries *= kept
        self.hits *= kept
        self.found = [count * kept for count in self.found]


class WhatIf:
    """Follows a `KVCacheManager` as a `Listener`, and is told by it of what the requests do.

    ``num_blocks`` and ``block_size`` are those of the cache.  ``window`` is the mean age, in requests, of
    what the rates are taken over; None is everything since the start.  ``sample_size`` bounds the memory
    and the error.  It decides nothing.

    Not modelled: that blocks of running requests cannot be evicted, the room that partly filled blocks and
    second copies take, partial hits that only another capacity would have, and what requests that skip
    writing would hit there.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        window: int | None = WINDOW,
        sample_size: int = SAMPLE_SIZE,
        seed: int = 0,
    ) -> None:
        self._block_size = block_size
        self._rate = min(1.0, sample_size / (CAPACITIES[-1] * num_blocks))
        self._below = int(self._rate * _LABELS)  # labels below it are the sample
        self._kept = 1.0 if window is None else 1.0 - 1.0 / window
        self._seed = seed
        self._stack = LruStack([self._sampled_rank(int(times * num_blocks)) for times in CAPACITIES])
        self._sums = _Sums()
        self._labels = array("Q", bytes(8 * num_blocks))  # by block id; of findable blocks
        self._nearest: list[_Sampled | None] = [
            None
        ] * num_blocks  # the block itself or the nearest before it
        self._running: dict[str, _Running] = {}
        self._fresh: dict[str, list[tuple[int, _Sampled]]] = {}  # stored in the step that commits just now

    def _sampled_rank(self, num_blocks: int) -> int:
        """The lowest place in the sample that a cache of so many blocks is expected to keep."""
        return int((num_blocks - 1) * self._rate) + 1 if num_blocks else 0

    def rates(self) -> dict[str, float]:
        """The token hit rate, 0 to 1, at each of `CAPACITIES` (``"0.5x"`` …) over the window.

        At "1x" it is what was measured; the others are that, plus or minus what the sample says of the
        difference.  So errors of the sample that all capacities have in common do not matter.
        """
        sums = self._sums
        tokens = self._block_size / self._rate
        by_capacity = [tokens * found for found in accumulate(sums.found[:-1])]
        now = by_capacity[CAPACITIES.index(1.0)]
        queries = sums.queries or 1.0
        return {
            f"{times:g}x": min(max((sums.hits + found - now) / queries, 0.0), 1.0)
            for times, found in zip(CAPACITIES, by_capacity, strict=True)
        }

    # -- what the manager tells ------------------------------------------------------------------

    def admitted(
        self, request: CacheRequest, last_hit_block: int | None, counted: tuple[int, int] | None
    ) -> None:
        """The request was let in, in a step that has committed, with a hit up to the block (None: no hit).

        ``counted`` are its queries and hits in tokens, where they enter the statistics.
        """
        deepest = None if last_hit_block is None else self._nearest[last_hit_block]
        running = self._running[request.request_id] = _Running(deepest)
        if counted is not None:
            queries, hits = counted
            running.num_readable_blocks = (queries - 1) // self._block_size
            self._sums.age(self._kept)
            self._sums.queries += queries
            self._sums.hits += hits
        if deepest is None:
            return
        if self._stack.segment_of(deepest.label) == 0:  # so are those before it, until `freed` lifts them all
            self._sums.found[0] += deepest.count if counted is not None else 0
            return
        if counted is not None:
            self._look_up(deepest.path())
        self._stack.touch(deepest.path())

    def computed(self, request: CacheRequest) -> None:
        """What the request has stored in the step that has just committed is looked up and touched."""
        fresh = self._fresh.pop(request.request_id, None)
        if fresh is None:
            return
        running = self._running.setdefault(request.request_id, _Running())  # a fork was not admitted
        self._look_up(sampled.label for index, sampled in fresh if index < running.num_readable_blocks)
        self._stack.touch(sampled.label for _, sampled in reversed(fresh))
        running.deepest = fresh[-1][1]

    def freed(self, request: CacheRequest) -> None:
        """The request has given its blocks back: their place in the LRU order is that of now."""
        running = self._running.pop(request.request_id, None)
        if running is not None and running.deepest is not None:
            self._stack.touch(running.deepest.path())

    def _look_up(self, labels: Iterable[int]) -> None:
        for label in labels:
            self._sums.found[self._stack.segment_of(label)] += 1.0

    # -- what the index tells (see `Listener`) ---------------------------------------------------

    def stored(self, request: CacheRequest, start: int, block_ids: Sequence[int], after: int | None) -> None:
        """Labels the blocks: a hash of their tokens, seeded with the label before them."""
        label = self._root(request.namespace) if after is None else self._labels[after]
        nearest = None if after is None else self._nearest[after]
        size = self._block_size * TOKEN_BYTES
        text = request.text(start * self._block_size, (start + len(block_ids)) * self._block_size)
        with memoryview(text) as tokens:
            for index, block_id in enumerate(block_ids, start):
                label = xxh3_64_intdigest(tokens[(index - start) * size : (index - start + 1) * size], label)
                if label < self._below:
                    nearest = _Sampled(label, nearest, 1 if nearest is None else nearest.count + 1)
                    self._fresh.setdefault(request.request_id, []).append((index, nearest))
                self._labels[block_id] = label
                self._nearest[block_id] = nearest

    def _root(self, namespace: Namespace) -> int:
        return xxh3_64_intdigest(namespace.identity, self._seed)

    def moved(self, block_id: int, to: int) -> None:
        """The label goes along."""
        self._labels[to] = self._labels[block_id]
        self._nearest[to] = self._nearest[block_id]
        self._nearest[block_id] = None

    def removed(self, block_id: int) -> None:
        """The stack does not care: it is that of all capacities."""
        self._nearest[block_id] = None

    def cleared(self) -> None:
        """A cache of any capacity is empty now."""
        self._nearest = [None] * len(self._nearest)
        self._stack.clear()
