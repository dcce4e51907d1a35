"""What ended, or was given up, leaves nothing behind but the cache."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from headstart.cache import CacheRequest
from headstart.cache.index import Lease
from headstart.cache.radix_index import RadixLease
from headstart.config import PrefixIndexName
from headstart.engine.request import (
    CacheTerms,
    Request,
    RequestOutput,
    SamplingParams,
    ScheduledRow,
    StepPlan,
    StepResult,
)
from headstart.errors import RequestError
from tests.fake_runner import VOCAB_SIZE, FakeEngine, answer
from tests.gone import alive, holders_of, num_objects

INDEXES = pytest.mark.parametrize("index", ["radix", "hash"])
OF_A_REQUEST = (
    Request, CacheRequest, Lease, RadixLease, SamplingParams,
    ScheduledRow, StepPlan, StepResult, RequestOutput,
)  # fmt: skip
SECRET = (993, 997, 991, 983, 977, 971, 967, 953)  # no other prompt has tokens of 900 and more


@pytest.fixture(autouse=True)
def no_log_records() -> Iterator[None]:
    """Pytest would keep them, and their tracebacks what failed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headstart.engine.core.logger.disabled", True)
        yield


def storm(engine: FakeEngine, count: int, seed: int) -> None:
    """``count`` requests of all shapes; many are given up at any time, some are refused, some steps break."""
    chance = random.Random(seed)
    prefixes = [chance.choices(range(900), k=chance.randint(1, 60)) for _ in range(4)]
    current: set[str] = set()
    number = 0
    while number < count or engine.has_work:
        while number < count and len(current) < 16 and chance.random() < 0.7:
            name, number = f"{seed}-{number}", number + 1
            tail = chance.choices(range(900), k=chance.choice((1, 3, 12, 39)))
            try:
                engine.add_request(
                    name,
                    chance.choice(([], *prefixes)) + tail,
                    SamplingParams(
                        max_tokens=chance.randint(1, 12),
                        stop_token_ids=tuple(chance.choices(range(1000), k=chance.choice((0, 0, 200)))),
                        presence_penalty=chance.choice((0.0, 0.0, 1.0)),
                    ),
                    terms=CacheTerms(salt=chance.choice((None, None, "salt", name))),
                )
                current.add(name)
            except RequestError:
                assert len(tail) > 30, "it is not too long"
        for name in sorted(current):
            if chance.random() < 0.05:
                assert engine.abort(name)
                current.remove(name)
        if chance.random() < 0.02:
            engine.runner.failure = RuntimeError("on purpose")
        current -= {output.request_id for output in engine.step() if output.finish_reason is not None}
        engine.explain()  # as its process does once the outputs are sent
        engine.runner.plans.clear()
    engine.runner.failure = None


def serve(engine: FakeEngine, prompt: list[int], max_tokens: int = 1) -> None:
    engine.add_request("one", prompt, SamplingParams(max_tokens=max_tokens))
    while engine.has_work:
        engine.step()
        engine.explain()
    engine.runner.plans.clear()


@INDEXES
def test_after_thousands_of_requests_and_aborts_nothing_of_them_is_there(
    index: PrefixIndexName, caplog: pytest.LogCaptureFixture
) -> None:
    before = alive(*OF_A_REQUEST)
    engine = FakeEngine(num_blocks=60, index=index, budget=32)
    for first in range(0, VOCAB_SIZE, 50):  # the hash index keeps how each id is encoded
        serve(engine, list(range(first, first + 50)))
    for seed in (1, 2, 3):  # the interpreter keeps some memory for what it will need again
        storm(engine, 1000, seed)
        assert engine.reset_prefix_cache()
    assert engine.stats().num_preemptions > 0
    assert engine.reset_prefix_cache()
    engine.explain()
    caplog.clear()  # it keeps the failures' tracebacks
    objects = num_objects()
    storm(engine, 1200, seed=4)

    manager, scheduler = engine.manager, engine.scheduler
    assert manager.num_free_blocks == len(manager.free_block_ids()) == manager.config.num_blocks
    manager.check()
    assert (scheduler.running, list(scheduler.waiting)) == ([], [])
    assert (scheduler._requests, manager._holdings, manager._step) == ({}, {}, {})
    assert alive(*OF_A_REQUEST) == before
    assert engine.reset_prefix_cache()
    engine.explain()
    caplog.clear()
    assert num_objects() - objects < 120, "less than one for ten requests"


@INDEXES
def test_the_tokens_of_a_finished_request_are_in_the_cache_until_it_is_reset(index: PrefixIndexName) -> None:
    engine = FakeEngine(index=index, explain_misses=False)
    serve(engine, [1, *SECRET, 2, 3, 4])
    assert bool(holders_of(SECRET)) == (index == "radix")  # the other has it in pieces of a block
    assert engine.reset_prefix_cache()
    assert holders_of(SECRET) == []


@INDEXES
def test_or_until_their_blocks_are_taken_by_others(index: PrefixIndexName) -> None:
    engine = FakeEngine(index=index, explain_misses=False)
    serve(engine, [*SECRET, *SECRET, 1, 2, 3])
    for first in range(6):
        serve(engine, [first, *range(100, 196)])
    assert holders_of(SECRET) == []


@INDEXES
def test_generated_tokens_go_with_the_rest(index: PrefixIndexName) -> None:
    engine = FakeEngine(index=index, explain_misses=False)
    generated = tuple(answer([5, 6, 7], 12))
    part = generated[1:9]
    serve(engine, [5, 6, 7], 12)
    assert bool(holders_of(part)) == (index == "radix")
    assert engine.reset_prefix_cache()
    assert holders_of(part) == []


@INDEXES
def test_aborted_requests_leave_their_tokens_nowhere_but_in_the_cache(index: PrefixIndexName) -> None:
    engine = FakeEngine(index=index, explain_misses=False)
    for steps in (0, 1, 3):  # while it waits, within its prompt, while it decodes
        engine.add_request("one", [*SECRET, *range(1, 13)], SamplingParams(max_tokens=50))
        for _ in range(steps):
            engine.step()
            engine.explain()
        assert engine.abort("one")
    engine.runner.plans.clear()
    assert engine.reset_prefix_cache()
    assert holders_of(SECRET) == []
