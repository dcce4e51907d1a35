from __future__ import annotations

from array import array
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.cache import Namespace
from headstart.cache.reasons import MissReason
from headstart.errors import ConfigError
from headstart.lab.replay.costs import CostModel
from headstart.lab.replay.outcome import Outcome, Setting
from headstart.lab.replay.replay import replay
from headstart.lab.replay.report import definitions, notes
from headstart.lab.replay.scheduled import replay_scheduled
from headstart.lab.traces.trace import Trace, TraceFormat, TraceRequest

SECOND = CostModel(step=1.0, prefill_token=0.0, decode_row=0.0)
"""Every step takes a second."""


def run(tokens: list[int]) -> bytes:
    return array("i", tokens).tobytes()


def request(
    tokens: list[int], arrival: float | None = None, num_output: int | None = None, **more: object
) -> TraceRequest:
    return TraceRequest(run(tokens), len(tokens), arrival, num_output, **more)  # type: ignore[arg-type]


def trace(*requests: TraceRequest) -> Trace:
    return Trace("made", TraceFormat.TOKENS, list(requests))


def text(name: int, size: int) -> list[int]:
    """Tokens of a prompt that is like no other."""
    return list(range(1000 * name, 1000 * name + size))


def hits(outcome: Outcome) -> list[int]:
    return [one.num_hit_tokens for one in outcome.served]


# -- worked by hand ------------------------------------------------------------------------------


def test_times_are_those_of_the_steps() -> None:
    """a: 0 to 3 s (prompt and two further tokens); b comes at 1.5, is let in at 2, first token at 3."""
    outcome = replay_scheduled(
        trace(request(text(1, 8), 0.0, 3), request(text(2, 8), 1.5, 1)),
        Setting(block_size=4, capacity_blocks=100, max_num_seqs=8),
        SECOND,
    )
    assert [one.first_token_s for one in outcome.served] == [1.0, 1.5]
    assert outcome.mean_first_token_s == 1.25


def test_an_idle_engine_waits_for_the_next_request() -> None:
    outcome = replay_scheduled(
        trace(request(text(1, 8), 5.0, 1), request(text(1, 8), 100.0, 1)),
        Setting(block_size=4, capacity_blocks=100, max_num_seqs=8),
        SECOND,
    )
    assert [one.first_token_s for one in outcome.served] == [1.0, 1.0]
    assert hits(outcome) == [0, 7]


def test_who_finds_no_seat_waits() -> None:
    outcome = replay_scheduled(
        trace(*(request(text(name, 8), 0.0, 2) for name in (1, 2, 3))),
        Setting(block_size=4, capacity_blocks=100, max_num_seqs=2),
        SECOND,
    )
    assert [one.first_token_s for one in outcome.served] == [1.0, 1.0, 3.0]


def test_without_times_the_next_one_comes_when_a_seat_is_free() -> None:
    outcome = replay_scheduled(
        trace(*(request(text(name, 8), None, 2) for name in (1, 2, 3))),
        Setting(block_size=4, capacity_blocks=100, max_num_seqs=2),
        SECOND,
    )
    assert [one.first_token_s for one in outcome.served] == [1.0, 1.0, 1.0]


def test_equal_prompts_of_one_step_are_computed_once() -> None:
    outcome = replay_scheduled(
        trace(*(request(text(1, 8), 0.0, 1) for _ in range(3))),
        Setting(block_size=4, capacity_blocks=100, max_num_seqs=8),
        SECOND,
    )
    assert hits(outcome) == [0, 4, 4]  # the block that is full, and not the tail that is being written
    assert outcome.served[1].misses == {MissReason.LAST_TOKEN: 1, MissReason.IN_FLIGHT: 3}


def test_the_recorded_answer_is_what_the_next_turn_hits() -> None:
    """Prompt of 8, answer of 5: the last one generated is never computed, so 12 tokens are cached."""
    answer = text(7, 5)
    first = request(text(1, 8), 0.0, 5, output=run(answer))
    second = request(text(1, 8) + answer + text(2, 3), 100.0, 1)
    setting = Setting(block_size=4, capacity_blocks=100, max_num_seqs=8)
    assert hits(replay_scheduled(trace(first, second), setting, SECOND)) == [0, 12]
    made_up = request(text(1, 8), 0.0, 5)
    assert hits(replay_scheduled(trace(made_up, second), setting, SECOND)) == [0, 8]


