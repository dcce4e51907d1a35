from __future__ import annotations

from collections import Counter

import pytest

from headstart.cache import BlockCopy
from headstart.config import PrefixIndexName
from headstart.engine.request import StepResult
from headstart.errors import RequestError
from tests.fake_runner import Bench, answer, rows

A, B, C, D, E = (list(range(first, first + 40)) for first in (100, 200, 300, 400, 500))

both_indexes = pytest.mark.parametrize("index", ["radix", "hash"])


# -- what a step holds ---------------------------------------------------------------------------


def test_nothing_to_do_is_an_empty_step() -> None:
    bench = Bench()
    assert not bench.scheduler.has_work
    assert bench.step() == {}


def test_a_prompt_is_computed_in_chunks_of_the_budget_and_then_decodes() -> None:
    bench = Bench(budget=8)
    bench.add("a", A[:18], max_tokens=3)
    assert [bench.step() for _ in range(5)] == [
        {"a": (0, 8)},
        {"a": (8, 16)},
        {"a": (16, 18)},
        {"a": (18, 19)},
        {"a": (19, 20)},
    ]
    assert bench.outputs["a"] == answer(A[:18], 3)
    assert not bench.scheduler.has_work
    assert bench.manager.num_free_blocks == 100


def test_a_row_says_what_the_runner_must_know() -> None:
    bench = Bench(budget=8)
    bench.add("a", A[:12], max_tokens=9)
    for _ in range(4):
        bench.step()
    chunk, last_chunk, first_decode, second_decode = (plan.rows[0] for plan in bench.runner.plans)
    assert (chunk.token_ids, chunk.sample) == (A[:8], False)
    assert (last_chunk.token_ids, last_chunk.sample, last_chunk.num_output_tokens) == (A[8:12], True, 0)
    told = answer(A[:12], 2)
    assert (first_decode.token_ids, first_decode.sample, first_decode.num_output_tokens) == (
        told[:1],
        True,
        1,
    )
    assert (second_decode.token_ids, second_decode.num_output_tokens) == (told[1:], 2)
    assert [len(plan.rows[0].block_ids) for plan in bench.runner.plans] == [2, 3, 4, 4]
    assert second_decode.params is chunk.params


def test_running_requests_come_first_and_then_waiting_ones_in_the_order_of_arrival() -> None:
    bench = Bench(budget=8)
    bench.add("a", A[:4], max_tokens=9)
    bench.step()
    for name, prompt in (("b", B[:4]), ("c", C[:6]), ("d", D[:1])):
        bench.add(name, prompt, max_tokens=9)
    assert list(bench.step().items()) == [("a", (4, 5)), ("b", (0, 4)), ("c", (0, 3))]
    assert list(bench.step().items()) == [("a", (5, 6)), ("b", (4, 5)), ("c", (3, 6)), ("d", (0, 1))]


def test_a_budget_smaller_than_the_running_requests_serves_the_first_of_them() -> None:
    bench = Bench(budget=2)
    for name, prompt in (("a", A[:1]), ("b", B[:1]), ("c", C[:1])):
        bench.add(name, prompt, max_tokens=4)
    assert bench.step() == {"a": (0, 1), "b": (0, 1)}
    assert bench.step() == {"a": (1, 2), "b": (1, 2)}
    bench.finish()
    assert bench.outputs == {"a": answer(A[:1], 4), "b": answer(B[:1], 4), "c": answer(C[:1], 4)}


def test_no_more_requests_at_once_than_max_num_seqs() -> None:
    bench = Bench(seqs=2)
    for name, prompt in (("a", A[:3]), ("b", B[:3]), ("c", C[:3])):
        bench.add(name, prompt, max_tokens=2)
    assert set(bench.step()) == {"a", "b"}
    assert [len(bench.scheduler.running), len(bench.scheduler.waiting)] == [2, 1]
    assert set(bench.step()) == {"a", "b"}
    assert set(bench.step()) == {"c"}


