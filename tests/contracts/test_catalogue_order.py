"""docs/catalogue.md, items 26 and 44 to 59: in which order blocks go, come back and are given up.

The worked example of the published vLLM V1 design, times 1 to 6, is in tests/cache/test_hash_index.py.
"""

from __future__ import annotations

import pytest

from headstart.cache import CacheRequest
from tests.cache.checked import FLAVOURS, CheckedManager, ask, cached, reach, run, serve
from tests.contracts.catalogue import KEEPS_TAILS, A, ours, pool

every_flavour = pytest.mark.parametrize("flavour", FLAVOURS)
keeps_tails = pytest.mark.parametrize("flavour", KEEPS_TAILS)
UNHASHED_FIRST = "hash-unhashed-first"


@pytest.mark.parametrize(
    ("flavour", "both_freed", "new", "at_the_end"),
    [
        (UNHASHED_FIRST, [5, 4, 6, 7, 8, 9, 10, 3, 2, 1], 5, [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]),
        ("hash", [6, 7, 8, 9, 10, 4, 5, 3, 2, 1], 6, [7, 8, 9, 10, 4, 5, 6, 3, 2, 1]),
        ("radix", [6, 7, 8, 9, 10, 4, 5, 3, 2, 1], 6, [7, 8, 9, 10, 4, 5, 6, 3, 2, 1]),
    ],
)
def test_item_26_reference_prefill(
    flavour: str, both_freed: list[int], new: int, at_the_end: list[int]
) -> None:
    """Where tails keep their turn, the third request takes a block that was never used before."""
    common = [token for block in range(3) for token in [block] * 16]
    manager = pool(flavour, 11, block_size=16)
    zero = ask("0", [*common, *[3] * 7])
    run(manager, zero)
    assert manager.block_table("0") == ours(1, 2, 3, 4)
    one = ask("1", [*common, *[4] * 5])
    assert run(manager, one).num_tokens == 48
    assert manager.block_table("1") == ours(1, 2, 3, 5)
    assert manager.num_free_blocks == 5
    manager.free(zero)
    manager.free(one)
    assert manager.free_block_ids() == ours(*both_freed)
    two = ask("2", [*common, *[5] * 6])
    assert run(manager, two).num_tokens == 48
    assert manager.block_table("2") == ours(1, 2, 3, new)
    manager.free(two)
    three = ask("3", [9] * 160)
    assert run(manager, three).num_tokens == 0
    assert manager.block_table("3") == ours(*at_the_end)
    assert manager.num_free_blocks == 0


def two_freed(flavour: str) -> CheckedManager:
    """Item 44: a of 14 tokens and b of 8 were served, and freed in this order."""
    manager = pool(flavour, 11)
    requests = [ask("a", range(14)), ask("b", range(50, 58))]
    for request in requests:
        run(manager, request)
    assert [manager.block_table(name) for name in ("a", "b")] == [ours(1, 2, 3, 4), ours(5, 6)]
    for request in requests:
        manager.free(request)
    return manager


def test_item_44_reverse_order_and_unhashed_first() -> None:
    assert two_freed(UNHASHED_FIRST).free_block_ids() == ours(4, 7, 8, 9, 10, 3, 2, 1, 6, 5)


@keeps_tails
def test_item_44_reverse_order_of_all(flavour: str) -> None:
    """The published design's order: the partly filled block waits at the tail with the others."""
    assert two_freed(flavour).free_block_ids() == ours(7, 8, 9, 10, 4, 3, 2, 1, 6, 5)


def twins_beyond_a_shared_prefix(flavour: str) -> tuple[CheckedManager, CacheRequest]:
    """Two requests hit blocks 1 and 2, and side by side compute the same two blocks behind them."""
    manager = pool(flavour, 8)
    serve(manager, ask("old", A))
    twins = [ask(name, [*A, *range(8)]) for name in ("first", "second")]
    for twin in twins:
        assert manager.allocate_slots(twin, 1, manager.get_computed_blocks(twin)) is not None
        manager.commit_step()
    for twin in twins:
        assert manager.allocate_slots(twin, 7) is not None
    manager.commit_step()
    assert [manager.block_table(t.request_id) for t in twins] == [ours(1, 2, 3, 5), ours(1, 2, 4, 6)]
    return manager, twins[1]


def test_item_45_several_unhashed_blocks_go_to_the_front_the_last_first() -> None:
    """headstart holds no block without a computed token; extra copies lose their digest when freed."""
    manager, second = twins_beyond_a_shared_prefix(UNHASHED_FIRST)
    manager.free(second)
    assert manager.free_block_ids() == ours(6, 4, 7)


