"""SGLang's `RadixCache` and allocator of slots as a contender: run_sglang.py PAGE_SIZE NUM_BLOCKS BLOCK_SIZE.

Runs in SGLang's environment.  The pool holds as many tokens as NUM_BLOCKS of BLOCK_SIZE.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from typing import Any

import torch
from admission import as_buffer, serve
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey


def allocator(num_slots: int, page_size: int) -> Any:
    """The one that SGLang's server would use, over no tensors."""
    rest: dict[str, Any] = {"dtype": torch.int64, "device": "cpu", "kvcache": None, "need_sort": False}
    if page_size == 1:
        return TokenToKVPoolAllocator(num_slots, **rest)
    return PagedTokenToKVPoolAllocator(num_slots, page_size, **rest)


class SGLang:
    """What its scheduler and `cache_finished_req` ask of both, without requests: the least that one needs."""

    def __init__(self, page_size: int, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self._page_size = page_size
        self._slots = allocator(num_tokens, page_size)
        self._cache = RadixCache.create_simulated(mock_allocator=self._slots, page_size=page_size)
        self.sources: dict[str, Callable[[list[int]], list[int] | array[int]]] = {
            "list": list,
            "buffer": as_buffer("q"),
        }

    def clear(self) -> None:
        """Forget everything cached."""
        self._cache.reset()
        self._slots.clear()

    def admit(self, name: str, tokens: list[int] | array[int]) -> int:  # noqa: ARG002  # it needs no name
        """One request that is computed in one step and is done."""
        cache, slots, size = self._cache, self._slots, self._page_size
        key = RadixKey(tokens if isinstance(tokens, array) else array("q", tokens))
        match = cache.match_prefix(MatchPrefixParams(key=key))
        hit = cache.path_device_indices(match.last_device_node)
        cache.inc_lock_ref(match.last_device_node)
        needed = -(-(len(tokens) - len(hit)) // size) * size
        missing = needed - slots.available_size()
        if missing > 0:
            cache.evict(EvictParams(num_tokens=missing))
        row = torch.cat((hit, slots.alloc(needed)))
        whole = len(tokens) // size * size
        cache.insert(InsertParams(key=key, value=row[:whole]))
        if whole < len(row):  # an incomplete page is not kept
            slots.free_segment(row[whole:], start_pos=whole)
        cache.dec_lock_ref(match.last_device_node)
        return len(hit)


if __name__ == "__main__":
    serve(SGLang(int(sys.argv[1]), int(sys.argv[2]) * int(sys.argv[3])))
