"""The shapes of work that attention is sorted into; one call each, for a layer.

A *chunk* is one sequence: its queries go in tiles, so that no tile multiplies keys that all of its
queries must not see.  A *group* is many sequences with one query each: a call per sequence would cost
more than its arithmetic, so their blocks are gathered side by side and padded.  *Shared* work is many
sequences with one query each that have beginnings in common: what they share is read once for all, each
part gives its own softmax, and the parts are weighed by what they left out: exp of the sum of exponents
(https://arxiv.org/abs/2402.05099 does it for one prefix, section 3.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - the name that every reader of torch knows
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from headstart.model.attention.reading import BlockStretch, KVReader
from headstart.model.attention.sharing import Sharing
from headstart.model.attention.softmax import attend_and_sum
from headstart.model.batch import SequenceSpan
from headstart.model.kv_pool import KVPool

# Queries per tile: half of a square prompt's work is masked, and tiles skip all of it but the diagonal.
# 128 to 256 were equally fast on CPUs; larger tiles waste work, smaller ones pay for more calls.
TILE = 256

# Slots gathered for one group at most: 20 to 40 thousand were fastest (the copy is still in the cache
# when it is read), and it bounds the scratch memory.
_GROUP_SLOTS = 32_768

# Padding by so many slots costs less than another call.
_FREE_PADDING = 256


class Work(Protocol):
    """Some of a step's sequences."""

    @property
    def gathered_blocks(self) -> int:
        """How many blocks of scratch memory it takes."""

    def attend(self, layer: int, kv: KVReader, q: Tensor, out: Tensor) -> None:
        """Write the attention of its sequences' queries among ``q`` into the same rows of ``out``.

        Both are [T, num_heads, head_dim].
        """


@dataclass(frozen=True, slots=True)
class Chunk:
    """One sequence.

    ``mask`` [tile, context or longer] is added to scores: its last ``tile`` columns hide the future from a
    tile that ends at the last key; the mask of fewer queries or keys is its lower right corner.
    """

    sequence: SequenceSpan
    blocks: BlockStretch
    mask: Tensor

    @classmethod
    def of(cls, sequence: SequenceSpan, pool: KVPool, mask: Tensor) -> Chunk:
        """The work of ``sequence``; ``mask`` is `causal_mask` of all chunks of the step."""
        return cls(sequence, BlockStretch.of(_context_blocks(sequence, pool.block_size), pool), mask)

    @property
    def gathered_blocks(self) -> int:
        """As `Work.gathered_blocks`."""
        return self.blocks.gathered_blocks

    def attend(self, layer: int, kv: KVReader, q: Tensor, out: Tensor) -> None:
        """As `Work.attend`."""
        sequence = self.sequence
        # [1, num_kv_heads, slots, head_dim]
        k, v = (tensor[None].transpose(1, 2) for tensor in kv.read(layer, self.blocks))
        q = q[None].transpose(1, 2)
        for first in range(0, sequence.query_length, TILE):
            last = min(first + TILE, sequence.query_length)
            visible = sequence.context_length - sequence.query_length + last
            rows = slice(sequence.query_start + first, sequence.query_start + last)
            attended = F.scaled_dot_product_attention(
                q[:, :, rows],
                k[:, :, :visible],
                v[:, :, :visible],
                attn_mask=self.mask[first - last :, -visible:] if last - first > 1 else None,
                enable_gqa=True,
            )
            out[rows] = attended[0].transpose(0, 1)


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences with one query each, padded to the longest.

    ``rows`` [N] are their queries; ``block_ids`` [N * blocks] their blocks, row after row;
    ``hidden_slots`` the gathered slots that no query may see; ``mask`` [N, 1, 1, slots] hides them.
    """

    rows: Tensor
    block_ids: Tensor
    hidden_slots: Tensor
    mask: Tensor

    @classmethod
    def of(cls, sequences: Sequence[SequenceSpan], rows: Sequence[int], pool: KVPool) -> Group:
        """The work of ``sequences``, of which the i-th has its query in row ``rows[i]``."""
        ids = pad_sequence(
            [_context_blocks(sequence, pool.block_size) for sequence in sequences], batch_first=True
        )
        contexts = torch.tensor([sequence.context_length for sequence in sequences])
        hidden = torch.arange(ids.shape[1] * pool.block_size) >= contexts[:, None]
        mask = torch.zeros(hidden.shape, dtype=pool.keys.dtype).masked_fill_(hidden, float("-inf"))
        device = pool.keys.device
        return cls(
            rows=torch.tensor(rows, device=device),
            block_ids=ids.flatten().to(device),
            hidden_slots=hidden.flatten().nonzero()[:, 0].to(device),
            mask=mask[:, None, None].to(device),
        )

    @property
    def gathered_blocks(self) -> int:
        """As `Work.gathered_blocks`."""
        return self.block_ids.shape[0]

    def attend(self, layer: int, kv: KVReader, q: Tensor, out: Tensor) -> None:
        """As `Work.attend`."""
        k, v = self._keys_and_values(layer, kv)
        attended = F.scaled_dot_product_attention(self._queries(q, k), k, v, attn_mask=self.mask)
        out[self.rows] = attended.reshape(len(self.rows), -1, q.shape[-1])

    def attend_and_sum(self, layer: int, kv: KVReader, q: Tensor, out: Tensor, sums: Tensor) -> None:
        """As `attend`, and the log of each softmax's sum into the same rows of ``sums`` [T, num_heads]."""
        k, v = self._keys_and_values(layer, kv)
        attended, log_sums = attend_and_sum(self._queries(q, k), k, v, self.mask)
        out[self.rows] = attended.reshape(len(self.rows), -1, q.shape[-1])
        sums[self.rows] = log_sums.reshape(len(self.rows), -1)

    def _queries(self, q: Tensor, k: Tensor) -> Tensor:
        # The heads of one KV head are like queries at one position: nothing is computed per head twice.
        return q[self.rows].view(len(self.rows), k.shape[1], -1, q.shape[-1])

    def _keys_and_values(self, layer: int, kv: KVReader) -> tuple[Tensor, Tensor]:
        """[N, num_kv_heads, slots, head_dim]."""
        k, v = kv.gather(layer, self.block_ids)
        # Whatever was left in slots behind a context, NaN included, must not reach a sum: 0 * NaN is NaN.
        k.index_fill_(0, self.hidden_slots, 0)
        v.index_fill_(0, self.hidden_slots, 0)
        shape = (len(self.rows), -1, *k.shape[1:])
        return k.view(shape).transpose(1, 2), v.view(shape).transpose(1, 2)


