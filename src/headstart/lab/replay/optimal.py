"""The optimum: the policy that knows the future, on whole blocks.

It evicts the block whose next use is farthest away, and of those the deepest (Belady's rule, "A study of
replacement algorithms for a virtual-storage computer", 1966).  A block is never used again later than what
continues it, so this evicts tails before heads by itself, as any prefix cache must.  The blocks of the
request that is served are pinned, as they are by any policy.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from time import perf_counter

from headstart.cache.reasons import MissReason
from headstart.cache.tokens import TOKEN_BYTES
from headstart.lab.replay.block_misses import BlockMisses
from headstart.lab.replay.chains import Chains, computed_output, symbols_of
from headstart.lab.replay.outcome import Outcome, Served, Setting
from headstart.lab.traces.trace import Trace


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
        refused += hits is None
        num_hit = (hits or 0) * setting.block_size
        if hits is None:
            misses = {MissReason.SKIPPED: request.num_prompt_tokens}
        else:
            misses = block_misses.of(number, num_hit)
        if number >= warmup:
            reachable = chains.num_reachable(request) * setting.block_size
            served.append(Served(number, request.num_prompt_tokens, num_hit, reachable, misses))
        if progress is not None and number % 256 == 0:
            progress(number)
    return Outcome(setting, served, cache.num_evicted, 0, refused, perf_counter() - started)


class _Cache:
    """The blocks that are kept, by when they are used next."""

    def __init__(self, chains: Chains, trace: Trace, capacity: int | None) -> None:
        self._chains = chains
        self._trace = trace
        self._capacity = capacity
        self._next = _next_uses(chains, trace, capacity)
        self._never = len(trace.requests)
        self._kept: dict[int, int] = {}  # block → its entry in the heap
        self._heap: list[int] = []
        self._num_unique = max(1, chains.num_unique)
        self.num_evicted = 0

    def serve(self, number: int) -> int | None:
        """How many blocks of this request are kept; afterwards all of its whole ones are.  None: no room."""
        chains, kept = self._chains, self._kept
        request, chain = self._trace.requests[number], chains.requests[number]
        needed = chains.num_slots(request.num_symbols + len(computed_output(request)) // TOKEN_BYTES)
        if self._capacity is not None and needed > self._capacity:  # without its answer, if that fits
            needed = chains.num_slots(request.num_symbols)
            chain = chain[: request.num_symbols // chains.block_symbols]
            if needed > self._capacity:
                return None
        reachable = chains.num_reachable(request)
        hits = next((at for at in range(reachable) if chain[at] not in kept), reachable)
        for block in chain[:hits]:  # pinned: what is not among the kept cannot be evicted
            del kept[block]
        if self._capacity is not None:
            self._make_room(self._capacity - needed)
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
        for block, next_use in zip(chain, next_uses, strict=False):
            entry = next_use * self._num_unique + block
            self._kept[block] = entry
            heappush(self._heap, -entry)
        if len(self._heap) > 2 * len(self._kept) + 1024:
            self._heap = [-entry for entry in self._kept.values()]
            heapify(self._heap)


def _next_uses(chains: Chains, trace: Trace, capacity: int | None) -> list[array[int]]:
    """For each block of each request, the next request that can hit it; the number of requests if none.

    What never fits uses nothing.
    """
    never = len(trace.requests)
    upcoming = array("q", [never]) * chains.num_unique
    found: list[array[int]] = []
    for number in range(never - 1, -1, -1):
        chain, request = chains.requests[number], trace.requests[number]
        found.append(array("q", [upcoming[block] for block in chain]))
        if capacity is None or chains.num_slots(request.num_symbols) <= capacity:
            for block in chain[: chains.num_reachable(request)]:
                upcoming[block] = number
    found.reverse()
    return found