@both_indexes
def test_only_uncached_tokens_cost_budget(index: PrefixIndexName) -> None:
    bench = Bench(budget=8, index=index)
    bench.add("first", A[:33])
    bench.finish()
    bench.add("hit", A[:32] + B[:4])
    bench.add("cold", C[:4])
    assert bench.step() == {"hit": (32, 36), "cold": (0, 4)}
    assert bench.ends["hit"].num_cached_tokens == 32
    assert bench.ends["cold"].num_cached_tokens == 0
    assert bench.outputs["hit"] == answer(A[:32] + B[:4], 1)


@both_indexes
def test_requests_of_one_step_share_what_they_have_in_common(index: PrefixIndexName) -> None:
    bench = Bench(index=index)
    bench.add("a", A[:15])
    bench.add("b", A[:14] + B[:1])
    assert bench.step() == {"a": (0, 15), "b": (12, 15)}
    assert bench.ends["b"].num_cached_tokens == 12
    assert bench.outputs == {"a": answer(A[:15], 1), "b": answer(A[:14] + B[:1], 1)}


def test_without_caching_everything_is_computed() -> None:
    bench = Bench(caching=False)
    for name in ("a", "b"):
        bench.add(name, A[:15])
        assert bench.step() == {name: (0, 15)}
        assert bench.ends[name].num_cached_tokens == 0


def test_salts_do_not_share() -> None:
    bench = Bench()
    for number, salt in enumerate((None, "s", "t", "s")):
        bench.add(str(number), A[:15], salt=salt)
        bench.finish()
    assert [bench.ends[str(number)].num_cached_tokens for number in range(4)] == [0, 0, 0, 14]


def test_a_part_of_a_block_is_copied() -> None:
    bench = Bench()
    bench.add("a", A[:8])
    bench.finish()
    source = bench.runner.plans[0].rows[0].block_ids[1]
    bench.add("b", A[:6] + B[:10])
    plan = bench.plan()
    assert rows(plan) == {"b": (6, 16)}
    assert plan.copies == (BlockCopy(src=source, dst=plan.rows[0].block_ids[1], num_tokens=2),)
    bench.commit(plan)
    assert bench.outputs["b"] == answer(A[:6] + B[:10], 1)


def test_where_keeping_the_copys_source_leaves_no_room_the_copy_is_done_without() -> None:
    bench = Bench(num_blocks=4)
    bench.add("a", A[:8])
    bench.finish()
    bench.add("b", A[:6] + B[:10])
    plan = bench.plan()
    assert rows(plan) == {"b": (4, 16)}
    assert plan.copies == ()
    bench.commit(plan)
    assert bench.ends["b"].num_cached_tokens == 4
    assert bench.outputs["b"] == answer(A[:6] + B[:10], 1)


# -- preemption ----------------------------------------------------------------------------------


@both_indexes
def test_the_last_admitted_is_preempted_and_comes_back_to_its_prompt_and_its_output(
    index: PrefixIndexName,
) -> None:
    bench = Bench(num_blocks=6, index=index)
    bench.add("a", A[:4], max_tokens=10)
    bench.add("b", B[:4], max_tokens=12)
    for _ in range(9):
        assert set(bench.step()) == {"a", "b"}
    assert bench.step() == {"a": (12, 13)}  # its fourth block was b's third
    assert bench.scheduler.num_preemptions == 1
    assert bench.ends["a"].finish_reason == "length"
    assert bench.step() == {"b": (8, 13)}  # 4 prompt and 4 output tokens are hits
    bench.finish()
    assert bench.outputs == {"a": answer(A[:4], 10), "b": answer(B[:4], 12)}
    assert bench.ends["b"].num_cached_tokens == 0  # at its first admission
    stats = bench.manager.stats
    assert (stats.requests, stats.queries, stats.hits) == (2, 8, 0)
    assert (stats.preempted_requests, stats.preempted_queries, stats.preempted_hits) == (1, 13, 8)


def test_victims_stand_at_the_head_of_the_queue_in_their_old_order() -> None:
    bench = Bench(num_blocks=4, seqs=4)
    for name, prompt in (("a", A), ("b", B), ("c", C), ("d", D), ("e", E)):
        bench.add(name, prompt[:4], max_tokens=5)
    assert set(bench.step()) == {"a", "b", "c", "d"}
    assert set(bench.step()) == {"a", "b"}  # a took d's block, and b took c's
    assert [request.request_id for request in bench.scheduler.waiting] == ["c", "d", "e"]
    bench.finish()
    assert list(bench.ends) == ["a", "b", "c", "d", "e"]
    assert all(
        bench.outputs[name] == answer(p[:4], 5) for name, p in zip("abcde", (A, B, C, D, E), strict=True)
    )


