"""Several choices of one prompt: computed once, forked, each with tokens of its own."""

from __future__ import annotations

import pytest

from headstart.config import PrefixIndexName
from headstart.engine.choices import as_ranked, best, choice_ids, of_choice
from headstart.engine.request import SamplingParams, StepResult
from headstart.errors import RequestError
from tests.fake_runner import Bench, FakeEngine, answer, rows, tokens_of

A, B, C = (list(range(first, first + 50)) for first in (100, 200, 300))
LONG = [(7 * i) % 900 for i in range(1000)]

both_indexes = pytest.mark.parametrize("index", ["radix", "hash"])


def assert_answered(bench: Bench, name: str, prompt: list[int], count: int, n: int) -> None:
    """All choices have ``count`` tokens, each its own."""
    for choice in choice_ids(name, n):
        seed = bench.requests[choice].params.seed
        assert bench.outputs[choice] == answer(prompt, count, seed=seed)
    assert len({tuple(bench.outputs[choice]) for choice in choice_ids(name, n)}) == n


def computed_of_prompt(bench: Bench, name: str, length: int) -> int:
    """How many times a token of the request's prompt of this length was computed, over all choices."""
    return sum(
        max(0, min(row.start + len(row.token_ids), length) - row.start)
        for plan in bench.runner.plans
        for row in plan.rows
        if row.request_id.partition("#")[0] == name
    )


# -- names, seeds, ranks -------------------------------------------------------------------------


def test_the_first_choice_has_the_requests_own_id_and_seed() -> None:
    assert choice_ids("r", 1) == ["r"]
    assert choice_ids("r", 3) == ["r", "r#1", "r#2"]
    params = SamplingParams(n=3, best_of=5, seed=7, top_k=4)
    assert of_choice(params, 0) == SamplingParams(seed=7, top_k=4)


def test_each_choice_has_a_seed_that_follows_from_the_requests() -> None:
    params = SamplingParams(n=100, seed=7)
    seeds = [of_choice(params, number).seed for number in range(100)]
    assert len(set(seeds)) == 100
    assert seeds == [of_choice(SamplingParams(n=2, seed=7), number).seed for number in range(100)]
    assert of_choice(SamplingParams(n=2, seed=8), 1).seed not in seeds
    assert of_choice(SamplingParams(n=2), 1).seed is None


def test_the_best_have_the_highest_mean_and_of_equals_the_first_wins() -> None:
    assert best([-2.0, -1.0, -3.0, -1.0], 3) == [1, 3, 0]
    assert best([float("-inf"), -1.0], 2) == [1, 0]


def test_only_a_ranking_asks_for_logprobs() -> None:
    assert as_ranked(SamplingParams(n=2)).logprobs is None
    assert as_ranked(SamplingParams(n=2, best_of=2)).logprobs is None
    assert as_ranked(SamplingParams(n=2, best_of=3)).logprobs == 0
    assert as_ranked(SamplingParams(best_of=3, logprobs=4)).logprobs == 4


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"n": 0}, "n", "between 1 and 128"),
        ({"n": 129}, "n", "between 1 and 128"),
        ({"n": 3, "best_of": 2}, "best_of", "at least n, which is 3, and at most 20"),
        ({"best_of": 21}, "best_of", "at most 20"),
    ],
)
def test_the_bounds(fields: dict[str, int], param: str, words: str) -> None:
    with pytest.raises(RequestError, match=words) as refused:
        SamplingParams(**fields)  # type: ignore[arg-type]
    assert refused.value.param == param


# -- once ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("caching", [True, False])
@both_indexes
def test_a_prompt_is_computed_and_stored_once(index: PrefixIndexName, caching: bool) -> None:
    bench = Bench(num_blocks=200, block_size=16, index=index, caching=caching, budget=256)
    bench.add("a", LONG, max_tokens=5, n=4, seed=1)
    for _ in range(3):
        assert bench.step().keys() == {"a"}
    plan = bench.plan()
    outputs = bench.commit(plan)  # the rest of the prompt, and a token for each choice
    assert [output.request_id for output in outputs] == choice_ids("a", 4)
    assert bench.manager.num_free_blocks == 200 - 63, "forking took blocks"
    assert bench.step() == dict.fromkeys(choice_ids("a", 4), (1000, 1001))
    assert bench.manager.num_free_blocks == 200 - 62 - 4  # what is shared, and each one's own last block
    bench.finish()
    assert computed_of_prompt(bench, "a", 1000) == 1000
    assert_answered(bench, "a", LONG, 5, 4)
    assert bench.manager.num_free_blocks == 200


