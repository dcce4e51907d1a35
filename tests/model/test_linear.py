from __future__ import annotations

import torch

from headstart.model.linear import DenseLinear


def test_one_matrix() -> None:
    weight, x = torch.randn(5, 3), torch.randn(4, 3)
    linear = DenseLinear(weight)
    torch.testing.assert_close(linear(x), x @ weight.T)
    assert linear.nbytes == weight.nbytes


def test_matrices_of_one_input_are_one_product() -> None:
    q, k, x = torch.randn(6, 3), torch.randn(2, 3), torch.randn(4, 3)
    linear = DenseLinear(q, k)
    torch.testing.assert_close(linear(x), torch.cat((x @ q.T, x @ k.T), dim=1))
    assert linear.nbytes == q.nbytes + k.nbytes