def test_who_finds_nobody_behind_it_gives_way_itself() -> None:
    bench = Bench(num_blocks=3)
    for name, prompt in (("a", A), ("b", B), ("c", C)):
        bench.add(name, prompt[:4], max_tokens=3)
    assert set(bench.step()) == {"a", "b", "c"}
    assert bench.step() == {"a": (4, 5)}
    assert [request.request_id for request in bench.scheduler.waiting] == ["b", "c"]
    assert bench.scheduler.num_preemptions == 2


def test_nobody_overtakes_a_victim() -> None:
    bench = Bench(num_blocks=4)
    bench.add("a", A[:8], max_tokens=4)
    bench.add("b", B[:8], max_tokens=4)
    bench.step()
    bench.add("small", C[:1])
    assert bench.step() == {"a": (8, 9)}
    assert bench.manager.num_free_blocks == 1  # enough for the small one
    assert bench.step() == {"a": (9, 10)}
    assert [request.request_id for request in bench.scheduler.waiting] == ["b", "small"]
    bench.finish()
    assert list(bench.ends) == ["a", "small", "b"]
    assert bench.outputs["b"] == answer(B[:8], 4)


def test_nobody_is_let_in_by_a_step_that_preempted() -> None:
    bench = Bench(num_blocks=4, budget=5, caching=False)
    bench.add("a", A[:8], max_tokens=4)
    bench.add("b", B[:8], max_tokens=4)
    assert [bench.step(), bench.step()] == [{"a": (0, 5)}, {"a": (5, 8), "b": (0, 2)}]
    assert bench.step() == {"a": (8, 9)}
    assert bench.manager.num_free_blocks == 1  # enough for b to begin anew
    assert bench.step() == {"a": (9, 10), "b": (0, 4)}


def test_a_victim_is_aborted_like_any_other_that_waits() -> None:
    bench = Bench(num_blocks=4)
    bench.add("a", A[:8], max_tokens=4)
    bench.add("b", B[:8], max_tokens=4)
    bench.step()
    bench.step()
    assert [request.request_id for request in bench.scheduler.waiting] == ["b"]
    assert bench.scheduler.abort("b")
    bench.finish()
    assert list(bench.ends) == ["a"]
    assert bench.manager.num_free_blocks == 4


# -- aborts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "steps", [0, 1, 2, 3, 5], ids=["waiting", "chunk 1", "chunk 2", "prompt", "decoding"]
)
def test_an_abort_frees_everything_at_once_and_disturbs_nobody(steps: int) -> None:
    bench = Bench(budget=8)
    bench.add("gone", A[:20], max_tokens=9)
    bench.add("stays", B[:6], max_tokens=9)
    for _ in range(steps):
        bench.step()
    told = len(bench.outputs["gone"])
    assert bench.scheduler.abort("gone")
    bench.manager.check()
    assert not bench.scheduler.abort("gone")
    assert bench.step().keys() == {"stays"}
    bench.finish()
    assert len(bench.outputs["gone"]) == told
    assert bench.ends.keys() == {"stays"}
    assert bench.outputs["stays"] == answer(B[:6], 9)
    assert bench.manager.num_free_blocks == 100


def test_the_blocks_of_an_aborted_request_are_free_before_the_next_step() -> None:
    bench = Bench(num_blocks=4)
    bench.add("a", A[:16])
    bench.add("b", B[:16])
    plan = bench.plan()
    bench.rollback(plan)
    assert rows(plan).keys() == {"a"}
    bench.scheduler.abort("a")
    assert bench.step() == {"b": (0, 16)}


def test_what_an_aborted_request_computed_stays_findable() -> None:
    bench = Bench(budget=8)
    bench.add("gone", A[:20])
    bench.step()
    bench.scheduler.abort("gone")
    bench.add("again", A[:20])
    assert bench.step() == {"again": (8, 16)}
    bench.finish()
    assert bench.outputs["again"] == answer(A[:20], 1)


