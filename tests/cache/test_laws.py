"""`check()` itself: each law is broken by hand, and must be named with its numbers.

Everything else rests on it, so it looks inside on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headstart.cache import CacheConfig, KVCacheManager
from headstart.cache.blocks import BlockPool
from headstart.errors import CacheError
from tests.cache.checked import ask, run, serve

Break = Callable[[KVCacheManager], Any]


def manager_of(index: str) -> KVCacheManager:
    """Blocks 0-2 cached and free, 3-5 held for 10 tokens, 6 and 7 never used."""
    manager = KVCacheManager(CacheConfig(num_blocks=8, block_size=4, index=index))  # type: ignore[arg-type]
    serve(manager, ask("old", range(12)))
    run(manager, ask("live", range(50, 60)))
    assert (manager.block_table("live"), manager.free_block_ids()) == ([3, 4, 5], [6, 7, 2, 1, 0])
    manager.check()
    return manager


def lease_of(manager: KVCacheManager) -> Any:
    return manager._holdings["live"].lease


def set_to(target: Callable[[KVCacheManager], Any], name: str, value: Any) -> Break:
    return lambda manager: setattr(target(manager), name, value)


def index_of(manager: KVCacheManager) -> Any:
    return manager._index


def pool_of(manager: KVCacheManager) -> BlockPool:
    pool: BlockPool = index_of(manager)._pool
    return pool


def block(number: int) -> Callable[[KVCacheManager], Any]:
    return lambda manager: pool_of(manager).blocks[number]


def ghost(manager: KVCacheManager) -> None:
    manager.allocate_slots(ask("ghost", [1]), 1)
    manager.check()
    holding = manager._holdings.pop("ghost")
    manager._index.release(holding.lease, 0)


COMMON: dict[str, tuple[Break, str]] = {
    "a block is listed twice": (lambda m: lease_of(m).block_ids.append(6), "I[13]"),
    "a table has a block too few": (lambda m: lease_of(m).block_ids.pop(), "I[13]"),
    "a table names a block of another": (lambda m: lease_of(m).block_ids.__setitem__(0, 0), "I[13]"),
    "tokens have slots without a block": (
        lambda m: setattr(m._holdings["live"], "num_computed", 13),
        "I3: 'live' holds 3 blocks for 13 tokens",
    ),
    "a request is forgotten": (lambda m: m._holdings.clear(), "I[13]"),
    "the step knows someone who holds nothing": (ghost, "I4: the step knows 'ghost'"),
}


def digest_of(manager: KVCacheManager, number: int) -> bytes:
    digest = pool_of(manager).blocks[number].digest
    assert digest is not None
    return digest


def block_0_first(manager: KVCacheManager) -> None:
    first = pool_of(manager).blocks[0]
    pool_of(manager).free.remove(first)
    pool_of(manager).free.prepend_all([first])


HASH: dict[str, tuple[Break, str]] = {
    "a free block is lost": (lambda m: pool_of(m).free.popleft(), "I1"),
    "a reference too many": (set_to(block(4), "ref_count", 2), r"I3: Block\(4, ref_count=2\) is held by 1"),
    "a reference below zero": (
        set_to(block(0), "ref_count", -1),
        r"I3: .*ref_count=-1.* is held by 0",
    ),
    "a held block is free": (
        lambda m: pool_of(m).free.append(pool_of(m).blocks[4]),
        "I1: .* both free and held",
    ),
    "a digest leads nowhere": (lambda m: index_of(m)._first.pop(digest_of(m, 2)), "I2: .* not under its"),
    "a digest leads to a stranger": (set_to(block(2), "digest", None), "I2: 5 entries for 4"),
    "a parent is gone": (lambda m: index_of(m)._forget(pool_of(m).blocks[0]), "I7: .* without its parent"),
    "a parent goes before its child": (
        block_0_first,
        r"I7: Block\(1, ref_count=0\) would outlive its parent Block\(0, ref_count=0\)",
    ),
    "pending without being findable": (set_to(block(5), "pending_for", "live"), "I4: .* pending"),
    "the queue miscounts": (lambda m: setattr(pool_of(m).free, "_length", 4), "I1: the free queue counts 4"),
}


def tree_of(manager: KVCacheManager) -> Any:
    return index_of(manager)._tree


def node(first_block: int) -> Callable[[KVCacheManager], Any]:
    return lambda manager: next(n for n in tree_of(manager).nodes() if n.block_ids[0] == first_block)


def grow_below_pending(manager: KVCacheManager) -> None:
    upper = tree_of(manager).split(node(3)(manager), 1)
    upper.pending_for = "live"


def reverse_idle_order(manager: KVCacheManager) -> None:
    upper = tree_of(manager).split(node(0)(manager), 1)
    tree_of(manager).idle.base.remove(upper)
    tree_of(manager).idle.base.prepend_all([upper])


RADIX: dict[str, tuple[Break, str]] = {
    "a free block is lost": (lambda m: index_of(m)._free.take(1), "I1"),
    "a lock too many": (set_to(node(3), "lock", 2), "I3: .*lock=2.* another number of holders"),
    "a lock too few": (set_to(node(3), "lock", 0), "I3: .*lock=0.* another number of holders"),
    "a held node has left": (lambda m: tree_of(m)._detach(node(3)(m)), "I[13]"),
    "a run too short for its blocks": (set_to(node(0), "run", b"\0" * 44), "I2: "),
    "a node under a wrong key": (
        set_to(node(0), "run", b"\7" * 48),
        "I2: .* not found under its first",
    ),
    "a node without blocks": (set_to(node(0), "block_ids", []), "I[12]"),
    "committed below pending": (grow_below_pending, "I4: .* committed below the pending"),
    "a parent goes before its child": (reverse_idle_order, "I7: .* would outlive its parent"),
    "an idle node is not listed": (lambda m: tree_of(m).idle.popleft(), "I1: exactly the nodes"),
    "idle blocks are miscounted": (
        lambda m: setattr(tree_of(m), "num_idle_blocks", 2),
        "I1: 3 idle, 2 counted",
    ),
    "a table differs from its path": (
        lambda m: lease_of(m).block_ids.__setitem__(slice(0, 2), [4, 3]),
        "I3: table has 4, its path 3",
    ),
    "a path is longer than its table": (set_to(lease_of, "num_published", 1), "I3: a path of 2 blocks"),
    "a private block is owned twice": (lambda m: lease_of(m).repeats.add(0), "I1: 9 owned blocks of 8"),
}

CASES = [
    pytest.param(index, *case, id=f"{index}: {name}")
    for index, cases in (("hash", COMMON | HASH), ("radix", COMMON | RADIX))
    for name, case in cases.items()
]


@pytest.mark.parametrize(("index", "break_it", "message"), CASES)
def test_a_broken_law_is_noticed(index: str, break_it: Break, message: str) -> None:
    manager = manager_of(index)
    break_it(manager)
    with pytest.raises(CacheError, match=message):
        manager.check()
