"""Attention through torch's ``scaled_dot_product_attention``, on any device.

Which sequence goes where, index tensors and masks are settled once per step, not once per layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headstart.model.attention.reading import KVReader
from headstart.model.attention.sharing import find_sharing
from headstart.model.attention.work import Chunk, Group, Shared, Work, causal_mask, like_lengths
from headstart.model.batch import ForwardBatch, SequenceSpan
from headstart.model.kv_pool import KVPool

# Sharing takes some calls more; below so many slots that need not be read again they are not worth it.
_LEAST_SAVED = 1024


class SdpaAttention:
    """`AttentionBackend` that owns one scratch buffer for gathered K and V, reused by every layer."""

    def __init__(self, least_saved: int = _LEAST_SAVED) -> None:
        self._least_saved = least_saved
        self._scratch: tuple[Tensor, Tensor] | None = None

    def prepare(self, batch: ForwardBatch, pool: KVPool) -> SdpaStep:
        """Sort the batch's sequences into shapes of work, with their index tensors and masks."""
        chunks = [s for s in batch.sequences if s.query_length > 1]
        decoding = [s for s in batch.sequences if s.query_length == 1]
        mask = causal_mask(chunks, pool)
        work: list[Work] = [Chunk.of(sequence, pool, mask) for sequence in chunks]
        apart: Sequence[SequenceSpan] = decoding
        if _merges_like_a_whole(pool):
            sharing = find_sharing(decoding, pool.block_size, self._least_saved)
            apart = sharing.apart
            if sharing.stretches:
                work.append(Shared.of(sharing, pool))
        for places in like_lengths(apart):
            group = [apart[place] for place in places]
            if len(group) == 1:
                work.append(Chunk.of(group[0], pool, mask))  # can be read in place
            else:
                work.append(Group.of(group, [sequence.query_start for sequence in group], pool))
        return SdpaStep(KVReader(pool, self._buffers(work, pool)), work)

    def _buffers(self, work: Sequence[Work], pool: KVPool) -> tuple[Tensor, Tensor]:
        # Kept between steps: fresh memory of this size would be mapped and faulted in at every step.
        blocks = max((item.gathered_blocks for item in work), default=0)
        like = pool.keys
        if (
            self._scratch is None
            or self._scratch[0].shape[0] < blocks
            or self._scratch[0].shape[1:] != like.shape[2:]
            or (self._scratch[0].dtype, self._scratch[0].device) != (like.dtype, like.device)
        ):
            shape = (blocks, *like.shape[2:])
            self._scratch = like.new_empty(shape), like.new_empty(shape)
        return self._scratch


def _merges_like_a_whole(pool: KVPool) -> bool:
    """Whether parts put together agree with attention over the whole as well as two cold runs agree.

    On CPUs below float32 they do not: torch rounds the exponentials of a chunk and of a lone row alike, both
    less the same maximum, and those of a part less another one.  Parts in float32 do not help: they lack what
    both others have in common.
    """
    return pool.keys.device.type != "cpu" or pool.keys.dtype == torch.float32


@dataclass(frozen=True, slots=True)
class SdpaStep:
    """One step of `SdpaAttention`."""

    kv: KVReader
    work: Sequence[Work]

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """As `AttentionStep.attend`."""
        out = q.new_empty(q.shape)
        for item in self.work:
            item.attend(layer, self.kv, q, out)
        return out