def test_an_abort_of_an_unknown_or_finished_request_is_no_error() -> None:
    bench = Bench()
    bench.add("a", A[:3])
    bench.finish()
    assert not bench.scheduler.abort("a")
    assert not bench.scheduler.abort("never seen")


def test_an_id_in_use_is_refused_and_may_be_used_again_later() -> None:
    bench = Bench()
    bench.add("a", A[:3], max_tokens=2)
    with pytest.raises(RequestError, match="'a' is in use"):
        bench.add("a", B[:3])
    bench.step()
    with pytest.raises(RequestError, match="'a' is in use"):
        bench.add("a", B[:3])
    bench.finish()
    bench.add("a", B[:3])


# -- steps that break ----------------------------------------------------------------------------


@both_indexes
def test_a_step_rolled_back_is_planned_again_as_if_it_had_never_been(index: PrefixIndexName) -> None:
    bench = Bench(budget=12, index=index)
    bench.add("first", A[:9])
    bench.finish()
    bench.add("running", C[:4], max_tokens=5)
    bench.step()
    bench.add("hit", A[:8] + B[:6])
    bench.add("twin", A[:8] + B[:5] + C[:1])
    bench.add("waiting", D[:9])
    before = bench.manager.stats
    plan = bench.plan()
    assert rows(plan) == {"running": (4, 5), "hit": (8, 14), "twin": (12, 14), "waiting": (0, 3)}
    bench.rollback(plan)
    assert bench.manager.stats == before
    assert [request.request_id for request in bench.scheduler.waiting] == ["hit", "twin", "waiting"]
    assert [request.num_cached_tokens for request in bench.scheduler.waiting] == [None] * 3
    again = bench.plan()
    assert rows(again) == rows(plan)
    bench.commit(again)
    bench.finish()
    assert bench.outputs["twin"] == answer(A[:8] + B[:5] + C[:1], 1)
    assert bench.ends["hit"].num_cached_tokens == 8
    assert bench.ends["twin"].num_cached_tokens == 12
    assert bench.outputs["running"] == answer(C[:4], 5)


def test_a_rollback_after_a_preemption_keeps_the_hits_of_the_first_admission() -> None:
    bench = Bench(num_blocks=6)
    bench.add("a", A[:4], max_tokens=10)
    request = bench.add("b", B[:4], max_tokens=12)
    for _ in range(10):
        bench.step()
    plan = bench.plan()
    assert rows(plan) == {"b": (8, 13)}
    bench.rollback(plan)
    assert request.num_cached_tokens == 0
    bench.finish()
    assert bench.ends["b"].num_cached_tokens == 0
    assert bench.outputs["b"] == answer(B[:4], 12)


def test_a_step_that_fails_ends_its_own_requests_and_no_others() -> None:
    bench = Bench(budget=8)
    bench.add("decodes", A[:4], max_tokens=4)
    bench.step()
    for name, prompt in (("starts", B[:6]), ("cut", C[:6]), ("waits", D[:6])):
        bench.add(name, prompt, max_tokens=4)
    plan = bench.plan()
    outputs = bench.fail(plan, "the reason")
    assert rows(plan).keys() == {"decodes", "starts", "cut"}
    assert [(o.request_id, o.token_ids, o.finish_reason, o.error) for o in outputs] == [
        (name, (), "error", "the reason") for name in ("decodes", "starts", "cut")
    ]
    assert bench.manager.num_free_blocks == 100
    bench.finish()
    assert bench.outputs["waits"] == answer(D[:6], 4)
    bench.add("retry", B[:6], max_tokens=4)  # and finds nothing that the broken step left
    bench.finish()
    assert bench.outputs["retry"] == answer(B[:6], 4)


def test_who_was_preempted_by_a_failing_step_lives_on() -> None:
    bench = Bench(num_blocks=4)
    bench.add("a", A[:8], max_tokens=4)
    bench.add("b", B[:8], max_tokens=4)
    bench.step()
    plan = bench.plan()
    assert rows(plan) == {"a": (8, 9)}
    bench.fail(plan, "the reason")
    assert bench.ends.keys() == {"a"}
    bench.finish()
    assert bench.outputs["b"] == answer(B[:8], 4)


