"""Log-domain arithmetic in which −∞ is an ordinary value."""

import math

import pytest
import torch

from helpers import close, normal, real
from kdmkit._core.logspace import finite_max, log_normalize, safe_log, safe_logsumexp

INF = math.inf


def test_safe_log_is_the_logarithm() -> None:
    x = normal(5, seed=0).exp().requires_grad_()
    close(safe_log(x), x.log())
    assert torch.autograd.gradcheck(safe_log, (x,))


def test_safe_log_of_zero_has_no_gradient() -> None:
    x = real([0.0, 1.0]).requires_grad_()
    safe_log(x).sum().backward()
    assert safe_log(x).tolist() == [-INF, 0.0]
    assert x.grad.tolist() == [0.0, 1.0]  # type: ignore[union-attr]


def test_safe_logsumexp_is_torchs_where_torch_is_right() -> None:
    x = normal(3, 4, seed=0)
    x[0, 1] = -INF
    close(safe_logsumexp(x), torch.logsumexp(x, -1))
    assert torch.autograd.gradcheck(safe_logsumexp, (normal(3, 4, seed=1).requires_grad_(),))


@pytest.mark.parametrize("function", [safe_logsumexp, log_normalize, torch.logsumexp])
def test_a_row_of_minus_infinity(function: object) -> None:
    x = torch.tensor([[-INF, -INF], [0.0, -INF]], requires_grad=True)
    if function is torch.logsumexp:  # what the functions are for
        torch.logsumexp(x, -1).sum().backward()
        assert torch.isnan(x.grad).any()  # type: ignore[arg-type]
        return
    result = function(x)  # type: ignore[operator]
    torch.where(torch.isneginf(result), 0.0, result).sum().backward()
    assert torch.isneginf(result[0]).all()
    assert not torch.isnan(result).any()
    assert not x.grad[0].any()  # type: ignore[index]
    assert torch.isfinite(x.grad).all()  # type: ignore[arg-type]


@pytest.mark.parametrize("shift", [-1e5, 0.0, 1e5])
def test_no_overflow_and_no_underflow(shift: float) -> None:
    x = real([[0.0, math.log(3.0)]]) + shift
    close(safe_logsumexp(x), real([math.log(4.0)]) + shift)
    close(log_normalize(x).exp(), real([[0.25, 0.75]]), rtol=1e-8)


def test_log_normalize_has_the_gradient_of_log_softmax() -> None:
    x = normal(2, 3, seed=0).requires_grad_()
    close(log_normalize(x), torch.log_softmax(x, -1))
    assert torch.autograd.gradcheck(log_normalize, (x,))


def test_finite_max() -> None:
    x = torch.tensor([[-INF, -INF], [-INF, -3.0]], requires_grad=True)
    top = finite_max(x)
    assert top.tolist() == [[0.0], [-3.0]]
    assert not top.requires_grad
