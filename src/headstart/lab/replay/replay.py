"""One request after the other through a cache core, as the engine's scheduler would ask it."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from headstart.cache import CacheConfig, CacheRequest, KVCacheManager
from headstart.cache.reasons import MissReason
from headstart.errors import ConfigError
from headstart.lab.replay.outcome import Outcome, Served, Setting
from headstart.lab.traces.trace import Trace, TraceRequest


def replay(
    trace: Trace, setting: Setting, *, warmup: int = 0, progress: Callable[[int], None] | None = None
) -> Outcome:
    """What the trace would have hit, each request computed and done before the next one comes.

    The first ``warmup`` requests fill the cache and do not count.  ``progress`` is told how many requests
    are done, now and then.  Raises ``ConfigError`` for a setting that the trace cannot be replayed with.
    """
    started = perf_counter()
    block_symbols = symbols_of(setting.block_size, trace)
    manager = KVCacheManager(
        CacheConfig(
            num_blocks=setting.capacity_blocks or unbounded(trace, block_symbols),
            block_size=block_symbols,
            index=setting.prefix_index,  # type: ignore[arg-type]  # the configuration checks it
            policy=setting.policy,  # type: ignore[arg-type]
            explain_misses=trace.tokens_per_symbol == 1,
        )
    )
    served, refused = [], 0
    seen: set[int] = set()
    for number, request in enumerate(trace.requests):
        one, fits = _serve(manager, number, request, trace, seen)
        refused += not fits
        if number >= warmup:
            served.append(one)
        if progress is not None and number % 256 == 0:
            progress(number)
    return Outcome(setting, served, manager.num_evicted_blocks, 0, refused, perf_counter() - started)


def _serve(
    manager: KVCacheManager, number: int, recorded: TraceRequest, trace: Trace, seen: set[int]
) -> tuple[Served, bool]:
    request = CacheRequest(str(number), recorded.symbols, namespace=recorded.namespace)
    manager.begin_step(recorded.arrival_s if recorded.arrival_s is not None else float(number))
    hit = manager.get_computed_blocks(request)
    fits = manager.allocate_slots(request, request.num_tokens - hit.num_tokens, hit) is not None
    if not fits and hit.copy is not None:  # keeping its source costs room
        hit = hit.without_copy()
        fits = manager.allocate_slots(request, request.num_tokens - hit.num_tokens, hit) is not None
    num_hit = hit.num_tokens * trace.tokens_per_symbol if fits else 0
    num_tokens = recorded.num_prompt_tokens
    misses = {} if fits or trace.tokens_per_symbol > 1 else {MissReason.SKIPPED: num_tokens}
    if fits:
        manager.commit_step()
        if trace.tokens_per_symbol == 1:
            misses = manager.explain_misses([request])[0].tokens
        manager.free(request)
    else:
        manager.rollback_step()
    if not misses:
        misses = misses_of_ids(request, num_tokens, num_hit, trace.tokens_per_symbol, seen)
    reachable = (request.num_tokens - 1) * trace.tokens_per_symbol
    return Served(number, num_tokens, num_hit, reachable, misses), fits


def misses_of_ids(
    request: CacheRequest, num_tokens: int, num_hit: int, size: int, seen: set[int]
) -> dict[MissReason, int]:
    """Where an id stands for all that comes before it, a missing one was either evicted or never there.

    The last id's block must be computed for its last token.
    """
    ids = request.token_ids()
    known = [index for index in range(num_hit // size, len(ids) - 1) if ids[index] in seen]
    seen.update(ids)
    last = num_tokens - (len(ids) - 1) * size
    evicted = len(known) * size
    counts = {
        MissReason.LAST_TOKEN: last,
        MissReason.EVICTED: evicted,
        MissReason.COLD: num_tokens - num_hit - last - evicted,
    }
    return {reason: count for reason, count in counts.items() if count}


def symbols_of(block_size: int, trace: Trace) -> int:
    """How many symbols a block has.  Raises ``ConfigError`` if they are no whole number."""
    if block_size % trace.tokens_per_symbol:
        raise ConfigError(
            f"a trace whose hash ids stand for {trace.tokens_per_symbol} tokens each can be replayed with "
            f"multiples of that block size alone, not with {block_size}"
        )
    return block_size // trace.tokens_per_symbol


def unbounded(trace: Trace, block_symbols: int) -> int:
    """So many blocks that nothing is ever evicted."""
    return sum(-(-request.num_symbols // block_symbols) for request in trace.requests) + 1
