"""Linear maps of a model.  Other storage formats join here, behind the same call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - the name that every reader of torch knows
from torch import Tensor


class Linear(Protocol):
    """A map [T, in] → [T, out]; ``nbytes`` is what its weights take."""

    @property
    def nbytes(self) -> int:
        """Bytes of weights."""

    def __call__(self, x: Tensor) -> Tensor:
        """``x`` [T, in] mapped to [T, out], in the dtype of ``x``."""


class DenseLinear:
    """``x @ weight.T`` for one or several matrices [out_i, in] of one input, stacked into one product.

    ``biases`` [out_i], one for each matrix or none at all, are added to it.
    """

    def __init__(self, *weights: Tensor, biases: Sequence[Tensor] = ()) -> None:
        self.weight = weights[0] if len(weights) == 1 else torch.cat(weights)
        self.bias = torch.cat(tuple(biases)) if biases else None

    @property
    def nbytes(self) -> int:
        """Bytes of weights."""
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def __call__(self, x: Tensor) -> Tensor:
        """``x`` [T, in] mapped to [T, sum of out_i]."""
        return F.linear(x, self.weight, self.bias)
