"""The memory of the cache: K and V of every layer, in blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from headstart.cache import BlockCopy
from headstart.errors import EngineError
from headstart.model.device import free_memory
from headstart.model.spec import ModelSpec


class KVPool:
    """``num_blocks`` blocks of ``block_size`` slots; a slot holds one token's K and V of every layer.

    ``keys`` and ``values`` are [num_layers, num_blocks, block_size, num_kv_heads, head_dim].  The pool
    knows nothing of who holds a block: the cache decides that, and writes each block for one request.

    Raises ``EngineError`` if the device has not that much memory.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        shape = (spec.num_layers, num_blocks, block_size, spec.num_kv_heads, spec.head_dim)
        asked = num_blocks * block_size * spec.kv_bytes_per_token(dtype.itemsize)
        free = free_memory(device)
        if asked > free:
            # Asked first: Linux grants the addresses and kills the process when they are touched.
            raise EngineError(_no_room(asked, device, f"{free:,} bytes are free"))
        try:
            # Filled, so that the memory is there now and not when the first requests come.
            self.keys = torch.empty(shape, dtype=dtype, device=device).zero_()
            self.values = torch.empty(shape, dtype=dtype, device=device).zero_()
        except RuntimeError as error:  # torch.OutOfMemoryError on accelerators, a plain one on CPUs
            raise EngineError(_no_room(asked, device, "the allocation failed")) from error
        self._key_slots = [layer.flatten(0, 1) for layer in self.keys]
        self._value_slots = [layer.flatten(0, 1) for layer in self.values]

    @property
    def nbytes(self) -> int:
        """Bytes really allocated."""
        return self.keys.untyped_storage().nbytes() + self.values.untyped_storage().nbytes()

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Put ``k`` and ``v`` [T, num_kv_heads, head_dim] of one layer into ``slots`` [T] (no slot twice)."""
        self._key_slots[layer].index_copy_(0, slots, k)
        self._value_slots[layer].index_copy_(0, slots, v)

    def slots(self, layer: int) -> tuple[Tensor, Tensor]:
        """K and V of one layer as [num_blocks * block_size, num_kv_heads, head_dim] views, by slot."""
        return self._key_slots[layer], self._value_slots[layer]

    def read(self, layer: int, block_ids: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Copies of K and V [length, num_kv_heads, head_dim] of the first ``length`` slots of the blocks."""
        ids = block_ids.to(self.keys.device)
        return (
            self.keys[layer].index_select(0, ids).flatten(0, 1)[:length],
            self.values[layer].index_select(0, ids).flatten(0, 1)[:length],
        )

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Do all ``copies``, in every layer.

        All sources are gathered before any destination is written, so a block may be both.
        """
        if not copies:
            return
        counts = np.array([copy.num_tokens for copy in copies])
        offsets = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
        device = self.keys.device

        def slots(blocks: list[int]) -> Tensor:
            return torch.from_numpy(np.repeat(blocks, counts) * self.block_size + offsets).to(device)

        sources = slots([copy.src for copy in copies])
        destinations = slots([copy.dst for copy in copies])
        for tensor in (self.keys, self.values):
            by_slot = tensor.flatten(1, 2)
            by_slot.index_copy_(1, destinations, by_slot.index_select(1, sources))


def _no_room(asked: int, device: torch.device, why: str) -> str:
    return (
        f"the KV cache needs {asked:,} bytes on {device} but {why}; "
        "ask for fewer blocks or fewer bytes of KV cache"
    )
