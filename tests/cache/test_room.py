"""Room and eviction: what is granted, what is refused, and who goes first.  Both indexes."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from types import FrameType

import pytest

from headstart.cache import CacheConfig, KVCacheManager
from tests.cache.checked import Make, ask, cached, reach, run, serve, state

A = list(range(100, 108))  # two full blocks


# Room


def test_usage_counts_blocks_that_cannot_be_had(make: Make) -> None:
    manager = make(10)  # item 15, with ids from 0
    assert (manager.num_free_blocks, manager.usage) == (10, 0.0)
    assert manager.free_block_ids() == list(range(10))
    first = ask("first", range(10))
    run(manager, first)
    assert (manager.num_free_blocks, round(manager.usage, 9)) == (7, 0.3)
    manager.free(first)
    assert (manager.num_free_blocks, manager.usage) == (10, 0.0)


def test_no_room_for_a_running_request_changes_nothing(make: Make) -> None:
    manager = make(3)
    first, second = ask("first", range(8)), ask("second", range(50, 54))
    run(manager, first)
    run(manager, second)
    second.append(1)
    before = state(manager, first, second)
    assert manager.allocate_slots(second, 1) is None
    assert state(manager, first, second) == before
    manager.free(first)
    assert manager.allocate_slots(second, 1) is not None


def test_blocks_of_the_hit_that_are_in_use_cost_no_room(make: Make) -> None:
    manager = make(5)
    run(manager, ask("holder", [*A, 1]))
    second = ask("second", [*A, *range(8)])
    grant = manager.allocate_slots(second, 8, manager.get_computed_blocks(second))
    assert grant is not None
    assert len(grant.block_ids) == 2
    assert manager.num_free_blocks == 0


@pytest.mark.parametrize("held_elsewhere", [0, 1])
def test_cached_blocks_that_are_wanted_count_once(make: Make, held_elsewhere: int) -> None:
    manager = make(10)  # case 30: 10 blocks, 8 of them cached and wanted, 10 needed
    serve(manager, ask("first", range(32)))
    if held_elsewhere:
        run(manager, ask("stranger", [90]))
    wanted = ask("wanted", range(40))
    before = state(manager)
    grant = manager.allocate_slots(wanted, 8, manager.get_computed_blocks(wanted))
    assert (grant is None) == bool(held_elsewhere)
    assert grant is None or len(grant.block_ids) == 2
    assert held_elsewhere == 0 or state(manager) == before


def test_an_allocation_never_evicts_its_own_hit(make: Make) -> None:
    manager = make(2)  # item 30
    first, second = ask("first", [1, 2, 3, 4]), ask("second", [5, 6, 7, 8])
    run(manager, first)
    run(manager, second)
    manager.free(first)
    manager.free(second)
    assert manager.free_block_ids() == [0, 1]  # the hit is the next victim
    wanted = ask("wanted", [1, 2, 3, 4, 9, 9, 9, 9])
    hit = manager.get_computed_blocks(wanted)
    grant = manager.allocate_slots(wanted, 4, hit)
    assert (hit.block_ids, grant and grant.block_ids) == ([0], [1])
    assert cached(manager, [5, 6, 7, 8, 0]) == 0


def test_what_fits_an_empty_pool_is_let_in_when_nothing_runs(make: Make) -> None:
    dice = random.Random(0)  # case 56: no hit may make a request impossible
    for _ in range(40):
        manager = make(dice.randint(1, 5), block_size=dice.randint(1, 4))
        longest = manager.config.num_blocks * manager.config.block_size
        for number in range(25):
            request = ask(f"r{number}", [dice.randint(0, 1) for _ in range(dice.randint(1, longest))])
            hit = manager.get_computed_blocks(request)
            grant = manager.allocate_slots(request, request.num_tokens - hit.num_tokens, hit)
            if grant is None:
                hit = hit.without_copy()
                assert manager.allocate_slots(request, request.num_tokens - hit.num_tokens, hit) is not None
            manager.commit_step()
            manager.free(request)


# Eviction


def test_the_tail_of_a_request_goes_before_its_head(make: Make) -> None:
    manager = make(3)  # item 20 as headstart has it, case 44
    first, probe = ask("first", range(12)), ask("probe", range(13))
    run(manager, first)
    table = manager.block_table("first")
    manager.free(first)
    for left in (3, 2, 1, 0):
        assert manager.get_computed_blocks(probe).block_ids == table[:left]
        if left:
            run(manager, ask(f"taker {left}", [90 + left]))


def test_what_was_used_last_goes_last(make: Make) -> None:
    manager = make(3)  # case 46, items 46, 48, 81
    serve(manager, ask("a", [1, 1, 1, 1]))
    serve(manager, ask("b", [2, 2, 2, 2]))
    serve(manager, ask("a again", [1, 1, 1, 1, 9]))
    run(manager, ask("c", [3, 3, 3, 3, 3]))
    assert cached(manager, [1, 1, 1, 1, 9]) == 4
    assert cached(manager, [2, 2, 2, 2, 9]) == 0


def test_a_hit_refreshes_the_whole_path(make: Make) -> None:
    manager = make(6)  # item 81
    serve(manager, ask("a", range(8)))
    serve(manager, ask("b", range(50, 58)))
    serve(manager, ask("a again", range(9)))
    run(manager, ask("stranger", range(90, 102)))
    assert cached(manager, range(9)) == 8
    assert cached(manager, range(50, 59)) in (0, 4)


def test_a_preempted_request_finds_what_is_left_of_it(make: Make) -> None:
    manager = make(5)  # items 53, 54
    victim = ask("victim", range(10))
    run(manager, victim)
    table = manager.block_table("victim")
    manager.free(victim)
    assert run(manager, victim).num_tokens == reach(manager, 10, 10)
    assert manager.block_table("victim")[:2] == table[:2]
    manager.free(victim)
    stranger = ask("stranger", range(50, 62))
    run(manager, stranger)
    manager.free(stranger)
    assert run(manager, victim).num_tokens == 8


# Costs, in calls rather than in seconds


def count_calls(action: Callable[[], object]) -> int:
    """How many functions, Python's and C's, the action calls."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(before)
    return calls