def test_a_row_without_a_token_ends_with_its_own_error() -> None:
    bench = Bench()
    bench.add("good", A[:6], max_tokens=2)
    bench.add("bad", B[:6], max_tokens=2)
    plan = bench.plan()
    sampled = bench.runner.run(plan).sampled
    outputs = bench.scheduler.commit(plan, StepResult({"good": sampled["good"]}, {"bad": "not a number"}))
    bench.manager.check()
    assert [(o.request_id, o.finish_reason, o.error) for o in outputs] == [
        ("good", None, None),
        ("bad", "error", "not a number"),
    ]
    assert bench.step() == {"good": (6, 7)}
    assert bench.manager.num_free_blocks == 100


# -- ends ----------------------------------------------------------------------------------------


def test_a_stop_token_ends_the_output_and_is_part_of_it() -> None:
    told = answer(A[:5], 4)
    bench = Bench()
    bench.add("a", A[:5], max_tokens=10, stop_token_ids=(7, told[3]))
    bench.finish()
    assert bench.outputs["a"] == told
    assert bench.ends["a"].finish_reason == "stop"


def test_a_stop_token_as_the_last_of_max_tokens_is_a_stop() -> None:
    told = answer(A[:5], 4)
    bench = Bench()
    bench.add("a", A[:5], max_tokens=4, stop_token_ids=(told[3],))
    bench.finish()
    assert bench.ends["a"].finish_reason == "stop"


@both_indexes
@pytest.mark.parametrize(("prompt", "count"), [(16, 1), (1, 16), (9, 8), (13, 4)])
def test_a_request_that_needs_the_whole_pool_runs_to_its_end(
    index: PrefixIndexName, prompt: int, count: int
) -> None:
    bench = Bench(num_blocks=4, index=index)
    for name in ("a", "again"):  # the second finds the pool full of the first
        bench.add(name, A[:prompt], max_tokens=count)
        # Generating what the radix index has cached doubles the blocks, until it gives way to itself once.
        bench.finish(at_most=count + (name == "again"))
        assert bench.outputs[name] == answer(A[:prompt], count)
        assert bench.ends[name].finish_reason == "length"
    assert bench.manager.num_free_blocks == 4


def test_priority_comes_before_arrival() -> None:
    bench = Bench(seqs=1)
    for name, priority in (("later", 3), ("low", 2), ("high", -1), ("high too", -1)):
        bench.add(name, A[:4], 2, priority=priority)
    order = []
    while bench.scheduler.has_work:
        order += [name for name in bench.step() if name not in order]
    assert order == ["high", "high too", "low", "later"]


def test_the_least_urgent_gives_way() -> None:
    """Catalogue 55: the victim has the largest priority, and of equals came last."""
    bench = Bench(num_blocks=6, block_size=4)
    bench.add("low", A[:8], 12, priority=5)
    bench.step()
    bench.add("high", B[:8], 12, priority=1)
    preempted = []
    while bench.scheduler.has_work:
        bench.step()
        preempted += [request.request_id for request in bench.scheduler.waiting if request.num_preemptions]
    assert set(preempted) == {"low"}
    assert len(bench.outputs["low"]) == len(bench.outputs["high"]) == 12


def test_token_counts_are_those_of_all_tokens_so_far_whatever_happened() -> None:
    bench = Bench(num_blocks=9, vocab_size=3)
    for name in "abc":
        bench.add(name, [1, 7, int(name, 16)], 20, presence_penalty=1.0)
    bench.add("plain", [1, 2], 2)
    while bench.scheduler.has_work:
        plan = bench.plan()
        if bench.scheduler.num_preemptions == 2 and plan.rows and bench.runner.failure is None:
            bench.rollback(plan)
            plan = bench.plan()
        for row in plan.rows:
            if row.request_id == "plain":
                assert row.token_counts is None
            else:
                output = bench.outputs[row.request_id]
                prompt = (1, 7, int(row.request_id, 16))
                assert row.token_counts == dict.fromkeys(prompt, 0) | Counter(output)
        bench.commit(plan)
    assert bench.scheduler.num_preemptions > 2
    assert [len(bench.outputs[name]) for name in "abc"] == [20, 20, 20]
