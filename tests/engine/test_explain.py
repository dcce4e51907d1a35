"""Reports of misses on their way from the cache to whoever drives the engine."""

from __future__ import annotations

import pytest

from headstart.cache import MissReason
from headstart.engine.request import SamplingParams
from tests.fake_runner import FakeEngine

PROMPT = list(range(100, 120))


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(budget=8)


def test_a_report_comes_with_the_first_token_and_not_before(engine: FakeEngine) -> None:
    engine.add_request("a", PROMPT, SamplingParams(max_tokens=3))
    told = []
    while engine.has_work:
        outputs = engine.step()
        told.append((bool(outputs), [report.request_id for report in engine.explain()]))
    assert told == [(False, []), (False, []), (True, ["a"]), (True, []), (True, [])]
    assert engine.stats().miss_tokens == {MissReason.COLD: 19, MissReason.LAST_TOKEN: 1}


def test_choices_share_one_report(engine: FakeEngine) -> None:
    engine.add_request("a", PROMPT, SamplingParams(max_tokens=2, n=3))
    reports = []
    while engine.has_work:
        engine.step()
        reports += engine.explain()
    assert [report.request_id for report in reports] == ["a"]
    assert engine.stats().miss_tokens == {MissReason.COLD: 19, MissReason.LAST_TOKEN: 1}


def test_whoever_does_not_ask_in_time_loses_a_report_and_no_count(engine: FakeEngine) -> None:
    for name, prompt in (("a", PROMPT), ("b", PROMPT[::-1])):
        engine.add_request(name, prompt, SamplingParams(max_tokens=1))
    while engine.has_work:
        engine.step()
    assert [report.request_id for report in engine.explain()] == ["b"]
    stats = engine.stats()
    assert sum(stats.miss_tokens.values()) + stats.prefix_cache_hits == stats.prefix_cache_queries == 40


def test_a_prompt_whose_step_failed_is_counted_when_it_comes_again(engine: FakeEngine) -> None:
    runner = engine.runner
    engine.add_request("a", PROMPT[:5], SamplingParams(max_tokens=1))
    runner.failure = RuntimeError("a kernel failed")
    engine.step()
    assert engine.explain() == []
    engine.add_request("b", PROMPT[:5], SamplingParams(max_tokens=1))
    engine.step()
    (report,) = engine.explain()
    assert report.tokens == {MissReason.COLD: 4, MissReason.LAST_TOKEN: 1}
    assert engine.stats().miss_tokens == report.tokens


def test_prompt_log_probabilities_skip(engine: FakeEngine) -> None:
    engine.add_request("a", PROMPT[:5], SamplingParams(max_tokens=0, prompt_logprobs=0))
    engine.step()
    (report,) = engine.explain()
    assert report.tokens == {MissReason.SKIPPED: 5}
