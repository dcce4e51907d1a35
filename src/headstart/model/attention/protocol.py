"""What a model asks of attention."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from headstart.model.batch import ForwardBatch
from headstart.model.kv_pool import KVPool


class AttentionStep(Protocol):
    """Attention of one step, with everything prepared that its layers have in common."""

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Softmax(q kᵀ / √head_dim) v, in the shape and dtype of ``q`` [T, num_heads, head_dim].

        Query i of a sequence sees its first ``context_length - query_length + i + 1`` tokens.  Head h
        reads KV head ``h // (num_heads / num_kv_heads)``.  The layer's K and V of *all* sequences of
        the batch are in the pool already: sequences may share blocks that this very step fills.  Rows of
        ``q`` beyond the batch's T belong to no sequence, and nobody reads what comes out for them.
        """


class AttentionBackend(Protocol):
    """A way to compute attention."""

    def prepare(self, batch: ForwardBatch, pool: KVPool) -> AttentionStep:
        """The step object for one forward pass over ``batch``; valid until the next ``prepare``."""