@both_indexes
def test_the_statistics_count_the_prompt_once(index: PrefixIndexName) -> None:
    bench = Bench(num_blocks=200, block_size=16, index=index)
    bench.add("a", LONG, max_tokens=2, n=4)
    bench.finish()
    bench.add("b", LONG, max_tokens=2, n=4)
    bench.finish()
    hits = 999 if index == "radix" else 992
    stats = bench.manager.stats
    assert (stats.requests, stats.queries, stats.hits, stats.preempted_requests) == (2, 2000, hits, 0)
    assert {bench.ends[name].num_cached_tokens for name in choice_ids("b", 4)} == {hits}


def test_the_engine_counts_the_prompt_once_and_every_choices_tokens() -> None:
    engine = FakeEngine(budget=8)
    engine.add_request("a", A[:10], SamplingParams(max_tokens=3, n=4, seed=5))
    assert engine.stats().num_waiting == 4
    engine.step()
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting) == (1, 3)
    outputs = engine.step()
    assert engine.stats().num_running == 4
    outputs += engine.drain()
    for number, name in enumerate(choice_ids("a", 4)):
        seed = of_choice(SamplingParams(seed=5), number).seed
        assert tokens_of(outputs, name) == answer(A[:10], 3, seed=seed)
    stats = engine.stats()
    assert (stats.prompt_tokens, stats.generation_tokens) == (10, 12)
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (10, 0)


def test_an_id_in_use_refuses_all_choices() -> None:
    engine = FakeEngine()
    engine.add_request("a#1", B[:4], SamplingParams(max_tokens=1))
    with pytest.raises(RequestError, match="'a#1' is in use"):
        engine.add_request("a", A[:4], SamplingParams(n=3))
    assert [output.request_id for output in engine.drain()] == ["a#1"]


def test_one_token_each_needs_one_step() -> None:
    bench = Bench()
    bench.add("a", A[:6], max_tokens=1, n=20, seed=1)
    assert bench.finish() == 1
    assert_answered(bench, "a", A[:6], 1, 20)


# -- seats and room ------------------------------------------------------------------------------


@both_indexes
def test_choices_without_a_seat_come_later_and_find_the_prompt(index: PrefixIndexName) -> None:
    bench = Bench(num_blocks=200, block_size=16, index=index, seqs=2)
    bench.add("a", LONG, max_tokens=3, n=5, seed=1)
    bench.add("b", B[:4], max_tokens=3)
    assert bench.step() == {"a": (0, 1000)}, "a seat that a follower needs was given away"
    assert [len(bench.outputs[name]) for name in choice_ids("a", 5)] == [1] * 5
    assert bench.step().keys() == {"a", "a#1"}
    bench.step()
    assert bench.step().keys() == {"a#2", "a#3"}
    bench.finish()
    assert_answered(bench, "a", LONG, 3, 5)
    assert bench.outputs["b"] == answer(B[:4], 3)
    again = 3 * 8 if index == "hash" else 0  # the half block at the prompt's end
    assert computed_of_prompt(bench, "a", 1000) == 1000 + again
    stats = bench.manager.stats
    assert (stats.requests, stats.queries, stats.hits) == (2, 1004, 0)
    assert stats.preempted_requests == 3
    assert bench.scheduler.num_preemptions == 0


def test_a_request_that_is_ahead_gets_the_seat_of_a_follower() -> None:
    bench = Bench(seqs=2)
    bench.add("a", A[:6], max_tokens=3, n=2, seed=1)
    plan = bench.plan()
    bench.add("urgent", B[:6], max_tokens=3, priority=-1)
    bench.commit(plan)
    assert bench.step().keys() == {"a", "urgent"}
    bench.finish()
    assert_answered(bench, "a", A[:6], 3, 2)


@both_indexes
@pytest.mark.parametrize("length", [9, 12])
def test_a_pool_that_holds_one_choice_serves_them_all(index: PrefixIndexName, length: int) -> None:
    bench = Bench(num_blocks=6, block_size=4, index=index)
    max_tokens = 24 + 1 - length
    bench.add("a", A[:length], max_tokens=max_tokens, n=4, seed=1)
    bench.add("b", B[:length], max_tokens=max_tokens)
    bench.finish()
    assert bench.scheduler.num_preemptions > 0
    assert_answered(bench, "a", A[:length], max_tokens, 4)
    assert bench.outputs["b"] == answer(B[:length], max_tokens)
    assert bench.manager.stats.requests == 2


def test_a_leader_that_is_preempted_amid_its_prompt_keeps_its_followers() -> None:
    bench = Bench(num_blocks=8, block_size=4, budget=8)
    bench.add("first", B[:8], max_tokens=12)
    bench.step()
    bench.add("a", A[:26], max_tokens=2, n=3, seed=1)
    preempted = 0
    while not bench.ends:
        bench.step()
        preempted = bench.requests["a"].num_preemptions
    assert preempted
    assert not bench.outputs["a"]
    bench.finish()
    assert_answered(bench, "a", A[:26], 2, 3)
    assert bench.manager.stats.queries == 8 + 26


