"""Explicit gradients agree with those of autograd on `dense`, in every branch of the code."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from kdmkit.ops import Lookup, SquaredDistance, Term, dense, dense_explicit, log_mix
from kdmkit.ops.api import log_mix_given
from kdmkit.ops.scaled_points import ScaledPoints
from kdmkit.ops.terms import Reduction

N, M, D, K = 7, 5, 3, 4
Leaves = list[Tensor]


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def leaves(scale_width: int = D) -> Leaves:
    """Query, components, scale, log-weights."""
    tensors = [normal(N, D), normal(M, D, seed=1), 0.5 + normal(1, scale_width, seed=2).abs()]
    return [t.requires_grad_() for t in (*tensors, torch.log_softmax(normal(M, seed=3), 0))]


def labels(spread: float = 1.0) -> tuple[Tensor, Tensor]:
    table = torch.log_softmax(spread * normal(M, K, seed=4), -1).requires_grad_()
    return torch.arange(N).unsqueeze(-1) % K, table


def compare(explicit: Callable[[], tuple], differentiable: Callable[[], tuple], inputs: Leaves) -> None:
    """Values, and gradients under random upstream ones."""
    results = []
    for function in (explicit, differentiable):
        outputs = [output for output in function() if output is not None]
        loss = sum((normal(*o.shape, seed=9 + i) * o).sum() for i, o in enumerate(outputs))
        results.append((outputs, torch.autograd.grad(loss, inputs)))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("width", [1, D])
@pytest.mark.parametrize("values", [None, normal(M, 2, seed=5).requires_grad_()])
def test_one_term(width: int, values: Tensor | None) -> None:
    *tensors, log_weights = inputs = leaves(width)
    terms = [SquaredDistance(*tensors)]
    inputs = inputs if values is None else [*inputs, values]
    reduction = Reduction(terms, log_weights, values)
    compare(lambda: dense_explicit.reduce(reduction), lambda: dense.reduce(reduction), inputs)


def test_other_terms_join_the_bias() -> None:
    *tensors, log_weights = inputs = leaves()
    codes, table = labels()
    terms: list[Term] = [SquaredDistance(*tensors), Lookup(codes, table)]
    reduction = Reduction(terms, log_weights)
    assert dense_explicit.supports(reduction) is None
    compare(lambda: dense_explicit.reduce(reduction), lambda: dense.reduce(reduction), [*inputs, table])


@pytest.mark.parametrize("spread", [1.0, 60.0], ids=["likely labels", "labels rarer than 1e-12"])
def test_labels(spread: float) -> None:
    *tensors, log_weights = inputs = leaves()
    codes, table = labels(spread)
    terms, more = [SquaredDistance(*tensors)], [Lookup(codes, table)]
    _, conditional = dense.reduce_given(terms, more, log_weights)
    assert bool((conditional < math.log(1e-12)).any()) == (spread > 1)
    compare(
        lambda: dense_explicit.reduce_given(terms, more, log_weights),
        lambda: dense.reduce_given(terms, more, log_weights),
        [*inputs, table],
    )


def test_more_labels_than_a_product_is_worth() -> None:
    *tensors, log_weights = inputs = leaves()
    table = torch.log_softmax(normal(M, 100, seed=4), -1).requires_grad_()
    terms, more = [SquaredDistance(*tensors)], [Lookup(14 * torch.arange(N).unsqueeze(-1), table)]
    compare(
        lambda: dense_explicit.reduce_given(terms, more, log_weights),
        lambda: dense.reduce_given(terms, more, log_weights),
        [*inputs, table],
    )


def test_a_distance_of_the_output_too() -> None:
    *tensors, log_weights = inputs = leaves()
    output = [
        t.requires_grad_() for t in (normal(N, 1, seed=6), normal(M, 1, seed=7), torch.ones(1, 1).double())
    ]
    terms, more = [SquaredDistance(*tensors)], [SquaredDistance(*output)]
    compare(
        lambda: dense_explicit.reduce_given(terms, more, log_weights),
        lambda: dense.reduce_given(terms, more, log_weights),
        [*inputs, *output],
    )


def test_components_of_no_weight_and_labels_that_cannot_be() -> None:
    *tensors, log_weights = leaves()
    log_weights = log_weights.detach().clone()
    log_weights[:2] = -math.inf
    log_weights.requires_grad_()
    codes, table = labels()
    table = table.detach().clone()
    table[:, 1] = -math.inf
    table.requires_grad_()
    lse, conditional = dense_explicit.reduce_given(
        [SquaredDistance(*tensors)], [Lookup(codes, table)], log_weights
    )
    assert torch.equal(torch.isneginf(conditional), codes.squeeze(-1) == 1)
    possible = conditional[codes.squeeze(-1) != 1].sum() + lse.sum()
    for gradient in torch.autograd.grad(possible, [*tensors, log_weights, table]):
        assert torch.isfinite(gradient).all()


def test_no_components_of_any_weight() -> None:
    *tensors, _ = leaves()
    nothing = torch.full((M,), -math.inf, dtype=torch.float64)
    averages, lse = dense_explicit.reduce(Reduction([SquaredDistance(*tensors)], nothing, normal(M, 2)))
    assert averages is not None
    assert torch.equal(averages, torch.zeros(N, 2, dtype=torch.float64))
    assert torch.isneginf(lse).all()
    for gradient in torch.autograd.grad(averages.sum() + lse.clamp_min(-1).sum(), tensors):
        assert torch.equal(gradient, torch.zeros_like(gradient))


def test_no_queries() -> None:
    _, components, scale, log_weights = leaves()
    terms = [SquaredDistance(normal(0, D), components, scale)]
    averages, lse = dense_explicit.reduce(Reduction(terms, log_weights, normal(M, 2)))
    assert averages is not None
    assert (averages.shape, lse.shape) == ((0, 2), (0,))
    gradients = torch.autograd.grad(averages.sum() + lse.sum(), [components, scale, log_weights])
    assert all(bool((gradient == 0).all()) for gradient in gradients)


# ---- precision


@pytest.mark.parametrize("spread", [0.3, 300.0], ids=["one product", "float64 where points lie far apart"])
@pytest.mark.parametrize("width", [1, D])
def test_float32_gradients(spread: float, width: int) -> None:
    """Above all of σ, whose parts cancel: at 300 bandwidths float32 products would leave no digit of it."""
    centres = spread * normal(M, D, seed=1, dtype=torch.float32)
    points = centres.repeat(40, 1) + 0.5 * normal(40 * M, D, dtype=torch.float32)
    scale = torch.ones(1, width)
    assert (ScaledPoints.of(points, centres, scale, torch.float32).x.dtype == torch.float64) == (spread > 1)

    def gradients(dtype: torch.dtype) -> list[Tensor]:
        tensors = [t.to(dtype, copy=True).requires_grad_() for t in (points, centres, scale)]
        loss = log_mix(SquaredDistance(*tensors), torch.zeros(M, dtype=dtype), backend="torch").sum()
        return [g.double() for g in torch.autograd.grad(loss, tensors)]

    for got, wanted in zip(gradients(torch.float32), gradients(torch.float64), strict=True):
        assert (got - wanted).norm() <= 1e-4 * wanted.norm()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gets_gradients_of_its_own_kind(dtype: torch.dtype) -> None:
    query, components = normal(N, D, dtype=dtype).requires_grad_(), normal(M, D, seed=1, dtype=dtype)
    lse = log_mix(SquaredDistance(query, components, torch.ones(1, 1)), torch.zeros(M), backend="torch")
    assert lse.dtype == torch.float32
    assert torch.autograd.grad(lse.sum(), query)[0].dtype == dtype


# ---- derivatives of derivatives


def both_of(*tensors: Tensor) -> tuple[Tensor, Tensor]:
    *distance, log_weights, table = tensors
    codes, _ = labels()
    return log_mix_given([SquaredDistance(*distance)], [Lookup(codes, table)], log_weights)


def test_second_derivatives() -> None:
    inputs = [*leaves(), labels()[1]]
    assert torch.autograd.gradgradcheck(both_of, inputs)


def test_forward_mode() -> None:
    inputs = [*leaves(), labels()[1]]
    tangents = [normal(*t.shape, seed=20 + i) for i, t in enumerate(inputs)]
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(t.detach(), v) for t, v in zip(inputs, tangents, strict=True)]
        got = [forward_ad.unpack_dual(output).tangent for output in both_of(*duals)]
    for output, tangent in zip(both_of(*inputs), got, strict=True):
        for i in range(N):
            gradients = torch.autograd.grad(output[i], inputs, retain_graph=True)
            wanted = sum((g * v).sum() for g, v in zip(gradients, tangents, strict=True))
            torch.testing.assert_close(tangent[i], wanted)
