"""Attention by our own kernel (native/attention.c): bfloat16, on CPUs with AVX512-BF16.

The kernel takes *segments*: some queries, and keys that all of them see, or see causally.  A decoding
sequence is one; so is a stretch of blocks that several share, with all their queries, and then the tail of
each, and the parts of a row are merged.  Nothing is gathered: the kernel reads where the blocks are.
Long chunks stay with torch, whose products of many rows use matrix instructions.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.model.attention.protocol import AttentionStep
from headstart.model.attention.sdpa import SdpaAttention
from headstart.model.attention.sharing import find_sharing
from headstart.model.batch import ForwardBatch
from headstart.model.kv_pool import KVPool
from headstart.model.native import load_library

# Queries of a chunk from which on torch is as fast; measured on 2 cores with AMX.
_LONG = 100_000

# Slots that need not be read again for which one merge more is worth it.
_LEAST_SAVED = 128

_TILE_ROWS = 48  # attention.c: rows (queries times heads of a KV head) that make a task

_SEGMENT = ("first_row", "num_rows", "first_block", "num_blocks", "num_keys", "causal", "part", "alone")


class _KernelStep(ctypes.Structure):
    """attention.c's ``Step``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "out", "keys", "values", "segments", "tasks", "rows")),
        *((name, ctypes.c_void_p) for name in ("blocks", "parts", "sums")),
        *((name, ctypes.c_int64) for name in ("q_stride", "num_tasks", "num_parts", "num_shared")),
        *((name, ctypes.c_int64) for name in ("block_size", "num_heads", "num_kv_heads", "dim")),
    )


