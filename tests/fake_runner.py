"""A runner without a model, whose tokens show a wrong block anywhere in a table; an engine and a bench on it.

What a model writes into a slot depends on the token there and on all slots before it, and the token it
chooses depends on all of them.  `FakeRunner` does the same with checksums in place of K and V, read
through the block tables; `answer` says what must come out, from the tokens alone.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from typing import Any, Literal

from headstart.cache import CacheConfig, CacheRequest, KVCacheManager, Namespace
from headstart.cache.index import BlockCopy
from headstart.config import PrefixIndexName, SchedulerConfig
from headstart.engine.choices import choice_ids, of_choice
from headstart.engine.core import EngineCore, EventPublisher
from headstart.engine.limits import Limits
from headstart.engine.request import (
    PromptLogprob,
    Request,
    RequestOutput,
    Retention,
    SamplingParams,
    StepPlan,
    StepResult,
)
from headstart.engine.scheduler import Scheduler

VOCAB_SIZE = 1000


def _mix(value: int, state: int) -> int:
    return zlib.crc32(value.to_bytes(4, "little"), state)


def answer(
    prompt: Sequence[int], count: int, *, vocab_size: int = VOCAB_SIZE, seed: int | None = None
) -> list[int]:
    """The first ``count`` tokens that a `FakeRunner` generates for ``prompt``, however it is scheduled."""
    state, output = 0, list[int]()
    for token in prompt:
        state = _mix(_mix(token, state), state)
    while len(output) < count:
        token = (state + (seed or 0)) % vocab_size
        output.append(token)
        state = _mix(_mix(token, state), state)
    return output


def scores(prompt: Sequence[int]) -> list[PromptLogprob]:
    """What a `FakeRunner` tells of a prompt's tokens from the second on, however it is scheduled."""
    state, told = 0, list[PromptLogprob]()
    for token, following in itertools.pairwise(prompt):
        state = _mix(_mix(token, state), state)
        told.append(_score(following, state))
    return told


def _score(token: int, state: int) -> PromptLogprob:
    return PromptLogprob(-float(_mix(token, state)), 1)


class FakeRunner:
    """Keeps `Runner`'s interface.  A slot that nobody wrote, or two rows that write one slot, are errors.

    ``plans`` are those it was given.  If there is a ``failure``, the next run raises it, and leaves
    garbage in every slot that it was to write.
    """

    def __init__(self, num_blocks: int, block_size: int, *, vocab_size: int = VOCAB_SIZE) -> None:
        self.plans: list[StepPlan] = []
        self.failure: BaseException | None = None
        self._vocab_size = vocab_size
        self._block_size = block_size
        self._slots: list[int | None] = [None] * (num_blocks * block_size)

    def run(self, plan: StepPlan) -> StepResult:
        """The token after each row that asks for one."""
        self.plans.append(plan)
        written = self._copy(plan.copies)
        sampled = {}
        told = dict[str, list[PromptLogprob]]()
        for row in plan.rows:
            state = 0
            for position in range(row.start):
                content = self._slots[self._slot(row.block_ids, position)]
                assert content is not None, f"{row.request_id} reads position {position}, which nobody wrote"
                state = _mix(content, state)
            for position, token in enumerate(row.token_ids, start=row.start):
                slot = self._slot(row.block_ids, position)
                assert slot not in written, f"slot {slot} is written twice in one step"
                written.add(slot)
                content = self._slots[slot] = _mix(token, state)
                state = _mix(content, state)
                if row.targets is not None:
                    place = position - row.start - row.targets.first
                    if 0 <= place < len(row.targets.token_ids):
                        score = _score(row.targets.token_ids[place], state)
                        told.setdefault(row.request_id, []).append(score)
            if row.sample:
                for choice in row.choices():
                    sampled[choice.request_id] = (state + (choice.params.seed or 0)) % self._vocab_size
        if self.failure is not None:
            failure, self.failure = self.failure, None
            for slot in written:
                self._slots[slot] = None
            raise failure
        return StepResult(sampled, prompt_logprobs={name: tuple(some) for name, some in told.items()})

    def _slot(self, block_ids: list[int], position: int) -> int:
        return block_ids[position // self._block_size] * self._block_size + position % self._block_size

    def _copy(self, copies: Sequence[BlockCopy]) -> set[int]:
        size = self._block_size
        moves = [
            (copy.dst * size + offset, self._slots[copy.src * size + offset])
            for copy in copies
            for offset in range(copy.num_tokens)
        ]
        for slot, content in moves:
            self._slots[slot] = content
        return {slot for slot, _ in moves}


def make_scheduler(
    *,
    num_blocks: int,
    block_size: int,
    index: PrefixIndexName = "radix",
    caching: bool = True,
    budget: int | Literal["auto"] = 2048,
    seqs: int = 128,
) -> Scheduler:
    """A scheduler over a cache of its own."""
    cache = CacheConfig(num_blocks, block_size, index=index, enable_prefix_caching=caching)
    return Scheduler(SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=seqs), KVCacheManager(cache))


