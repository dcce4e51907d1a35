"""Traces of hash ids with requests that overlap: blocks are held for as long as a request would run.

There are no tokens for a scheduler to plan with.  So this is a simulation by events: requests are let in, in
order, when there is a seat and room for their prompts' blocks, and give the blocks back when they are done.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from time import perf_counter

from headstart.cache import CacheConfig, CacheRequest, KVCacheManager
from headstart.cache.reasons import MissReason
from headstart.lab.replay.block_misses import BlockMisses
from headstart.lab.replay.chains import Chains, reachable_symbols, symbols_of
from headstart.lab.replay.costs import CostModel
from headstart.lab.replay.outcome import Outcome, Served, Setting
from headstart.lab.replay.replay import num_blocks_of
from headstart.lab.traces.trace import Trace, TraceRequest

ANSWERS_TAKE_NO_ROOM = (
    "Hash ids do not tell the blocks of answers: an answer keeps its prompt's blocks in use while it is "
    "generated, and takes no blocks itself."
)
"""What a report has to say of such a replay."""
_CHUNK = 2048  # tokens of a prompt that one step computes


def replay_overlapping(
    trace: Trace,
    setting: Setting,
    costs: CostModel,
    *,
    warmup: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Outcome:
    """See `replay_scheduled`, which has the same arguments and result."""
    started = perf_counter()
    pool = _Pool(trace, setting, costs)
    for number, request in enumerate(trace.requests):
        pool.serve(number, request)
        if progress is not None and number % 256 == 0:
            progress(number)
    return Outcome(
        setting,
        pool.served[warmup:],
        pool.manager.num_evicted_blocks,
        refused=sum(number >= warmup for number in pool.refused),
        seconds=perf_counter() - started,
    )


class _Pool:
    """A cache core, and who holds blocks of it until when."""

    def __init__(self, trace: Trace, setting: Setting, costs: CostModel) -> None:
        block_symbols = symbols_of(setting.block_size, trace)
        chains = Chains.of(trace, block_symbols)
        self.manager = KVCacheManager(
            CacheConfig(
                num_blocks=num_blocks_of(trace, setting, block_symbols, chains),
                block_size=block_symbols,
                index=setting.prefix_index,  # type: ignore[arg-type]  # the configuration checks it
                policy=setting.policy,  # type: ignore[arg-type]
                explain_misses=False,
            )
        )
        self.served: list[Served] = []
        self.refused: list[int] = []
        self._size = trace.tokens_per_symbol
        self._has_times = trace.has_times
        self._seats = setting.max_num_seqs or 1
        self._costs = costs
        self._now = 0.0
        self._prompts_done = 0.0  # prompts are computed one after the other
        self._running: list[tuple[float, int, CacheRequest]] = []  # a heap by the time when they end
        self._misses = BlockMisses(trace, chains, whole_blocks=setting.prefix_index == "hash")

    def serve(self, number: int, recorded: TraceRequest) -> None:
        """Let time go on until the request can be let in, or nobody is left whom it could wait for."""
        if not recorded.symbols:  # no engine computes an empty prompt
            self.served.append(Served(number, 0, 0, 0, {}))
            return
        request = CacheRequest(str(number), recorded.symbols, namespace=recorded.namespace)
        if not self._has_times and len(self._running) >= self._seats:
            self._end_next()  # the next one comes as soon as there is a seat
        arrival = self._now if not self._has_times or recorded.arrival_s is None else recorded.arrival_s
        while self._running and self._running[0][0] <= arrival:
            self._end_next()
        self._now = max(self._now, arrival)
        num_hit = self._admit(request)
        while num_hit is None and self._running:
            self._end_next()
            num_hit = self._admit(request)
        waited = None
        if num_hit is None:
            self.refused.append(number)
        else:
            waited = self._run(number, request, recorded, num_hit) - arrival
        tokens = recorded.num_prompt_tokens
        misses = {MissReason.SKIPPED: tokens} if num_hit is None else self._misses.of(number, num_hit)
        block_symbols = self.manager.config.block_size
        reachable = reachable_symbols(request.num_tokens, block_symbols, self.manager.config.index)
        reachable *= self._size
        self.served.append(Served(number, tokens, num_hit or 0, reachable, misses, first_token_s=waited))

    def _admit(self, request: CacheRequest) -> int | None:
        """How many tokens it hits; None if there is no seat, or no room for its blocks."""
        if len(self._running) >= self._seats:
            return None
        self.manager.begin_step(self._now)
        hit = self.manager.get_computed_blocks(request)
        for attempt in [hit] if hit.copy is None else [hit, hit.without_copy()]:
            missing = request.num_tokens - attempt.num_tokens
            if self.manager.allocate_slots(request, missing, attempt) is not None:
                self.manager.commit_step()
                return attempt.num_tokens * self._size
        self.manager.rollback_step()
        return None

    def _run(self, number: int, request: CacheRequest, recorded: TraceRequest, num_hit: int) -> float:
        """Hold its blocks until it is done.  Returns when its first token is there.

        Its prompt is computed once those before it are, its answer beside all that run now.
        """
        costs, tokens = self._costs, recorded.num_prompt_tokens
        steps = -(-(tokens - num_hit) // _CHUNK)
        begin = max(self._now, self._prompts_done)
        self._prompts_done = begin + steps * costs.step + costs.prefill_seconds(num_hit, tokens)
        further = max(1, recorded.num_output_tokens or 0) - 1
        beside = len(self._running) + 1
        each = costs.step + beside * costs.decode_seconds(tokens + further // 2)
        heappush(self._running, (self._prompts_done + further * each, number, request))
        return self._prompts_done

    def _end_next(self) -> None:
        ends, _, request = heappop(self._running)
        self._now = max(self._now, ends)
        self.manager.begin_step(self._now)
        self.manager.free(request)
