"""What no policy can beat: the blocks that differ, and a cache that never evicts."""

from __future__ import annotations

from headstart.lab.replay.chains import Chains, symbols_of
from headstart.lab.replay.outcome import Bounds, Rates, Served
from headstart.lab.traces.trace import Trace


def bounds_of(trace: Trace, block_size: int, *, warmup: int = 0, chains: Chains | None = None) -> Bounds:
    """The bounds of a trace in blocks of ``block_size`` tokens.

    Blocks are counted over the whole trace; the rates of the unbounded cache leave the first ``warmup``
    requests out.  A last block that is partly filled is no whole block: of a trace of hash ids it counts in
    neither number, though it has an id.  Nor does a block count as a different one that an answer had before
    any prompt: it need not be computed for a prompt.  ``chains`` saves making them again.
    Raises ``ConfigError`` for a block size that the trace cannot be seen in.
    """
    chains = chains or Chains.of(trace, symbols_of(block_size, trace))
    computed, seen = bytearray(chains.num_unique), bytearray(chains.num_unique)
    num_blocks = 0
    served = []
    for number, (request, chain) in enumerate(zip(trace.requests, chains.requests, strict=True)):
        num_whole = request.num_prompt_tokens // block_size
        num_blocks += num_whole
        reachable = chains.num_reachable(request)
        hits = next((at for at in range(reachable) if not seen[chain[at]]), reachable)
        for block in chain[hits:num_whole]:
            computed[block] |= not seen[block]
        for block in chain[hits:]:
            seen[block] = 1
        if number >= warmup:
            tokens = request.num_prompt_tokens
            served.append(Served(number, tokens, hits * block_size, reachable * block_size, {}))
    return Bounds(block_size, num_blocks, computed.count(1), Rates.of(served, block_size))