def test_item_45_in_the_plain_order_they_wait_at_the_tail() -> None:
    manager, second = twins_beyond_a_shared_prefix("hash")
    manager.free(second)
    assert manager.free_block_ids() == ours(7, 6, 4)


def test_item_45_repeats_of_the_tree_go_to_the_front() -> None:
    manager, second = twins_beyond_a_shared_prefix("radix")
    manager.free(second)
    assert sorted(manager.free_block_ids()[:2]) == ours(4, 6)
    assert manager.free_block_ids()[2:] == ours(7)


@every_flavour
def test_item_46_and_48_touch_and_eviction(flavour: str) -> None:
    """Item 48 takes the hit out of the middle; item 46: eviction follows the order of the free list."""
    manager = two_freed(flavour)
    again = ask("again", [*range(8), 90])
    assert run(manager, again).block_ids == ours(1, 2)
    unhashed_first = flavour == UNHASHED_FIRST
    if unhashed_first:
        new, left, freed = 4, [7, 8, 9, 10, 3, 6, 5], [4, 7, 8, 9, 10, 3, 6, 5, 2, 1]
    else:
        new, left, freed = 7, [8, 9, 10, 4, 3, 6, 5], [8, 9, 10, 4, 3, 6, 5, 7, 2, 1]
    assert manager.block_table("again") == ours(1, 2, new)
    assert manager.free_block_ids() == ours(*left)
    manager.free(again)
    assert manager.free_block_ids() == ours(*freed)

    run(manager, ask("stranger", range(200, 240)))
    assert manager.block_table("stranger") == ours(*freed)
    assert [cached(manager, tokens) for tokens in (range(15), range(50, 59), [*range(8), 90, 91])] == [0] * 3
    assert cached(manager, range(200, 241)) == 40


@keeps_tails
def test_item_47_shared_blocks_are_freed_with_their_last_request(flavour: str) -> None:
    """vLLM's order and the reference counts are in tests/cache/test_hash_index.py."""
    manager = pool(flavour, 10)
    a, b = ask("a", [*A, 1]), ask("b", [*A, 2])
    run(manager, a)
    assert run(manager, b).num_tokens == 8
    assert (manager.block_table("a"), manager.block_table("b")) == (ours(1, 2, 3), ours(1, 2, 4))
    manager.free(a)
    assert manager.free_block_ids() == ours(5, 6, 7, 8, 9, 3)
    manager.free(b)
    assert manager.free_block_ids() == ours(5, 6, 7, 8, 9, 3, 4, 2, 1)


@every_flavour
def test_item_53_a_preempted_request_hits_what_it_computed(flavour: str) -> None:
    """It gets all of its blocks back where its tail is taken first, or where nothing else is free."""
    manager = pool(flavour, 6)
    victim = ask("victim", range(10))
    run(manager, victim)
    assert manager.block_table("victim") == ours(1, 2, 3)
    manager.free(victim)
    assert run(manager, victim).num_tokens == reach(manager, 10, 10)
    assert manager.block_table("victim") == ours(1, 2, 3 if flavour == UNHASHED_FIRST else 4)


@every_flavour
def test_item_53_in_a_pool_of_its_size_it_gets_its_blocks_back(flavour: str) -> None:
    """The radix index has no room to keep the block that it would copy from: two whole blocks are the hit."""
    manager = pool(flavour, 4)
    victim = ask("victim", range(10))
    serve(manager, victim)
    hit = manager.get_computed_blocks(victim).without_copy()
    assert hit.num_tokens == 8
    assert manager.allocate_slots(victim, 2, hit) is not None
    assert manager.block_table("victim") == ours(1, 2, 3)


@keeps_tails
def test_item_54_a_stranger_takes_the_tail_of_a_preempted_request(flavour: str) -> None:
    """All of the victim's blocks are full, so orders agree; vLLM's is in tests/cache/test_hash_index.py."""
    manager = pool(flavour, 6)
    victim = ask("victim", range(12))
    serve(manager, victim)
    run(manager, ask("stranger", range(50, 62)))
    assert manager.block_table("stranger") == ours(4, 5, 3)
    assert manager.get_computed_blocks(victim).num_tokens == 8


@every_flavour
def test_item_59_a_reset_keeps_the_order_of_the_free_list(flavour: str) -> None:
    manager = pool(flavour, 8)
    first = ask("first", A)
    run(manager, first)
    before = manager.state_digest()
    assert manager.reset_prefix_cache() is False
    assert manager.state_digest() == before
    manager.free(first)
    assert manager.free_block_ids() == ours(3, 4, 5, 6, 7, 2, 1)
    assert manager.reset_prefix_cache() is True
    assert manager.free_block_ids() == ours(3, 4, 5, 6, 7, 2, 1)
    assert cached(manager, [*A, 1]) == 0
