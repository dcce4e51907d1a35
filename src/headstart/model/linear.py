"""Linear maps of a model.  Storage formats join here, behind the same call."""

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


def linear(*weights: Tensor, biases: Sequence[Tensor] = ()) -> Linear:
    """``x @ weight.T + bias`` for one or several matrices [out_i, in] of one input, stacked into one product.

    ``biases`` [out_i] are one for each matrix, or none at all.
    """
    weight = weights[0] if len(weights) == 1 else torch.cat(weights)
    bias = torch.cat(tuple(biases)) if biases else None
    return PackedLinear(weight, bias) if _packs(weight) else DenseLinear(weight, bias)


class DenseLinear:
    """``weight`` [out, in] as it came, and ``bias`` [out]: what every device can compute."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    @property
    def nbytes(self) -> int:
        """Bytes of weights."""
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def __call__(self, x: Tensor) -> Tensor:
        """``x`` [T, in] mapped to [T, out]."""
        return F.linear(x, self.weight, self.bias)


class PackedLinear:
    """``weight`` [out, in] reordered once for oneDNN, which `F.linear` does again in every call.

    The same values in another order.  On a CPU with AMX it takes 20 to 40 % less time from one row to
    a thousand.  The operators are those that torch's own compiler uses for frozen weights.

    oneDNN compiles code for each number of rows, which takes milliseconds, and torch keeps it, several
    hundred KiB a time: callers should come with few different numbers (`filled_up`), and have the code
    compiled before they serve (`warm_up`).
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS_HINT)  # noqa: SLF001
        self._bias = bias

    @property
    def nbytes(self) -> int:
        """Bytes of weights."""
        return int(self._packed.nbytes) + (0 if self._bias is None else self._bias.nbytes)

    def __call__(self, x: Tensor) -> Tensor:
        """``x`` [T, in] mapped to [T, out]."""
        product = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001
        out: Tensor = product(x, self._packed, self._bias, "none", [], "")
        return out

    def warm_up(self, most: int) -> None:
        """Have code compiled for up to ``most`` rows; other maps of this shape use it too.

        Fewer where the map is large: compiling takes no longer there, and is soon little beside the product.
        """
        outputs, inputs = self._packed.shape
        most = min(most, _WARM_UP_WORK // (outputs * inputs))
        for rows in dict.fromkeys(filled_up(rows) for rows in range(most, 0, -1)):
            self(torch.zeros(rows, inputs, dtype=torch.bfloat16))


_WARM_UP_WORK = 1 << 32
"""Multiplications of the largest product that is computed for its code alone: tens of milliseconds."""

_ROWS_HINT = 64
"""Rows that a product is said to have when a weight is packed; measured to make no difference."""


def filled_up(rows: int) -> int:
    """The next of few numbers: a power of two, from 16 on a multiple of 16, and at most a 16th more.

    oneDNN's tiles have 16 rows: up to 512 rows the further ones cost next to nothing.
    """
    if rows <= 16:
        return 1 << (rows - 1).bit_length() if rows else 0
    step = max(16, 1 << (rows.bit_length() - 5))
    return -(-rows // step) * step


def _packs(weight: Tensor) -> bool:
    """Whether a packed product is there for ``weight``, and faster.

    Not in float32: few CPUs gain by it there, and it is the dtype in which answers are compared.
    """
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.bfloat16
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001
    )
