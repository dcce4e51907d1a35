from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest

from headstart.cache.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from headstart.engine.messages import EngineStats
from headstart.engine.request import CacheTerms, RequestOutput, SamplingParams
from headstart.errors import RequestError
from tests.fake_runner import FakeEngine, answer, tokens_of

A, B, C = (list(range(first, first + 30)) for first in (100, 200, 300))


def add(engine: FakeEngine, name: str, prompt: list[int], max_tokens: int = 1) -> None:
    engine.add_request(name, prompt, SamplingParams(max_tokens=max_tokens))


def test_requests_in_tokens_out() -> None:
    engine = FakeEngine()
    assert not engine.has_work
    add(engine, "a", A[:10], 3)
    add(engine, "b", B[:3], 2)
    assert engine.has_work
    assert engine.step() == []  # a's first chunk
    outputs = engine.step()
    assert outputs == [
        RequestOutput("a", tuple(answer(A[:10], 1))),
        RequestOutput("b", tuple(answer(B[:3], 1))),
    ]
    outputs += engine.drain()
    assert tokens_of(outputs, "a") == answer(A[:10], 3)
    assert tokens_of(outputs, "b") == answer(B[:3], 2)
    assert not engine.has_work


def test_a_prompt_may_come_as_the_bytes_of_the_wire() -> None:
    engine = FakeEngine()
    engine.add_request("a", array("i", A[:10]).tobytes(), SamplingParams(max_tokens=1))
    assert tokens_of(engine.drain(), "a") == answer(A[:10], 1)


def test_salts_reach_the_cache() -> None:
    engine = FakeEngine()
    hits = []
    for number, salt in enumerate(("s", "t", "s")):
        engine.add_request(str(number), A[:9], SamplingParams(max_tokens=1), terms=CacheTerms(salt=salt))
        hits.append(engine.drain()[-1].num_cached_tokens)
    assert hits == [0, 0, 8]


def test_tenants_reach_the_cache_with_every_choice_and_keep_nothing_apart() -> None:
    engine = FakeEngine()
    for number, tenant in enumerate(("x", "y")):
        params = SamplingParams(max_tokens=1, n=2)
        engine.add_request(str(number), A[:9], params, terms=CacheTerms(tenant=tenant))
        waiting = [*engine.scheduler.waiting]
        choices = [*waiting, *engine.scheduler.followers.of(waiting[0])]
        assert [choice.cache.tenant for choice in choices] == [tenant] * 2
        outputs = engine.drain()
    assert outputs[-1].num_cached_tokens == 8


@pytest.mark.parametrize(
    ("prompt", "salt", "words"),
    [
        ([], None, "at least one token"),
        ([1000], None, "token id 1000 at position 0"),
        ([2**40], None, "32 bits"),
        (["a"], None, "32 bits"),
        (b"12345", None, "32 bits"),
        ([1], "", "cache_salt"),
        (A[:1] * 100, None, "100"),
    ],
)
def test_what_cannot_be_served_is_refused_and_leaves_nothing(
    prompt: list[int] | bytes, salt: str | None, words: str
) -> None:
    engine = FakeEngine()
    with pytest.raises(RequestError, match=words):
        engine.add_request("bad", prompt, SamplingParams(), terms=CacheTerms(salt=salt))
    assert not engine.has_work
    assert not engine.abort("bad")


def test_a_step_that_raises_fails_its_own_requests_and_the_engine_serves_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = FakeEngine()
    add(engine, "a", A[:4], 5)
    add(engine, "b", B[:4], 5)
    add(engine, "waits", C[:4], 2)
    engine.step()
    add(engine, "late", C[:8], 2)
    engine.abort("waits")
    engine.runner.failure = RuntimeError("the kernel is upset")
    outputs = engine.step()  # a, b and a chunk of late
    assert {(o.request_id, o.finish_reason, o.token_ids) for o in outputs} == {
        (name, "error", ()) for name in ("a", "b", "late")
    }
    assert all(o.error == "the engine failed while computing this request; its log says how" for o in outputs)
    assert "a step of 3 rows failed" in caplog.text
    assert "the kernel is upset" in caplog.text  # with its traceback
    assert not engine.has_work
    assert engine.manager.usage == 0.0
    add(engine, "again", C[:8], 2)
    assert tokens_of(engine.drain(), "again") == answer(C[:8], 2)


