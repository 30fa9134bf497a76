"""Explicit gradients of Woodbury's identity agree with those of its operations."""

import pytest
import torch

from helpers import normal
from kdmkit.kernels.calculus.woodbury import Woodbury, whiten


@pytest.mark.parametrize("r", [1, 2, 5])
@pytest.mark.parametrize("shared", [False, True], ids=["a scale for each", "shared scales"])
def test_gradients(r: int, shared: bool) -> None:
    scales = normal(4, seed=0).exp().requires_grad_()
    if not shared:
        scales = normal(3, 4, seed=1).exp().requires_grad_()
    factors = normal(r, 3, 4, seed=2).requires_grad_()
    computed, slow = whiten(scales, factors), Woodbury.of(scales, factors)
    wanted = torch.cat(slow.directions, -1), slow.log_root
    torch.testing.assert_close(computed, wanted)
    upstream = normal(3, 4 * r, seed=3), normal(3, seed=4)
    mine, reference = (
        torch.autograd.grad(parts, (scales, factors), upstream) for parts in (computed, wanted)
    )
    torch.testing.assert_close(mine, reference, rtol=1e-9, atol=1e-12)


def test_second_derivatives_and_transforms() -> None:
    scales, factors = normal(3, 4, seed=0).exp().requires_grad_(), normal(2, 3, 4, seed=1).requires_grad_()
    assert torch.autograd.gradgradcheck(whiten, (scales, factors))
    jacobian = torch.func.jacrev(lambda f: whiten(scales.detach(), f)[1])(factors.detach())
    assert jacobian.shape == (3, 2, 3, 4)
