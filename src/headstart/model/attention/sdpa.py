"""Attention through torch's ``scaled_dot_product_attention``, on any device.

Two shapes of work.  A *chunk* is one sequence: its queries go in tiles, so that no tile multiplies
keys that all of its queries must not see.  A *group* is many sequences with one query each: a call
per sequence would cost more than its arithmetic, so their blocks are gathered side by side and padded.
Which sequence goes where, index tensors and masks are settled once per step, not once per layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the name that every reader of torch knows
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from headstart.model.batch import ForwardBatch, SequenceSpan
from headstart.model.kv_pool import KVPool

# Queries per tile: half of a square prompt's work is masked, and tiles skip all of it but the diagonal.
# 128 to 256 were equally fast on CPUs; larger tiles waste work, smaller ones pay for more calls.
_TILE = 256

# Slots gathered for one group at most: 20 to 40 thousand were fastest (the copy is still in the cache
# when it is read), and it bounds the scratch memory.
_GROUP_SLOTS = 32_768

# Padding by so many slots costs less than another call.
_FREE_PADDING = 256


class SdpaAttention:
    """`AttentionBackend` that owns one scratch buffer for gathered K and V, reused by every layer."""

    def __init__(self) -> None:
        self._scratch: tuple[Tensor, Tensor] | None = None

    def prepare(self, batch: ForwardBatch, pool: KVPool) -> SdpaStep:
        """Sort the batch's sequences into chunks and groups, and make their index tensors and masks."""
        chunks = [s for s in batch.sequences if s.query_length > 1]
        groups = list(_groups([s for s in batch.sequences if s.query_length == 1]))
        alone = [group[0] for group in groups if len(group) == 1]
        work: list[_Chunk | _Group] = [_Chunk.of(sequence, pool) for sequence in (*chunks, *alone)]
        work += [_Group.of(group, pool) for group in groups if len(group) > 1]
        return SdpaStep(pool, work, _causal_mask(chunks, pool), self._buffers(work, pool))

    def _buffers(self, work: Sequence[_Chunk | _Group], pool: KVPool) -> tuple[Tensor, Tensor]:
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


