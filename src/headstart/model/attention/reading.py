"""K and V of some blocks, in place where they lie end to end and gathered where not."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headstart.model.kv_pool import KVPool


@dataclass(frozen=True, slots=True)
class BlockStretch:
    """``num_blocks`` blocks from ``first_slot`` on, or those of ``block_ids`` (on the pool's device)."""

    first_slot: int
    num_blocks: int
    block_ids: Tensor | None

    @classmethod
    def of(cls, block_ids: Tensor, pool: KVPool) -> BlockStretch:
        """The blocks ``block_ids`` [n] (on the host, n ≥ 1), in this order."""
        contiguous = bool((block_ids.diff() == 1).all())
        return cls(
            first_slot=int(block_ids[0]) * pool.block_size,
            num_blocks=len(block_ids),
            block_ids=None if contiguous else block_ids.to(pool.keys.device),
        )

    @property
    def gathered_blocks(self) -> int:
        """How many blocks of scratch memory reading it takes."""
        return 0 if self.block_ids is None else self.num_blocks


@dataclass(frozen=True, slots=True)
class KVReader:
    """Reads a pool; gathers into ``scratch``, two buffers [blocks, block_size, num_kv_heads, head_dim]."""

    pool: KVPool
    scratch: tuple[Tensor, Tensor]

    def read(self, layer: int, stretch: BlockStretch) -> tuple[Tensor, Tensor]:
        """K and V [slots, num_kv_heads, head_dim] of the stretch, to be used before the next read."""
        if stretch.block_ids is not None:
            return self.gather(layer, stretch.block_ids)
        slots = slice(stretch.first_slot, stretch.first_slot + stretch.num_blocks * self.pool.block_size)
        keys, values = self.pool.slots(layer)
        return keys[slots], values[slots]

    def gather(self, layer: int, block_ids: Tensor) -> tuple[Tensor, Tensor]:
        """K and V [slots, num_kv_heads, head_dim] of the blocks, copied into the scratch buffers."""
        keys, values = (buffer[: block_ids.shape[0]] for buffer in self.scratch)
        torch.index_select(self.pool.keys[layer], 0, block_ids, out=keys)
        torch.index_select(self.pool.values[layer], 0, block_ids, out=values)
        return keys.flatten(0, 1), values.flatten(0, 1)
