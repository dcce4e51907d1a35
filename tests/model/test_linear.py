from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from headstart.model.linear import DenseLinear, Linear, PackedLinear, filled_up, linear

packable = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    reason="this CPU has no bfloat16 products",
)
KINDS = [DenseLinear, pytest.param(PackedLinear, marks=packable)]


def bf16(*shape: int) -> Tensor:
    return torch.randn(*shape).bfloat16()


def test_matrices_of_one_input_are_one_product() -> None:
    q, k, x = torch.randn(6, 3), torch.randn(2, 3), torch.randn(4, 3)
    both = linear(q, k)
    torch.testing.assert_close(both(x), torch.cat((x @ q.T, x @ k.T), dim=1))
    assert both.nbytes == q.nbytes + k.nbytes


def test_biases_of_stacked_matrices_are_added_to_their_own_rows() -> None:
    x, first, second = torch.randn(3, 8), torch.randn(5, 8), torch.randn(2, 8)
    biases = torch.randn(5), torch.randn(2)
    both = linear(first, second, biases=biases)
    torch.testing.assert_close(both(x)[:, :5], x @ first.T + biases[0])
    torch.testing.assert_close(both(x)[:, 5:], x @ second.T + biases[1])
    assert both.nbytes == 4 * (7 * 8 + 7)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [0, 1, 2, 16, 17, 64, 300])
@pytest.mark.parametrize("biased", [False, True])
def test_every_kind_computes_the_same(kind: Callable[..., Linear], rows: int, biased: bool) -> None:
    weight, x, bias = bf16(48, 80), bf16(rows, 80), bf16(48) if biased else None
    one = kind(weight, bias)
    expected = x.double() @ weight.double().T + (bias.double() if bias is not None else 0.0)
    torch.testing.assert_close(one(x).double(), expected, rtol=1e-2, atol=1e-1)
    assert one.nbytes == 2 * (48 * 80 + (48 if biased else 0))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_do_not_lie_end_to_end(kind: Callable[..., Linear]) -> None:
    weight, x = bf16(48, 80), bf16(5, 160)[:, ::2]
    assert torch.equal(kind(weight)(x), kind(weight)(x.contiguous()))


@packable
def test_bfloat16_on_a_cpu_is_packed_and_float32_is_not() -> None:
    assert isinstance(linear(bf16(4, 4)), PackedLinear)
    assert isinstance(linear(torch.randn(4, 4)), DenseLinear)


@packable
def test_warming_up_meets_every_number_of_rows_that_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    monkeypatch.setattr(PackedLinear, "__call__", lambda _, x: rows.append(len(x)))
    packed = PackedLinear(torch.zeros(64, 32, dtype=torch.bfloat16))
    packed.warm_up(100)
    assert set(rows) == {filled_up(number) for number in range(1, 101)}
    assert len(rows) == len(set(rows))
    rows.clear()
    monkeypatch.setattr(
        "headstart.model.linear._WARM_UP_WORK", 64 * 32 * 10
    )  # a map too large for more than ten
    packed.warm_up(100)
    assert sorted(rows) == [1, 2, 4, 8, 16]


def test_rows_are_filled_up_to_few_numbers_and_by_little() -> None:
    numbers = {rows: filled_up(rows) for rows in range(1, 2049)}
    assert len(set(numbers.values())) < 80
    assert all(0 <= filled - rows <= max(15, rows / 16) for rows, filled in numbers.items())
    assert [filled_up(rows) for rows in (0, 1, 2, 3, 9, 16, 17, 512, 513, 2048)] == [
        0, 1, 2, 4, 16, 16, 32, 512, 544, 2048,
    ]  # fmt: skip
