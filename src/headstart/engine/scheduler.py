"""Which tokens the next step computes.

There are no phases.  Every request only catches up from ``num_computed_tokens`` to ``num_tokens``: a
prompt does so in chunks, a decoding request one token at a time.  A step spends
``max_num_batched_tokens`` over at most ``max_num_seqs`` requests, running ones first, then waiting
ones, each in the order of (priority, arrival); tokens that the cache has cost nothing.

In-flight sharing: a request in the middle of its prompt takes all the budget that is left, so nobody
behind it is let in before the blocks that it computes can be hit.  Equal prompts that arrive together are
computed once, without waiting for anybody (tests/engine/test_in_flight.py).

Several choices of one prompt (``n``) are a leader and its followers, which are in no queue until the
leader's prompt is computed.  Then they fork from it, each with a first token from the very same logits.
Forking takes no blocks, but a seat (of ``max_num_seqs``), which is kept free for it as long as its leader
runs; a follower for which there is none waits like a request that was preempted.

Progress: the request that is first in order takes blocks from those behind it, and no request
is let in that could not fit an empty pool.  It may have to give way itself, when its own blocks
repeat what the radix index has: then it comes back in the next step, to a hit on all that it had.
So of two steps in a row one computes tokens for the oldest.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from headstart.cache import BlockCopy, KVCacheManager, MissReport
from headstart.config import SchedulerConfig
from headstart.engine.budget import AdaptiveBudget, FixedBudget, TokenBudget
from headstart.engine.choices import Followers
from headstart.engine.request import (
    FinishReason,
    PromptLogprob,
    PromptTargets,
    Request,
    RequestOutput,
    ScheduledRow,
    StepPlan,
    StepResult,
    TokenLogprob,
)
from headstart.engine.waiting import WaitingQueue
from headstart.errors import RequestError

AUTO_LIMIT = 2048
"""The most that a step computes with ``max_num_batched_tokens`` "auto"."""


class Scheduler:
    """Owns every live request: queued (``waiting``) or holding blocks (``running``), both in order.

    Or one of the ``followers``, which are neither.
    """

    def __init__(self, config: SchedulerConfig, manager: KVCacheManager) -> None:
        self.config = config
        self.manager = manager
        self.waiting = WaitingQueue()
        self.running: list[Request] = []
        self.followers = Followers()
        self.num_preemptions = 0
        self._budget: TokenBudget
        if config.max_num_batched_tokens == "auto":
            self._budget = AdaptiveBudget(AUTO_LIMIT)
        else:
            self._budget = FixedBudget(config.max_num_batched_tokens)
        self._requests: dict[str, Request] = {}
        self._num_arrivals = 0
        self._admitted: list[Request] = []  # by the step that is open
        self._answered: list[Request] = []  # whose prompts the last step finished

    @property
    def has_work(self) -> bool:
        """Whether a step would have anything to do."""
        return bool(self._requests)

    def add(self, request: Request, followers: Sequence[Request] = ()) -> None:
        """Queue a request that `Limits` has let in, and further choices of its prompt to follow it.

        Raises ``RequestError``, and has queued none, if an id is in use.
        """
        for one in (request, *followers):
            if one.request_id in self._requests:
                raise RequestError(f"request id {one.request_id!r} is in use", param="request_id")
        for one in (request, *followers):
            one.order = (one.priority, self._num_arrivals)
            self._num_arrivals += 1
            self._requests[one.request_id] = one
        self.waiting.add(request)
        self.followers.add(request, followers)

    def abort(self, request_id: str) -> bool:
        """Forget a request between steps and free its blocks; False if it is not (or no longer) here."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        self._remove(request)
        return True

    # -- planning --------------------------------------------------------------------------------

    def plan(self, now: float) -> StepPlan:
        """The next step's rows, with their slots granted.  Ends with `commit` or `rollback`."""
        self.manager.begin_step(now)
        self._answered = []
        rows: list[ScheduledRow] = []
        copies: list[BlockCopy] = []
        budget, preempted = self._plan_running(rows, copies)
        if not preempted:
            self._plan_waiting(rows, copies, budget)
        return StepPlan(tuple(rows), tuple(copies))

    def _plan_running(self, rows: list[ScheduledRow], copies: list[BlockCopy]) -> tuple[int, bool]:
        """Rows for running requests.  Returns the budget left and whether anyone was preempted."""
        budget = self._budget.tokens(sum(request.is_decoding for request in self.running))
        before = self.num_preemptions
        place = 0
        while place < len(self.running) and budget > 0:
            request = self.running[place]
            count = min(request.num_tokens - request.num_computed_tokens, budget)
            grant = self.manager.allocate_slots(request.cache, count)
            while grant is None and self._preempt_last() is not request:
                grant = self.manager.allocate_slots(request.cache, count)
            if grant is None:
                break
            copies.extend(grant.copies)
            rows.append(self._row(request, count))
            budget -= count
            place += 1
        return budget, self.num_preemptions > before

    def _preempt_last(self) -> Request:
        """Send the running request that is last in order back to the queue; its blocks stay findable.

        Victims come from the tail and rows are planned from the head, so none has a row yet.
        """
        victim = self.running.pop()
        self.manager.free(victim.cache)
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.add(victim)
        return victim

    def _plan_waiting(self, rows: list[ScheduledRow], copies: list[BlockCopy], budget: int) -> None:
        seats = self.config.max_num_seqs - sum(self._seats(request) for request in self.running)
        for request in self.waiting.head(self.config.max_num_seqs):
            if budget <= 0 or seats <= 0:
                break
            count = self._admit(request, copies, budget)
            if count is None:
                break
            self.waiting.remove(request)
            insort(self.running, request, key=lambda one: one.order)
            self._admitted.append(request)
            rows.append(self._row(request, count))
            budget -= count
            seats -= self._seats(request)

    def _seats(self, request: Request) -> int:
        """How many it has or will soon take: nobody behind its followers is let in before them."""
        return 1 + self.followers.count(request)

    def _admit(self, request: Request, copies: list[BlockCopy], budget: int) -> int | None:
        """How many tokens the request may compute in this step, its blocks granted; None: no room."""
        hit = self.manager.get_computed_blocks(request.cache)
        attempts = [hit] if hit.copy is None else [hit, hit.without_copy()]  # keeping its source costs room
        for attempt in attempts:
            count = min(request.num_tokens - attempt.num_tokens, budget)
            grant = self.manager.allocate_slots(request.cache, count, attempt)
            if grant is not None:
                copies.extend(grant.copies)
                request.num_computed_tokens = attempt.num_tokens
                if request.num_cached_tokens is None:
                    request.num_cached_tokens = attempt.num_tokens
                return count
        return None

    def _row(self, request: Request, count: int) -> ScheduledRow:
        start = request.num_computed_tokens
        sample = start + count == request.num_tokens
        forks = self.followers.of(request) if sample else ()
        return ScheduledRow(
            request_id=request.request_id,
            token_ids=request.cache.token_ids(start, start + count),
            start=start,
            block_ids=self.manager.block_table(request.request_id),
            sample=sample,
            params=request.params,
            num_output_tokens=request.num_output_tokens,
            token_counts=request.token_counts,
            targets=self._targets(request, start, start + count),
            forks=tuple((fork.request_id, fork.params) for fork in forks),
            matcher=request.matcher,
        )

    @staticmethod
    def _targets(request: Request, start: int, stop: int) -> PromptTargets | None:
        """What is to be told of the prompt when positions ``start`` to ``stop`` are computed."""
        if request.params.prompt_logprobs is None:
            return None
        first = max(start, request.cache.num_committed)  # what was told before a preemption stays told
        last = min(stop, request.num_prompt_tokens - 1)  # after the prompt's last token comes the output
        if first >= last:
            return None
        return PromptTargets(first - start, request.cache.token_ids(first + 1, last + 1))

    # -- the end of a step -----------------------------------------------------------------------

    def observe(self, plan: StepPlan, seconds: float) -> None:
        """The plan took so long to compute: what an adaptive token budget learns from."""
        decoding = sum(row.is_decoding for row in plan.rows)
        self._budget.observe(decoding, plan.num_tokens - decoding, seconds)

    def commit(self, plan: StepPlan, result: StepResult) -> list[RequestOutput]:
        """The step was computed: take in its tokens.  Returns what each request has to tell."""
        self.manager.commit_step()
        self._admitted = []  # nobody holds on to a request that ends here
        outputs = []
        for row in plan.rows:
            request = self._requests[row.request_id]
            request.num_computed_tokens = row.start + len(row.token_ids)
            of_prompt = result.prompt_logprobs.get(row.request_id, ())
            if row.sample and row.num_output_tokens == 0:
                self._answered.append(request)
                self._retain(request)
            if row.sample:
                choices = [request, *self._fork(request)]
                outputs += [self._take(choice, result) for choice in choices]
            elif row.request_id in result.failed:
                outputs.append(self._fail(request, result.failed[row.request_id]))
            elif of_prompt:
                outputs.append(self._output(request, (), prompt_logprobs=of_prompt))
        return outputs

    def _retain(self, request: Request) -> None:
        """Its prompt has just been computed, and is all that it has: keep it, if that is wanted."""
        wanted = request.retention
        if wanted is None or request.cache.skip_writing:
            return
        pin = self.manager.retain(request.cache, wanted.seconds, wanted.name)
        request.num_retained_tokens = 0 if pin is None else pin.num_blocks * self.manager.config.block_size

    def explain(self) -> list[MissReport]:
        """Why prompts missed that the last step finished.  To be called once its tokens were sent."""
        answered, self._answered = self._answered, []
        return self.manager.explain_misses(request.cache for request in answered)

    def _fork(self, leader: Request) -> list[Request]:
        """The followers of a request whose prompt has just been computed, now requests like others."""
        followers = self.followers.take(leader)
        for follower in followers:
            self.manager.fork(leader.cache, follower.cache)
            follower.num_cached_tokens = leader.num_cached_tokens
            follower.num_retained_tokens = leader.num_retained_tokens
            ahead = next(iter(self.waiting), follower)
            if len(self.running) < self.config.max_num_seqs and follower.order <= ahead.order:
                follower.num_computed_tokens = leader.num_computed_tokens
                insort(self.running, follower, key=lambda one: one.order)
            else:
                self.manager.free(follower.cache)
                self.waiting.add(follower)
        return followers

    def _take(self, request: Request, result: StepResult) -> RequestOutput:
        """Give the request its next token, unless it wants none and was there for its prompt alone."""
        error = result.failed.get(request.request_id)
        if error is not None:
            return self._fail(request, error)
        of_prompt = result.prompt_logprobs.get(request.request_id, ())
        if request.max_tokens == 0:
            self._remove(request)
            return self._output(request, (), "length", prompt_logprobs=of_prompt)
        token = result.sampled[request.request_id]
        request.append(token)
        if request.matcher is not None and request.matcher.error is not None:
            return self._fail(request, request.matcher.error)
        reason = self._finish_reason(request, token)
        if reason is not None:
            self._remove(request)
        logprob = result.logprobs.get(request.request_id)
        logprobs = () if logprob is None else (logprob,)
        return self._output(request, (token,), reason, logprobs=logprobs, prompt_logprobs=of_prompt)

    def rollback(self) -> None:
        """The step was not computed: every request stands as before it, those it admitted wait again."""
        self.manager.rollback_step()
        for request in reversed(self._admitted):
            self.running.remove(request)
            request.num_computed_tokens = 0
            if request.cache.num_admissions == 0:  # this was the first
                request.num_cached_tokens = None
            self.waiting.add(request)
        self._admitted = []

    def fail(self, plan: StepPlan, error: str) -> list[RequestOutput]:
        """The step broke: roll it back and end the requests that had a row in it, with their followers."""
        self.rollback()
        broken = [self._requests[row.request_id] for row in plan.rows]
        ended = [one for request in broken for one in (*self.followers.of(request), request)]
        return [self._fail(request, error) for request in ended]

    @staticmethod
    def _finish_reason(request: Request, token: int) -> FinishReason | None:
        if token in request.params.stop_token_ids:
            return "stop"
        if request.matcher is not None and request.matcher.has_ended:
            return "stop"
        if request.num_output_tokens >= request.max_tokens:
            return "length"
        return None

    def _fail(self, request: Request, error: str) -> RequestOutput:
        self._remove(request)
        return self._output(request, (), "error", error)

    @staticmethod
    def _output(
        request: Request,
        token_ids: tuple[int, ...],
        reason: FinishReason | None = None,
        error: str | None = None,
        logprobs: tuple[TokenLogprob, ...] = (),
        prompt_logprobs: tuple[PromptLogprob, ...] = (),
    ) -> RequestOutput:
        return RequestOutput(
            request.request_id,
            token_ids,
            request.num_cached_tokens or 0,
            reason,
            error,
            logprobs,
            prompt_logprobs,
            request.num_retained_tokens,
        )

    def _remove(self, request: Request) -> None:
        del self._requests[request.request_id]
        if request in self.followers:
            self.followers.remove(request)
            return
        if followers := self.followers.take(request):  # the next one computes the rest of the prompt
            self.waiting.add(followers[0])
            self.followers.add(followers[0], followers[1:])
        if request in self.waiting:
            self.waiting.remove(request)
        else:
            self.running.remove(request)
            self.manager.free(request.cache)
