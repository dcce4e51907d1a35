"""vLLM's `KVCacheManager` as a contender: run_vllm.py ALGORITHM NUM_BLOCKS BLOCK_SIZE.

Runs in vLLM's environment.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from admission import serve
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request


class VLLM:
    """What its scheduler asks of the manager for a request that is computed in one step and is done."""

    def __init__(self, algorithm: str, num_blocks: int, block_size: int) -> None:
        hash_fn = get_hash_fn_by_name(algorithm)
        init_none_hash(hash_fn)
        self._hasher = get_request_block_hasher(block_size, hash_fn)
        self._sampling = SamplingParams(max_tokens=1)
        spec = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32)
        config = KVCacheConfig(
            num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        )
        accepted = inspect.signature(KVCacheManager.__init__).parameters  # it gains and loses parameters
        wanted = {
            "kv_cache_config": config,
            "max_model_len": 1 << 20,
            "max_num_batched_tokens": 1 << 20,
            "hash_block_size": block_size,
            "scheduler_block_size": block_size,
            "enable_caching": True,
        }
        self._manager = KVCacheManager(**{name: wanted[name] for name in wanted if name in accepted})
        self.num_tokens = (num_blocks - 1) * block_size  # it keeps one block as a null block
        self.sources: dict[str, Callable[[list[int]], list[int]]] = {"list": list}

    def clear(self) -> None:
        """Forget everything cached."""
        assert self._manager.reset_prefix_cache(), "nothing is running"

    def admit(self, name: str, tokens: list[int]) -> int:
        """Building the request hashes its blocks."""
        manager = self._manager
        request = Request(
            request_id=name,
            prompt_token_ids=tokens,
            pooling_params=None,
            sampling_params=self._sampling,
            block_hasher=self._hasher,
        )
        computed, num_hit, *_ = manager.get_computed_blocks(request)
        granted = manager.allocate_slots(request, len(tokens) - num_hit, num_hit, computed)
        request.num_computed_tokens = len(tokens)
        manager.free(request)
        assert granted is not None, "one request fits"
        return int(num_hit)


if __name__ == "__main__":
    serve(VLLM(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
