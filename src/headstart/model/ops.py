"""What lies between a decoder layer's products: one protocol, torch's operators, and fused kernels."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - the name that every reader of torch knows
from torch import Tensor

from headstart.model.native import load_library


@dataclass(frozen=True, slots=True)
class Rotation:
    """Cosines and sines of one step's positions, in the shape that the operators that made it want."""

    cos: Tensor
    sin: Tensor


class LayerOps(Protocol):
    """Operators on rows; T rows, H query heads, KVH key-value heads of D dimensions."""

    def add_rms_norm(self, stream: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> Tensor:
        """Add ``delta`` to ``stream`` (both [T, n]) in place, and return the stream normed.

        Normed is scaled to a root mean square of one, times ``weight`` [n]: https://arxiv.org/abs/1910.07467
        """

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up [T, n] of ``gate_up`` [T, 2 n]: https://arxiv.org/abs/2002.05202"""

    def rotation(self, angles: Tensor, dtype: torch.dtype) -> Rotation:
        """For ``angles`` [T, D / 2] in float32, what `rotate_and_write` is to be given."""

    def rotate_and_write(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rotation: Rotation,
        keys: Tensor,
        values: Tensor,
        slots: Tensor,
    ) -> Tensor:
        """``q`` [T, H, D] rotated; ``k`` [T, KVH, D] rotated, and ``v``, go to ``slots``.

        Slots may be fewer than T: what comes out for rows beyond them nobody reads.
        ``keys`` and ``values`` are [slots, KVH, D].  Dimension i is paired with i + D / 2, as in Hugging
        Face's weights: https://arxiv.org/abs/2104.09864
        """


class TorchOps:
    """`LayerOps` on any device, in any dtype."""

    def add_rms_norm(self, stream: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> Tensor:
        """As `LayerOps.add_rms_norm`."""
        if delta is not None:
            stream += delta
        return F.rms_norm(stream, weight.shape, weight, eps)

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        """As `LayerOps.silu_and_mul`."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    def rotation(self, angles: Tensor, dtype: torch.dtype) -> Rotation:
        """Cosines and sines [T, 1, D]; the sines carry the minus of the first half, so that a roll does."""
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        return Rotation(torch.cat((cos, cos), dim=-1).to(dtype), torch.cat((-sin, sin), dim=-1).to(dtype))

    def rotate_and_write(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rotation: Rotation,
        keys: Tensor,
        values: Tensor,
        slots: Tensor,
    ) -> Tensor:
        """As `LayerOps.rotate_and_write`."""
        keys.index_copy_(0, slots, _rotate(k, rotation)[: len(slots)])
        values.index_copy_(0, slots, v[: len(slots)])
        return _rotate(q, rotation)


def _rotate(x: Tensor, rotation: Rotation) -> Tensor:
    return torch.addcmul(x * rotation.cos, x.roll(x.shape[-1] // 2, dims=-1), rotation.sin)


class FusedOps:
    """`LayerOps` in bfloat16 on a CPU: a kernel of native/fused.c each."""

    def __init__(self, library: ctypes.CDLL) -> None:
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self._add_rms_norm = library.add_rms_norm
        self._add_rms_norm.argtypes = (*[pointer] * 3, ctypes.c_float, pointer, *[number] * 2)
        self._silu_and_mul = library.silu_and_mul
        self._silu_and_mul.argtypes = (*[pointer] * 2, *[number] * 2)
        self._rotate_and_write = library.rotate_and_write
        self._rotate_and_write.argtypes = (*[pointer] * 3, *[number] * 3, *[pointer] * 6, *[number] * 4)

    def add_rms_norm(self, stream: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> Tensor:
        """As `LayerOps.add_rms_norm`."""
        assert stream.is_contiguous()
        assert delta is None or delta.is_contiguous()
        out = torch.empty_like(stream)
        added = None if delta is None else delta.data_ptr()
        self._add_rms_norm(stream.data_ptr(), added, weight.data_ptr(), eps, out.data_ptr(), *stream.shape)
        return out

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        """As `LayerOps.silu_and_mul`."""
        assert gate_up.is_contiguous()
        out = gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)
        self._silu_and_mul(gate_up.data_ptr(), out.data_ptr(), *out.shape)
        return out

    def rotation(self, angles: Tensor, dtype: torch.dtype) -> Rotation:  # noqa: ARG002 - rotates in float32
        """Cosines and sines [T, D / 2]."""
        return Rotation(angles.cos(), angles.sin())

    def rotate_and_write(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rotation: Rotation,
        keys: Tensor,
        values: Tensor,
        slots: Tensor,
    ) -> Tensor:
        """As `LayerOps.rotate_and_write`; the heads of a row must lie end to end."""
        assert q.stride(1) == k.stride(1) == v.stride(1) == q.shape[2]
        assert q.stride(2) == 1
        out = q.new_empty(q.shape)
        self._rotate_and_write(
            q.data_ptr(),
            k.data_ptr(),
            v.data_ptr(),
            q.stride(0),
            k.stride(0),
            v.stride(0),
            rotation.cos.data_ptr(),
            rotation.sin.data_ptr(),
            out.data_ptr(),
            keys.data_ptr(),
            values.data_ptr(),
            slots.data_ptr(),
            slots.shape[0],
            q.shape[1],
            k.shape[1],
            q.shape[2] // 2,
        )
        return out


def layer_ops(device: torch.device, dtype: torch.dtype, *, native: bool) -> LayerOps:
    """The fastest that this machine can do; with ``native`` off, torch's."""
    if native and device.type == "cpu" and dtype == torch.bfloat16:
        library = load_library("fused")
        if library is not None:
            return FusedOps(library)
    return TorchOps()
