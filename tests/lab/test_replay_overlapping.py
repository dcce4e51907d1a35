from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.cache.reasons import MissReason
from headstart.errors import ConfigError
from headstart.lab.replay.costs import CostModel
from headstart.lab.replay.outcome import Outcome, Setting
from headstart.lab.replay.overlapping import ANSWERS_TAKE_NO_ROOM
from headstart.lab.replay.replay import replay
from headstart.lab.replay.report import notes
from headstart.lab.replay.scheduled import replay_scheduled
from headstart.lab.traces.trace import Trace, TraceFormat, TraceRequest

SIZE = 512
COSTS = CostModel(step=0.0, prefill_token=1 / SIZE, decode_row=1.0)
"""A second for each block of a prompt, and for each further token beside nobody."""


def request(ids: list[int], arrival: float | None = 0.0, num_output: int = 1) -> TraceRequest:
    return TraceRequest(array("i", ids).tobytes(), SIZE * len(ids), arrival, num_output)


def trace(*requests: TraceRequest) -> Trace:
    return Trace("made", TraceFormat.MOONCAKE, list(requests), tokens_per_symbol=SIZE)


def setting(capacity: int | None = None, seqs: int = 8) -> Setting:
    return Setting(block_size=SIZE, capacity_blocks=capacity, max_num_seqs=seqs)


def hit_blocks(outcome: Outcome) -> list[int]:
    return [one.num_hit_tokens // SIZE for one in outcome.served]


def first_tokens(outcome: Outcome) -> list[float | None]:
    return [one.first_token_s for one in outcome.served]


def test_prompts_are_computed_one_after_the_other() -> None:
    """At 0 two prompts of 2 and 3 blocks; at 4.5 one more of which 2 blocks are cached."""
    outcome = replay_scheduled(
        trace(request([1, 2]), request([3, 4, 5]), request([3, 4, 6, 7], 4.5)), setting(), COSTS
    )
    assert hit_blocks(outcome) == [0, 0, 2]
    assert first_tokens(outcome) == [2.0, 5.0, 2.5]


def test_blocks_are_held_until_the_answer_is_done() -> None:
    """A pool of 4: the first request holds 2 of them for 2 s of prompt and 3 s of answer."""
    first, other = request([1, 2], 0.0, 4), request([3, 4, 5], 1.0)
    assert first_tokens(replay_scheduled(trace(first, other), setting(8), COSTS)) == [2.0, 4.0]
    assert first_tokens(replay_scheduled(trace(first, other), setting(4), COSTS)) == [2.0, 7.0]


def test_who_decodes_beside_others_takes_longer() -> None:
    """With decoding rows at a second each, the second one's token beside the first takes two."""
    outcome = replay_scheduled(
        trace(request([1], 0.0, 100), request([2], 0.0, 2), request([3], 0.0)), setting(seqs=2), COSTS
    )
    assert first_tokens(outcome) == [1.0, 2.0, 2 + 2 + 1]


def test_without_times_a_seat_that_is_free_is_taken() -> None:
    outcome = replay_scheduled(
        trace(request([1], None, 3), request([2], None, 1), request([3], None)), setting(seqs=1), COSTS
    )
    assert first_tokens(outcome) == [1.0, 1.0, 1.0]


def test_contention_evicts_what_was_shared() -> None:
    """A prefix of 2 blocks, kept while one runs at a time, and evicted when three hold all the pool."""
    crowd = [request([2, 3, 4, 5], 10.0, 100), request([6, 7, 8, 9], 10.0, 100)]
    requests = [request([100, 101, 1]), *crowd, request([100, 101, 10], 1000.0)]
    roomy = replay_scheduled(trace(*requests), setting(12), COSTS)
    tight = replay_scheduled(trace(*requests), setting(9), COSTS)
    assert hit_blocks(roomy) == [0, 0, 0, 2]
    assert hit_blocks(tight)[-1] < 2
    assert tight.served[-1].misses[MissReason.EVICTED] > 0


def test_what_never_fits_is_refused_and_keeps_nobody_out() -> None:
    outcome = replay_scheduled(
        trace(request([1, 2]), request([3, 4, 5, 6, 7]), request([1, 2, 8])), setting(4), COSTS
    )
    assert outcome.refused == 1
    assert hit_blocks(outcome) == [0, 0, 2]
    assert first_tokens(outcome)[1] is None


def test_the_warm_up_does_not_count() -> None:
    told: list[int] = []
    outcome = replay_scheduled(
        trace(*(request([1, 2], float(number)) for number in range(300))),
        setting(),
        COSTS,
        warmup=299,
        progress=told.append,
    )
    assert hit_blocks(outcome) == [1]
    assert told == [0, 256]


def test_a_report_says_that_answers_take_no_room() -> None:
    traffic = trace(request([1, 2]))
    outcome = replay_scheduled(traffic, setting(), COSTS)
    assert ANSWERS_TAKE_NO_ROOM in notes(traffic, [outcome])
    assert ANSWERS_TAKE_NO_ROOM not in notes(traffic, [replay(traffic, Setting(block_size=SIZE))])


def test_only_multiples_of_the_traces_block() -> None:
    with pytest.raises(ConfigError, match="multiples of that block size"):
        replay_scheduled(trace(request([1])), Setting(block_size=16, max_num_seqs=2))


@given(
    traffic=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=20),
    index=st.sampled_from(["radix", "hash"]),
    capacity=st.sampled_from([3, 5, 8, None]),
    blocks=st.sampled_from([1, 2]),
)
def test_one_at_a_time_it_is_the_sequential_replay(
    traffic: list[list[int]], index: str, capacity: int | None, blocks: int
) -> None:
    point = Setting("lru", index, SIZE * blocks, capacity, max_num_seqs=1)
    made = trace(*(request(ids, 1000.0 * number) for number, ids in enumerate(traffic)))
    one_by_one, overlapping = replay(made, point), replay_scheduled(made, point, COSTS)
    assert [one._replace(first_token_s=None) for one in overlapping.served] == one_by_one.served
    assert overlapping.num_evicted_blocks == one_by_one.num_evicted_blocks
    assert overlapping.refused == one_by_one.refused
