from __future__ import annotations

import random
from array import array
from dataclasses import replace

from headstart.cache import Namespace
from headstart.lab.replay.outcome import Setting
from headstart.lab.replay.replay import replay
from headstart.lab.traces.paths import number_blocks, stack_distances
from tests.lab.traffic import Texts, trace_of


def test_blocks_are_one_only_with_all_that_stands_before_them() -> None:
    trace = trace_of([[1, 2, 3, 4, 5], [1, 2, 3, 4], [3, 4], [1, 2, 9, 9, 5]])
    paths = number_blocks(trace, 2)
    assert paths.requests == [[0, 1], [0, 1], [3], [0, 4]]
    assert paths.slots == [[0, 1, 2], [0, 1], [3], [0, 4, 5]]
    assert (paths.num_unique, paths.num_reused, paths.num_slots) == (4, 2, 6)
    assert paths.uses()[0] == 3


def test_namespaces_are_kept_apart_or_not() -> None:
    trace = trace_of([[1, 2]] * 3, namespaces=[Namespace(), Namespace(salt="a"), Namespace(salt="a")])
    assert number_blocks(trace, 2).requests == [[0], [1], [1]]
    assert number_blocks(trace, 2, namespaces=False).requests == [[0], [0], [0]]


def test_answers_take_room_and_may_come_back_as_prompts() -> None:
    trace = trace_of([[1, 2], [1, 2, 3, 4, 5]])
    answered = replace(trace.requests[0], output=array("i", [3, 4, 9]).tobytes())  # 9 has no K and V
    paths = number_blocks(replace(trace, requests=[answered, trace.requests[1]]), 2)
    assert paths.requests == [[0], [0, 1]]
    assert paths.slots == [[0, 1], [0, 1, 2]]
    assert (paths.num_unique, paths.num_reused) == (2, 2)


def test_a_partly_filled_block_with_a_hash_id_is_no_whole_block() -> None:
    trace = trace_of([[1, 2], [1, 2]], tokens_per_symbol=16)
    shorter = [replace(request, num_prompt_tokens=20) for request in trace.requests]
    paths = number_blocks(replace(trace, requests=shorter), 1)
    assert paths.requests == [[0], [0]]
    assert paths.slots == [[0, 1], [0, 1]]
    assert (paths.num_unique, paths.num_reused, paths.num_slots) == (1, 1, 2)


def test_depths_by_hand() -> None:
    depths = list(stack_distances([[0, 1], [2], [0, 3], [0, 1]]))
    assert depths == [[None, None], [None], [2, None], [1, 4]]


def test_depths_say_what_the_core_hits_at_every_capacity() -> None:
    dice, texts = random.Random(7), Texts()
    prefixes = [texts.new(dice.randrange(4, 40)) for _ in range(30)]
    trace = trace_of([dice.choice(prefixes) + texts.new(2) for _ in range(300)])
    paths = number_blocks(trace, 4)
    for capacity in (40, 80, 160, 320):
        expected = sum(
            depth is not None and depth <= capacity
            for blocks, found in zip(paths.requests, stack_distances(paths.slots), strict=True)
            for depth in found[: len(blocks)]
        )
        served = replay(trace, Setting(prefix_index="hash", block_size=4, capacity_blocks=capacity)).served
        hits = sum(one.num_hit_tokens for one in served) // 4
        assert abs(hits - expected) <= 0.01 * expected
