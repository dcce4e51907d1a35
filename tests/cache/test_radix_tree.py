"""The tree of the `radix` index through the manager: where it parts, what holds, what goes first."""

from __future__ import annotations

import gc
import weakref

import pytest

from headstart.cache import Namespace
from headstart.errors import CacheError
from tests.cache.checked import CheckedManager, admit, ask, cached, decode, make_manager, run, serve

A = list(range(100, 108))  # two full blocks


def radix(num_blocks: int, block_size: int = 4) -> CheckedManager:
    return make_manager(num_blocks, block_size, index="radix")


def num_nodes(manager: CheckedManager) -> int:
    return len(manager._index._tree.nodes())  # type: ignore[attr-defined]  # of the radix index


def test_prompts_part_between_blocks() -> None:
    manager = radix(16)  # items 76, 77
    serve(manager, ask("first", range(10)))
    whole = [
        len(manager.get_computed_blocks(ask("probe", [*range(count), 90])).block_ids) for count in range(13)
    ]
    assert whole == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2]
    assert num_nodes(manager) == 2  # eight tokens and a tail: looking splits nothing
    serve(manager, ask("second", [*range(6), 90, 91]))
    assert num_nodes(manager) == 4  # one block, under it the other block with its tail, and the new one
    assert cached(manager, range(11)) == 10
    assert cached(manager, [*range(6), 90, 91, 92]) == 8


def test_what_a_request_holds_is_not_evicted() -> None:
    manager = radix(4, block_size=2)  # item 78, case 51
    serve(manager, ask("other", [1, 2, 5, 6]))
    held = ask("held", [1, 2, 3, 4])
    run(manager, held)
    assert manager.num_free_blocks == 2
    taker = ask("taker", [9, 9, 9, 9])
    run(manager, taker)
    assert cached(manager, [1, 2, 5, 6, 0]) == 2
    assert cached(manager, [1, 2, 3, 4, 0]) == 4
    manager.free(taker)
    manager.free(held)
    found = []
    for number in range(4):
        found.append(cached(manager, [1, 2, 3, 4, 0]))
        run(manager, ask(f"r{number}", [50 + number]))
    assert found == [4, 4, 4, 2]  # two of the taker's, then the leaf, then its parent


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
def test_a_node_that_is_split_while_held_stays_held(order: tuple[int, ...]) -> None:
    manager = radix(12)  # item 79, case 51
    requests = [ask("whole", range(12)), ask("half", [*range(8), 50]), ask("start", [*range(4), 60])]
    for request in requests:
        run(manager, request)
    assert [len(manager.block_table(request.request_id)) for request in requests] == [3, 3, 2]
    assert manager.num_free_blocks == 12 - 3 - 1 - 1
    for number in order:
        manager.free(requests[number])
    assert manager.num_free_blocks == 12
    assert cached(manager, range(13)) == 12


def test_leaves_go_before_their_parents_the_oldest_first() -> None:
    manager = radix(4, block_size=2)  # item 80
    serve(manager, ask("first", [1, 2, 3, 4]))
    serve(manager, ask("second", [5, 6]))
    serve(manager, ask("first again", [1, 2, 3, 4, 9]))
    found = [(5, 2)]
    for number in range(4):
        run(manager, ask(f"r{number}", [50 + number]))
        found.append((cached(manager, [1, 2, 3, 4, 9, 0]), cached(manager, [5, 6, 0])))
    assert found == [(5, 2), (5, 0), (4, 0), (2, 0), (0, 0)]


def test_many_blocks_are_evicted_in_the_order_that_is_listed() -> None:
    manager = radix(8)
    serve(manager, ask("old", range(12)))
    serve(manager, ask("new", range(100, 116)))
    listed = manager.free_block_ids()
    run(manager, ask("taker", range(200, 224)))  # the unused one, all of "old", two of "new"
    assert manager.block_table("taker") == listed[:6] == [7, 2, 1, 0, 6, 5]
    assert cached(manager, range(100, 117)) == 8
    assert manager.num_evicted_blocks == 5


def test_a_copy_from_a_block_is_no_use_of_what_follows_it() -> None:
    manager = radix(12)
    serve(manager, ask("old", range(16)))
    serve(manager, ask("new", range(100, 116)))
    assert serve(manager, ask("brief", [*range(6), 90])).num_tokens == 6
    run(manager, ask("taker", range(200, 220)))  # three unused blocks, and two that were cached
    assert cached(manager, range(100, 117)) == 16
    assert cached(manager, range(17)) == 8


def test_decoding_does_not_deepen_the_tree() -> None:
    manager = radix(128)
    first = ask("first", range(10))
    run(manager, first)
    decode(manager, first, range(10, 200))
    assert num_nodes(manager) == 1
    second = ask("second", [*range(100), 500])
    run(manager, second)
    decode(manager, second, range(501, 600))
    assert num_nodes(manager) == 3
    assert cached(manager, range(201)) == 200


def test_a_run_that_was_cut_for_someone_who_left_is_whole_again() -> None:
    manager = radix(12)
    first = ask("first", range(16))
    assert manager.allocate_slots(first, 4) is not None
    manager.commit_step()
    assert manager.allocate_slots(first, 12) is not None  # three blocks, pending
    second = ask("second", [*range(8), 90])
    assert admit(manager, second).num_tokens == 8
    assert num_nodes(manager) == 3
    manager.free(second)
    manager.commit_step()
    assert num_nodes(manager) == 2
    assert cached(manager, range(17)) == 16
    manager.free(first)
    assert manager.free_block_ids()[-4:] == [3, 2, 1, 0]


def test_a_parent_is_not_evicted_before_its_children() -> None:
    manager = radix(3, block_size=2)
    serve(manager, ask("first", [1, 2, 3, 4, 5]))
    tree = manager._index._tree  # type: ignore[attr-defined]  # of the radix index
    stub = tree.idle.popleft()  # as only a broken order could do
    with pytest.raises(CacheError, match=r"no block can be evicted: .*blocks=\[0, 1\].*children=1"):
        tree.evict(1)
    with pytest.raises(CacheError, match="only leaves can"):
        tree._detach(stub.parent)
    tree.clear()
    with pytest.raises(CacheError, match="no block can be evicted: the first idle node is None"):
        tree.evict(1)


def test_a_namespace_is_forgotten_with_its_last_block() -> None:
    class Salt(str):
        """A string that can be watched."""

    manager = radix(2)
    for end in ("evicted", "withdrawn", "reset"):
        salt = Salt("tenant")
        watched = weakref.ref(salt)
        request = ask("request", A[:5], Namespace(salt=salt))
        admit(manager, request)
        if end == "withdrawn":
            manager.rollback_step()
        else:
            manager.commit_step()
            manager.free(request)
        if end == "evicted":
            serve(manager, ask("other", range(8)))
        if end == "reset":
            manager.reset_prefix_cache()
        del request, salt
        gc.collect()
        assert watched() is None, end


def test_splits_outlive_evicted_siblings_but_there_are_never_more_nodes_than_blocks() -> None:
    manager = radix(12)
    for number in range(200):
        kept = range(4 * (number % 5 + 1))
        serve(manager, ask(f"r{number}", [*kept, *range(100 + 50 * number, 108 + 50 * number)]))
        assert num_nodes(manager) <= 12
    assert manager.reset_prefix_cache()
    assert num_nodes(manager) == 0
