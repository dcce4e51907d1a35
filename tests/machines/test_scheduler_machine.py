"""Random requests, aborts and broken steps through the real scheduler and cache: all are served, and rightly.

Some requests have several choices of one prompt; each choice is a request of its own to all that follows.

The runner is fake (`tests/fake_runner.py`), but reads what it needs through the block tables from what
it wrote: a wrong table, hit or copy shows as a wrong token.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headstart.config import PrefixIndexName
from headstart.engine.choices import choice_ids
from headstart.engine.limits import Limits
from headstart.engine.request import Request, Retention, SamplingParams, StepPlan
from headstart.errors import RequestError
from tests.fake_runner import Bench, answer, scores

EXAMPLES = int(os.environ.get("HEADSTART_FUZZ_EXAMPLES", "100"))
MAX_MODEL_LEN = 40
VOCAB_SIZE = 3  # so few that prompts, and prompts and outputs, have much in common


class SchedulerMachine(RuleBasedStateMachine):
    index: PrefixIndexName = "radix"

    @initialize(
        num_blocks=st.integers(1, 14),
        block_size=st.integers(1, 4),
        budget=st.integers(1, 12),
        seqs=st.integers(1, 4),
        caching=st.sampled_from([True, True, True, False]),
    )
    def make(self, num_blocks: int, block_size: int, budget: int, seqs: int, caching: bool) -> None:
        self.bench = Bench(
            num_blocks=num_blocks,
            block_size=block_size,
            index=self.index,
            caching=caching,
            budget=budget,
            seqs=seqs,
            vocab_size=VOCAB_SIZE,
        )
        self.limits = Limits(MAX_MODEL_LEN, VOCAB_SIZE, num_blocks, block_size)
        self.budget, self.seqs, self.caching = budget, seqs, caching
        self.capacity = num_blocks * block_size
        self.live: dict[str, Request] = {}
        self.prompts: dict[str, list[int]] = {}
        self.admitted: dict[str, int] = {}  # hits of the first admission that held
        self.forked: dict[str, int] = {}  # hits of their leaders, who alone are counted
        self.counter = 0
        self.idle_before = False

    # -- requests --------------------------------------------------------------------------------

    @rule(
        prompt=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=30),
        max_tokens=st.one_of(st.none(), st.integers(1, 30)),
        stop=st.sampled_from([(), (), (1,)]),
        salt=st.sampled_from([None, None, "s"]),
        scored=st.sampled_from([False, False, True]),
        n=st.sampled_from([1, 1, 2, 3, 6]),
        silent=st.sampled_from([False, False, True]),
        kept=st.sampled_from([None, Retention(5.0), Retention(5.0, "a"), Retention(500.0, "b")]),
    )
    def add(
        self,
        prompt: list[int],
        max_tokens: int | None,
        stop: tuple[int, ...],
        salt: str | None,
        scored: bool,
        n: int,
        silent: bool,
        kept: Retention | None,
    ) -> None:
        self.submit(prompt, max_tokens, stop, salt, n, scored=scored, silent=silent, kept=kept)

    @rule(
        prompt=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=30), n=st.sampled_from([1, 1, 3])
    )
    def add_one_that_only_wants_its_prompt_scored(self, prompt: list[int], n: int) -> None:
        self.submit(prompt, 0, (), None, n, scored=True)

    @precondition(lambda self: self.prompts)
    @rule(
        data=st.data(),
        cut=st.integers(0, 3),
        more=st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=3),
        scored=st.booleans(),
    )
    def add_a_continuation(self, data: st.DataObject, cut: int, more: list[int], scored: bool) -> None:
        """What an earlier request said and was told, perhaps cut, perhaps with another end."""
        name = data.draw(st.sampled_from(sorted(self.prompts)))
        told = self.prompts[name] + self.bench.outputs[name]
        n = data.draw(st.sampled_from([1, 1, 3]))
        count = data.draw(st.integers(1, 8))
        self.submit(told[: len(told) - cut] + more or [0], count, (), None, n, scored=scored)

    @rule(
        prompt=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=30),
        kept=st.sampled_from([None, Retention(5.0)]),
    )
    def add_one_that_only_warms_the_cache(self, prompt: list[int], kept: Retention | None) -> None:
        self.submit(prompt, 0, (), None, 1, kept=kept)

    @rule(
        prompt_share=st.floats(0.0, 1.0),
        scored=st.booleans(),
        n=st.sampled_from([1, 1, 3]),
        silent=st.booleans(),
    )
    def add_one_that_fills_the_pool(self, prompt_share: float, scored: bool, n: int, silent: bool) -> None:
        prompt = max(1, min(round(prompt_share * self.capacity), self.capacity, MAX_MODEL_LEN - 1))
        count = min(self.capacity, MAX_MODEL_LEN - 1) - prompt + 1
        tokens = [i % VOCAB_SIZE for i in range(prompt)]
        self.submit(tokens, count, (), None, n, fits=True, scored=scored, silent=silent)

    def submit(
        self,
        prompt: list[int],
        max_tokens: int | None,
        stop: tuple[int, ...],
        salt: str | None,
        n: int,
        *,
        fits: bool = False,
        scored: bool = False,
        silent: bool = False,
        kept: Retention | None = None,
    ) -> None:
        asked = 0 if scored else None
        params = SamplingParams(max_tokens=max_tokens, stop_token_ids=stop, prompt_logprobs=asked)
        try:
            allowed = self.limits.check(prompt, params)
        except RequestError:
            assert not fits
            needed = len(prompt) + (1 if max_tokens is None else max_tokens)
            assert needed > MAX_MODEL_LEN or max(needed - 1, len(prompt)) > self.capacity
            return
        name = f"r{self.counter}"
        self.counter += 1
        sampling = {"n": n, "seed": self.counter, "prompt_logprobs": asked}
        hints = {"skip_writing": silent, "retention": kept}
        self.bench.add(name, prompt, allowed, stop_token_ids=stop, salt=salt, **hints, **sampling)
        for choice in choice_ids(name, n):
            self.prompts[choice] = prompt
            self.live[choice] = self.bench.requests[choice]

    @precondition(lambda self: self.counter)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        # May be finished, may not exist yet.
        name = data.draw(st.sampled_from([*sorted(self.prompts), f"r{self.counter}"]))
        assert self.bench.scheduler.abort(name) == (self.live.pop(name, None) is not None)
        self.idle_before = False

    @rule()
    def reset(self) -> None:
        assert self.bench.manager.reset_prefix_cache() == (not self.bench.scheduler.running)

    # -- steps -----------------------------------------------------------------------------------

    @rule(count=st.integers(1, 5))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    @rule()
    def failing_step(self) -> None:
        plan = self.plan()
        told = {name: list(tokens) for name, tokens in self.bench.outputs.items()}
        followers = self.bench.scheduler.followers
        broken = [self.live[row.request_id] for row in plan.rows]
        ended = {one.request_id for request in broken for one in (request, *followers.of(request))}
        outputs = self.bench.fail(plan, "on purpose")
        assert sorted(o.request_id for o in outputs) == sorted(ended)
        for output in outputs:
            assert (output.finish_reason, output.error) == ("error", "on purpose")
            del self.live[output.request_id]
        assert self.bench.outputs == told

    @rule()
    def step_rolled_back(self) -> None:
        scheduler = self.bench.scheduler
        running, waiting = (
            [request.request_id for request in scheduler.running],
            [request.request_id for request in scheduler.waiting],
        )
        followed = len(scheduler.followers)
        self.bench.rollback(self.plan())
        assert len(scheduler.followers) == followed
        assert [request.request_id for request in scheduler.running] + [
            request.request_id for request in scheduler.waiting
        ] == running + waiting

    @rule()
    def drain(self) -> None:
        """Each of two steps in a row computes for the oldest, so all ends after so many steps."""
        bound = 2 * sum(request.num_prompt_tokens + request.max_tokens for request in self.live.values())
        while self.bench.scheduler.has_work:
            assert bound > 0, "somebody starves"
            self.step()
            bound -= 1
        assert not self.live

    def step(self) -> None:
        plan = self.plan()
        for row in plan.rows:
            for name, _ in row.forks:
                self.forked[name] = self.hits_of(self.live[row.request_id])
        outputs = self.bench.commit(plan)
        sampling = [choice.request_id for row in plan.rows if row.sample for choice in row.choices()]
        answered = [output for output in outputs if output.token_ids or output.finish_reason]
        assert [output.request_id for output in answered] == sampling
        for output in outputs:
            name = output.request_id
            told = self.bench.outputs[name]
            request = self.live[name]
            scored = self.bench.told[name]
            if request.cache.skip_reading and name not in self.forked:
                expected = scores(self.prompts[name])
                assert scored == expected[: len(scored)]
                assert len(scored) == len(expected) or not (output.token_ids or output.finish_reason)
            else:
                assert scored == []
            assert output.token_ids or output.prompt_logprobs or not request.max_tokens
            kept = output.num_retained_tokens
            assert kept <= self.capacity // 2
            wanted = request.retention is not None and self.caching and not request.cache.skip_writing
            assert kept in ((0, self.whole(self.prompts[name])) if wanted else (0,))
            seed = request.params.seed
            assert told == answer(self.prompts[name], len(told), vocab_size=VOCAB_SIZE, seed=seed)
            if output.finish_reason is not None:
                del self.live[name]
                stopped = bool(told) and told[-1] in request.params.stop_token_ids
                assert output.finish_reason == ("stop" if stopped else "length")
                assert stopped or len(told) == request.max_tokens
                assert output.num_cached_tokens == self.hits_of(request)
        for request in self.bench.scheduler.running:
            self.hits_of(request)

    def whole(self, prompt: list[int]) -> int:
        """How many of its tokens are in whole blocks."""
        size = self.bench.manager.config.block_size
        return len(prompt) // size * size

    def hits_of(self, request: Request) -> int:
        """What its first admission that held, or its leader's, had from the cache; it never changes."""
        cached = request.num_cached_tokens
        assert cached is not None
        assert cached < request.num_prompt_tokens
        assert (self.caching and not request.cache.skip_reading) or cached == 0
        if request.request_id in self.forked:
            assert cached == self.forked[request.request_id]
            return cached
        if request.cache.skip_reading:
            return cached
        assert self.admitted.setdefault(request.request_id, cached) == cached
        return cached

    def plan(self) -> StepPlan:
        """Open a step that keeps every law of a plan."""
        scheduler = self.bench.scheduler
        has_work, oldest = scheduler.has_work, next(iter(scheduler.running), None)
        victims = scheduler.num_preemptions
        waiting = [request.request_id for request in scheduler.waiting]
        plan = self.bench.plan()
        preempted = scheduler.num_preemptions > victims
        assert plan.num_tokens <= self.budget
        assert len(plan.rows) <= len(scheduler.running) <= self.seqs
        names = [row.request_id for row in plan.rows]
        assert names == [request.request_id for request in scheduler.running][: len(names)]
        for row in plan.rows:
            request = self.live[row.request_id]
            assert row.token_ids
            assert row.start == request.num_computed_tokens
            assert row.sample == (row.start + len(row.token_ids) == request.num_tokens)
            assert row.num_output_tokens == len(self.bench.outputs[row.request_id])
            forks = scheduler.followers.of(request) if row.sample else []
            assert [name for name, _ in row.forks] == [fork.request_id for fork in forks]
        if preempted:
            assert [request.request_id for request in scheduler.waiting][
                -len(waiting) :
            ] == waiting or not waiting, "somebody was let in"
            assert plan.rows or not scheduler.running
        elif has_work:
            assert plan.rows, "a step that could compute computes nothing"
            assert oldest is None or names[0] == oldest.request_id
        assert not (has_work and not plan.rows and self.idle_before), "two idle steps in a row"
        self.idle_before = has_work and not plan.rows
        return plan

    # -- laws ------------------------------------------------------------------------------------

    @invariant()
    def the_accounts_agree(self) -> None:
        if not hasattr(self, "bench"):
            return
        scheduler, manager = self.bench.scheduler, self.bench.manager
        manager.check()
        running = {request.request_id for request in scheduler.running}
        waiting = {request.request_id for request in scheduler.waiting}
        followers = {
            follower.request_id
            for request in (*scheduler.running, *scheduler.waiting)
            for follower in scheduler.followers.of(request)
        }
        assert len(followers) == len(scheduler.followers), "somebody follows nobody"
        assert len(running) + len(waiting) + len(followers) == len(running | waiting | followers)
        assert running | waiting | followers == set(self.live)
        assert len(running) <= self.seqs
        assert scheduler.has_work == bool(self.live)
        assert not any(request.num_computed_tokens for request in scheduler.waiting)
        if not running:
            assert manager.num_free_blocks == self.bench.manager.config.num_blocks
        if self.caching:
            assert manager.stats.requests == len(self.admitted)
            assert manager.stats.hits == sum(self.admitted.values())
            assert manager.stats.queries == sum(len(self.prompts[name]) for name in self.admitted)

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.drain()
            self.the_accounts_agree()


@pytest.mark.parametrize("index", ["radix", "hash"])
def test_everybody_is_served_within_the_limits_and_rightly(index: str) -> None:
    machine = type("Machine", (SchedulerMachine,), {"index": index})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
