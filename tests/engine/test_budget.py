"""Chunks beside decoding requests are as long as those can bear."""

from __future__ import annotations

import pytest

from headstart.engine.budget import STRETCH, AdaptiveBudget, FixedBudget
from headstart.engine.core import EngineCore
from headstart.engine.limits import Limits
from headstart.engine.request import SamplingParams, StepPlan, StepResult
from headstart.engine.scheduler import AUTO_LIMIT
from tests.fake_runner import FakeRunner, make_scheduler


def test_a_fixed_budget_learns_nothing() -> None:
    budget = FixedBudget(7)
    budget.observe(3, 4, 100.0)
    assert [budget.tokens(0), budget.tokens(100)] == [7, 7]


def test_alone_a_prompt_gets_everything() -> None:
    budget = AdaptiveBudget(2048)
    assert budget.tokens(0) == 2048
    budget.observe(0, 2048, 1.0)
    assert budget.tokens(0) == 2048


def test_before_anything_is_known_a_chunk_beside_others_is_small() -> None:
    assert AdaptiveBudget(2048).tokens(8) == 8 + 16


@pytest.mark.parametrize("per_token", [0.0001, 0.001, 0.01])
def test_a_step_beside_decoding_requests_takes_at_most_so_much_longer(per_token: float) -> None:
    budget, decoding = AdaptiveBudget(2048), 0.1
    for _ in range(30):
        budget.observe(8, 0, decoding)
        chunk = budget.tokens(8) - 8
        budget.observe(8, chunk, decoding + per_token * chunk)
    chunk = budget.tokens(8) - 8
    allowed = (STRETCH - 1) * decoding
    assert chunk == 16 or per_token * chunk <= allowed * 1.01
    assert chunk == 2048 - 8 or per_token * (chunk + 1) >= allowed * 0.99


def test_it_forgets() -> None:
    budget = AdaptiveBudget(2048)
    budget.observe(8, 0, 0.1)
    budget.observe(8, 100, 0.2)
    before = budget.tokens(8)
    for _ in range(30):
        budget.observe(8, 100, 1.1)  # the context has grown, and attention with it
    assert budget.tokens(8) < before


def test_a_step_in_which_nobody_decodes_says_nothing_of_decoding() -> None:
    budget = AdaptiveBudget(2048)
    budget.observe(8, 0, 0.1)
    budget.observe(8, 100, 0.2)
    before = budget.tokens(8)
    budget.observe(0, 0, 1e-6)  # an empty step: the only request has just given way to itself
    assert budget.tokens(8) == before


def test_a_step_faster_than_any_before_is_no_division_by_zero() -> None:
    budget = AdaptiveBudget(2048)
    budget.observe(8, 0, 0.1)
    budget.observe(8, 100, 0.05)
    assert budget.tokens(8) == 2048


class TimedRunner:
    """A `FakeRunner` whose steps take 100 ms, and 1 ms more for each prompt token."""

    def __init__(self, inner: FakeRunner) -> None:
        self.inner = inner
        self.now = 0.0
        self.steps: list[tuple[int, float]] = []

    def run(self, plan: StepPlan) -> StepResult:
        decoding = sum(row.is_decoding for row in plan.rows)
        seconds = 0.1 + 0.001 * (plan.num_tokens - decoding)
        self.now += seconds
        self.steps.append((decoding, seconds))
        return self.inner.run(plan)


def test_a_long_prompt_does_not_stall_those_who_decode() -> None:
    scheduler = make_scheduler(num_blocks=2000, block_size=16, budget="auto")
    runner = TimedRunner(FakeRunner(2000, 16))
    core = EngineCore(scheduler, runner, Limits(10_000, 1000, 2000, 16), clock=lambda: runner.now)
    for number in range(8):
        core.add_request(f"r{number}", [number, 1, 2], SamplingParams(temperature=0.0, max_tokens=200))
    for _ in range(20):
        core.step()
    core.add_request("long", [i % 1000 for i in range(6000)], SamplingParams(temperature=0.0, max_tokens=1))
    before = len(runner.steps)
    while core.has_work:
        core.step()
    beside = [seconds for decoding, seconds in runner.steps[before:] if decoding == 8]
    assert len(beside) > 10
    assert max(beside) <= 3 * 0.1  # three times an idle step, which is what is promised
    assert AUTO_LIMIT == 2048
