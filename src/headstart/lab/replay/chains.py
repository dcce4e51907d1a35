"""A trace's blocks by their chains: a block is what it holds and all that precedes it, in its namespace."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from headstart.cache.tokens import TOKEN_BYTES
from headstart.errors import ConfigError
from headstart.lab.traces.trace import Trace, TraceRequest


@dataclass(frozen=True, slots=True)
class Chains:
    """The blocks of each request of a trace, numbered: equal numbers are equal blocks behind equal text.

    A request's blocks are its prompt's and, where the trace has its answer, the answer's.  Only blocks whose
    symbols are all there are numbered.  ``block_symbols`` is the size of one; ``num_unique`` counts the
    numbers, which begin at 0 and go up in the order in which blocks are first met.
    """

    block_symbols: int
    requests: list[array[int]]
    num_unique: int

    @classmethod
    def of(cls, trace: Trace, block_symbols: int) -> Chains:
        """Those of blocks of ``block_symbols`` symbols.  Memory is linear in the numbers."""
        known: dict[tuple[object, bytes], int] = {}
        width = block_symbols * TOKEN_BYTES
        requests = []
        for request in trace.requests:
            run = request.symbols + computed_output(request)
            before: object = request.namespace
            chain = array("q")
            for start in range(0, len(run) - width + 1, width):
                before = known.setdefault((before, run[start : start + width]), len(known))
                chain.append(before)
            requests.append(chain)
        return cls(block_symbols, requests, len(known))

    def num_reachable(self, request: TraceRequest) -> int:
        """How many blocks of this request can be hits: those before the prompt's last symbol."""
        return max(0, request.num_symbols - 1) // self.block_symbols

    def num_slots(self, num_symbols: int) -> int:
        """How many blocks so many symbols take."""
        return -(-num_symbols // self.block_symbols)


def computed_output(request: TraceRequest) -> bytes:
    """The run of the answer's tokens whose K and V are computed: all but the last one."""
    return request.output[:-TOKEN_BYTES] if request.output else b""


def symbols_of(block_size: int, trace: Trace) -> int:
    """How many symbols a block has.  Raises ``ConfigError`` if they are no whole number."""
    if block_size % trace.tokens_per_symbol:
        raise ConfigError(
            f"a trace whose hash ids stand for {trace.tokens_per_symbol} tokens each can be replayed with "
            f"multiples of that block size alone, not with {block_size}"
        )
    return block_size // trace.tokens_per_symbol
