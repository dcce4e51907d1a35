"""Forks: one table for several requests, until one of them writes.  Both indexes."""

from __future__ import annotations

import pytest

from headstart.cache import BlockCopy, CacheConfig, CacheRequest, Namespace
from headstart.errors import CacheError
from tests.cache.checked import CheckedManager, Make, ask, cached, decode, reach, run, serve, state


def forked(manager: CheckedManager, length: int = 6, children: int = 1) -> list[CacheRequest]:
    """A request of ``length`` computed tokens and its forks, each with one more token to compute."""
    parent = ask("parent", range(length))
    run(manager, parent)
    family = [parent, *(ask(f"child {number}", range(length)) for number in range(children))]
    for child in family[1:]:
        manager.fork(parent, child)
    for number, request in enumerate(family):
        request.append(100 + number)
    return family


def test_a_fork_holds_the_same_blocks_and_takes_none(make: Make) -> None:
    manager = make(8)
    free = 8 - 2
    parent, child = forked(manager)
    assert manager.block_table("child 0") == manager.block_table("parent")
    assert manager.num_free_blocks == free
    assert manager.stats.requests == 1
    manager.free(parent)
    assert manager.num_free_blocks == free
    manager.free(child)
    assert manager.num_free_blocks == 8
    assert cached(manager, range(10)) == reach(manager, 6, 10)


def test_the_first_to_write_gets_a_copy_and_the_last_keeps_the_block(make: Make) -> None:
    manager = make(8)
    parent, child = forked(manager)
    [whole, shared] = manager.block_table("parent")
    grant = manager.allocate_slots(parent, 1)
    assert grant is not None
    [fresh] = grant.replaced.values()
    assert grant.block_ids == []
    assert grant.replaced == {shared: fresh}
    assert grant.copies == (BlockCopy(src=shared, dst=fresh, num_tokens=2),)
    assert manager.block_table("parent") == [whole, fresh]
    assert manager.block_table("child 0") == [whole, shared]
    manager.commit_step()
    grant = manager.allocate_slots(child, 1)
    assert grant is not None
    assert (grant.block_ids, grant.copies, grant.replaced) == ([], (), {})
    assert manager.block_table("child 0") == [whole, shared]
    manager.commit_step()
    assert manager.num_free_blocks == 8 - 3


def test_writers_of_one_step_each_get_a_copy(make: Make) -> None:
    manager = make(8)  # the block is read by all their copies, so none of them may write into it yet
    family = forked(manager, children=2)
    shared = manager.block_table("parent")[1]
    fresh = set()
    for request in family:
        grant = manager.allocate_slots(request, 1)
        assert grant is not None
        assert [(copy.src, copy.num_tokens) for copy in grant.copies] == [(shared, 2)]
        fresh.add(grant.replaced[shared])
    assert len(fresh) == 3
    assert shared not in {*fresh, *manager.free_block_ids()}
    manager.commit_step()
    assert shared in manager.free_block_ids()
    for number, request in enumerate(family):
        manager.free(request)
        found = [*range(6), 100 + number, 0]
        assert cached(manager, found) == reach(manager, 7, 8)


def test_nothing_is_copied_where_the_next_token_begins_a_block(make: Make) -> None:
    manager = make(8)
    family = forked(manager, length=8)
    for request in family:
        grant = manager.allocate_slots(request, 1)
        assert grant is not None
        assert (len(grant.block_ids), grant.copies, grant.replaced) == (1, (), {})
    manager.commit_step()
    tables = [manager.block_table(request.request_id) for request in family]
    assert tables[0][:2] == tables[1][:2]
    assert tables[0][2] != tables[1][2]


def test_forks_go_their_own_ways(make: Make) -> None:
    manager = make(16)
    parent, child = forked(manager)
    for number, request in enumerate((parent, child)):
        decode_all(manager, request)
        decode(manager, request, range(200 + 10 * number, 209 + 10 * number))
        manager.free(request)
    for number in (0, 1):
        tokens = [*range(6), 100 + number, *range(200 + 10 * number, 209 + 10 * number)]
        assert cached(manager, [*tokens, 0]) == 16
    assert manager.num_free_blocks == 16


