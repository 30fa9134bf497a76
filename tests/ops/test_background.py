"""Averages beside a background, against sums in float64."""

import math

import pytest
import torch
from torch import Tensor

from kdmkit.kernels import RBF
from kdmkit.ops import attend_beside, background

N, M, D = 37, 300, 5


def _problem(dtype: torch.dtype, values: int = 1) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, of which some nearly repeat components, components, log-weights and values."""
    generator = torch.Generator().manual_seed(0)
    x, c = (torch.randn(k, D, generator=generator, dtype=torch.float64) for k in (N, M))
    x[:20] = c[:20] + 0.01 * x[:20]
    log_weights, v = (torch.randn(M, k, generator=generator, dtype=torch.float64) for k in (1, values))
    return x.to(dtype), c.to(dtype), log_weights.squeeze(1).to(dtype), v.to(dtype)


def _expected(sigma: float, x: Tensor, c: Tensor, log_weights: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    x, c, log_weights, v = (tensor.double() for tensor in (x, c, log_weights, v))
    overlaps = (log_weights - (torch.cdist(x, c) / sigma).square()).exp()
    total = 0.1 + overlaps.sum(1, keepdim=True)
    return overlaps @ v / total, overlaps.sum(1, keepdim=True) / total


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("values", [1, 3])
@pytest.mark.parametrize("sigma", [2.0, 0.3, 0.02])
def test_averages_and_coverage(
    monkeypatch: pytest.MonkeyPatch, sigma: float, values: int, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(background, "_QUERIES", 16)
    monkeypatch.setattr(background, "_COMPONENTS", 64)
    x, c, log_weights, v = _problem(dtype, values)
    found = attend_beside(RBF(sigma).term(x, c), log_weights, v, torch.tensor(0.1).log())
    accuracy = 1e-5 if dtype == torch.float32 else 1e-8
    torch.testing.assert_close(
        [part.double() for part in found],
        list(_expected(sigma, x, c, log_weights, v)),
        atol=accuracy,
        rtol=accuracy,
    )
    assert all(part.dtype == dtype for part in found)


def test_blocks_far_below_the_background_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_COMPONENTS", 10)
    computed: list[bool] = []
    exponentials = Tensor.exp2_
    monkeypatch.setattr(Tensor, "exp2_", lambda scores: computed.append(True) or exponentials(scores))
    c = torch.arange(100.0).unsqueeze(1)
    mean, coverage = attend_beside(
        RBF(0.1).term(torch.tensor([[50.0]]), c), torch.zeros(100), c, torch.tensor(0.0)
    )
    assert len(computed) == 1
    torch.testing.assert_close((mean, coverage), (torch.tensor([[25.0]]), torch.tensor([[0.5]])))


def test_nan_stays_nan_and_other_queries_keep_their_answers() -> None:
    x, c, log_weights, v = _problem(torch.float32)
    x[3] = math.nan
    mean, coverage = attend_beside(RBF(0.3).term(x, c), log_weights, v, torch.tensor(0.1).log())
    expected = _expected(0.3, x, c, log_weights, v)[0].float()
    torch.testing.assert_close(mean, expected, equal_nan=True, atol=1e-5, rtol=1e-5)
    assert bool(coverage[3].isnan())


def test_weights_beyond_the_range_of_float32_and_gradients() -> None:
    x, c, log_weights, v = _problem(torch.float64)
    expected = _expected(0.5, x, c, log_weights, v)
    shifted = attend_beside(RBF(0.5).term(x, c), log_weights + 900, v, torch.tensor(0.1).double().log() + 900)
    torch.testing.assert_close(shifted, expected)
    x.requires_grad_()
    mean, _ = attend_beside(RBF(0.5).term(x, c), log_weights, v, torch.tensor(0.1).double().log())
    reference = _expected(0.5, x, c, log_weights, v)[0]
    torch.testing.assert_close(
        torch.autograd.grad(mean.sum(), x)[0], torch.autograd.grad(reference.sum(), x)[0]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_with_and_without_squares_agree(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    x, c, log_weights, v = _problem(dtype)
    term, log_background = RBF(1.5).term(x, c), torch.tensor(0.1).log()
    found = []
    for largest in (64.0, -1.0):
        monkeypatch.setattr(background, "_LARGEST_PRODUCT", largest)
        found.append(attend_beside(term, log_weights, v, log_background))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


def test_sums_without_squares_stay_finite() -> None:
    """At the limit of products, where queries and components are as far from the origin as they may be."""
    c = torch.tensor([[8.0, 0.0], [-8.0, 0.0], [0.0, 12.0], [0.0, 0.0]])
    v, x = torch.tensor([[1e3], [2e3], [3e3], [4e3]]), torch.tensor([[4.0, 0.0], [8 / 3, 0.0]])
    for rows, log_weight in ((x[1:], 0.0), (x[:1], 40.0)):
        log_weights = torch.full((4,), log_weight)
        found = attend_beside(RBF(1.0).term(rows, c), log_weights, v, torch.tensor(0.1).log())
        wanted = list(_expected(1.0, rows, c, log_weights, v))
        torch.testing.assert_close([part.double() for part in found], wanted, rtol=1e-5, atol=1e-5)
