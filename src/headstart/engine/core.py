"""One engine: a scheduler that plans, a runner that computes, and the step that joins them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from headstart.cache import CacheRequest, MissReport, Namespace
from headstart.cache.events import KVEvent
from headstart.engine.choices import choice_ids, of_choice
from headstart.engine.limits import Limits
from headstart.engine.messages import EngineStats
from headstart.engine.request import (
    PLAIN_TERMS,
    CacheTerms,
    Request,
    RequestOutput,
    SamplingParams,
    ScheduledRow,
    StepPlan,
    StepResult,
)
from headstart.engine.scheduler import Scheduler
from headstart.engine.structured import MatcherFactory, TokenMatcher
from headstart.errors import RequestError

logger = logging.getLogger(__name__)


class Runner(Protocol):
    """Turns a plan into sampled tokens; its K and V are written when it returns."""

    def run(self, plan: StepPlan) -> StepResult:
        """Compute the step."""
        ...


class EventPublisher(Protocol):
    """Whoever takes the cache's events out of the process."""

    num_dropped: int
    """Batches that nobody will get."""

    def publish(self, events: Sequence[KVEvent]) -> None:
        """Tell of one batch, without waiting."""
        ...


class EngineCore:
    """Requests in, tokens out, one step at a time.  Single-threaded: nothing happens during a step.

    Without ``matchers`` no request can have structured outputs.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
        publisher: EventPublisher | None = None,
        matchers: MatcherFactory | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.limits = limits
        self._runner = runner
        self._clock = clock
        self._publisher = publisher
        self._matchers = matchers
        self._prompt_tokens = 0
        self._generation_tokens = 0

    def add_request(
        self,
        request_id: str,
        prompt_token_ids: bytes | list[int],
        params: SamplingParams,
        *,
        terms: CacheTerms = PLAIN_TERMS,
        priority: int = 0,
    ) -> None:
        """Queue a request (int token ids, or the bytes of little-endian int32).

        Its choices are requests of their own from then on, by the ids that `choice_ids` gives them.

        Raises ``RequestError`` if it can never be served.
        """
        namespace = Namespace(salt=terms.salt)
        skip_reading = terms.skip_reading or params.prompt_logprobs is not None
        prompt = CacheRequest(request_id, prompt_token_ids, namespace=namespace)
        max_tokens = self.limits.check(prompt.token_ids(), params, priority)
        matcher = self._matcher(params)
        now = self._clock()
        leader, *followers = (
            Request(
                request_id=name,
                cache=CacheRequest(
                    name,
                    prompt.tokens,
                    namespace=namespace,
                    skip_reading=skip_reading,
                    skip_writing=terms.skip_writing,
                    retention_priority=terms.retention_priority,
                    tenant=terms.tenant,
                ),
                params=of_choice(params, number),
                num_prompt_tokens=prompt.num_tokens,
                max_tokens=max_tokens,
                arrival_time=now,
                priority=priority,
                matcher=matcher if matcher is None or number == 0 else matcher.copy(),
                retention=terms.retention,
            )
            for number, name in enumerate(choice_ids(request_id, params.num_choices))
        )
        self.scheduler.add(leader, followers)

    def _matcher(self, params: SamplingParams) -> TokenMatcher | None:
        wanted = params.structured_outputs
        if wanted is None:
            return None
        if self._matchers is None:
            raise RequestError("this engine knows no structured outputs", param=wanted.origin)
        return self._matchers.matcher(wanted, params.stop_token_ids)

    def abort(self, request_id: str) -> bool:
        """Forget a request; its blocks are free before the next step.  False if it is not here."""
        found = self.scheduler.abort(request_id)
        self._tell_events()
        return found

    @property
    def has_work(self) -> bool:
        """Whether any request is queued or running."""
        return self.scheduler.has_work

    def step(self, planned: Callable[[], None] | None = None) -> list[RequestOutput]:
        """Plan, run, commit.  A step that breaks fails its own requests and no others.

        ``planned`` is called between plan and run, when `stats` says what the step is about.
        """
        try:
            return self._step(planned)
        finally:
            self._tell_events()  # before anybody hears of the outputs

    def _step(self, planned: Callable[[], None] | None) -> list[RequestOutput]:
        started = self._clock()
        plan = self.scheduler.plan(started)
        if planned is not None:
            planned()
        try:
            result = self._runner.run(plan)
        except Exception:  # whatever a kernel raises, the engine serves on
            logger.exception("a step of %d rows failed", len(plan.rows))
            return self.scheduler.fail(
                plan, "the engine failed while computing this request; its log says how"
            )
        except BaseException:  # a step is a transaction for sys.exit and Ctrl-C, too
            self.scheduler.rollback()
            raise
        self.scheduler.observe(plan, self._clock() - started)
        outputs = self.scheduler.commit(plan, result)
        self._prompt_tokens += sum(row.start + len(row.token_ids) for row in plan.rows if _ends_prompt(row))
        self._generation_tokens += sum(len(output.token_ids) for output in outputs)
        return outputs

    def explain(self) -> list[MissReport]:
        """Why prompts missed whose first tokens the last step brought; one report for all choices.

        To be called after every step, once its outputs were sent: so nobody waits for it, and nothing that
        it finds out about others can be timed.
        """
        return self.scheduler.explain()

    def reset_prefix_cache(self) -> bool:
        """Forget everything cached; False (and nothing changed) while blocks are in use."""
        done = self.scheduler.manager.reset_prefix_cache()
        self._tell_events()
        return done

    def _tell_events(self) -> None:
        events = self.scheduler.manager.take_events()
        if events and self._publisher is not None:
            self._publisher.publish(events)

    def stats(self) -> EngineStats:
        """Gauges as of now, counters since the start."""
        manager = self.scheduler.manager
        return EngineStats(
            num_running=len(self.scheduler.running),
            num_waiting=len(self.scheduler.waiting) + len(self.scheduler.followers),
            kv_cache_usage=manager.usage,
            prefix_cache_queries=manager.stats.queries,
            prefix_cache_hits=manager.stats.hits,
            num_preemptions=self.scheduler.num_preemptions,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            miss_tokens=manager.miss_tokens,
            num_evicted_blocks=manager.num_evicted_blocks,
            num_collisions=manager.num_collisions,
            kv_event_batches_dropped=0 if self._publisher is None else self._publisher.num_dropped,
            hit_rate_estimates=manager.hit_rate_estimates,
        )


def _ends_prompt(row: ScheduledRow) -> bool:
    """Whether the row computes a prompt's last token: true once per prompt, also after preemption."""
    return row.sample and row.num_output_tokens == 0
