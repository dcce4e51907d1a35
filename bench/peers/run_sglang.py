"""SGLang's `RadixCache` as a contender: run_sglang.py PAGE_SIZE NUM_BLOCKS BLOCK_SIZE.

Runs in SGLang's environment.  The pool holds as many tokens as NUM_BLOCKS of BLOCK_SIZE.  Which slots a
request gets costs it nothing here: handing them out, and taking back what is evicted, is only counted.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable

import torch
from admission import as_buffer, serve
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey


class Slots:
    """Counts free slots."""

    device = "cpu"

    def __init__(self, num_slots: int, page_size: int) -> None:
        self.page_size = page_size
        self.num_slots = self.num_free = num_slots

    def free(self, indices: torch.Tensor) -> None:
        """Take back what was evicted."""
        self.num_free += len(indices)

    def free_segment(self, indices: torch.Tensor, *, start_pos: int) -> None:  # noqa: ARG002  # its interface
        """The same, for slots that lie in one row."""
        self.free(indices)

    def available_size(self) -> int:
        """Slots that can be had without evicting."""
        return self.num_free


class SGLang:
    """One match, one lock, one insertion and one unlock: the least that a request needs."""

    def __init__(self, page_size: int, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self._slots = Slots(num_tokens, page_size)
        self._cache = RadixCache.create_simulated(mock_allocator=self._slots, page_size=page_size)
        self._indices = torch.arange(num_tokens, dtype=torch.int64)
        self.sources: dict[str, Callable[[list[int]], list[int] | array[int]]] = {
            "list": list,
            "buffer": as_buffer("q"),
        }

    def clear(self) -> None:
        """Forget everything cached."""
        self._cache.reset()
        self._slots.num_free = self._slots.num_slots

    def admit(self, name: str, tokens: list[int] | array[int]) -> int:  # noqa: ARG002  # it needs no name
        """One request that is computed in one step and is done."""
        cache, slots = self._cache, self._slots
        key = RadixKey(tokens if isinstance(tokens, array) else array("q", tokens))
        match = cache.match_prefix(MatchPrefixParams(key=key))
        num_hit = int(match.device_prefix_len)
        cache.inc_lock_ref(match.last_device_node)
        needed = len(tokens) - num_hit
        if needed > slots.num_free:
            cache.evict(EvictParams(num_tokens=needed - slots.num_free))
        slots.num_free -= needed
        assert slots.num_free >= 0, "one request fits"
        cache.insert(InsertParams(key=key, value=self._indices[: len(tokens)]))
        cache.dec_lock_ref(match.last_device_node)
        slots.num_free += len(tokens) % slots.page_size  # an incomplete page is not kept
        return num_hit


if __name__ == "__main__":
    serve(SGLang(int(sys.argv[1]), int(sys.argv[2]) * int(sys.argv[3])))