@dataclass(frozen=True, slots=True)
class SdpaStep:
    """One step of `SdpaAttention`.

    ``mask`` [tile, longest context of a chunk] is added to scores: its last ``tile`` columns hide the future
    from a tile that ends at the last key; the mask of fewer queries or keys is its lower right corner.
    """

    pool: KVPool
    work: Sequence[_Chunk | _Group]
    mask: Tensor
    scratch: tuple[Tensor, Tensor]

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """As `AttentionStep.attend`."""
        out = torch.empty_like(q)
        for item in self.work:
            if isinstance(item, _Chunk):
                self._attend_chunk(item, layer, q, out)
            else:
                self._attend_group(item, layer, q, out)
        return out

    def _attend_chunk(self, chunk: _Chunk, layer: int, q: Tensor, out: Tensor) -> None:
        if chunk.block_ids is None:
            k, v = (slots[chunk.first_slot :] for slots in self.pool.slots(layer))
        else:
            k, v = self._gather(chunk.block_ids, layer)
        k, v = k[None].transpose(1, 2), v[None].transpose(1, 2)  # [1, num_kv_heads, slots, head_dim]
        q = q[None].transpose(1, 2)
        for first in range(0, chunk.query_length, _TILE):
            last = min(first + _TILE, chunk.query_length)
            visible = chunk.context_length - chunk.query_length + last
            rows = slice(chunk.query_start + first, chunk.query_start + last)
            attended = F.scaled_dot_product_attention(
                q[:, :, rows],
                k[:, :, :visible],
                v[:, :, :visible],
                attn_mask=self.mask[first - last :, -visible:] if last - first > 1 else None,
                enable_gqa=True,
            )
            out[rows] = attended[0].transpose(0, 1)

    def _attend_group(self, group: _Group, layer: int, q: Tensor, out: Tensor) -> None:
        k, v = self._gather(group.block_ids, layer)
        # Whatever was left in slots behind a context, NaN included, must not reach a sum: 0 * NaN is NaN.
        k.index_fill_(0, group.hidden_slots, 0)
        v.index_fill_(0, group.hidden_slots, 0)
        num_rows = group.rows.shape[0]
        kv_heads, head_dim = k.shape[1:]
        attended = F.scaled_dot_product_attention(
            # The heads of one KV head are like queries at one position: nothing is computed per head twice.
            q[group.rows].view(num_rows, kv_heads, -1, head_dim),
            k.view(num_rows, -1, kv_heads, head_dim).transpose(1, 2),
            v.view(num_rows, -1, kv_heads, head_dim).transpose(1, 2),
            attn_mask=group.mask,
        )
        out[group.rows] = attended.reshape(num_rows, -1, head_dim)

    def _gather(self, block_ids: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """K and V of the blocks, by slot, in the scratch buffer."""
        keys, values = (buffer[: block_ids.shape[0]] for buffer in self.scratch)
        torch.index_select(self.pool.keys[layer], 0, block_ids, out=keys)
        torch.index_select(self.pool.values[layer], 0, block_ids, out=values)
        return keys.flatten(0, 1), values.flatten(0, 1)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """One sequence: read in place from ``first_slot`` on, or gathered if ``block_ids`` are given."""

    query_start: int
    query_length: int
    context_length: int
    first_slot: int
    block_ids: Tensor | None

    @classmethod
    def of(cls, sequence: SequenceSpan, pool: KVPool) -> _Chunk:
        ids = _context_blocks(sequence, pool.block_size)
        one_run = bool((ids.diff() == 1).all())
        return cls(
            sequence.query_start,
            sequence.query_length,
            sequence.context_length,
            first_slot=int(ids[0]) * pool.block_size,
            block_ids=None if one_run else ids.to(pool.keys.device),
        )

    @property
    def gathered_blocks(self) -> int:
        return 0 if self.block_ids is None else self.block_ids.shape[0]


@dataclass(frozen=True, slots=True)
class _Group:
    """Sequences with one query each, padded to the longest.

    ``rows`` [N] are their queries; ``block_ids`` [N * blocks] their blocks, row after row;
    ``hidden_slots`` the gathered slots that no query may see; ``mask`` [N, 1, 1, slots] hides them.
    """

    rows: Tensor
    block_ids: Tensor
    hidden_slots: Tensor
    mask: Tensor

    @classmethod
    def of(cls, group: Sequence[SequenceSpan], pool: KVPool) -> _Group:
        ids = pad_sequence(
            [_context_blocks(sequence, pool.block_size) for sequence in group], batch_first=True
        )
        contexts = torch.tensor([sequence.context_length for sequence in group])
        hidden = torch.arange(ids.shape[1] * pool.block_size) >= contexts[:, None]
        mask = torch.zeros(hidden.shape, dtype=pool.keys.dtype).masked_fill_(hidden, float("-inf"))
        device = pool.keys.device
        return cls(
            rows=torch.tensor([sequence.query_start for sequence in group], device=device),
            block_ids=ids.flatten().to(device),
            hidden_slots=hidden.flatten().nonzero()[:, 0].to(device),
            mask=mask[:, None, None].to(device),
        )

    @property
    def gathered_blocks(self) -> int:
        return self.block_ids.shape[0]


def _context_blocks(sequence: SequenceSpan, block_size: int) -> Tensor:
    """The blocks that hold the context; a table may have more."""
    return sequence.block_ids[: -(-sequence.context_length // block_size)]


def _groups(sequences: Sequence[SequenceSpan]) -> Iterator[list[SequenceSpan]]:
    """Sequences of like length together, so that padding at most doubles the work of a long group."""
    group: list[SequenceSpan] = []
    for sequence in sorted(sequences, key=lambda s: s.context_length, reverse=True):
        longest = group[0].context_length if group else 0
        padding = longest - sequence.context_length
        if padding > max(_FREE_PADDING, longest // 2) or (len(group) + 1) * longest > _GROUP_SLOTS:
            yield group
            group = []
        group.append(sequence)
    if group:
        yield group


def _causal_mask(chunks: Sequence[SequenceSpan], pool: KVPool) -> Tensor:
    tile = min(_TILE, max((chunk.query_length for chunk in chunks), default=0))
    longest = max((chunk.context_length for chunk in chunks), default=0)
    mask = torch.zeros(tile, longest, dtype=pool.keys.dtype, device=pool.keys.device)
    mask[:, longest - tile :] = mask.new_full((tile, tile), float("-inf")).triu_(1)
    return mask
