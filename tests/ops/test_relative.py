"""Relative scores by one product agree with scores by their definition, and so do their gradients."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import close, normal
from kdmkit.ops import ComponentDistance, Lookup, SquaredDistance, Term
from kdmkit.ops.dense import RelativeScores
from kdmkit.ops.terms import Masked

N, M = 6, 5
KEEP = torch.tensor([True, False, True, True, False, True]).unsqueeze(-1)


def leaves(dtype: torch.dtype) -> list[Tensor]:
    """Queries, components, scales of them, scales of dimensions, and log-weights."""
    x, c, bias = normal(N, 2, seed=1), normal(M, 2, seed=2), normal(M, seed=4)
    scales, scale = normal(M, 2, seed=3).exp(), normal(1, 2, seed=5).exp()
    return [leaf.to(dtype).requires_grad_() for leaf in (x, c, scales, scale, bias)]


TERMS: dict[str, Callable[..., Term]] = {
    "scale per component": lambda x, c, scales, scale, bias: ComponentDistance(x, c, scales),
    "one scale per component": lambda x, c, scales, scale, bias: ComponentDistance(x, c, scales[:, :1]),
    "shared scale": lambda x, c, scales, scale, bias: SquaredDistance(x, c, scale),
    "masked": lambda x, c, scales, scale, bias: Masked(
        ComponentDistance(x, c, scales), bias.unsqueeze(-1), KEEP
    ),
    "masked, shared scale": lambda x, c, scales, scale, bias: Masked(
        SquaredDistance(x, c, scale), bias.unsqueeze(-1), KEEP
    ),
    "lookup": lambda x, c, scales, scale, bias: Lookup(torch.arange(N).unsqueeze(-1) % 2, c),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", TERMS)
def test_relative_scores_agree_with_exact_ones(name: str, dtype: torch.dtype) -> None:
    inputs = leaves(dtype)
    scores = RelativeScores.of([TERMS[name](*inputs)], inputs[-1])
    assert (scores.factor is None) == (name == "lookup")
    relative, tops = scores.compute()
    assert relative.dtype == tops.dtype == dtype
    assert bool((relative.detach().amax(-1).abs() < 1e-5).all())
    exact = leaves(torch.float64)
    wanted = TERMS[name](*exact).exact() + exact[-1]
    tolerance = {"rtol": 1e-10, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-4}
    close((relative + tops.unsqueeze(-1)).double(), wanted, **tolerance)
    direction = normal(N, M, seed=6)
    result = torch.autograd.grad(
        (relative.double() * direction).sum() + tops.sum() * 0, inputs, allow_unused=True
    )
    expected = torch.autograd.grad((wanted * direction).sum(), exact, allow_unused=True)
    for one, other in zip(result, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            close(one.double(), other, **tolerance)


def test_some_queries() -> None:
    inputs = leaves(torch.float64)
    scores = RelativeScores.of([TERMS["masked"](*inputs)], inputs[-1])
    close(scores.queries(slice(2, 5)).compute()[0], scores.compute()[0][2:5])


def test_second_derivatives_of_relative_scores() -> None:
    x, c, scales, _, bias = leaves(torch.float64)

    def total(c: Tensor, scales: Tensor) -> Tensor:
        relative, _ = RelativeScores.of([ComponentDistance(x, c, scales)], bias).compute()
        return torch.logsumexp(relative, -1).sum()

    assert torch.autograd.gradgradcheck(total, (c, scales))


def test_products_that_would_lose_digits_are_left_out() -> None:
    x, c = normal(3, 1, seed=1), normal(4, 1, seed=2)
    sharp = RelativeScores.of([ComponentDistance(x, c, torch.full((4, 1), 1e6))], torch.zeros(4))
    assert sharp.factor is None


@pytest.mark.parametrize("masked", [False, True])
def test_matrices_of_a_batch(masked: bool) -> None:
    """One product for each, and the scores of each by itself; weights differ, or are shared."""
    n, m = 70, 60  # above 2¹² numbers, matrices of a batch are computed one by one
    x, c, scales = normal(3, n, 2, seed=1), normal(3, m, 2, seed=2), normal(3, m, 1, seed=3).exp()
    bias, keep = normal(3, 1, m, seed=4), (torch.arange(n) % 3 > 0)[:, None].expand(3, n, 1)

    def term(*part: Any) -> Term:
        result = ComponentDistance(x[part], c[part], scales[part])
        return Masked(result, bias[part].mT, keep[part]) if masked else result

    for weights in (bias, bias[0, 0]):
        scores = RelativeScores.of([term()], weights)
        assert scores.factor is not None
        matrices, tops = scores.matrices()
        close(torch.stack(list(matrices)), scores.compute()[0])
        for i, matrix in enumerate(matrices):
            row_weights = weights if weights.ndim == 1 else weights[i, 0]
            wanted, top = RelativeScores.of([term(i)], row_weights).compute()
            close(matrix, wanted)
            close(tops[i], top)