def full_pool(index: str, num_requests: int) -> KVCacheManager:
    """Every block cached and free, ten for each request."""
    config = CacheConfig(num_blocks=10 * num_requests, block_size=1, index=index)  # type: ignore[arg-type]
    manager = KVCacheManager(config)
    for number in range(num_requests):
        serve(manager, ask(f"r{number}", range(1000 * number, 1000 * number + 10)))
    return manager


@pytest.mark.parametrize("index", ["hash", "radix"])
def test_evicting_costs_what_is_evicted_and_not_what_is_cached(index: str) -> None:
    def cost(num_requests: int) -> int:
        manager = full_pool(index, num_requests)
        return count_calls(lambda: run(manager, ask("taker", range(-200, 0))))

    assert cost(1000) < 1.5 * cost(50)  # case 47


@pytest.mark.parametrize("index", ["hash", "radix"])
def test_a_hit_costs_what_is_hit_and_not_what_is_free(index: str) -> None:
    def cost(num_requests: int) -> int:
        manager, start = full_pool(index, num_requests), 1000 * (num_requests // 2)
        return count_calls(lambda: run(manager, ask("again", range(start, start + 10))))

    assert cost(1000) < 1.5 * cost(50)  # item 17: blocks leave the middle of the free queue


def test_a_radix_hit_costs_the_same_whatever_its_length() -> None:
    def cost(num_blocks: int) -> int:
        manager = KVCacheManager(CacheConfig(num_blocks=num_blocks + 2, block_size=2, index="radix"))
        tokens = range(2 * num_blocks)
        serve(manager, ask("first", tokens))
        request = ask("again", [*tokens, 0])
        return count_calls(lambda: serve(manager, request))

    assert cost(10_000) == cost(100)  # locks are counted on nodes, not on blocks