def test_what_evicts_under_contention() -> None:
    """A shared prefix of 4 blocks, and two long ones at once that fill the pool of 12 with it not in use."""
    shared = text(1, 16)
    first = request([*shared, 1], 0.0, 1)
    crowd = [request(text(name, 24), 10.0, 2) for name in (2, 3)]
    again = request([*shared, 2], 20.0, 1)
    setting = Setting(block_size=4, capacity_blocks=14, max_num_seqs=2)
    together = replay_scheduled(trace(first, *crowd, again), setting, SECOND)
    assert hits(together)[-1] < 16
    assert together.served[-1].misses[MissReason.EVICTED] > 0
    assert together.num_evicted_blocks > 0
    roomy = Setting(block_size=4, capacity_blocks=40, max_num_seqs=2)
    assert hits(replay_scheduled(trace(first, *crowd, again), roomy, SECOND))[-1] == 16


def test_contention() -> None:
    """Questions about 12 documents of 8 blocks, in a pool of 200, and jobs that share nothing, of 14.

    A quarter are jobs, which run 16 times as long as questions: of the seats they take five of six.  The more
    of them run, the less is left for documents that nobody reads just now; at 14 seats jobs fill the pool.
    """
    rng = Random(0)
    made = []
    for number in range(400):
        if rng.random() < 0.25:
            made.append(request(text(100 + number, 24), num_output=32))
        else:
            made.append(request([*text(rng.randrange(12), 32), *text(100 + number, 2)], num_output=2))
    one, ten, twenty = (
        replay_scheduled(
            trace(*made), Setting(block_size=4, capacity_blocks=200, max_num_seqs=seats), SECOND, warmup=50
        )
        for seats in (1, 10, 20)
    )
    assert one.rates.token_hit_rate > ten.rates.token_hit_rate + 0.1
    assert ten.rates.token_hit_rate > twenty.rates.token_hit_rate + 0.1
    assert one.misses[MissReason.EVICTED] < ten.misses[MissReason.EVICTED]
    assert (one.num_preemptions, ten.num_preemptions) == (0, 0)
    assert twenty.num_preemptions > 0


def test_a_pool_too_small_for_two_answers_preempts_one() -> None:
    """Two prompts of 2 blocks and answers of 2 blocks each in a pool of 6."""
    outcome = replay_scheduled(
        trace(*(request(text(name, 8), 0.0, 9) for name in (1, 2))),
        Setting(block_size=4, capacity_blocks=6, max_num_seqs=2),
        SECOND,
    )
    assert outcome.num_preemptions == 1
    assert hits(outcome) == [0, 0]  # at the first admission


def test_made_up_answers_are_no_prompts_tokens() -> None:
    """A log whose token ids are hashes may have the highest ones, too."""
    highest = list(range(2**31 - 1, 2**31 - 9, -1))
    outcome = replay_scheduled(
        trace(request(text(1, 8), 0.0, 8), request([*text(1, 8), *highest], 100.0, 1)),
        Setting(block_size=4, capacity_blocks=100, max_num_seqs=1),
        SECOND,
    )
    assert hits(outcome) == [0, 8]


def test_what_never_fits_is_refused_and_counted() -> None:
    """17 tokens fit 4 blocks with an answer of none to store; an answer of two would need 18 slots."""
    setting = Setting(block_size=4, capacity_blocks=4, max_num_seqs=2)
    outcome = replay_scheduled(
        trace(request(text(1, 16), 0.0, 1), request(text(2, 16), 0.0, 2), request(text(3, 17), 0.0, 1)),
        setting,
        SECOND,
    )
    assert outcome.refused == 2
    assert [len(one.misses) for one in outcome.served] == [2, 1, 1]
    assert outcome.served[2].misses == {MissReason.SKIPPED: 17}
    assert [one.first_token_s for one in outcome.served] == [1.0, None, None]


def test_namespaces_share_nothing() -> None:
    outcome = replay_scheduled(
        trace(
            request(text(1, 8), 0.0, 1, namespace=Namespace(salt="a")),
            request(text(1, 8), 10.0, 1, namespace=Namespace(salt="b")),
            request(text(1, 8), 20.0, 1, namespace=Namespace(salt="a")),
        ),
        Setting(block_size=4, capacity_blocks=100, max_num_seqs=8),
        SECOND,
    )
    assert hits(outcome) == [0, 0, 7]
    assert MissReason.ISOLATED in outcome.served[1].misses