class Bench:
    """A scheduler over a `FakeRunner`, driven by hand.  The cache's laws are checked at every turn.

    ``requests`` are all there ever were, ``outputs`` all output tokens by request, ``told`` all that was told
    of its prompt; ``ends`` are the last outputs of those that ended.
    """

    def __init__(
        self,
        *,
        num_blocks: int = 100,
        block_size: int = 4,
        index: PrefixIndexName = "radix",
        caching: bool = True,
        budget: int = 2048,
        seqs: int = 128,
        vocab_size: int = VOCAB_SIZE,
    ) -> None:
        self.scheduler = make_scheduler(
            num_blocks=num_blocks,
            block_size=block_size,
            index=index,
            caching=caching,
            budget=budget,
            seqs=seqs,
        )
        self.manager = self.scheduler.manager
        self.runner = FakeRunner(num_blocks, block_size, vocab_size=vocab_size)
        self.requests: dict[str, Request] = {}
        self.outputs: dict[str, list[int]] = {}
        self.told: dict[str, list[PromptLogprob]] = {}
        self.ends: dict[str, RequestOutput] = {}

    def add(
        self,
        name: str,
        prompt: Sequence[int],
        max_tokens: int = 1,
        *,
        stop_token_ids: tuple[int, ...] = (),
        salt: str | None = None,
        priority: int = 0,
        skip_writing: bool = False,
        retention: Retention | None = None,
        **sampling: Any,
    ) -> Request:
        """Queue a request; returns its first choice."""
        params = SamplingParams(
            **{"temperature": 0.0, "max_tokens": max_tokens, "stop_token_ids": stop_token_ids} | sampling
        )
        choices = [
            Request(
                request_id=choice,
                cache=CacheRequest(
                    choice,
                    prompt,
                    namespace=Namespace(salt=salt),
                    skip_reading=params.prompt_logprobs is not None,
                    skip_writing=skip_writing,
                ),
                params=of_choice(params, number),
                num_prompt_tokens=len(prompt),
                max_tokens=max_tokens,
                arrival_time=0.0,
                priority=priority,
                retention=retention,
            )
            for number, choice in enumerate(choice_ids(name, params.num_choices))
        ]
        self.scheduler.add(choices[0], choices[1:])
        self.outputs |= {choice.request_id: [] for choice in choices}
        self.told |= {choice.request_id: [] for choice in choices}
        self.requests |= {choice.request_id: choice for choice in choices}
        return choices[0]

    def plan(self) -> StepPlan:
        """Open a step."""
        plan = self.scheduler.plan(0.0)
        self.manager.check()
        return plan

    def commit(self, plan: StepPlan) -> list[RequestOutput]:
        """Compute the open step."""
        return self._take(self.scheduler.commit(plan, self.runner.run(plan)))

    def fail(self, plan: StepPlan, error: str) -> list[RequestOutput]:
        """Break the open step off in its middle."""
        self._break_off(plan)
        return self._take(self.scheduler.fail(plan, error))

    def rollback(self, plan: StepPlan) -> None:
        """Break the open step off, to be tried again."""
        self._break_off(plan)
        self.scheduler.rollback()
        self.manager.check()

    def step(self) -> dict[str, tuple[int, int]]:
        """One whole step; where each row starts and ends."""
        plan = self.plan()
        self.commit(plan)
        return rows(plan)

    def finish(self, *, at_most: int = 1000) -> int:
        """Step until nothing is left to do; how many steps it took."""
        count = 0
        while self.scheduler.has_work:
            assert count < at_most, f"there is work left after {at_most} steps"
            self.step()
            count += 1
        return count

    def _break_off(self, plan: StepPlan) -> None:
        self.runner.failure = RuntimeError("on purpose")
        try:
            self.runner.run(plan)
        except RuntimeError:
            return

    def _take(self, outputs: list[RequestOutput]) -> list[RequestOutput]:
        self.manager.check()
        for output in outputs:
            self.outputs[output.request_id].extend(output.token_ids)
            self.told[output.request_id].extend(output.prompt_logprobs)
            if output.finish_reason is not None:
                assert output.request_id not in self.ends, "a request ended twice"
                self.ends[output.request_id] = output
        return outputs


def rows(plan: StepPlan) -> dict[str, tuple[int, int]]:
    """Where each row of a plan starts and ends, by request, in order."""
    return {row.request_id: (row.start, row.start + len(row.token_ids)) for row in plan.rows}


class FakeEngine(EngineCore):
    """A whole engine over a `FakeRunner`.  Its time is ``now``."""

    def __init__(
        self,
        *,
        num_blocks: int = 50,
        block_size: int = 4,
        max_model_len: int = 100,
        vocab_size: int = VOCAB_SIZE,
        index: PrefixIndexName = "radix",
        budget: int = 8,
        publisher: EventPublisher | None = None,
        explain_misses: bool = True,
    ) -> None:
        self.now = 0.0
        self.runner = FakeRunner(num_blocks, block_size, vocab_size=vocab_size)
        cache = CacheConfig(
            num_blocks,
            block_size,
            index=index,
            explain_misses=explain_misses,
            enable_kv_cache_events=publisher is not None,
        )
        self.manager = KVCacheManager(cache)
        scheduler = Scheduler(SchedulerConfig(max_num_batched_tokens=budget), self.manager)
        limits = Limits(max_model_len, vocab_size, num_blocks, block_size)
        super().__init__(scheduler, self.runner, limits, clock=lambda: self.now, publisher=publisher)

    def drain(self) -> list[RequestOutput]:
        """What is left to do, done; the cache's laws are checked after each step."""
        outputs = []
        while self.has_work:
            outputs += self.step()
            self.manager.check()
        return outputs


def tokens_of(outputs: Sequence[RequestOutput], name: str) -> list[int]:
    """All tokens that the outputs bring for one request."""
    return [token for output in outputs if output.request_id == name for token in output.token_ids]