# -- ends ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", ["a", "a#1", "a#3"])
@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_a_choice_that_is_aborted_takes_no_other_along(gone: str, steps: int) -> None:
    bench = Bench(budget=8)  # 0: queued; 1: amid the prompt; 2: forked; 3: decoding
    bench.add("a", A[:13], max_tokens=4, n=4, seed=1)
    for _ in range(steps):
        bench.step()
    assert bench.scheduler.abort(gone)
    assert not bench.scheduler.abort(gone)
    bench.manager.check()
    bench.finish()
    assert bench.ends.keys() == set(choice_ids("a", 4)) - {gone}
    for name in bench.ends:
        assert bench.outputs[name] == answer(A[:13], 4, seed=bench.requests[name].params.seed)
    # Whoever takes over from a leader finds the whole blocks that it computed.
    assert computed_of_prompt(bench, "a", 13) == 13


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_a_group_that_is_aborted_leaves_nothing(steps: int) -> None:
    bench = Bench(budget=8)
    bench.add("a", A[:13], max_tokens=4, n=4)
    for _ in range(steps):
        bench.step()
    for name in choice_ids("a", 4):
        assert bench.scheduler.abort(name)
    assert not bench.scheduler.has_work
    assert not bench.scheduler.followers
    assert bench.manager.num_free_blocks == 100


def test_a_stop_token_ends_only_those_that_choose_it() -> None:
    bench = Bench()
    tokens = [answer(A[:6], 1, seed=of_choice(SamplingParams(seed=1), number).seed) for number in range(3)]
    bench.add("a", A[:6], max_tokens=3, n=3, seed=1, stop_token_ids=tuple(tokens[0]))
    bench.finish()
    assert {name: end.finish_reason for name, end in bench.ends.items()} == {
        "a": "stop",
        "a#1": "length",
        "a#2": "length",
    }
    assert bench.outputs["a"] == tokens[0]
    assert bench.outputs["a#2"][:1] == tokens[2]


# -- steps that break ----------------------------------------------------------------------------


@both_indexes
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_step_rolled_back_changes_nothing_for_the_choices(index: PrefixIndexName, steps: int) -> None:
    bench = Bench(budget=8, index=index, seqs=2)
    bench.add("a", A[:13], max_tokens=4, n=4, seed=1)
    for _ in range(steps):
        bench.step()
    plan = bench.plan()
    bench.rollback(plan)
    again = bench.plan()
    assert rows(again) == rows(plan)
    assert [row.forks for row in again.rows] == [row.forks for row in plan.rows]
    bench.commit(again)
    bench.finish()
    assert_answered(bench, "a", A[:13], 4, 4)
    assert bench.manager.stats.queries == 13


def test_a_rollback_keeps_what_the_leader_had_from_the_cache() -> None:
    bench = Bench(seqs=1)
    bench.add("first", A[:9])
    bench.finish()
    bench.add("a", A[:8] + B[:5], max_tokens=2, n=2, seed=1)
    for _ in range(2):
        bench.step()
    plan = bench.plan()  # lets the follower in, which waited for a seat
    assert rows(plan).keys() == {"a#1"}
    bench.rollback(plan)
    assert bench.requests["a#1"].num_cached_tokens == 8
    bench.finish()
    assert bench.ends["a#1"].num_cached_tokens == 8


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_step_that_fails_ends_the_followers_too(steps: int) -> None:
    bench = Bench(budget=8)
    bench.add("a", A[:13], max_tokens=4, n=3)
    for _ in range(steps):
        bench.step()
    bench.add("b", B[:9], max_tokens=2)
    outputs = bench.fail(bench.plan(), "the reason")
    assert {o.request_id for o in outputs} >= set(choice_ids("a", 3))
    assert {(o.finish_reason, o.error) for o in outputs} == {("error", "the reason")}
    bench.finish()
    assert bench.manager.num_free_blocks == 100


def test_choices_without_a_token_end_with_the_error_and_the_others_go_on() -> None:
    bench = Bench()
    bench.add("a", A[:6], max_tokens=2, n=3, seed=1)
    plan = bench.plan()
    sampled = bench.runner.run(plan).sampled
    for name in ("a", "a#2"):
        del sampled[name]
    result = StepResult(sampled, {"a": "not a number", "a#2": "not a number"})
    outputs = bench.scheduler.commit(plan, result)
    bench.manager.check()
    assert [(o.request_id, o.error) for o in outputs] == [
        ("a", "not a number"),
        ("a#1", None),
        ("a#2", "not a number"),
    ]
    assert bench.step() == {"a#1": (6, 7)}
    assert bench.manager.num_free_blocks == 100