class FusedAttention:
    """`AttentionBackend` for models of ``num_heads`` query heads; ``library`` is native/attention.c."""

    def __init__(
        self, library: ctypes.CDLL, num_heads: int, *, long: int = _LONG, least_saved: int = _LEAST_SAVED
    ) -> None:
        self._kernel = library.attend
        self._kernel.argtypes = [ctypes.POINTER(_KernelStep)]
        self._kernel.restype = None
        self._num_heads = num_heads
        self._long = long
        self._least_saved = least_saved
        self._torch = SdpaAttention()

    def prepare(self, batch: ForwardBatch, pool: KVPool) -> FusedStep:
        """Sort the batch's sequences into segments, and long chunks for torch."""
        long = tuple(s for s in batch.sequences if s.query_length >= self._long)
        short = [s for s in batch.sequences if 1 < s.query_length < self._long]
        decoding = [s for s in batch.sequences if s.query_length == 1]
        sharing = find_sharing(decoding, pool.block_size, self._least_saved)
        table = _SegmentTable(self._num_heads // pool.keys.shape[3], pool.keys.shape[3])
        # Rows of several parts come first: `parts` and `sums` are theirs alone.
        table.rows += [sequence.query_start for sequence in sharing.sequences]
        for stretch in sharing.stretches:
            keys = len(stretch.block_ids) * pool.block_size
            table.add(
                stretch.first, stretch.last - stretch.first, stretch.block_ids, keys, part=stretch.depth
            )
        for place, tail in enumerate(sharing.tails):
            table.add(place, 1, tail.block_ids, tail.context_length, part=sharing.depth)
        for sequence in (*short, *sharing.apart):
            first = len(table.rows)
            table.rows += range(sequence.query_start, sequence.query_start + sequence.query_length)
            table.add(
                first,
                sequence.query_length,
                sequence.block_ids,
                sequence.context_length,
                causal=True,
                alone=True,
            )
        in_torch = self._torch.prepare(replace(batch, sequences=long), pool) if long else None
        num_parts, num_shared = sharing.depth + 1, len(sharing.sequences)
        sums = torch.full((num_parts, num_shared, self._num_heads), -torch.inf)
        parts = torch.empty(*sums.shape, pool.keys.shape[4])
        return FusedStep(self._kernel, pool, table.arrays(), parts, sums, in_torch)


class _SegmentTable:
    """A step's segments, made one by one, and the tasks that they are cut into."""

    def __init__(self, heads_of_kv_head: int, num_kv_heads: int) -> None:
        self.rows: list[int] = []
        self._heads = heads_of_kv_head
        self._kv_heads = num_kv_heads
        self._segments: list[tuple[int, ...]] = []
        self._blocks: list[NDArray[np.int32]] = []
        self._num_blocks = 0
        self._tasks: list[tuple[int, int, int, int]] = []  # keys to read, then attention.c's Task

    def add(
        self,
        first_row: int,
        num_rows: int,
        block_ids: Tensor,
        num_keys: int,
        *,
        causal: bool = False,
        part: int = 0,
        alone: bool = False,
    ) -> None:
        """One segment: ``num_keys`` keys in ``block_ids`` for ``num_rows`` of ``rows``."""
        index = len(self._segments)
        self._segments.append(
            (first_row, num_rows, self._num_blocks, len(block_ids), num_keys, causal, part, alone)
        )
        self._blocks.append(block_ids.numpy().astype(np.int32))
        self._num_blocks += len(block_ids)
        for tile_row in range(0, num_rows * self._heads, _TILE_ROWS):
            self._tasks += [(num_keys, index, kv_head, tile_row) for kv_head in range(self._kv_heads)]

    def arrays(self) -> SegmentArrays:
        """All of it, as the kernel wants it; the longest tasks first, so that threads end together."""
        tasks = sorted(self._tasks, key=lambda task: task[0], reverse=True)
        return SegmentArrays(
            segments=np.array(self._segments, np.int32).reshape(-1, len(_SEGMENT)),
            tasks=np.array([task[1:] for task in tasks], np.int32).reshape(-1, 3),
            rows=np.array(self.rows, np.int32),
            blocks=np.concatenate([np.zeros(0, np.int32), *self._blocks]),
        )


@dataclass(frozen=True, slots=True)
class SegmentArrays:
    """What attention.c reads of a step: ``segments`` [S, 8] and ``tasks`` [N, 3] are its structs."""

    segments: NDArray[np.int32]
    tasks: NDArray[np.int32]
    rows: NDArray[np.int32]
    blocks: NDArray[np.int32]


class FusedStep:
    """One step of `FusedAttention`.

    ``parts`` [P, N, num_heads, head_dim] and ``sums`` [P, N, num_heads] take what the kernel merges, of rows
    whose context is in several segments; a part that a row does not have keeps a sum of -inf.
    """

    def __init__(
        self,
        kernel: ctypes._NamedFuncPointer,
        pool: KVPool,
        arrays: SegmentArrays,
        parts: Tensor,
        sums: Tensor,
        in_torch: AttentionStep | None,
    ) -> None:
        self._kernel = kernel
        self._pool = pool
        self._kept = (arrays, parts, sums)  # the kernel has their addresses
        self._in_torch = in_torch
        self._step = _KernelStep(
            segments=arrays.segments.ctypes.data,
            tasks=arrays.tasks.ctypes.data,
            rows=arrays.rows.ctypes.data,
            blocks=arrays.blocks.ctypes.data,
            parts=parts.data_ptr(),
            sums=sums.data_ptr(),
            num_tasks=len(arrays.tasks),
            num_parts=parts.shape[0],
            num_shared=parts.shape[1],
            block_size=pool.block_size,
            num_heads=parts.shape[2],
            num_kv_heads=pool.keys.shape[3],
            dim=parts.shape[3],
        )

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """As `AttentionStep.attend`; the heads of a row must lie end to end."""
        assert q.stride(2) == 1
        assert q.stride(1) == q.shape[2]
        out = q.new_empty(q.shape) if self._in_torch is None else self._in_torch.attend(layer, q)
        if self._step.num_tasks:
            step = self._step
            keys, values = self._pool.slots(layer)
            step.q, step.q_stride, step.out = q.data_ptr(), q.stride(0), out.data_ptr()
            step.keys, step.values = keys.data_ptr(), values.data_ptr()
            self._kernel(step)
        return out


def fused_attention(pool: KVPool, num_heads: int) -> FusedAttention | None:
    """The backend, where this CPU and this pool are such that it works."""
    head_dim = pool.keys.shape[4]
    if (
        pool.keys.device.type != "cpu"
        or pool.keys.dtype != torch.bfloat16
        or head_dim % 64
        or head_dim > 256
        or not torch.cpu.get_capabilities().get("avx512_bf16", False)
    ):
        return None
    library = load_library("attention")
    return FusedAttention(library, num_heads) if library is not None and library.ready() else None
