"""Attention written as its definition: the oracle of every other backend, and slow."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from headstart.model.batch import ForwardBatch
from headstart.model.kv_pool import KVPool


class ReferenceAttention:
    """Loops over sequences, queries and heads; every number in float32."""

    def prepare(self, batch: ForwardBatch, pool: KVPool) -> ReferenceStep:
        """The step object; nothing is prepared."""
        return ReferenceStep(batch, pool)


@dataclass(frozen=True, slots=True)
class ReferenceStep:
    """One step of `ReferenceAttention`."""

    batch: ForwardBatch
    pool: KVPool

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """As `AttentionStep.attend`."""
        out = torch.empty_like(q)
        num_heads, head_dim = q.shape[1:]
        for sequence in self.batch.sequences:
            k, v = self.pool.read(layer, sequence.block_ids, sequence.context_length)
            group = num_heads // k.shape[1]
            for i in range(sequence.query_length):
                row = sequence.query_start + i
                visible = sequence.context_length - sequence.query_length + i + 1
                for head in range(num_heads):
                    keys = k[:visible, head // group].float()
                    scores = keys @ q[row, head].float() / math.sqrt(head_dim)
                    weights = torch.softmax(scores, dim=0)
                    out[row, head] = (weights @ v[:visible, head // group].float()).to(q.dtype)
        return out
