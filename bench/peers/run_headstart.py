"""Headstart's `KVCacheManager` as a contender: run_headstart.py INDEX NUM_BLOCKS BLOCK_SIZE.

INDEX may be "hash ALGORITHM".
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from typing import Any

from admission import as_buffer, serve

from headstart.cache import CacheConfig, CacheRequest, KVCacheManager


class Headstart:
    """Everything that a step of the engine asks of the cache."""

    def __init__(self, index: str, num_blocks: int, block_size: int) -> None:
        index, _, algorithm = index.partition(" ")
        settings: dict[str, Any] = {"index": index, "hash_algorithm": algorithm or "sha256_cbor"}
        config = CacheConfig(num_blocks, block_size, explain_misses=False, **settings)
        self._manager = KVCacheManager(config)
        self.num_tokens = num_blocks * block_size
        self.sources: dict[str, Callable[[list[int]], list[int] | array[int]]] = {
            "list": list,
            "buffer": as_buffer("i"),
        }

    def clear(self) -> None:
        """Forget everything cached."""
        assert self._manager.reset_prefix_cache(), "nothing is running"

    def admit(self, name: str, tokens: list[int] | array[int]) -> int:
        """One request that is computed in one step and is done."""
        manager = self._manager
        request = CacheRequest(name, tokens)
        hit = manager.get_computed_blocks(request)
        grant = manager.allocate_slots(request, request.num_tokens - hit.num_tokens, hit)
        manager.commit_step()
        manager.free(request)
        assert grant is not None, "one request fits"
        return hit.num_tokens


if __name__ == "__main__":
    serve(Headstart(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
