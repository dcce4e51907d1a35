"""One step's input to a model: tokens of many sequences laid end to end, and where their K and V live."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class SequenceSpan:
    """One sequence's share of a batch.

    Its queries are rows ``query_start … query_start + query_length`` of the batch and are the last
    ``query_length`` of its ``context_length`` tokens.  ``block_ids`` (int64, on the host, because
    backends choose by it how to read) are its blocks in order; blocks beyond the context are allowed.
    """

    query_start: int
    query_length: int
    context_length: int
    block_ids: Tensor


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """What a model computes in one step, over T tokens of all sequences.

    ``token_ids``, ``positions`` and ``slots`` are int64 [T] on the model's device; token i's K and V
    are written to slot ``slots[i]`` (block id * block size + offset).  ``logit_rows`` (int64 [R], same
    device) are the rows of T whose logits are wanted.  ``sequences`` cover the T rows in order.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    sequences: tuple[SequenceSpan, ...]
    logit_rows: Tensor
