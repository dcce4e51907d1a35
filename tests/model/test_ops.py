"""`LayerOps`: each kind against the formula in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headstart.model.ops import FusedOps, LayerOps, TorchOps, layer_ops

CPU = torch.device("cpu")


@pytest.fixture(params=["torch", "fused"])
def ops(request: pytest.FixtureRequest) -> LayerOps:
    if request.param == "torch":
        return TorchOps()
    fused = layer_ops(CPU, torch.bfloat16, native=True)
    if not isinstance(fused, FusedOps):
        pytest.skip("there is no compiler")
    return fused


def bf16(*shape: int) -> Tensor:
    return torch.randn(*shape).bfloat16()


def near(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual.double(), expected.double(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("rows", [1, 3, 200])
@pytest.mark.parametrize("width", [64, 576, 77])
@pytest.mark.parametrize("added", [False, True])
def test_add_and_norm(ops: LayerOps, rows: int, width: int, added: bool) -> None:
    stream, delta, weight = 3 * bf16(rows, width), bf16(rows, width) if added else None, bf16(width)
    expected_stream = stream + delta if delta is not None else stream.clone()
    normed = ops.add_rms_norm(stream, delta, weight, 1e-5)
    assert torch.equal(stream, expected_stream)
    x = stream.double()
    near(normed, x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double())


@pytest.mark.parametrize("rows", [1, 3, 200])
def test_silu_and_mul(ops: LayerOps, rows: int) -> None:
    gate_up = bf16(rows, 154) * 4
    gate_up[0, :6] = torch.tensor([-300.0, 300.0, -88.0, 88.0, 0.0, -0.0])
    gate, up = gate_up.double().chunk(2, dim=-1)
    near(ops.silu_and_mul(gate_up), gate * gate.sigmoid() * up)


@pytest.mark.parametrize("rows", [1, 5, 100])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(9, 3, 64), (4, 4, 16), (2, 1, 128)])
def test_rotate_and_write(ops: LayerOps, rows: int, heads: int, kv_heads: int, dim: int) -> None:
    qkv = bf16(rows, heads + 2 * kv_heads, dim)
    q, k, v = qkv.split((heads, kv_heads, kv_heads), dim=1)
    keys, values = bf16(2 * rows, kv_heads, dim), bf16(2 * rows, kv_heads, dim)
    keys_before, values_before = keys.clone(), values.clone()
    slots = torch.randperm(2 * rows)[:rows]
    angles = torch.rand(rows, dim // 2) * 100
    rotated = ops.rotate_and_write(q, k, v, ops.rotation(angles, torch.bfloat16), keys, values, slots)

    def expected(x: Tensor) -> Tensor:
        numbers = torch.view_as_complex(torch.stack(x.double().chunk(2, dim=-1), dim=-1))
        turned = numbers * torch.polar(torch.ones_like(angles), angles)[:, None]
        return torch.cat((turned.real, turned.imag), dim=-1)

    near(rotated, expected(q))
    near(keys[slots], expected(k))
    assert torch.equal(values[slots], v)
    others = torch.ones(2 * rows, dtype=torch.bool)
    others[slots] = False
    assert torch.equal(keys[others], keys_before[others])
    assert torch.equal(values[others], values_before[others])


def test_rows_beyond_the_slots_are_not_written(ops: LayerOps) -> None:
    q, k, v = bf16(5, 2, 16), bf16(5, 1, 16), bf16(5, 1, 16)
    keys, values = torch.zeros(2, 6, 1, 16, dtype=torch.bfloat16)
    rotation = ops.rotation(torch.zeros(5, 8), torch.bfloat16)
    rotated = ops.rotate_and_write(q, k, v, rotation, keys, values, torch.tensor([4, 1, 2]))
    assert rotated.shape == q.shape
    assert torch.equal(rotated[:3], q[:3])
    assert torch.equal(keys[[4, 1, 2]], k[:3])
    assert torch.equal(values[[4, 1, 2]], v[:3])
    assert not keys[[0, 3, 5]].any()


def test_what_is_no_number_stays_none(ops: LayerOps) -> None:
    stream = bf16(2, 64)
    stream[0, 3] = torch.nan
    stream[1, 3] = torch.inf
    normed = ops.add_rms_norm(stream, None, bf16(64), 1e-5)
    assert normed.isnan().any(dim=1).all()
    assert ops.silu_and_mul(torch.full((1, 2), torch.nan, dtype=torch.bfloat16)).isnan().all()


def test_other_dtypes_and_no_kernels_are_torchs() -> None:
    assert isinstance(layer_ops(CPU, torch.float32, native=True), TorchOps)
    assert isinstance(layer_ops(CPU, torch.bfloat16, native=False), TorchOps)