def test_the_warm_up_is_served_and_does_not_count() -> None:
    told: list[int] = []
    outcome = replay_scheduled(
        trace(*(request(text(1, 8), float(10 * number), 1) for number in range(600))),
        Setting(block_size=4, capacity_blocks=100, max_num_seqs=8),
        SECOND,
        warmup=598,
        progress=told.append,
    )
    assert [one.number for one in outcome.served] == [598, 599]
    assert hits(outcome) == [7, 7]
    assert told == [256, 512]


def test_no_made_up_answer_is_like_another() -> None:
    """A prompt of 2 blocks and answers of 4: alike they would fit 11 with a second answer."""
    outcome = replay_scheduled(
        trace(*(request(text(1, 8), 100.0 * number, 17) for number in range(3))),
        Setting(block_size=4, capacity_blocks=11, max_num_seqs=3),
        SECOND,
    )
    assert outcome.num_evicted_blocks > 0
    assert hits(outcome) == [0, 7, 7]


def test_an_adaptive_budget_learns_from_simulated_time() -> None:
    traffic = trace(request(text(1, 4), 0.0, 50), request(text(2, 600), 2.0, 1))
    setting = Setting(block_size=4, capacity_blocks=400, max_num_seqs=4)
    costs = CostModel(step=0.1, prefill_token=0.005, decode_row=0.0)
    fixed = replay_scheduled(traffic, setting, costs)
    adaptive = replay_scheduled(traffic, setting, costs, max_num_batched_tokens="auto")
    assert fixed.served[1].first_token_s == pytest.approx(0.1 + 600 * 0.005, abs=0.1)
    assert adaptive.served[1].first_token_s == pytest.approx(600 / 20 * 0.2, abs=0.5)  # chunks of 20


def test_a_report_says_what_is_simulated_and_what_is_made_up() -> None:
    known = trace(request([1, 2], 0.0, output=run([3])))
    unknown = trace(request([1, 2], 0.0, 5))
    costs = CostModel(step=0.25)
    for traffic in (known, unknown):
        outcome = replay_scheduled(traffic, Setting(max_num_seqs=2), costs)
        told = definitions(traffic, [outcome], costs, 0)
        assert (
            "Requests come at the trace's times and overlap, so many at once; what runs holds its blocks."
            in told
        )
        assert any("a step takes 250 ms" in sentence for sentence in told)
        made_up = [sentence for sentence in notes(traffic, [outcome]) if "made up" in sentence]
        assert bool(made_up) == (traffic is unknown)


def test_a_policy_that_does_not_exist_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match="policy must be one of"):
        replay_scheduled(trace(request([1])), Setting(policy="best", capacity_blocks=4))


# -- against the sequential replay ---------------------------------------------------------------

prompts = st.lists(st.integers(0, 2), min_size=1, max_size=30)
namespaces = st.sampled_from([Namespace(), Namespace(salt="a")])


@given(
    traffic=st.lists(st.tuples(prompts, namespaces), min_size=1, max_size=15),
    index=st.sampled_from(["radix", "hash"]),
    policy=st.sampled_from(["lru", "lfu", "slru", "fifo"]),
    capacity=st.sampled_from([3, 5, 8, 20, None]),
)
def test_one_at_a_time_it_is_the_sequential_replay(
    traffic: list[tuple[list[int], Namespace]], index: str, policy: str, capacity: int | None
) -> None:
    """No answers to store, and each done long before the next: the scheduler must decide the same."""
    setting = Setting(policy, index, block_size=4, capacity_blocks=capacity, max_num_seqs=1)
    made = trace(
        *(
            request(tokens, 100.0 * number, namespace=namespace)
            for number, (tokens, namespace) in enumerate(traffic)
        )
    )
    one_by_one, scheduled = replay(made, setting), replay_scheduled(made, setting, SECOND)
    assert [one._replace(first_token_s=None) for one in scheduled.served] == one_by_one.served
    assert scheduled.num_evicted_blocks == one_by_one.num_evicted_blocks
    assert scheduled.refused == one_by_one.refused
    assert scheduled.num_preemptions == 0
