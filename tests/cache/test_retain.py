"""Retention: pins for whoever asks, which give way to later ones and can never be all of the pool."""

from __future__ import annotations

from typing import Any

import pytest

from headstart.cache import CacheConfig, CacheRequest, KVCacheManager
from headstart.cache import manager as module
from headstart.errors import CacheError


@pytest.fixture(params=["radix", "hash"])
def manager(request: Any) -> KVCacheManager:
    """Of 20 blocks 8 can be pinned."""
    return KVCacheManager(CacheConfig(20, 4, index=request.param, max_pinned_share=0.4))


def prompt(number: int, num_blocks: int = 2) -> CacheRequest:
    """One that has nothing in common with the others."""
    return CacheRequest(f"r{number}", [1000 * (number + 1) + i for i in range(4 * num_blocks)])


def serve(manager: KVCacheManager, request: CacheRequest, now: float = 0.0) -> None:
    manager.begin_step(now)
    hit = manager.get_computed_blocks(request)
    assert manager.allocate_slots(request, request.num_tokens - hit.num_tokens, hit) is not None
    manager.commit_step()
    manager.free(request)
    manager.check()


def kept(manager: KVCacheManager, request: CacheRequest) -> bool:
    """Whether its whole blocks are found."""
    longer = CacheRequest("looks", [*request.token_ids(), 1])
    return manager.get_computed_blocks(longer).num_tokens >= request.num_tokens


def flood(manager: KVCacheManager, count: int = 12, now: float = 0.0) -> None:
    for number in range(count):
        serve(manager, prompt(100 + number), now)


def names(manager: KVCacheManager) -> list[str]:
    return [pin.request_id for pin in manager.pins]


def test_what_is_retained_outlives_a_flood_until_its_time_is_over(manager: KVCacheManager) -> None:
    request, other = prompt(0), prompt(1)
    serve(manager, request)
    serve(manager, other)
    pin = manager.retain(request, 60.0)
    assert pin is not None
    assert (pin.request_id, pin.num_blocks, pin.until) == ("r0", 2, 60.0)
    flood(manager)
    assert kept(manager, request)
    assert not kept(manager, other)
    flood(manager, now=60.0)
    assert not kept(manager, request)
    assert manager.pins == ()


def test_the_longest_retained_gives_way_and_the_share_is_never_exceeded(manager: KVCacheManager) -> None:
    for number in range(10):
        serve(manager, prompt(number))
        assert manager.retain(prompt(number), 1000.0) is not None
        assert sum(pin.num_blocks for pin in manager.pins) <= 8
        manager.check()
    assert names(manager) == ["r6", "r7", "r8", "r9"]
    flood(manager)  # whoever hints at everything has no more than the share
    assert [kept(manager, prompt(number)) for number in range(10)] == [False] * 6 + [True] * 4


def test_who_is_retained_again_is_the_latest(manager: KVCacheManager) -> None:
    for number in (0, 1, 2, 3):
        serve(manager, prompt(number))
        manager.retain(prompt(number), 1000.0)
    manager.retain(prompt(0), 1000.0)
    serve(manager, prompt(4))
    manager.retain(prompt(4), 1000.0)
    assert names(manager) == ["r2", "r3", "r0", "r4"]


def test_a_name_keeps_its_latest_prompt(manager: KVCacheManager) -> None:
    for number in range(3):
        serve(manager, prompt(number))
        pin = manager.retain(prompt(number), 10.0, "chat")
        assert pin is not None
    assert names(manager) == ["chat"]
    flood(manager)
    assert [kept(manager, prompt(number)) for number in range(3)] == [False, False, True]


def test_a_name_needs_no_more_room_than_its_latest_prompt(manager: KVCacheManager) -> None:
    serve(manager, prompt(0))
    manager.retain(prompt(0), 10.0)
    serve(manager, prompt(1, 5))
    manager.retain(prompt(1, 5), 10.0, "chat")
    serve(manager, prompt(2, 6))
    manager.retain(prompt(2, 6), 10.0, "chat")
    assert names(manager) == ["r0", "chat"]  # its own first prompt gave way


def test_pins_do_not_give_way(manager: KVCacheManager) -> None:
    serve(manager, prompt(0, 6))
    assert manager.pin(prompt(0, 6), 1000.0) is not None
    serve(manager, prompt(1))
    assert manager.retain(prompt(1), 1000.0) is not None
    serve(manager, prompt(2, 4))
    assert manager.retain(prompt(2, 4), 1000.0) is None
    assert names(manager) == ["r0"]


def test_what_is_too_long_or_shorter_than_a_block_changes_nothing(manager: KVCacheManager) -> None:
    serve(manager, prompt(0))
    manager.retain(prompt(0), 1000.0)
    serve(manager, prompt(1, 9))
    before = manager.state_digest()
    assert manager.retain(prompt(1, 9), 1000.0) is None
    assert manager.retain(CacheRequest("short", [1, 2, 3]), 1000.0) is None
    assert manager.state_digest() == before


def test_what_is_not_cached_is_not_retained(manager: KVCacheManager) -> None:
    assert manager.retain(prompt(0), 1000.0) is None
    assert manager.pins == ()


def test_nothing_is_retained_where_nothing_may_be_pinned() -> None:
    manager = KVCacheManager(CacheConfig(20, 4, max_pinned_share=0.0))
    serve(manager, prompt(0))
    assert manager.retain(prompt(0), 10.0) is None


def test_only_so_many_are_retained(manager: KVCacheManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_RETAINED", 3)
    serve(manager, prompt(0))
    for number in range(5):  # they share all their blocks
        assert manager.retain(prompt(0), 10.0, f"n{number}") is not None
    assert names(manager) == ["n2", "n3", "n4"]


def test_no_request_fails_for_what_is_retained(manager: KVCacheManager) -> None:
    for number in range(4):
        serve(manager, prompt(number))
        manager.retain(prompt(number), 1000.0)
    serve(manager, prompt(9, 20))
    assert all(pin.num_blocks == 0 for pin in manager.pins)


def test_a_reset_forgets_it(manager: KVCacheManager) -> None:
    serve(manager, prompt(0))
    manager.retain(prompt(0), 1000.0)
    assert manager.reset_prefix_cache()
    assert manager.pins == ()
    serve(manager, prompt(0))
    assert manager.retain(prompt(0), 1000.0) is not None


def test_who_may_give_way_is_a_part_of_the_state(manager: KVCacheManager) -> None:
    other = KVCacheManager(manager.config)
    for one in (manager, other):
        serve(one, prompt(0))
    manager.retain(prompt(0), 10.0)
    other.pin(prompt(0), 10.0)
    assert manager.pins == other.pins
    assert manager.state_digest() != other.state_digest()


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_a_time_is_a_number_above_zero(manager: KVCacheManager, seconds: float) -> None:
    with pytest.raises(CacheError, match="a number of seconds above 0"):
        manager.retain(prompt(0), seconds)
