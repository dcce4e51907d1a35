"""The manager's own part, with either index: misuse, statistics, reset, caching switched off."""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import pytest

from headstart.cache import CacheRequest, CacheStats, KVCacheManager, Namespace
from headstart.errors import CacheError
from tests.cache.checked import Make, admit, ask, cached, decode, reach, run, serve, state

A = list(range(100, 108))  # two full blocks


# Misuse


def test_a_hit_is_void_after_a_change(make: Make) -> None:
    manager = make(8)
    serve(manager, ask("first", A))
    late, quick = ask("late", [*A, 1]), ask("quick", [*A, 2])
    hit = manager.get_computed_blocks(late)
    run(manager, quick)
    with pytest.raises(CacheError, match="older than the last change"):
        manager.allocate_slots(late, 1, hit)
    with pytest.raises(CacheError, match="another request's"):
        manager.allocate_slots(late, 1, manager.get_computed_blocks(ask("other", [*A, 3])))


@pytest.mark.parametrize("change", ["allocate", "commit", "rollback", "free", "reset"])
def test_every_change_voids_a_hit(make: Make, change: str) -> None:
    manager = make(8)
    live = ask("live", [50, 51])
    late = ask("late", [*A, 1])
    if change != "reset":
        assert manager.allocate_slots(live, 1) is not None
    if change in ("allocate", "free"):
        manager.commit_step()
    hit = manager.get_computed_blocks(late)
    actions: dict[str, Callable[[], Any]] = {
        "allocate": lambda: manager.allocate_slots(live, 1),
        "commit": manager.commit_step,
        "rollback": manager.rollback_step,
        "free": lambda: manager.free(live),
        "reset": manager.reset_prefix_cache,
    }
    actions[change]()
    with pytest.raises(CacheError, match="older than the last change"):
        manager.allocate_slots(late, 1, hit)


def test_a_request_that_holds_nothing_cannot_be_freed(make: Make) -> None:
    manager = make(4)  # item 50 as headstart has it; cases 52, 53
    first = ask("first", A)
    with pytest.raises(CacheError, match=r"'first', 8 tokens.* holds no blocks"):
        manager.free(first)
    run(manager, first)
    manager.free(first)
    before = state(manager)
    with pytest.raises(CacheError, match="freed already"):
        manager.free(first)
    with pytest.raises(CacheError, match="'first' holds no blocks"):
        manager.block_table("first")
    assert state(manager) == before


def test_another_request_of_the_same_id_is_not_the_same_request(make: Make) -> None:
    manager = make(8)
    serve(manager, ask("old", A))
    first, second = ask("same", A), ask("same", range(12), Namespace(salt="s"))
    hit = manager.get_computed_blocks(first)
    with pytest.raises(CacheError, match="another request's"):
        manager.allocate_slots(second, 1, hit)
    assert manager.allocate_slots(first, 1, hit) is not None
    manager.commit_step()
    before = state(manager, first)
    for misuse in (
        lambda: manager.allocate_slots(second, 1),
        lambda: manager.free(second),
        lambda: manager.fork(second, ask("child", range(12), Namespace(salt="s"))),
    ):
        with pytest.raises(CacheError, match="another request of this id holds blocks"):
            misuse()
    assert state(manager, first) == before


def test_slots_for_no_token_or_too_many_are_refused(make: Make) -> None:
    manager = make(8)  # item 35
    first = ask("first", A)
    for count in (0, -1):
        with pytest.raises(CacheError, match=f"at least 1, not {count}"):
            manager.allocate_slots(first, count)
    with pytest.raises(CacheError, match="has no 9 tokens"):
        manager.allocate_slots(first, 9)
    run(manager, first)
    with pytest.raises(CacheError, match="has no 9 tokens"):
        manager.allocate_slots(first, 1)
    hit = manager.get_computed_blocks(first)
    with pytest.raises(CacheError, match="admitted already"):
        manager.allocate_slots(first, 1, hit)


# Statistics


def test_queries_and_hits_are_tokens(make: Make) -> None:
    manager = make(10)  # item 69; here reading does not reset
    serve(manager, ask("first", range(9)))
    serve(manager, ask("second", [*range(8), 50]))
    assert manager.stats == manager.stats == CacheStats(requests=2, queries=18, hits=8)


def test_a_preempted_request_is_counted_apart(make: Make) -> None:
    manager = make(10)  # item 70
    victim = ask("victim", range(10))
    serve(manager, victim)
    again = run(manager, victim).num_tokens
    assert again == reach(manager, 10, 10)
    assert manager.stats == CacheStats(
        requests=1, queries=10, hits=0, preempted_requests=1, preempted_queries=10, preempted_hits=again
    )
    manager.free(victim)
    run(manager, victim)
    assert manager.stats == CacheStats(1, 10, 0, 2, 20, 2 * again)


def test_a_request_that_skips_reading_computes_everything_and_can_be_found(make: Make) -> None:
    manager = make(10)
    serve(manager, ask("plain", [*A, 1]))
    before = manager.stats
    scored = CacheRequest("scored", [*A, 2, 3, 4, 5, 6], skip_reading=True)
    hit = run(manager, scored)
    assert (hit.num_tokens, hit.block_ids, hit.copy) == (0, [], None)
    assert len(manager.block_table("scored")) == 4
    assert manager.stats == before
    assert cached(manager, [*A, 2, 3, 4, 5, 0]) == 12
    manager.free(scored)
    assert cached(manager, [*A, 2, 3, 4, 5, 0]) == 12
    assert manager.get_computed_blocks(CacheRequest("scored too", A, skip_reading=True)).num_tokens == 0