def test_who_had_no_row_in_the_broken_step_is_served(caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeEngine()
    add(engine, "a", A[:10])
    add(engine, "b", B[:4])
    engine.runner.failure = MemoryError("no memory")
    assert [o.request_id for o in engine.step()] == ["a"]
    assert tokens_of(engine.drain(), "b") == answer(B[:4], 1)
    assert "MemoryError" in caplog.text


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_a_step_that_is_interrupted_is_rolled_back_and_can_be_done_again(kind: type[BaseException]) -> None:
    engine = FakeEngine(num_blocks=6)
    add(engine, "first", A[:12])
    engine.drain()
    add(engine, "a", A[:10] + B[:4], 3)  # a hit whose last block is copied, and its source kept for the step
    engine.runner.failure = kind()
    with pytest.raises(kind):
        engine.step()
    engine.manager.check()
    assert engine.manager.usage == 0.0
    assert engine.stats().num_waiting == 1
    outputs = engine.drain()
    assert tokens_of(outputs, "a") == answer(A[:10] + B[:4], 3)
    assert outputs[-1].num_cached_tokens == 10
    assert engine.reset_prefix_cache()


def test_an_aborted_request_is_heard_of_no_more() -> None:
    engine = FakeEngine()
    add(engine, "a", A[:4], 5)
    add(engine, "b", B[:4], 5)
    engine.step()
    assert engine.abort("a")
    assert not engine.abort("a")
    assert {output.request_id for output in engine.drain()} == {"b"}


def test_the_cache_is_reset_only_while_no_block_is_in_use() -> None:
    engine = FakeEngine()
    add(engine, "a", A[:9], 2)
    assert engine.reset_prefix_cache()  # it waits, and holds nothing
    engine.step()
    assert not engine.reset_prefix_cache()
    engine.drain()
    assert engine.reset_prefix_cache()
    add(engine, "again", A[:9])
    assert engine.drain()[-1].num_cached_tokens == 0


def test_gauges_say_how_it_stands_and_counters_what_was_done() -> None:
    engine = FakeEngine(num_blocks=16)
    assert engine.stats() == EngineStats()
    add(engine, "a", A[:12], 3)
    add(engine, "b", B[:8], 1)
    engine.step()
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.kv_cache_usage) == (1, 1, 2 / 16)
    assert (stats.prompt_tokens, stats.generation_tokens) == (0, 0)  # the prompt is not done yet
    engine.step()
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.kv_cache_usage) == (2, 0, 4 / 16)
    assert (stats.prompt_tokens, stats.generation_tokens) == (12, 1)
    engine.drain()
    add(engine, "again", A[:12], 1)
    engine.drain()
    assert engine.stats() == EngineStats(
        prefix_cache_queries=12 + 8 + 12,
        prefix_cache_hits=11,
        prompt_tokens=12 + 8 + 12,
        generation_tokens=3 + 1 + 1,
    )


def test_a_preempted_request_counts_once() -> None:
    engine = FakeEngine(num_blocks=5)
    add(engine, "a", A[:4], 10)
    add(engine, "b", B[:4], 12)
    outputs = engine.drain()
    stats = engine.stats()
    assert stats.num_preemptions > 0
    assert (stats.prompt_tokens, stats.generation_tokens) == (8, 22)
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (8, 0)
    assert tokens_of(outputs, "a") == answer(A[:4], 10)
    assert tokens_of(outputs, "b") == answer(B[:4], 12)


def test_time_comes_from_the_clock() -> None:
    engine = FakeEngine()
    engine.now = 7.5
    add(engine, "a", A[:4])
    (request,) = engine.scheduler.waiting
    assert request.arrival_time == 7.5


class Publisher:
    """An `EventPublisher` that keeps what it is told."""

    def __init__(self) -> None:
        self.num_dropped = 0
        self.batches: list[list[KVEvent]] = []

    def publish(self, events: Sequence[KVEvent]) -> None:
        self.batches.append(list(events))


def test_what_a_step_stored_is_published_before_its_outputs_are_out() -> None:
    publisher = Publisher()
    engine = FakeEngine(publisher=publisher)
    add(engine, "a", A[:10], 3)
    engine.step()
    ((event,),) = publisher.batches
    assert isinstance(event, BlockStored)
    assert event.token_ids == tuple(A[:8])
    engine.drain()
    assert [event.token_ids for (event,) in publisher.batches[1:] if isinstance(event, BlockStored)] == [
        (*A[8:10], *answer(A[:10], 2))
    ]


def test_an_idle_engine_publishes_a_reset() -> None:
    publisher = Publisher()
    engine = FakeEngine(publisher=publisher)
    add(engine, "a", A[:10])
    engine.drain()
    assert engine.reset_prefix_cache()
    assert isinstance(publisher.batches[-1][0], AllBlocksCleared)


def test_a_broken_step_publishes_what_it_evicted_and_nothing_that_it_wrote() -> None:
    publisher = Publisher()
    engine = FakeEngine(num_blocks=3, publisher=publisher)
    add(engine, "a", A[:8])
    engine.drain()
    publisher.batches.clear()
    engine.runner.run = lambda plan: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    add(engine, "b", B[:8])
    engine.drain()
    (events,) = publisher.batches
    assert events
    assert all(isinstance(event, BlockRemoved) for event in events)


def test_batches_that_were_dropped_are_counted() -> None:
    publisher = Publisher()
    publisher.num_dropped = 7
    assert FakeEngine(publisher=publisher).stats().kv_event_batches_dropped == 7
    assert FakeEngine().stats().kv_event_batches_dropped == 0


def test_evictions_are_counted() -> None:
    engine = FakeEngine(num_blocks=3)
    add(engine, "a", A[:8])
    engine.drain()
    assert engine.stats().num_evicted_blocks == 0
    add(engine, "b", B[:8])
    engine.drain()
    assert engine.stats().num_evicted_blocks == engine.scheduler.manager.num_evicted_blocks > 0
    assert engine.stats().num_collisions == 0
