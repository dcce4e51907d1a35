"""docs/catalogue.md, items 74 to 93: the tree and its partly filled blocks, through the manager.

Items 74 to 87 count slots of one token each, so blocks have one here; block ids stand for SGLang's values.
Items 88 to 93 come from TensorRT-LLM, whose ids begin at 0 as ours do.
"""

from __future__ import annotations

from collections.abc import Iterable

from headstart.cache import BlockCopy, PartialBlock
from tests.cache.checked import CheckedManager, admit, ask, cached, decode, make_manager, run, serve


def radix(num_blocks: int, block_size: int = 1) -> CheckedManager:
    return make_manager(num_blocks, block_size, index="radix")


def insert(manager: CheckedManager, tokens: Iterable[int]) -> int:
    """Compute the tokens without a look at the tree; returns how many it had already."""
    request = ask("inserted", tokens)
    assert manager.allocate_slots(request, request.num_tokens) is not None
    manager.commit_step()
    table = manager.block_table("inserted")
    found = manager.get_computed_blocks(ask("probe", [*request.token_ids(), -1])).block_ids
    manager.free(request)
    return sum(own != shared for own, shared in zip(table, found, strict=True))


def nodes(manager: CheckedManager) -> dict[tuple[int, ...], tuple[int, ...]]:
    """The blocks of each node, and those of the node above it (none: a root)."""
    tree = manager._index._tree  # type: ignore[attr-defined]  # of the radix index
    return {tuple(node.block_ids): tuple(node.parent.block_ids) for node in tree.nodes()}


def test_item_74_insert_tells_what_was_there() -> None:
    manager = radix(12)
    assert insert(manager, [1, 2, 3]) == 0  # blocks 0, 1, 2
    assert insert(manager, [1, 2, 3]) == 3
    table = manager.free_block_ids()[:4]
    assert insert(manager, [1, 2, 4, 5]) == 2
    assert insert(manager, [1, 2]) == 2
    assert nodes(manager) == {(0, 1): (), (2,): (0, 1), tuple(table[2:]): (0, 1)}
    assert sorted(manager.free_block_ids()[-5:]) == sorted([0, 1, 2, *table[2:]])


def test_item_76_a_match_that_is_used_splits() -> None:
    """Only an admission splits: a lookup changes nothing (item 21)."""
    manager = radix(12)
    insert(manager, range(1, 9))
    request = ask("request", [1, 2, 3, 9])
    assert manager.get_computed_blocks(request).num_tokens == 3
    assert nodes(manager) == {(0, 1, 2, 3, 4, 5, 6, 7): ()}
    admit(manager, request)
    assert nodes(manager) == {(0, 1, 2): (), (3, 4, 5, 6, 7): (0, 1, 2), (8,): (0, 1, 2)}
    manager.rollback_step()
    assert nodes(manager) == {(0, 1, 2): (), (3, 4, 5, 6, 7): (0, 1, 2)}
    assert manager.num_free_blocks == 12
    assert cached(manager, range(1, 10)) == 8


def test_item_78_locks_protect_the_path() -> None:
    """A holder needs a block of its own besides, for the token that is always computed."""
    manager = radix(8)
    insert(manager, [1, 2, 3, 4])  # blocks 0 to 3
    insert(manager, [1, 2, 5, 6])  # in blocks 4 to 7, of which the tree keeps the last two
    assert nodes(manager) == {(0, 1): (), (2, 3): (0, 1), (6, 7): (0, 1)}
    first, second = ask("first", [1, 2, 3, 4, 90]), ask("second", [1, 2, 3, 4, 91])
    run(manager, first)
    assert manager.free_block_ids()[1:] == [7, 6]
    run(manager, second)  # a second hold protects no more
    assert manager.free_block_ids() == [7, 6]
    assert manager.allocate_slots(ask("too long", [7, 8, 9]), 3) is None
    run(manager, ask("taker", [7, 8]))
    assert (manager.block_table("taker"), manager.free_block_ids()) == ([7, 6], [])
    own = [manager.block_table(name)[-1] for name in ("first", "second")]
    manager.free(first)
    assert manager.free_block_ids() == own[:1]
    manager.free(second)
    assert manager.free_block_ids() == [*own, 3, 2, 1, 0]  # the leaf, then its parent


