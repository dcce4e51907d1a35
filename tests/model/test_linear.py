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


def test_biases_of_stacked_matrices_are_added_to_their_own_rows() -> None:
    x, first, second = torch.randn(3, 8), torch.randn(5, 8), torch.randn(2, 8)
    biases = torch.randn(5), torch.randn(2)
    linear = DenseLinear(first, second, biases=biases)
    torch.testing.assert_close(linear(x)[:, :5], x @ first.T + biases[0])
    torch.testing.assert_close(linear(x)[:, 5:], x @ second.T + biases[1])
    assert linear.nbytes == 4 * (7 * 8 + 7)
