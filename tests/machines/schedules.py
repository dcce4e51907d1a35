"""Random schedules through the real scheduler, cache, runner and pool, with every token prescribed.

Each request's output tokens are given beforehand (teacher forcing), so a cached run and a cold run
of it see the same inputs whatever their logits say, and the logits can be compared one by one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headstart.cache import CacheConfig, CacheRequest, KVCacheManager, Namespace
from headstart.config import SchedulerConfig
from headstart.engine.request import Request, SamplingParams, StepPlan, StepResult
from headstart.engine.runner import Runner
from headstart.engine.sampler import Sampler
from headstart.engine.scheduler import Scheduler
from headstart.model.attention import AttentionBackend
from headstart.model.batch import ForwardBatch, SequenceSpan
from headstart.model.kv_pool import KVPool
from headstart.model.llama import LlamaModel


@dataclass
class Script:
    """One request: when it arrives, what it says, what it will be told, and when it gives up."""

    name: str
    prompt: list[int]
    output: list[int]
    arrival: int
    salt: str | None = None
    abort_at: int | None = None


@dataclass
class Schedule:
    """Everything that decides one run."""

    scripts: list[Script]
    cache: CacheConfig
    scheduler: SchedulerConfig
    failing_steps: set[int] = field(default_factory=set)


@dataclass
class Outcome:
    """Logits of each sampled position by request, and what the run went through."""

    logits: dict[str, list[Tensor]]
    cached_tokens: int = 0
    preemptions: int = 0
    copies: int = 0
    shared_in_step: int = 0


def random_schedule(
    rng: random.Random, vocab_size: int, *, length: int, outputs: int, requests: int, index: str | None = None
) -> Schedule:
    """Prompts that branch from few beginnings, so that every kind of hit happens; a pool often too small."""
    block_size = rng.choice([2, 4, 8, 16])
    tokens = lambda count: [rng.randrange(vocab_size) for _ in range(count)]  # noqa: E731
    beginnings = [tokens(rng.randint(1, length)) for _ in range(rng.randint(1, 3))]
    scripts: list[Script] = []
    for number in range(requests):
        beginning = rng.choice(beginnings)
        prompt = beginning[: rng.randint(1, len(beginning))] + tokens(rng.choice([0, 1, 3, length // 2]))
        if scripts and rng.random() < 0.5:
            other = rng.choice(scripts)
            told = other.prompt + other.output
            prompt = rng.choice(
                [list(other.prompt), told, told + tokens(3), told[: len(told) * 2 // 3] + tokens(2)]
            )
        scripts.append(
            Script(
                name=f"r{number}",
                prompt=prompt[: 2 * length],
                output=tokens(rng.randint(1, outputs)),
                arrival=rng.choice([0, 0, rng.randint(0, 12)]),
                salt=rng.choice([None, None, None, "a", "b"]),
                abort_at=rng.randint(1, 15) if rng.random() < 0.15 else None,
            )
        )
    largest = max(-(-(len(s.prompt) + len(s.output)) // block_size) for s in scripts)
    return Schedule(
        scripts,
        CacheConfig(
            num_blocks=largest + rng.choice([0, 0, 1, 3, largest, 8 * largest]),
            block_size=block_size,
            index=index or rng.choice(["radix", "radix", "hash"]),
            free_order=rng.choice(["reverse", "unhashed_first"]),
        ),
        SchedulerConfig(
            max_num_batched_tokens=rng.choice([1, 3, 7, 16, 64, 512]), max_num_seqs=rng.choice([1, 2, 4, 16])
        ),
        failing_steps={step for step in range(40) if rng.random() < 0.05},
    )


class ScheduleRunner:
    """Runs schedules on one model; ``attention`` makes the backend for a pool."""

    def __init__(self, model: LlamaModel, attention: Callable[[KVPool], AttentionBackend]) -> None:
        self._model = model
        self._attention = attention
        self._cold: dict[tuple[tuple[int, ...], int | None], Tensor] = {}

    def run(self, schedule: Schedule) -> Outcome:
        """Serve the whole schedule, checking the cache's laws after every step."""
        manager = KVCacheManager(schedule.cache)
        scheduler = Scheduler(schedule.scheduler, manager)
        runner = self._runner(schedule.cache)
        scripts = {script.name: script for script in schedule.scripts}
        outcome = Outcome({name: [] for name in scripts})
        waiting = sorted(schedule.scripts, key=lambda script: script.arrival)
        step = 0
        while waiting or scheduler.has_work:
            while waiting and waiting[0].arrival <= step:
                scheduler.add(_request(waiting.pop(0)))
            for script in scripts.values():
                if script.abort_at == step:
                    scheduler.abort(script.name)
            plan = scheduler.plan(float(step))
            manager.check()
            if step in schedule.failing_steps and plan.rows:
                self._scribble(runner, plan)
                scheduler.rollback()
            else:
                self._compute(runner, scheduler, plan, scripts, outcome)
            manager.check()
            step += 1
            assert step < 10_000, "the schedule makes no progress"
        assert manager.num_free_blocks == schedule.cache.num_blocks
        outcome.preemptions = scheduler.num_preemptions
        outcome.cached_tokens = manager.stats.hits + manager.stats.preempted_hits
        return outcome

    def _compute(
        self,
        runner: Runner,
        scheduler: Scheduler,
        plan: StepPlan,
        scripts: dict[str, Script],
        outcome: Outcome,
    ) -> None:
        sampled: dict[str, int] = {}
        if plan.rows:
            logits = runner.forward(plan)
            sampling = [row for row in plan.rows if row.sample]
            for row, values in zip(sampling, logits, strict=True):
                outcome.logits[row.request_id].append(values)
                sampled[row.request_id] = scripts[row.request_id].output[row.num_output_tokens]
        blocks = [block_id for row in plan.rows for block_id in row.block_ids]
        outcome.shared_in_step += len(blocks) - len(set(blocks))
        outcome.copies += len(plan.copies)
        scheduler.commit(plan, StepResult(sampled))

    @staticmethod
    def _scribble(runner: Runner, plan: StepPlan) -> None:
        """What a step that breaks may leave behind: garbage in every slot that it was to write."""
        pool = runner.pool
        for row in plan.rows:
            for position in range(row.start, row.start + len(row.token_ids)):
                block_id, offset = row.block_ids[position // pool.block_size], position % pool.block_size
                pool.keys[:, block_id, offset] = 1e3
                pool.values[:, block_id, offset] = -1e3

    def cold(self, script: Script) -> Tensor:
        """Logits [outputs, vocab] of a lone run on an empty pool."""
        return self.cold_everywhere(script)[len(script.prompt) - 1 : -1]

    def cold_everywhere(self, script: Script, chunk: int | None = None) -> Tensor:
        """Logits [tokens, vocab] of every position of a lone run on an empty pool, whole or in chunks."""
        tokens = script.prompt + script.output
        key = (tuple(tokens), chunk)
        if key not in self._cold:
            pool = self._pool(num_blocks=1, block_size=len(tokens))
            size = chunk or len(tokens)
            parts = [
                self._forward(pool, tokens, start, start + size) for start in range(0, len(tokens), size)
            ]
            self._cold[key] = torch.cat(parts)
        return self._cold[key]

    def greedy(self, prompt: list[int], count: int) -> tuple[list[int], Tensor]:
        """What the model itself says to ``prompt`` in a lone run, and the logits it said it with."""
        tokens = list(prompt)
        pool = self._pool(num_blocks=1, block_size=len(prompt) + count)
        logits = [self._forward(pool, tokens, 0, len(prompt))[-1]]
        for _ in range(count - 1):
            tokens.append(int(logits[-1].argmax()))
            logits.append(self._forward(pool, tokens, len(tokens) - 1, len(tokens))[-1])
        return [*tokens[len(prompt) :], int(logits[-1].argmax())], torch.stack(logits)

    def _forward(self, pool: KVPool, tokens: list[int], start: int, stop: int) -> Tensor:
        """Logits [stop - start, vocab] of the tokens from ``start``; the pool is one big block."""
        chunk = tokens[start:stop]
        positions = torch.arange(start, start + len(chunk))
        span = SequenceSpan(0, len(chunk), start + len(chunk), torch.tensor([0]))
        rows = torch.arange(len(chunk))
        batch = ForwardBatch(torch.tensor(chunk), positions, positions, (span,), rows)
        return self._model.forward(batch, pool, self._attention(pool))

    def _pool(self, num_blocks: int, block_size: int) -> KVPool:
        return KVPool(
            self._model.spec,
            num_blocks=num_blocks,
            block_size=block_size,
            dtype=self._model.dtype,
            device=self._model.device,
        )

    def _runner(self, cache: CacheConfig) -> Runner:
        pool = self._pool(cache.num_blocks, cache.block_size)
        return Runner(self._model, pool, self._attention(pool), Sampler(0))


def _request(script: Script) -> Request:
    return Request(
        request_id=script.name,
        cache=CacheRequest(script.name, script.prompt, namespace=Namespace(salt=script.salt)),
        params=SamplingParams(temperature=0.0, max_tokens=len(script.output)),
        num_prompt_tokens=len(script.prompt),
        max_tokens=len(script.output),
        arrival_time=0.0,
    )
