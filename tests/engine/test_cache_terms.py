"""What requests ask of the cache, through a whole engine over a fake runner."""

from __future__ import annotations

from typing import Any

import pytest

from headstart.cache import CacheConfig, KVCacheManager
from headstart.engine.request import PLAIN_TERMS, CacheTerms, RequestOutput, Retention, SamplingParams
from tests.fake_runner import FakeEngine, answer, tokens_of

PROMPT = list(range(100, 130))  # seven blocks and two tokens
OTHERS = [list(range(first, first + 40)) for first in range(200, 900, 50)]
SILENT = CacheTerms(skip_writing=True)


@pytest.fixture(params=["radix", "hash"])
def engine(request: Any) -> FakeEngine:
    return FakeEngine(index=request.param, num_blocks=30)


def serve(
    engine: FakeEngine, name: str, prompt: list[int], terms: CacheTerms = PLAIN_TERMS, **params: Any
) -> RequestOutput:
    """The last output of a request that is alone."""
    engine.add_request(name, prompt, SamplingParams(**{"max_tokens": 1} | params), terms=terms)
    return engine.drain()[-1]


def cached(engine: FakeEngine, name: str, prompt: list[int]) -> int:
    """How much of it is found, by somebody who leaves nothing."""
    return serve(engine, name, [*prompt, 1], SILENT).num_cached_tokens


def test_whoever_follows_one_that_writes_nothing_is_cold(engine: FakeEngine) -> None:
    engine.add_request("a", PROMPT, SamplingParams(max_tokens=20, n=3), terms=SILENT)
    outputs = engine.drain()
    assert tokens_of(outputs, "a") == tokens_of(outputs, "a#2") == answer(PROMPT, 20)
    assert cached(engine, "b", PROMPT) == 0
    assert serve(engine, "c", PROMPT).num_cached_tokens == 0
    assert cached(engine, "d", PROMPT) >= 28
    assert engine.manager.num_free_blocks == 30


def test_it_reads_all_the_same(engine: FakeEngine) -> None:
    serve(engine, "a", PROMPT)
    assert serve(engine, "b", [*PROMPT, 1, 2, 3], SILENT).num_cached_tokens >= 28
    reads_nothing = CacheTerms(skip_writing=True, skip_reading=True)
    assert serve(engine, "c", [*PROMPT, 1, 2, 3], reads_nothing).num_cached_tokens == 0


def test_it_is_served_though_it_is_preempted(engine: FakeEngine) -> None:
    for number in range(3):
        terms = SILENT if number else PLAIN_TERMS
        engine.add_request(f"r{number}", OTHERS[number], SamplingParams(max_tokens=30), terms=terms)
    outputs = engine.drain()
    assert engine.scheduler.num_preemptions > 0
    for number in range(3):
        assert tokens_of(outputs, f"r{number}") == answer(OTHERS[number], 30)


def test_a_retained_prompt_outlives_others_until_its_time_is_over(engine: FakeEngine) -> None:
    kept = serve(engine, "a", PROMPT, CacheTerms(retention=Retention(60.0)))
    assert kept.num_retained_tokens == 28
    for number, prompt in enumerate(OTHERS):
        serve(engine, f"o{number}", prompt)
    assert cached(engine, "b", PROMPT) >= 28
    engine.now = 61.0
    for number, prompt in enumerate(OTHERS):
        serve(engine, f"p{number}", prompt)
    assert cached(engine, "c", PROMPT) == 0


def test_hinting_at_everything_keeps_half_of_the_pool(engine: FakeEngine) -> None:
    for number, prompt in enumerate(OTHERS):
        output = serve(engine, f"o{number}", prompt, CacheTerms(retention=Retention(1000.0)))
        assert output.num_retained_tokens == 40
        assert sum(pin.num_blocks for pin in engine.manager.pins) <= 15
    assert (
        serve(engine, "a", list(range(1, 81)), CacheTerms(retention=Retention(9.0))).num_retained_tokens == 0
    )


def test_a_prompt_alone_can_be_computed_and_kept(engine: FakeEngine) -> None:
    output = serve(engine, "a", PROMPT, CacheTerms(retention=Retention(60.0)), max_tokens=0)
    assert output == RequestOutput("a", (), 0, "length", num_retained_tokens=28)
    assert serve(engine, "b", PROMPT, max_tokens=0).num_cached_tokens >= 28
    full = list(range(1, 101))  # as long as the context: nothing needs to be generated
    assert serve(engine, "c", full, max_tokens=0).finish_reason == "length"


def test_only_the_prompt_is_kept_and_by_its_first_choice(engine: FakeEngine) -> None:
    terms = CacheTerms(retention=Retention(60.0, "chat"))
    engine.add_request("a", PROMPT, SamplingParams(max_tokens=12, n=2), terms=terms)
    outputs = engine.drain()
    assert {output.num_retained_tokens for output in outputs if output.token_ids} == {28}
    assert [(pin.request_id, pin.num_blocks) for pin in engine.manager.pins] == [("chat", 7)]


def test_who_writes_nothing_retains_nothing(engine: FakeEngine) -> None:
    serve(engine, "a", PROMPT)
    terms = CacheTerms(skip_writing=True, retention=Retention(60.0))
    assert serve(engine, "b", PROMPT, terms).num_retained_tokens == 0
    assert engine.manager.pins == ()


def test_without_a_cache_nothing_is_retained() -> None:
    engine = FakeEngine()
    engine.manager = engine.scheduler.manager = KVCacheManager(
        CacheConfig(50, 4, enable_prefix_caching=False)
    )
    assert serve(engine, "a", PROMPT, CacheTerms(retention=Retention(60.0))).num_retained_tokens == 0
