"""Attention that tells the sum of its softmax, by which parts of one context can be put together."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def attend_and_sum(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Softmax(q kᵀ / √d + mask) v [B, H, Q, d], and log Σ exp of the same scores [B, H, Q].

    ``q`` [B, H, Q, d], ``k`` and ``v`` [B, H, K, d]; ``mask`` is added to scores and broadcasts.  Every query
    must see a key.  Both results are in float32 whatever came in: a whole is rounded once, and not its parts.
    """
    q, k, v = q.float(), k.float(), v.float()
    if q.device.type == "cpu":
        # What scaled_dot_product_attention calls on CPUs, which drops the sum.
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001
        attended, log_sums = flash(q, k, v, attn_mask=None if mask is None else mask.float())
        return attended, log_sums
    scores = (q @ k.mT) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores += mask
    log_sums = scores.logsumexp(dim=-1)
    return (scores - log_sums[..., None]).exp_() @ v, log_sums