def test_item_79_splitting_a_held_node_holds_both_halves() -> None:
    manager = radix(7)
    holder = ask("holder", [1, 2, 3, 4])
    run(manager, holder)
    admit(manager, ask("passer-by", [1, 2, 9]))
    manager.rollback_step()
    assert nodes(manager) == {(0, 1): (), (2, 3): (0, 1)}
    assert (manager.num_free_blocks, manager.free_block_ids()) == (3, [4, 5, 6])
    manager.free(holder)
    assert manager.free_block_ids() == [4, 5, 6, 3, 2, 1, 0]


# Partly filled blocks


def test_item_88_the_last_token_is_never_stored() -> None:
    manager = radix(8, block_size=4)
    request = ask("request", range(9))
    run(manager, request)
    assert manager.block_table("request") == [0, 1, 2]
    decode(manager, request, [9])
    request.append(10)  # sampled, and never computed
    manager.free(request)
    assert nodes(manager) == {(0, 1): (), (2,): (0, 1)}
    assert manager.free_block_ids() == [3, 4, 5, 6, 7, 2, 1, 0]
    assert cached(manager, range(12)) == 10


def stored(manager: CheckedManager) -> None:
    """Item 88's end: 0-3 in block 0, 4-7 in block 1, and the tail 8, 9 in block 2."""
    serve(manager, ask("old", range(10)))


def test_item_89_a_tail_that_is_stored_already_is_dropped() -> None:
    manager = radix(8, block_size=4)
    stored(manager)
    again = ask("again", range(9))
    assert run(manager, again).num_tokens == 8
    assert manager.block_table("again") == [0, 1, 3]
    manager.free(again)
    assert manager.free_block_ids() == [3, 4, 5, 6, 7, 2, 1, 0]
    assert cached(manager, range(12)) == 10


def test_item_90_a_tail_is_copied_whoever_holds_it() -> None:
    """TensorRT-LLM writes into a tail that nobody owns; headstart always copies, so the tail stays whole."""
    manager = radix(8, block_size=4)
    stored(manager)
    ten = ask("ten", range(10))
    hit = manager.get_computed_blocks(ten)
    assert (hit.num_tokens, hit.copy) == (9, PartialBlock(src=2, num_tokens=1))
    grant = manager.allocate_slots(ten, 1, hit)
    assert grant is not None
    assert grant.copies == (BlockCopy(src=2, dst=3, num_tokens=1),)
    manager.commit_step()
    assert manager.block_table("ten") == [0, 1, 3]
    eleven = ask("eleven", range(11))
    assert run(manager, eleven).copy == PartialBlock(src=2, num_tokens=2)
    assert manager.block_table("eleven") == [0, 1, 4]


def test_item_91_short_prompts() -> None:
    """A tail of one token is stored like any other (case 46)."""
    manager = radix(8, block_size=4)
    serve(manager, ask("old", [*range(8), 8]))
    assert cached(manager, range(5)) == 4
    assert cached(manager, [0]) == 0
    assert cached(manager, [*range(8), 8, 9]) == 9
    zeros = ask("zeros", [0] * 31)
    hit = manager.get_computed_blocks(zeros)
    assert (hit.num_tokens, hit.copy) == (1, PartialBlock(src=0, num_tokens=1))
    # It needs the whole pool, so block 0 cannot be kept to copy from.
    assert manager.allocate_slots(zeros, 30, hit) is None
    assert manager.allocate_slots(zeros, 31, hit.without_copy()) is not None