def test_after_a_preemption_it_reads_what_was_computed_for_itself(make: Make) -> None:
    manager = make(20)
    serve(manager, ask("plain", [*A, *A, 1]))
    scored = CacheRequest("scored", [*A, *A, 1], skip_reading=True)
    admit(manager, scored, 6)
    manager.rollback_step()
    assert manager.get_computed_blocks(scored).num_tokens == 0
    admit(manager, scored, 6)
    manager.commit_step()
    manager.free(scored)
    assert admit(manager, scored).num_tokens == reach(manager, 6, 17)
    assert manager.stats.queries == 17


def test_a_request_is_counted_when_it_is_admitted_and_only_then(make: Make) -> None:
    manager = make(4)  # item 71
    first = ask("first", range(12))
    manager.get_computed_blocks(first)
    assert manager.stats == CacheStats()
    holder = ask("holder", range(50, 62))
    run(manager, holder)
    one = CacheStats(requests=1, queries=12)
    assert manager.stats == one
    for _ in range(3):  # no room, asked again and again
        assert manager.allocate_slots(first, 12, manager.get_computed_blocks(first)) is None
    assert manager.stats == one
    manager.free(holder)
    assert manager.allocate_slots(first, 4) is not None
    manager.commit_step()
    assert manager.stats == CacheStats(requests=2, queries=24)
    assert manager.allocate_slots(first, 8) is not None  # further chunks and decoded tokens do not count
    manager.commit_step()
    decode(manager, first, [12, 13])
    assert manager.stats == CacheStats(requests=2, queries=24)


def test_an_admission_that_was_taken_back_counts_no_more(make: Make) -> None:
    manager = make(8)
    serve(manager, ask("old", A))
    before = manager.stats
    request = ask("request", [*A, 1])
    assert admit(manager, request).num_tokens == 8
    assert manager.stats == CacheStats(requests=2, queries=17, hits=8)
    manager.rollback_step()
    assert manager.stats == before
    admit(manager, request)
    manager.free(request)
    manager.commit_step()
    assert manager.stats == before
    run(manager, request)  # and the next one is its first again
    assert manager.stats == CacheStats(requests=2, queries=17, hits=8)
    manager.free(request)
    admit(manager, request)
    manager.rollback_step()  # nor does a second admission that was taken back
    assert manager.stats == CacheStats(requests=2, queries=17, hits=8)


# Reset


def test_reset_is_refused_while_blocks_are_in_use(make: Make) -> None:
    manager = make(8)  # item 59
    serve(manager, ask("old", range(50, 60)))
    first = ask("first", A)
    run(manager, first)
    before = state(manager, first)
    assert manager.reset_prefix_cache() is False
    assert state(manager, first) == before
    manager.free(first)
    order = manager.free_block_ids()
    assert manager.reset_prefix_cache() is True
    assert manager.free_block_ids() == order
    assert cached(manager, [*A, 1]) == cached(manager, range(50, 61)) == 0
    assert serve(manager, ask("anew", A)).num_tokens == 0  # and the cache works on
    assert cached(manager, [*A, 1]) == 8


# Caching off


def test_without_caching_nothing_is_found_or_counted(make: Make) -> None:
    manager = make(5, enable_prefix_caching=False)  # item 22
    first = ask("first", A)
    run(manager, first)
    manager.free(first)
    assert manager.num_free_blocks == 5
    assert sorted(manager.free_block_ids()[:2]) == [0, 1]  # what was just freed is taken first
    again = ask("again", [*A, 1])
    assert run(manager, again).num_tokens == 0
    assert sorted(manager.block_table("again")) == [0, 1, 2]
    assert again.digests == []  # nor is anything hashed
    assert manager.stats.queries == manager.stats.hits == manager.stats.requests == 0


# A long life


def footprint(root: object) -> int:
    """How many objects, and entries of containers, can be reached from ``root``."""
    seen: dict[int, object] = {}
    frontier, entries = [root], 0
    while frontier:
        item = frontier.pop()
        if id(item) in seen or isinstance(item, type | ModuleType | FunctionType | BuiltinFunctionType):
            continue
        seen[id(item)] = item
        entries += len(item) if isinstance(item, list | dict | set) else gc.is_tracked(item)
        frontier.extend(gc.get_referents(item))
    return entries


def test_a_long_life_leaves_nothing_behind(make: Make) -> None:
    def live(manager: KVCacheManager, start: int) -> None:
        """Twins, copies, salts, failing steps, aborts, under names and tokens never seen before."""
        for number in range(start, start + 20):
            salt = Namespace(salt=f"tenant {number}")
            tokens = [1000 + number] * 10
            twins = [ask(f"{number} {name}", tokens, salt) for name in ("a", "b", "c")]
            for twin in twins:
                assert manager.allocate_slots(twin, 10) is not None
            manager.commit_step()
            admit(manager, ask(f"{number} copy", [*tokens[:6], 1], salt))
            manager.rollback_step()
            admit(manager, ask(f"{number} copy", [*tokens[:6], 1], salt), 1)
            manager.free(twins[0])
            manager.commit_step()
            for name in [*manager._holdings]:
                manager.free(manager._holdings[name].lease.request)

    manager = make(16, explain_misses=False)  # what explains misses fills up to its bounds: test_misses.py
    live(manager, 0)
    before = footprint(manager)
    for start in (100, 200, 300):
        live(manager, start)
    assert footprint(manager) == before
