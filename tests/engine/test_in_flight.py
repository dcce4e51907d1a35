"""What one request is computing, no other computes again."""

from __future__ import annotations

import pytest

from headstart.config import PrefixIndexName
from headstart.engine.request import StepPlan
from tests.fake_runner import Bench, answer, rows

PROMPT = [(7 * i * i + 3 * i) % 997 for i in range(2000)]
INDEXES = pytest.mark.parametrize("index", ["radix", "hash"])


def computed(plans: list[StepPlan]) -> int:
    return sum(plan.num_tokens for plan in plans)


@INDEXES
@pytest.mark.parametrize("budget", [64, 500, 2048])
@pytest.mark.parametrize("stagger", [0, 1], ids=["at once", "a step apart"])
def test_sixteen_equal_prompts_are_computed_once(index: PrefixIndexName, budget: int, stagger: int) -> None:
    bench = Bench(num_blocks=1000, block_size=16, index=index, budget=budget)
    for number in range(16):
        bench.add(f"r{number}", PROMPT, 1)
        for _ in range(stagger):
            bench.step()
    bench.finish()
    assert 2000 <= computed(bench.runner.plans) <= 2000 + 15 * 16
    assert all(bench.outputs[name] == answer(PROMPT, 1) for name in bench.outputs)


@INDEXES
def test_the_next_one_takes_over_from_a_leader_that_gives_up(index: PrefixIndexName) -> None:
    bench = Bench(num_blocks=1000, block_size=16, index=index, budget=100)
    bench.add("leader", PROMPT, 1)
    bench.step()
    for name in ("first", "second"):
        bench.add(name, PROMPT, 1)
    bench.step()
    assert bench.scheduler.abort("leader")
    plan = bench.plan()
    assert "first" in rows(plan)
    assert rows(plan)["first"][0] >= 192  # it goes on where the leader stopped
    assert "second" not in rows(plan)
    bench.commit(plan)
    bench.finish()
    assert computed(bench.runner.plans) <= 2000 + 2 * 16


@INDEXES
def test_other_namespaces_wait_for_nobody(index: PrefixIndexName) -> None:
    bench = Bench(num_blocks=1000, block_size=16, index=index, budget=4000)
    bench.add("a", PROMPT, 1, salt="a")
    bench.add("b", PROMPT, 1, salt="b")
    assert rows(bench.plan()) == {"a": (0, 2000), "b": (0, 2000)}


def test_a_prompt_that_lacks_less_than_a_block_waits_for_nobody() -> None:
    bench = Bench(block_size=16, budget=20)
    bench.add("leader", PROMPT[:64], 1)
    bench.step()
    bench.add("short", PROMPT[:10], 1)
    plan = bench.plan()
    assert set(rows(plan)) == {"leader"}  # the budget is spent
    bench.commit(plan)
    bench.finish()
    assert bench.outputs["short"] == answer(PROMPT[:10], 1)


def test_with_caching_off_everybody_computes_for_itself() -> None:
    bench = Bench(num_blocks=1000, block_size=16, caching=False, budget=8000)
    for name in ("a", "b"):
        bench.add(name, PROMPT, 1)
    assert rows(bench.plan()) == {"a": (0, 2000), "b": (0, 2000)}
