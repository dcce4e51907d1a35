"""The arithmetic is what the cache core does."""

from __future__ import annotations

import pytest

from headstart.cache import CacheConfig, CacheRequest, KVCacheManager
from headstart.config import PrefixIndexName
from headstart.lab.calc.alignment import Loss, loss, losses, mean_loss


def lost_on_the_core(index: PrefixIndexName, shared: int, block_size: int, *, ends_there: bool) -> int:
    manager = KVCacheManager(CacheConfig(200, block_size, index=index))
    prefix = list(range(1, shared + 1))
    manager.begin_step(0.0)
    first = CacheRequest("first", [*prefix, 1_000])
    manager.allocate_slots(first, shared + 1)
    manager.commit_step()
    manager.free(first)
    second = CacheRequest("second", prefix if ends_there else [*prefix, 2_000])
    return shared - manager.get_computed_blocks(second).num_tokens


@pytest.mark.parametrize("ends_there", [False, True])
@pytest.mark.parametrize("block_size", [1, 2, 4, 7, 16])
def test_as_on_the_core(block_size: int, ends_there: bool) -> None:
    for shared in (1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 100):
        found = loss(shared, block_size, ends_there=ends_there)
        assert found.hash == lost_on_the_core("hash", shared, block_size, ends_there=ends_there)
        assert found.radix == lost_on_the_core("radix", shared, block_size, ends_there=ends_there)


def test_known_cases() -> None:
    assert loss(1000, 16) == Loss(1000, 16, hash=8, radix=0)
    assert loss(1024, 16) == Loss(1024, 16, hash=0, radix=0)
    assert loss(1024, 16, ends_there=True) == Loss(1024, 16, hash=16, radix=1)
    assert loss(500, 512).hash_share == 1.0


def test_every_length_with_every_size() -> None:
    found = losses([10, 20], [4, 8])
    assert [(one.shared, one.block_size, one.hash) for one in found] == [
        (10, 4, 2),
        (10, 8, 2),
        (20, 4, 0),
        (20, 8, 4),
    ]


@pytest.mark.parametrize("ends_there", [False, True])
def test_the_mean_over_a_block_of_lengths(ends_there: bool) -> None:
    for size in (1, 16, 512):
        lost = [loss(shared, size, ends_there=ends_there).hash for shared in range(1, size + 1)]
        assert mean_loss(size, ends_there=ends_there) == sum(lost) / size
