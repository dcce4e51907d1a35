"""Why blocks missed, where the cache's own account of tokens is not to be had.

That is so for traces of hash ids, whose symbols tell nothing of text, and for the optimum, which is no cache
that could be asked.
"""

from __future__ import annotations

from array import array

from headstart.cache.reasons import MissReason
from headstart.lab.replay.chains import Chains
from headstart.lab.traces.trace import Trace


class BlockMisses:
    """Gives each missed token one of four reasons, by what earlier requests had.

    The last symbol must be computed, `last_token`: of a trace of hash ids it is the whole last block, since
    nothing is known of its tokens alone.  What a whole block held before was `evicted`.  Of a trace of hash
    ids, what is known but fills no block is `unaligned` with ``whole_blocks``, and was `evicted` without.
    All else is `cold`.
    """

    def __init__(self, trace: Trace, chains: Chains, *, whole_blocks: bool) -> None:
        self._trace = trace
        self._chains = chains
        self._whole_blocks = whole_blocks
        self._seen = bytearray(chains.num_unique)
        self._symbols: Chains | None = None
        if trace.tokens_per_symbol > 1 and chains.block_symbols > 1:
            self._symbols = Chains.of(trace, 1)
            self._seen_symbols = bytearray(self._symbols.num_unique)

    def of(self, number: int, num_hit: int) -> dict[MissReason, int]:
        """The missed tokens of request ``number``, the next one, of which ``num_hit`` tokens were hits."""
        request, size = self._trace.requests[number], self._trace.tokens_per_symbol
        chain = self._chains.requests[number]
        hit = num_hit // size
        last = max(0, request.num_symbols - 1)
        known = _known(chain, self._seen, self._chains.num_reachable(request)) * self._chains.block_symbols
        evicted = max(0, known - hit)
        beyond = 0
        if self._symbols is not None:
            symbols = self._symbols.requests[number]
            beyond = max(0, _known(symbols, self._seen_symbols, last) - max(known, hit))
            for symbol in symbols:
                self._seen_symbols[symbol] = 1
        for block in chain:
            self._seen[block] = 1
        num_last = request.num_prompt_tokens - last * size
        counts = {
            MissReason.LAST_TOKEN: num_last,
            MissReason.UNALIGNED: beyond * size if self._whole_blocks else 0,
            MissReason.EVICTED: evicted * size + (0 if self._whole_blocks else beyond * size),
        }
        counts[MissReason.COLD] = request.num_prompt_tokens - num_hit - sum(counts.values())
        return {reason: count for reason, count in counts.items() if count}


def _known(chain: array[int], seen: bytearray, most: int) -> int:
    """How many of the first ``most`` were seen, up to the first that was not."""
    return next((at for at in range(most) if not seen[chain[at]]), most)
