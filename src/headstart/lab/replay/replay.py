"""One request after the other through a cache core, as the engine's scheduler would ask it."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from headstart.cache import CacheConfig, CacheRequest, KVCacheManager
from headstart.cache.reasons import MissReason
from headstart.cache.tokens import TOKEN_BYTES
from headstart.lab.replay.block_misses import BlockMisses
from headstart.lab.replay.chains import Chains, computed_output, reachable_symbols, symbols_of
from headstart.lab.replay.outcome import Outcome, Served, Setting
from headstart.lab.traces.trace import Trace, TraceRequest


def replay(
    trace: Trace,
    setting: Setting,
    *,
    warmup: int = 0,
    progress: Callable[[int], None] | None = None,
    chains: Chains | None = None,
) -> Outcome:
    """What the trace would have hit, each request computed and done before the next one comes.

    The first ``warmup`` requests fill the cache and do not count.  Where the trace has a request's answer, it
    is cached too, as an engine would have it.  A request that needs more blocks than there are is refused.
    ``progress`` is told how many requests are done, now and then.  ``chains`` are those of the setting's
    block size, if somebody has made them.
    Raises ``ConfigError`` for a setting that the trace cannot be replayed with.
    """
    started = perf_counter()
    block_symbols = symbols_of(setting.block_size, trace)
    cache = _Cache(trace, setting, block_symbols, chains)
    served, refused = [], 0
    for number, request in enumerate(trace.requests):
        num_hit, misses = cache.serve(number, request)
        if number >= warmup:
            refused += num_hit is None
            reachable = reachable_symbols(request.num_symbols, block_symbols, setting.prefix_index)
            reachable *= trace.tokens_per_symbol
            served.append(Served(number, request.num_prompt_tokens, num_hit or 0, reachable, misses))
        if progress is not None and number % 256 == 0:
            progress(number)
    return Outcome(setting, served, cache.num_evicted_blocks, 0, refused, perf_counter() - started)


class _Cache:
    """A cache core of a setting, asked in the trace's symbols and answering in tokens."""

    def __init__(self, trace: Trace, setting: Setting, block_symbols: int, chains: Chains | None) -> None:
        self._tokens_per_symbol = trace.tokens_per_symbol
        self._block_misses: BlockMisses | None = None
        if trace.tokens_per_symbol > 1:
            chains = chains or Chains.of(trace, block_symbols)
            self._block_misses = BlockMisses(trace, chains, whole_blocks=setting.prefix_index == "hash")
        self._manager = KVCacheManager(
            CacheConfig(
                num_blocks=num_blocks_of(trace, setting, block_symbols, chains),
                block_size=block_symbols,
                index=setting.prefix_index,  # type: ignore[arg-type]  # the configuration checks it
                policy=setting.policy,  # type: ignore[arg-type]
                explain_misses=self._block_misses is None,
            )
        )

    def serve(self, number: int, recorded: TraceRequest) -> tuple[int | None, dict[MissReason, int]]:
        """The tokens that hit, None for a request that does not fit, and why the others missed."""
        if not recorded.symbols:
            return 0, {}  # no engine computes an empty prompt
        manager = self._manager
        request = CacheRequest(str(number), recorded.symbols, namespace=recorded.namespace)
        manager.begin_step(recorded.arrival_s if recorded.arrival_s is not None else float(number))
        hit = _admit(manager, request)
        if hit is None:
            return None, {MissReason.SKIPPED: recorded.num_prompt_tokens}
        manager.commit_step()
        num_hit = hit * self._tokens_per_symbol
        if self._block_misses is not None:
            misses = self._block_misses.of(number, num_hit)
        else:
            misses = manager.explain_misses([request])[0].tokens
        _answer(manager, request, computed_output(recorded))
        manager.free(request)
        return num_hit, misses

    @property
    def num_evicted_blocks(self) -> int:
        """So far."""
        return self._manager.num_evicted_blocks


def _admit(manager: KVCacheManager, request: CacheRequest) -> int | None:
    """The symbols that hit, once the whole prompt has its blocks; None: it does not fit."""
    hit = manager.get_computed_blocks(request)
    attempts = [hit] if hit.copy is None else [hit, hit.without_copy()]  # keeping its source costs room
    for attempt in attempts:
        if manager.allocate_slots(request, request.num_tokens - attempt.num_tokens, attempt) is not None:
            return attempt.num_tokens
    manager.rollback_step()
    return None


def _answer(manager: KVCacheManager, request: CacheRequest, output: bytes) -> None:
    """Let the request have generated ``output``, if that fits."""
    if output:
        num_new = len(output) // TOKEN_BYTES
        request.tokens += output
        if manager.allocate_slots(request, num_new) is not None:
            manager.commit_step()


def num_blocks_of(trace: Trace, setting: Setting, block_symbols: int, chains: Chains | None) -> int:
    """The capacity, or what is never filled if that is less: more blocks would take memory for nothing."""
    capacity = setting.capacity_blocks
    if capacity is not None and capacity <= sum(each.num_symbols for each in trace.requests) // block_symbols:
        return capacity
    enough = unbounded(trace, block_symbols, chains)
    return enough if capacity is None else min(capacity, enough)


def unbounded(trace: Trace, block_symbols: int, chains: Chains | None = None) -> int:
    """So many blocks that nothing is ever evicted.

    Beside the blocks that differ, each request may leave a last one that is partly filled, and one request
    may hold blocks twice.
    """
    chains = chains or Chains.of(trace, block_symbols)
    longest = max(map(len, chains.requests), default=0)
    return chains.num_unique + len(trace.requests) + longest + 1
