"""Who follows the cache is told of each content once, when it is written, and once more when it goes."""

from __future__ import annotations

import pytest

from headstart.cache import CacheConfig, CacheRequest, KVCacheManager
from headstart.cache.keys import SHARED
from tests.cache.checked import admit, ask, serve
from tests.cache.follower import Follower, Prefix

A = tuple(range(100, 108))  # two full blocks


@pytest.fixture(params=["radix", "hash"])
def followed(request: pytest.FixtureRequest) -> tuple[KVCacheManager, Follower]:
    follower = Follower(4)
    return KVCacheManager(CacheConfig(6, 4, index=request.param), listeners=[follower]), follower


def prefixes(*runs: tuple[int, ...]) -> list[Prefix]:
    return [(SHARED, run) for run in runs]


def test_blocks_are_announced_when_their_step_commits(followed: tuple[KVCacheManager, Follower]) -> None:
    manager, follower = followed
    admit(manager, ask("r", [*A, 1]))
    assert not follower.contents
    manager.commit_step()
    assert list(follower.contents.values()) == prefixes(A[:4], A)


def test_who_goes_on_behind_another_in_the_same_step_tells_of_its_own_blocks(
    followed: tuple[KVCacheManager, Follower],
) -> None:
    manager, follower = followed
    admit(manager, ask("r", A))
    admit(manager, ask("longer", [*A, 1, 2, 3, 4]))  # begins where the other's blocks end
    manager.commit_step()
    assert list(follower.contents.values()) == prefixes(A[:4], A, (*A, 1, 2, 3, 4))


def test_what_was_never_written_is_never_announced(followed: tuple[KVCacheManager, Follower]) -> None:
    manager, follower = followed
    admit(manager, ask("r", A))
    manager.rollback_step()
    aborted = ask("s", A)
    admit(manager, aborted)
    manager.free(aborted)
    manager.commit_step()
    assert not follower.contents


def test_a_second_copy_is_not_news_and_keeps_the_content_alive() -> None:
    follower = Follower(4)
    manager = KVCacheManager(CacheConfig(6, 4, index="hash"), listeners=[follower])
    twins = [CacheRequest(name, A) for name in "ab"]
    for twin in twins:
        assert manager.allocate_slots(twin, 8) is not None  # without a look at the cache
        manager.commit_step()
    assert follower.contents == dict(zip((0, 1), prefixes(A[:4], A), strict=True))
    manager.free(twins[0])
    serve(manager, ask("stranger", range(16)))  # takes the four blocks that nobody holds
    assert set(prefixes(A[:4], A)) <= set(follower.contents.values())
    manager.free(twins[1])


def test_a_copy_is_announced_if_the_first_was_withdrawn() -> None:
    follower = Follower(4)
    manager = KVCacheManager(CacheConfig(6, 4, index="hash"), listeners=[follower])
    first, second = ask("a", A), ask("b", A)
    for twin in (first, second):
        assert manager.allocate_slots(twin, 8) is not None
    manager.free(first)
    manager.commit_step()
    assert follower.contents == dict(zip((2, 3), prefixes(A[:4], A), strict=True))


def test_the_evicted_is_removed_and_a_reset_clears(followed: tuple[KVCacheManager, Follower]) -> None:
    manager, follower = followed
    serve(manager, ask("r", [*A, 1]))
    serve(manager, ask("stranger", range(20)))  # five blocks of six: one of ours is left
    assert prefixes(A[:4])[0] in follower.contents.values()
    assert prefixes(A)[0] not in follower.contents.values()
    assert manager.reset_prefix_cache()
    assert not follower.contents