def decode_all(manager: CheckedManager, request: CacheRequest) -> None:
    assert manager.allocate_slots(request, 1) is not None
    manager.commit_step()


def test_the_copy_needs_room(make: Make) -> None:
    manager = make(3)
    parent, child = forked(manager)
    stranger = ask("stranger", [9])
    run(manager, stranger)
    before = state(manager, parent, child)
    assert manager.allocate_slots(parent, 1) is None
    assert state(manager, parent, child) == before
    manager.free(stranger)
    assert manager.allocate_slots(parent, 1) is not None


@pytest.mark.parametrize("length", [3, 6, 7])  # 3 and 7: the token fills the copy, which is published
def test_a_copy_is_taken_back_with_its_step(make: Make, length: int) -> None:
    manager = make(8)
    parent, child = forked(manager, length)
    before = state(manager, parent, child)
    for _ in range(2):
        assert manager.allocate_slots(parent, 1) is not None
        assert manager.allocate_slots(child, 1) is not None
        assert manager.rollback_step() == ("parent", "child 0")
        assert state(manager, parent, child) == before
    assert manager.allocate_slots(child, 1) is not None
    assert manager.free(child) == ()
    assert manager.block_table("parent") == before[3][0]
    manager.commit_step()
    grant = manager.allocate_slots(parent, 1)  # alone again: it writes where it is
    assert grant is not None
    assert grant.copies == ()
    manager.commit_step()
    manager.free(parent)
    assert manager.num_free_blocks == 8
    assert cached(manager, [*range(length), 100, 0]) == reach(manager, length + 1, length + 2)


def test_a_fork_freed_while_the_other_leaves_the_block(make: Make) -> None:
    manager = make(8)
    parent, child = forked(manager)
    shared = manager.block_table("parent")[1]
    assert manager.allocate_slots(parent, 1) is not None
    manager.free(child)
    assert shared not in manager.free_block_ids()  # the copy still reads it
    manager.commit_step()
    assert shared in manager.free_block_ids()
    manager.free(parent)
    assert manager.num_free_blocks == 8


def test_forks_of_forks(make: Make) -> None:
    manager = make(12)
    parent, child = forked(manager)
    grandchild = ask("grandchild", range(6))
    manager.fork(child, grandchild)
    manager.free(child)
    assert manager.block_table("grandchild") == manager.block_table("parent")
    decode_all(manager, parent)
    grandchild.append(300)
    grant = manager.allocate_slots(grandchild, 1)
    assert grant is not None
    assert grant.copies == ()
    manager.commit_step()
    manager.free(parent)
    manager.free(grandchild)
    assert manager.num_free_blocks == 12


def test_a_fork_of_a_repeated_block(make: Make) -> None:
    manager = make(12)
    first, second = ask("first", range(6)), ask("second", range(6))
    for request in (first, second):  # side by side, without looking
        assert manager.allocate_slots(request, 6) is not None
        manager.commit_step()
    child = ask("child", range(6))
    manager.fork(second, child)
    for request in (first, second, child):
        request.append(7)
        decode_all(manager, request)
    for request in (second, first, child):
        manager.free(request)
    assert manager.num_free_blocks == 12
    assert sorted(manager.free_block_ids()) == list(range(12))
    assert cached(manager, [*range(6), 7, 0]) == reach(manager, 7, 8)


def test_a_fork_that_holds_a_copy_of_a_parent_block(make: Make) -> None:
    manager = make(8, block_size=1)
    first, second = ask("first", [1]), ask("second", [1])
    run(manager, first)
    run(manager, second)  # computes the same block once more
    child = ask("child", [1])
    manager.fork(second, child)
    decode(manager, second, [0])
    manager.free(first)
    manager.free(second)
    assert cached(manager, [1, 0, 2]) == 2
    manager.free(child)
    run(manager, ask("taker", range(50, 57)))  # all but one block: tails first
    assert cached(manager, [1, 0, 2]) == 1


