"""Each policy's own order, through the manager: who goes first after the same uses.  Both indexes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headstart.cache import CacheRequest
from headstart.cache.eviction import LazyHeap, Use
from tests.cache.checked import CheckedManager, ask, cached, make_manager, serve

PROMPTS = {name: [ord(name)] * 8 for name in "abcd"}  # two full blocks each


@pytest.fixture(params=["radix", "hash"])
def index(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def use(manager: CheckedManager, name: str, now: float, **options: Any) -> None:
    """A request for the prompt; nothing is left of it but what the prompt has."""
    manager.begin_step(now)
    serve(manager, CacheRequest(f"{name} {now}", PROMPTS[name], **options))


def order(manager: CheckedManager, names: str) -> str:
    """The prompts in the order in which they lose a block to a stranger."""
    stranger, gone = ask("stranger", []), ""
    while len(gone) < len(names):
        stranger.append(7)
        assert manager.allocate_slots(stranger, 1) is not None
        manager.commit_step()
        gone += "".join(n for n in names if n not in gone and cached(manager, [*PROMPTS[n], 99]) < 8)
    return gone


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"policy": "lru"}, "cab"),
        ({"policy": "fifo"}, "abc"),
        ({"policy": "lfu"}, "cba"),
        ({"policy": "lfu", "lfu_ageing": False}, "cba"),
        ({"policy": "lrfu", "half_life_seconds": 0.1}, "cab"),
        ({"policy": "lrfu", "half_life_seconds": 1e4}, "cba"),
        ({"policy": "slru"}, "cab"),
        ({"policy": "ttl"}, "cab"),
        ({"policy": "cost"}, "cab"),  # all are as deep
    ],
)
def test_the_order_after_the_same_uses(index: str, options: dict[str, Any], expected: str) -> None:
    manager = make_manager(16, index=index, **options)
    for now, name in enumerate("abcaab"):
        use(manager, name, float(now))
    assert order(manager, "abc") == expected


def test_fifo_knows_no_use_of_what_is_old(index: str) -> None:
    manager = make_manager(16, index=index, policy="fifo")
    for now, name in enumerate("ab" + "a" * 5):
        use(manager, name, float(now))
    assert order(manager, "ab") == "ab"


@pytest.mark.parametrize(("ageing", "left"), [(True, 0), (False, 8)])
def test_an_old_favourite_goes_if_frequencies_age(index: str, ageing: bool, left: int) -> None:
    manager = make_manager(12, index=index, policy="lfu", lfu_ageing=ageing)
    for now in range(5):
        use(manager, "a", float(now))
    for number in range(60):
        serve(manager, ask(f"once {number}", range(1000 + 8 * number, 1008 + 8 * number)))
    assert cached(manager, [*PROMPTS["a"], 99]) == left


def test_what_was_used_often_long_ago_fades(index: str) -> None:
    for half_life, expected in ((1.0, "ab"), (100.0, "ba")):
        manager = make_manager(20, index=index, policy="lrfu", half_life_seconds=half_life)
        for now in range(4):
            use(manager, "a", float(now))
        use(manager, "b", 20.0)
        use(manager, "b", 21.0)
        assert order(manager, "ab") == expected


def test_what_was_used_again_is_protected_from_what_passes_through(index: str) -> None:
    for policy, left in (("slru", 8), ("lru", 0)):
        manager = make_manager(12, index=index, policy=policy)
        use(manager, "a", 0.0)
        use(manager, "a", 1.0)
        for number in range(20):
            serve(manager, ask(f"once {number}", range(1000 + 8 * number, 1008 + 8 * number)))
        assert cached(manager, [*PROMPTS["a"], 99]) == left


def test_the_longest_idle_leave_a_protected_share_that_is_full(index: str) -> None:
    manager = make_manager(20, index=index, policy="slru", protected_share=0.25)  # five blocks: two prompts
    for now, name in enumerate("aabbccd"):
        use(manager, name, float(now))
    assert order(manager, "abcd") == "adbc"


def test_what_has_expired_goes_first_whatever_its_priority(index: str) -> None:
    for now, expected in ((5.0, "ba"), (11.0, "ab")):
        manager = make_manager(20, index=index, policy="ttl", ttl_seconds=10.0)
        use(manager, "a", 0.0, retention_priority=9)
        use(manager, "b", 2.0)
        manager.begin_step(now)
        assert order(manager, "ab") == expected


def test_use_starts_the_time_again(index: str) -> None:
    manager = make_manager(20, index=index, policy="ttl", ttl_seconds=10.0)
    use(manager, "a", 0.0, retention_priority=9)
    use(manager, "b", 11.0)  # now a has expired
    use(manager, "a", 12.0)
    assert order(manager, "ab") == "ba"


def test_what_is_cheap_to_compute_again_goes_first(index: str) -> None:
    manager = make_manager(30, index=index, policy="cost", cost_depth_tokens=16)
    deep = list(range(1000, 1040))
    serve(manager, ask("deep", deep))
    use(manager, "a", 1.0)
    assert order(manager, "a") == "a"
    assert cached(manager, [*deep, 0]) == 40


def test_cost_ages(index: str) -> None:
    manager = make_manager(14, index=index, policy="cost", cost_depth_tokens=16)
    deep = list(range(1000, 1040))
    serve(manager, ask("deep", deep))
    for number in range(60):
        serve(manager, ask(f"once {number}", range(2000 + 8 * number, 2008 + 8 * number)))
    assert cached(manager, [*deep, 0]) < 40


# Copies in the `hash` index


@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_what_is_known_of_a_content_passes_to_the_copy_that_is_left(policy: str) -> None:
    manager = make_manager(4, index="hash", policy=policy)
    first, second = ask("first", range(5)), ask("second", range(5))
    for request in (first, second):  # side by side, without looking
        assert manager.allocate_slots(request, 5) is not None
        manager.commit_step()
    manager.free(first)
    assert manager.pin(ask("keep", range(4)), 10.0) is not None
    stranger = ask("stranger", range(50, 58))
    assert manager.allocate_slots(stranger, 8) is not None  # takes the first copy, too
    manager.commit_step()
    assert [pin.num_blocks for pin in manager.pins] == [1]
    assert cached(manager, range(5)) == 4
    assert manager.unpin("keep")
    manager.free(second)
    assert cached(manager, range(5)) == 4


# The heap


def test_the_heap_agrees_with_a_sorted_list_and_stays_small() -> None:
    rng = random.Random(0)
    heap, uses = LazyHeap(), [Use(0) for _ in range(30)]
    keys: dict[Use, tuple[int, int]] = {}
    for number in range(3000):
        one = rng.choice(uses)
        if rng.random() < 0.4:
            heap.discard(one)
            keys.pop(one, None)
        else:
            keys[one] = (rng.randrange(100), number)
            heap.push(one, keys[one])
            assert len(heap._heap) <= 2 * len(keys) + 64
        assert len(heap) == len(keys)
        assert (one in heap) == (one in keys)
        assert heap.first() is (min(keys, key=keys.__getitem__) if keys else None)
    assert [key for key, _ in sorted(heap.entries(), key=lambda entry: entry[0])] == sorted(keys.values())
