"""The optimum: the policy that knows the future, on whole blocks.

It evicts the block whose next use is farthest away, and of those the deepest (Belady's rule, "A study of
replacement algorithms for a virtual-storage computer", 1966).  The blocks of the request that is served are
pinned, as they are by any policy.

A block is used where it can be a hit.  Where it comes next as one that must be computed anyway, as a prompt's
last one, keeping it until then is worth nothing: so it may go before what continues it, and is back in time.
No prefix cache does that, so this may be a little more than the best of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from time import perf_counter
from typing import NamedTuple

from headstart.cache.reasons import MissReason
from headstart.cache.tokens import TOKEN_BYTES
from headstart.lab.replay.block_misses import BlockMisses
from headstart.lab.replay.chains import Chains, computed_output, symbols_of
from headstart.lab.replay.outcome import Outcome, Served, Setting
from headstart.lab.traces.trace import Trace, TraceRequest


def replay_optimal(
    trace: Trace,
    setting: Setting,
    *,
    warmup: int = 0,
    progress: Callable[[int], None] | None = None,
    chains: Chains | None = None,
) -> Outcome:
    """What the best of all policies would have hit, one request after the other, in whole blocks.

    It is the best over all requests, those of the ``warmup`` included, which do not count.  Partial hits of
    the radix index are none of its business.  Raises ``ConfigError`` for a block size that the trace
    cannot be seen in.
    """
    started = perf_counter()
    chains = chains or Chains.of(trace, symbols_of(setting.block_size, trace))
    cache = _Cache(chains, trace, setting.capacity_blocks)
    block_misses = BlockMisses(trace, chains, whole_blocks=True)
    served, refused = [], 0
    for number, request in enumerate(trace.requests):
        hits = cache.serve(number)
        num_hit = (hits or 0) * setting.block_size
        if hits is None:
            misses = {MissReason.SKIPPED: request.num_prompt_tokens}
        else:
            misses = block_misses.of(number, num_hit)
        if number >= warmup:
            refused += hits is None
            reachable = chains.num_reachable(request) * setting.block_size
            served.append(Served(number, request.num_prompt_tokens, num_hit, reachable, misses))
        if progress is not None and number % 256 == 0:
            progress(number)
    return Outcome(setting, served, cache.num_evicted, 0, refused, perf_counter() - started)


class _Cache:
    """The blocks that are kept, by when they are used next."""

    def __init__(self, chains: Chains, trace: Trace, capacity: int | None) -> None:
        self._capacity = capacity
        self._parts = [_fitting(chains, *each, capacity) for each in enumerate(trace.requests)]
        self._num_unique = max(1, chains.num_unique)
        self._next = self._next_uses(len(trace.requests))
        self._kept: dict[int, int] = {}  # block → its entry in the heap
        self._heap: list[int] = []
        self.num_evicted = 0

    def serve(self, number: int) -> int | None:
        """How many blocks of this request are kept; afterwards all of its whole ones are.  None: no room."""
        part, kept = self._parts[number], self._kept
        if part is None:
            return None
        chain = part.chain
        hits = next((at for at in range(part.num_reachable) if chain[at] not in kept), part.num_reachable)
        for block in chain[:hits]:  # pinned: what is not among the kept cannot be evicted
            del kept[block]
        if self._capacity is not None:
            self._make_room(self._capacity - part.num_slots)
        self._keep(chain, self._next[number])
        return hits

    def _make_room(self, most: int) -> None:
        """Evict until at most so many are kept beside the pinned ones."""
        while len(self._kept) > most:
            entry = -heappop(self._heap)
            block = entry % self._num_unique
            if self._kept.get(block) == entry:
                del self._kept[block]
                self.num_evicted += 1

    def _keep(self, chain: array[int], next_uses: array[int]) -> None:
        """Put the request's blocks in by their next use; the deeper of two in a chain is numbered higher."""
        for block, next_use in zip(chain, next_uses, strict=True):
            entry = next_use * self._num_unique + block
            self._kept[block] = entry
            heappush(self._heap, -entry)
        if len(self._heap) > 2 * len(self._kept) + 1024:
            self._heap = [-entry for entry in self._kept.values()]
            heapify(self._heap)

    def _next_uses(self, never: int) -> list[array[int]]:
        """For each block of each request, the next request that can hit it; ``never`` if none can."""
        upcoming = array("q", [never]) * self._num_unique
        found: list[array[int]] = []
        for number in range(never - 1, -1, -1):
            part = self._parts[number]
            if part is None:
                found.append(array("q"))
                continue
            found.append(array("q", [upcoming[block] for block in part.chain]))
            for at, block in enumerate(part.chain):
                upcoming[block] = number if at < part.num_reachable else never
        found.reverse()
        return found


class _Part(NamedTuple):
    """What of a request fits: its blocks, those of them that can be hits, and the slots that it takes."""

    chain: array[int]
    num_reachable: int
    num_slots: int


def _fitting(chains: Chains, number: int, request: TraceRequest, capacity: int | None) -> _Part | None:
    """The request with its answer, without it if that is too long; None if its prompt is."""
    chain, reachable = chains.requests[number], chains.num_reachable(request)
    prompt = request.num_symbols
    both = chains.num_slots(prompt + len(computed_output(request)) // TOKEN_BYTES)
    if capacity is None or both <= capacity:
        return _Part(chain, reachable, both)
    if chains.num_slots(prompt) <= capacity:
        return _Part(chain[: prompt // chains.block_symbols], reachable, chains.num_slots(prompt))
    return None