def test_repeats_of_a_fork_are_its_own(make: Make) -> None:
    manager = make(12)
    first, second = ask("first", range(3)), ask("second", range(3))
    for request in (first, second):
        assert manager.allocate_slots(request, 3) is not None
    manager.commit_step()
    child = ask("child", range(3))
    manager.fork(second, child)
    for request in (first, second, child):  # all fill an equal block, each its own
        request.append(3)
        assert manager.allocate_slots(request, 1) is not None
        manager.commit_step()
    assert len({manager.block_table(name)[0] for name in ("first", "second", "child")}) == 3
    grandchild = ask("grandchild", range(4))
    manager.fork(second, grandchild)
    manager.free(second)
    assert manager.num_free_blocks == 12 - 3
    manager.free(grandchild)
    assert manager.num_free_blocks == 12 - 2


def test_a_fork_may_have_more_tokens_than_are_computed(make: Make) -> None:
    manager = make(8)
    parent, child = ask("parent", range(6)), ask("child", range(11))
    run(manager, parent)
    manager.fork(parent, child)
    grant = manager.allocate_slots(child, 5)
    assert grant is not None
    assert (len(grant.block_ids), len(grant.copies)) == (1, 1)
    assert len(manager.block_table("child")) == 3
    with pytest.raises(CacheError, match="has no 12 tokens"):
        manager.allocate_slots(child, 1)


def test_a_fork_without_caching(make: Make) -> None:
    manager = make(8, enable_prefix_caching=False)
    family = forked(manager, length=7)
    for request in family:
        decode_all(manager, request)
    assert manager.block_table("parent")[0] == manager.block_table("child 0")[0]
    assert manager.block_table("parent")[1] != manager.block_table("child 0")[1]
    for request in family:
        manager.free(request)
    assert manager.num_free_blocks == 8


def test_a_preempted_fork_is_a_request_like_others(make: Make) -> None:
    manager = make(8)
    parent, child = forked(manager)
    manager.free(child)
    hit = manager.get_computed_blocks(child)
    assert hit.num_tokens == 4
    assert manager.allocate_slots(child, 3, hit) is not None
    manager.commit_step()
    assert manager.stats.requests == 1
    assert manager.stats.preempted_requests == 1
    manager.free(parent)


def test_only_a_request_that_begins_alike_is_a_fork(make: Make) -> None:
    manager = make(8)
    parent = ask("parent", range(6), Namespace(salt="s"))
    with pytest.raises(CacheError, match=r"'parent'.* cannot be forked: it holds nothing"):
        manager.fork(parent, ask("child", range(6), Namespace(salt="s")))
    assert manager.allocate_slots(parent, 6) is not None
    with pytest.raises(CacheError, match="its step is not committed"):
        manager.fork(parent, ask("child", range(6), Namespace(salt="s")))
    manager.commit_step()
    before = state(manager, parent)
    for child in (
        ask("child", range(6)),  # another namespace
        ask("child", range(5), Namespace(salt="s")),  # too short
        ask("child", [*range(5), 9], Namespace(salt="s")),  # other tokens
        ask("parent", range(6), Namespace(salt="s")),  # holds blocks already
    ):
        with pytest.raises(CacheError, match=r"is no fork of .*: it must begin with its 6 tokens"):
            manager.fork(parent, child)
    assert state(manager, parent) == before


def test_a_fork_voids_a_hit(make: Make) -> None:
    manager = make(8)
    serve(manager, ask("old", range(50, 58)))
    parent = ask("parent", range(6))
    run(manager, parent)
    late = ask("late", range(50, 60))
    hit = manager.get_computed_blocks(late)
    manager.fork(parent, ask("child", range(6)))
    with pytest.raises(CacheError, match="older than the last change"):
        manager.allocate_slots(late, 1, hit)


def test_a_fork_of_the_hash_index_hashes_nothing_again() -> None:
    manager = CheckedManager(CacheConfig(8, 4, index="hash"))
    parent, child = ask("parent", range(14)), ask("child", range(14))
    run(manager, parent)
    manager.fork(parent, child)
    assert len(child.digests) == 3
    assert child.digests == parent.digests
    assert child.digests is not parent.digests
