"""Recorded prompts through the engine's own scheduler, in simulated time: requests that overlap.

Running requests hold their blocks, so a pool that is large enough for one after the other may be too small
for many at once: hits are lost to contention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from time import perf_counter
from typing import Literal

import numpy as np

from headstart.cache import CacheConfig, CacheRequest, KVCacheManager
from headstart.cache.reasons import MissReason, MissReport
from headstart.cache.tokens import TOKEN_BYTES, ints_of
from headstart.config import SchedulerConfig
from headstart.engine.request import Request, SamplingParams, StepResult
from headstart.engine.scheduler import Scheduler
from headstart.lab.replay.chains import reachable_symbols
from headstart.lab.replay.costs import PRESET, CostModel
from headstart.lab.replay.outcome import Outcome, Served, Setting
from headstart.lab.replay.overlapping import replay_overlapping
from headstart.lab.replay.replay import unbounded
from headstart.lab.traces.trace import Trace, TraceRequest

HIGHEST_TOKEN = 2**31 - 1
"""Made-up tokens count down from here, far above any vocabulary, but for those that the trace has."""
_TOLD_EVERY = 256


def replay_scheduled(
    trace: Trace,
    setting: Setting,
    costs: CostModel = PRESET,
    *,
    warmup: int = 0,
    max_num_batched_tokens: int | Literal["auto"] = 2048,
    progress: Callable[[int], None] | None = None,
) -> Outcome:
    """What the trace would have hit if its requests had overlapped, at most ``max_num_seqs`` at once.

    Requests come when the trace says, or, where it does not, as soon as there is a seat.  Steps take as long
    as ``costs`` says.  An answer that the trace does not have is made up of tokens that are nobody else's.
    Traces of hash ids, whose symbols are blocks, go through `replay_overlapping`.

    The first ``warmup`` requests do not count.  ``progress`` is told how many requests have been met, now and
    then.  Raises ``ConfigError`` for a setting that the trace cannot be replayed with.
    """
    if trace.tokens_per_symbol > 1:
        return replay_overlapping(trace, setting, costs, warmup=warmup, progress=progress)
    started = perf_counter()
    engine = SimulatedEngine(trace, setting, costs, max_num_batched_tokens)
    told = 0
    for number, request in enumerate(trace.requests):
        engine.wait_for(request)
        engine.add(number, request)
        if progress is not None and number >= told + _TOLD_EVERY:
            told = number
            progress(number)
    engine.finish()
    return Outcome(
        setting,
        [engine.served[number] for number in range(warmup, len(trace.requests))],
        engine.manager.num_evicted_blocks,
        engine.scheduler.num_preemptions,
        sum(number >= warmup for number in engine.refused),
        perf_counter() - started,
    )


@dataclass(frozen=True, slots=True)
class _Live:
    """A request that is being served: its place in the trace, when it came, and what it will generate."""

    number: int
    arrival: float
    answer: Iterator[int]


class SimulatedEngine:
    """A scheduler over a cache core, whose model is a cost model and a record of what was generated.

    ``now`` is its time, in seconds since the trace began.  ``served`` are the requests that had their first
    token, and those that were refused, by their numbers; ``refused`` are the latter's.
    """

    def __init__(
        self,
        trace: Trace,
        setting: Setting,
        costs: CostModel,
        max_num_batched_tokens: int | Literal["auto"] = 2048,
    ) -> None:
        self.now = 0.0
        self.served: dict[int, Served] = {}
        self.refused: list[int] = []
        self.manager = KVCacheManager(
            CacheConfig(
                num_blocks=_num_blocks(trace, setting),
                block_size=setting.block_size,
                index=setting.prefix_index,  # type: ignore[arg-type]  # the configuration checks it
                policy=setting.policy,  # type: ignore[arg-type]
            )
        )
        self._seats = setting.max_num_seqs or 1
        self.scheduler = Scheduler(
            SchedulerConfig(max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=self._seats),
            self.manager,
        )
        self._costs = costs
        self._has_times = trace.has_times
        self._made_up = _made_up_tokens(trace)
        self._live: dict[str, _Live] = {}

    def wait_for(self, recorded: TraceRequest) -> None:
        """Step until the request comes: at its time, or as soon as there is a seat."""
        arrival = recorded.arrival_s
        if not self._has_times or arrival is None:
            while len(self._live) >= self._seats:
                self._step()
            return
        while self.now < arrival and self.scheduler.has_work:
            self._step()
        self.now = max(self.now, arrival)

    def finish(self) -> None:
        """Step until nothing is left to do."""
        while self.scheduler.has_work:
            self._step()

    def add(self, number: int, recorded: TraceRequest) -> None:
        """Queue the request, or refuse it if it could not even fit the empty pool."""
        prompt = recorded.num_symbols
        if not prompt:  # no engine computes an empty prompt
            self.served[number] = Served(number, 0, 0, 0, {})
            return
        answer = self._answer(recorded)
        size = num_answer_tokens(recorded)
        config = self.manager.config
        if prompt + size - 1 > config.num_blocks * config.block_size:  # the last one needs no slot
            self.refused.append(number)
            self.served[number] = Served(
                number, prompt, 0, self._reachable(prompt), {MissReason.SKIPPED: prompt}
            )
            return
        name = str(number)
        come = recorded.arrival_s if self._has_times else None
        self._live[name] = _Live(number, self.now if come is None else come, answer)
        self.scheduler.add(
            Request(
                request_id=name,
                cache=CacheRequest(name, recorded.symbols, namespace=recorded.namespace),
                params=SamplingParams(max_tokens=size),
                num_prompt_tokens=prompt,
                max_tokens=size,
                arrival_time=self.now,
            )
        )

    def _answer(self, recorded: TraceRequest) -> Iterator[int]:
        return iter(ints_of(recorded.output)) if recorded.output else self._made_up

    def _step(self) -> None:
        plan = self.scheduler.plan(self.now)
        seconds = self._costs.step_seconds(plan)
        self.now += seconds
        self.scheduler.observe(plan, seconds)
        sampled = {row.request_id: next(self._live[row.request_id].answer) for row in plan.rows if row.sample}
        outputs = self.scheduler.commit(plan, StepResult(sampled))
        for report in self.scheduler.explain():
            self._serve(report)
        for output in outputs:
            if output.finish_reason is not None:
                del self._live[output.request_id]

    def _serve(self, report: MissReport) -> None:
        live = self._live[report.request_id]
        self.served[live.number] = Served(
            live.number,
            report.num_prompt_tokens,
            report.num_hit_tokens,
            self._reachable(report.num_prompt_tokens),
            report.tokens,
            first_token_s=self.now - live.arrival,
        )

    def _reachable(self, num_prompt_tokens: int) -> int:
        config = self.manager.config
        return reachable_symbols(num_prompt_tokens, config.block_size, config.index)


def num_answer_tokens(recorded: TraceRequest) -> int:
    """How many tokens are generated: at least one, since a request ends with a step that brings a token."""
    if recorded.output:
        return len(ints_of(recorded.output))
    return max(1, recorded.num_output_tokens or 0)


def _made_up_tokens(trace: Trace) -> Iterator[int]:
    """Tokens of which no two are alike, and that no prompt and no answer has: a log's may be hashes."""
    runs = [run for each in trace.requests for run in (each.symbols, each.output or b"")]
    num_known = sum(map(len, runs)) // TOKEN_BYTES
    lowest = HIGHEST_TOKEN - num_known - sum(map(num_answer_tokens, trace.requests))
    known: set[int] = set()
    for run in runs:
        tokens = np.frombuffer(run, "<i4")
        known.update(tokens[tokens > lowest].tolist())
    return (token for token in count(HIGHEST_TOKEN, -1) if token not in known)


def _num_blocks(trace: Trace, setting: Setting) -> int:
    """The capacity, or what is never filled if that is less: more blocks would take memory for nothing.

    That is what all requests have tokens for, or, if it is less, the blocks that differ, those of made-up
    answers, and copies of what is computed side by side.
    """
    size, capacity = setting.block_size, setting.capacity_blocks
    lengths = [-(-(request.num_symbols + num_answer_tokens(request)) // size) for request in trace.requests]
    most = sum(lengths) + 1
    if capacity is not None and capacity <= most:
        return capacity
    made_up = sum(-(-num_answer_tokens(each) // size) + 1 for each in trace.requests if not each.output)
    side_by_side = (setting.max_num_seqs or 1) * max(lengths, default=0)
    return min(most, unbounded(trace, size) + made_up + side_by_side)
