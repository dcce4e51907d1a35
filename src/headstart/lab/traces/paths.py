"""Which blocks of which prompts are the same, how often each is used, and after how many others.

A block's content is its symbols and all that stand before them, in one namespace: its *path*.  Paths are
numbered from 0 in the order in which they first appear.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sortedcontainers import SortedList

from headstart.cache import Namespace
from headstart.cache.tokens import TOKEN_BYTES
from headstart.lab.traces.trace import Trace


@dataclass(frozen=True, slots=True)
class Paths:
    """``requests`` has each prompt's whole blocks as numbers of paths.

    The partly filled last block is none, though a trace of hash ids has an id for it.  ``slots`` is what a
    request takes of a pool: prompt and answer, with the partly filled last block.
    """

    block_symbols: int
    requests: list[list[int]]
    slots: list[list[int]]

    @property
    def num_unique(self) -> int:
        """How many different whole blocks the prompts have."""
        return len({number for blocks in self.requests for number in blocks})

    @property
    def num_slots(self) -> int:
        """How many blocks of a pool hold everything."""
        return len({number for blocks in self.slots for number in blocks})

    @property
    def num_reused(self) -> int:
        """How many different whole blocks of prompts come more than once."""
        uses = self.uses()
        return sum(uses[number] > 1 for number in {number for blocks in self.requests for number in blocks})

    def uses(self) -> Counter[int]:
        """How many requests have each block, in the prompt or in the answer."""
        return Counter(number for blocks in self.slots for number in blocks)


def number_blocks(trace: Trace, block_symbols: int, *, namespaces: bool = True) -> Paths:
    """Every request's blocks of ``block_symbols`` symbols; without ``namespaces`` as if all shared one."""
    size = block_symbols * TOKEN_BYTES
    numbers: dict[tuple[object, bytes], int] = {}
    requests: list[list[int]] = []
    slots: list[list[int]] = []
    for request in trace.requests:
        run = request.symbols + (request.output or b"")[:-TOKEN_BYTES]  # an answer's last token has no KV
        before: Namespace | int | None = request.namespace if namespaces else None
        taken: list[int] = []
        for start in range(0, len(run), size):
            before = numbers.setdefault((before, run[start : start + size]), len(numbers))
            taken.append(before)
        slots.append(taken)
        requests.append(taken[: request.num_prompt_tokens // (block_symbols * trace.tokens_per_symbol)])
    return Paths(block_symbols, requests, slots)


def stack_distances(slots: Sequence[Sequence[int]]) -> Iterator[list[int | None]]:
    """For each prompt, block by block, how many blocks LRU must hold for it to be still there; None if new.

    LRU keeps what was used last, so a block is a hit in every capacity of at least its depth in one stack
    (Mattson et al., 1970).  A prompt's blocks are let go last one first, so those before a block always
    stand above it, and no look at them is needed.  O(log n) a block.
    """
    last_use: dict[int, int] = {}
    times: SortedList[int] = SortedList()
    now = 0
    for blocks in slots:
        depths: list[int | None] = []
        for number in blocks:
            used = last_use.get(number)
            depths.append(None if used is None else len(times) - times.bisect_left(used))
        yield depths
        for number in reversed(blocks):
            if number in last_use:
                times.remove(last_use[number])
            now += 1
            last_use[number] = now
            times.add(now)
