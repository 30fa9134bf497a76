"""Ensembles of networks: their fast path against differentiable operations."""

import pytest
import torch
from torch import Tensor

from kdmkit.nn import MLPEnsemble
from kdmkit.nn.mlp import differentiable_answers

SIZES = [[3, 8, 6, 2], [3, 5, 1], [3, 2]]


def _ensemble(sizes: list[int]) -> MLPEnsemble:
    generator = torch.Generator().manual_seed(0)
    ensemble = MLPEnsemble(sizes, n_members=4).double()
    with torch.no_grad():
        for parameter in ensemble.parameters():
            parameter.normal_(generator=generator)
    return ensemble


def _tensors(ensemble: MLPEnsemble, x: Tensor) -> list[Tensor]:
    return [x, ensemble.linear, *ensemble.weights, *ensemble.biases]


def _rows(*, gradient: bool = True) -> Tensor:
    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return x.requires_grad_(gradient)


@pytest.mark.parametrize("sizes", SIZES)
def test_answers_and_gradients_are_those_of_differentiable_operations(sizes: list[int]) -> None:
    ensemble, x = _ensemble(sizes), _rows()
    tensors = _tensors(ensemble, x)
    fast, slow = ensemble(x), differentiable_answers(*tensors)
    torch.testing.assert_close(fast, slow)
    upstream = torch.randn_like(slow)
    torch.testing.assert_close(
        torch.autograd.grad(fast, tensors, upstream), torch.autograd.grad(slow, tensors, upstream)
    )


@pytest.mark.parametrize("sizes", SIZES)
def test_answers_without_gradients_and_of_members_to_their_own_rows_are_the_same(sizes: list[int]) -> None:
    ensemble, x = _ensemble(sizes), _rows(gradient=False)
    before, expected = x.clone(), differentiable_answers(*_tensors(ensemble, x))
    with torch.no_grad():
        torch.testing.assert_close(ensemble(x), expected)
        rows = torch.tensor([[0, 1], [2, 3], [4, 5], [6, 0]])
        result = ensemble.of_members(x[rows])
    torch.testing.assert_close(result, torch.stack([expected[rows[k], k] for k in range(4)]))
    assert torch.equal(x, before)


def test_second_derivatives() -> None:
    ensemble = _ensemble([3, 4, 2])
    assert torch.autograd.gradgradcheck(ensemble, (_rows(),))


def test_parameters_that_are_not_trained_get_no_gradient() -> None:
    ensemble, x = _ensemble([3, 4, 1]), _rows(gradient=False)
    ensemble.biases.requires_grad_(False)
    ensemble(x).sum().backward()
    assert ensemble.biases[0].grad is None
    assert ensemble.weights[0].grad is not None


def test_function_transforms() -> None:
    ensemble, x = _ensemble([3, 4, 1]), _rows(gradient=False)
    slopes = torch.func.vmap(torch.func.grad(lambda row: ensemble(row.unsqueeze(0)).sum()))(x)
    x.requires_grad_()
    torch.testing.assert_close(slopes, torch.autograd.grad(ensemble(x).sum(), x)[0])