@dataclass(frozen=True, slots=True)
class Shared:
    """Sequences with one query each that share beginnings.

    ``rows`` [N] are their queries, those of a stretch side by side.  A row's context is in ``num_parts``
    parts at most: stretches of depth d are part d, tails the last.
    """

    rows: Tensor
    num_parts: int
    stretches: tuple[tuple[slice, int, BlockStretch], ...]  # positions in ``rows``, part, blocks
    tails: tuple[Group, ...]

    @classmethod
    def of(cls, sharing: Sharing, pool: KVPool) -> Shared:
        """The work of all sequences of ``sharing`` that are in a stretch."""
        rows = [sequence.query_start for sequence in sharing.sequences]
        return cls(
            rows=torch.tensor(rows, device=pool.keys.device),
            num_parts=sharing.depth + 1,
            stretches=tuple(
                (slice(stretch.first, stretch.last), stretch.depth, BlockStretch.of(stretch.block_ids, pool))
                for stretch in sharing.stretches
            ),
            tails=tuple(
                Group.of([sharing.tails[place] for place in places], places, pool)
                for places in like_lengths(sharing.tails)
            ),
        )

    @property
    def gathered_blocks(self) -> int:
        """As `Work.gathered_blocks`."""
        return max(
            *(blocks.gathered_blocks for _, _, blocks in self.stretches),
            *(tail.gathered_blocks for tail in self.tails),
        )

    def attend(self, layer: int, kv: KVReader, q: Tensor, out: Tensor) -> None:
        """As `Work.attend`."""
        q = q[self.rows]
        # Each part's softmax and the log of its sum; what nobody fills weighs nothing.
        parts = torch.zeros(self.num_parts, *q.shape, device=q.device)
        sums = torch.full(parts.shape[:-1], -torch.inf, device=q.device)
        for places, part, blocks in self.stretches:
            # [1, num_kv_heads, slots, head_dim]; as queries of a KV head, all heads of all rows that read it
            k, v = (tensor[None].transpose(1, 2) for tensor in kv.read(layer, blocks))
            queries = q[places].view(-1, k.shape[1], q.shape[1] // k.shape[1], q.shape[2]).transpose(0, 1)
            attended, log_sums = attend_and_sum(queries.flatten(1, 2)[None], k, v)
            parts[part, places] = attended.view(queries.shape).transpose(0, 1).flatten(1, 2)
            sums[part, places] = log_sums.view(queries.shape[:-1]).transpose(0, 1).flatten(1, 2)
        for tail in self.tails:
            tail.attend_and_sum(layer, kv, q, parts[-1], sums[-1])
        weights = sums.softmax(dim=0)
        out[self.rows] = (parts * weights[..., None]).sum(dim=0).to(out.dtype)


def like_lengths(sequences: Sequence[SequenceSpan]) -> Iterator[list[int]]:
    """Indices of sequences of like length together, so that padding at most doubles a long group's work."""
    group: list[int] = []
    for index in sorted(range(len(sequences)), key=lambda i: sequences[i].context_length, reverse=True):
        longest = sequences[group[0]].context_length if group else 0
        padding = longest - sequences[index].context_length
        if padding > max(_FREE_PADDING, longest // 2) or (len(group) + 1) * longest > _GROUP_SLOTS:
            yield group
            group = []
        group.append(index)
    if group:
        yield group


def causal_mask(chunks: Sequence[SequenceSpan], pool: KVPool) -> Tensor:
    """The mask that all ``chunks`` of a step share; see `Chunk`."""
    tile = min(TILE, max((chunk.query_length for chunk in chunks), default=0))
    longest = max((chunk.context_length for chunk in chunks), default=0)
    mask = torch.zeros(tile, longest, dtype=pool.keys.dtype, device=pool.keys.device)
    mask[:, longest - tile :] = mask.new_full((tile, tile), float("-inf")).triu_(1)
    return mask


def _context_blocks(sequence: SequenceSpan, block_size: int) -> Tensor:
    """The blocks that hold the context; a table may have more."""
    return sequence.block_ids[: -(-sequence.context_length // block_size)]
