"""Terms made of other terms."""

import math

import pytest
import torch
from torch import Tensor

from helpers import close, normal, seeded
from kdmkit.ops import LogSum, Lookup, Restricted, Score, SquaredDistance, Sum, Term, log_mix, score_matrix
from kdmkit.ops.terms import InDtype, whole

N, M, CODES = 9, 6, 4
CODE = torch.randint(CODES, (N, 1), generator=seeded(0))
KEEP = torch.arange(N).unsqueeze(-1) % 3 > 0


def product(x: Tensor, c: Tensor, parameters: object) -> Tensor:
    return torch.matmul(x, c.mT)


def combined(x: Tensor, c: Tensor, table: Tensor) -> Term:
    scale = torch.ones(1, 1, dtype=x.dtype)
    rest = Sum((SquaredDistance(x, c, scale), Lookup(CODE, table)))
    atoms = Restricted(Sum((Lookup(CODE, table), Score(product, x, c))), KEEP)
    return Restricted(LogSum((InDtype(rest, x.dtype), atoms)), torch.arange(N).unsqueeze(-1) != 3)


def formula(x: Tensor, c: Tensor, table: Tensor) -> Tensor:
    read = table.mT[CODE.squeeze(-1)]
    rest = -(x.unsqueeze(1) - c).square().sum(-1) + read
    atoms = torch.where(KEEP, read + x @ c.mT, -math.inf)
    scores = torch.logaddexp(rest, atoms)
    return torch.where(torch.arange(N).unsqueeze(-1) == 3, -math.inf, scores)


def tensors() -> list[Tensor]:
    shapes = ((N, 2), (M, 2), (M, CODES))
    return [normal(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores(dtype: torch.dtype) -> None:
    inputs = [tensor.detach().to(dtype) for tensor in tensors()]
    term = combined(*inputs)
    assert term.shape == ((), N, M)
    assert term.dtype == dtype
    for scores in (term.exact(), whole(term.prepared()), score_matrix([term], torch.zeros(M, dtype=dtype))):
        close(scores.to(dtype), formula(*inputs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", ["torch", "chunked", "reference"])
def test_values_and_gradients_of_every_backend(backend: str) -> None:
    inputs, again = tensors(), tensors()
    block = {"block": (4, 4)} if backend == "chunked" else {}
    got = log_mix(combined(*inputs), torch.zeros(M).double(), backend=backend, **block)  # type: ignore[arg-type]
    wanted = formula(*again).logsumexp(-1)
    assert torch.isneginf(got[3])
    close(got, wanted)
    alive = torch.arange(N) != 3
    slopes = torch.autograd.grad(got[alive].sin().sum(), inputs)
    for slope, other in zip(slopes, torch.autograd.grad(wanted[alive].sin().sum(), again), strict=True):
        close(slope, other)


def test_no_gradient_where_every_part_is_minus_infinity() -> None:
    table = normal(M, CODES, seed=0).requires_grad_()
    never = torch.zeros(N, 1, dtype=torch.bool)
    term = LogSum((Restricted(Lookup(CODE, table), never), Restricted(Lookup(CODE, table), never)))
    assert torch.isneginf(term.matrix()).all()
    (slope,) = torch.autograd.grad(term.matrix().exp().sum(), table)
    assert not slope.any()


def test_results_in_the_wanted_precision() -> None:
    """Points in float64, results in float32: the difference of two large numbers keeps its digits."""
    x, c = torch.full((N, 2), 1e6 + 1e-3, dtype=torch.float64), torch.full((M, 2), 1e6)
    term = InDtype(SquaredDistance(x, c.double(), torch.full((1, 1), 1e3).double()), torch.float32)
    got = log_mix(term, torch.zeros(M))
    assert got.dtype == torch.float32
    close(got, torch.full((N,), -2.0 + math.log(M)), rtol=1e-4)
