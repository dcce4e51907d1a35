"""Requests that leave nothing behind: they may read, and nobody ever finds what they compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from headstart.cache import CacheConfig, CacheRequest, KVCacheManager, MissReason
from headstart.errors import CacheError

PROMPT = list(range(11))  # two blocks and three tokens


@pytest.fixture(params=["radix", "hash"])
def index(request: Any) -> Any:
    return request.param


@pytest.fixture
def manager(index: Any) -> KVCacheManager:
    return KVCacheManager(CacheConfig(12, 4, index=index, enable_kv_cache_events=True))


def silent(name: str, tokens: list[int], **options: Any) -> CacheRequest:
    return CacheRequest(name, tokens, skip_writing=True, **options)


def admit(manager: KVCacheManager, request: CacheRequest) -> int:
    """Compute all of it; how much of it was a hit."""
    hit = manager.get_computed_blocks(request)
    assert manager.allocate_slots(request, request.num_tokens - hit.num_tokens, hit) is not None
    return hit.num_tokens


def serve(manager: KVCacheManager, request: CacheRequest) -> int:
    """A whole life."""
    manager.begin_step(0.0)
    hit = admit(manager, request)
    manager.commit_step()
    manager.free(request)
    manager.check()
    return hit


def found(manager: KVCacheManager, tokens: Sequence[int] = (*PROMPT, 99)) -> int:
    return manager.get_computed_blocks(CacheRequest("whoever", tokens)).num_tokens


def test_neither_blocks_nor_the_tail_are_found(manager: KVCacheManager) -> None:
    assert serve(manager, silent("a", PROMPT)) == 0
    assert serve(manager, silent("short", [7, 8, 9])) == 0
    assert found(manager) == found(manager, [7, 8, 9, 9]) == 0
    assert manager.take_events() == []
    assert manager.num_free_blocks == 12


def test_nothing_is_found_of_its_answer_or_while_it_runs(manager: KVCacheManager) -> None:
    request = silent("a", PROMPT)
    manager.begin_step(0.0)
    admit(manager, request)
    assert found(manager) == 0  # in the same step
    manager.commit_step()
    assert found(manager) == 0
    for token in range(50, 60):
        request.append(token)
        assert manager.allocate_slots(request, 1) is not None
        manager.commit_step()
    manager.free(request)
    assert found(manager, [*request.token_ids(), 1]) == 0
    manager.check()


def test_it_reads_what_others_wrote_and_adds_nothing(manager: KVCacheManager, index: str) -> None:
    serve(manager, CacheRequest("a", PROMPT))
    known = found(manager)
    events = manager.take_events()
    assert serve(manager, silent("b", [*PROMPT, 99])) == known > 0
    assert serve(manager, silent("c", [*PROMPT, *range(60, 70)])) == known
    assert found(manager) == known
    assert found(manager, [*PROMPT, *range(60, 71)]) == known
    assert manager.take_events() == []
    assert events
    stats = manager.stats
    assert (stats.requests, stats.hits) == (3, 2 * known)


def test_after_a_preemption_it_computes_again(manager: KVCacheManager) -> None:
    request = silent("a", PROMPT)
    assert [serve(manager, request) for _ in range(3)] == [0, 0, 0]
    assert manager.stats.preempted_requests == 2
    scored = silent("b", PROMPT, skip_reading=True)
    serve(manager, scored)
    serve(manager, CacheRequest("c", PROMPT))
    assert serve(manager, scored) == 0  # what is found now is another's


def test_whoever_comes_next_is_cold_and_nobody_is_waited_for(manager: KVCacheManager) -> None:
    running = silent("a", PROMPT)
    serve(manager, silent("before", PROMPT))
    manager.begin_step(0.0)
    admit(manager, running)
    second = CacheRequest("b", PROMPT)
    admit(manager, second)
    manager.commit_step()
    [report] = manager.explain_misses([second])
    assert report.tokens == {MissReason.LAST_TOKEN: 1, MissReason.COLD: 10}
    manager.free(second)
    assert serve(manager, CacheRequest("c", [*PROMPT, 99])) == found(manager) > 0


def test_its_slots_are_the_first_to_be_taken(manager: KVCacheManager) -> None:
    serve(manager, CacheRequest("a", PROMPT))
    known = found(manager)
    for number in range(20):  # far more than the pool has
        serve(manager, silent(f"s{number}", [100 + number] * 20))
        assert found(manager) == known
    assert manager.num_evicted_blocks == 0


def test_a_fork_of_it_writes_nothing_either(manager: KVCacheManager) -> None:
    parent = silent("a", PROMPT)
    manager.begin_step(0.0)
    admit(manager, parent)
    manager.commit_step()
    with pytest.raises(CacheError, match="would write what that must not"):
        manager.fork(parent, CacheRequest("b", [*PROMPT, 1]))
    child = silent("b", [*PROMPT, 1])
    manager.fork(parent, child)
    for token in range(2, 12):
        assert manager.allocate_slots(child, 1) is not None
        manager.commit_step()
        child.append(token)
    manager.free(parent)
    manager.free(child)
    manager.check()
    assert found(manager, [*child.token_ids(), 1]) == 0
    assert manager.num_free_blocks == 12


def test_a_fork_may_write_less_than_its_parent(manager: KVCacheManager) -> None:
    parent = CacheRequest("a", PROMPT)
    manager.begin_step(0.0)
    admit(manager, parent)
    manager.commit_step()
    child = silent("b", [*PROMPT, 1, 2, 3, 4, 5, 6])
    manager.fork(parent, child)
    assert manager.allocate_slots(child, 6) is not None
    manager.commit_step()
    manager.free(child)
    manager.free(parent)
    manager.check()
    assert found(manager, [*PROMPT, 1, 2, 3]) == found(manager, [*PROMPT, 77, 2, 3]) > 0


def test_a_step_taken_back_leaves_nothing(manager: KVCacheManager) -> None:
    request = silent("a", PROMPT)
    manager.begin_step(0.0)
    admit(manager, request)
    assert manager.rollback_step() == ("a",)
    manager.check()
    assert manager.num_free_blocks == 12
    assert manager.stats.requests == 0
