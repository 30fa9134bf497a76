"""A bandwidth of its own for every component of every element of a batch: as many KDMs, one by one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kdmkit as kdm
from helpers import CONTINUOUS, close, normal, real, seeded, simplex
from kdmkit.kernels import FixedBandwidth

M = 5
NAMES = {"rbf": "sigma", "epanechnikov": "h", "tricube": "h"}
every_family = pytest.mark.parametrize("family", CONTINUOUS)
every_width = pytest.mark.parametrize("last", [1, 2])


def kernel_of(family: str, width: Tensor) -> kdm.Kernel:
    kernel: kdm.Kernel = CONTINUOUS[family](FixedBandwidth(NAMES[family], width))
    return kernel


def widths(*batch: int, last: int = 1, seed: int = 3) -> Tensor:
    """Wide enough for compact kernels to overlap."""
    return 1.5 + 4 * simplex(*batch, M, last, seed=seed) + normal(*batch, M, last, seed=seed + 1).square()


def compare(
    function: Callable[[kdm.KDM, Tensor], Tensor], rho: kdm.KDM, ones: list[kdm.KDM], x: Tensor
) -> None:
    """`function` of the batch, and of its elements with the values `(n, batch, *event)` that meet them."""
    close(function(rho, x), torch.stack([function(one, x[:, i]) for i, one in enumerate(ones)], 1), rtol=1e-8)


@every_family
def test_the_constructor_takes_a_tensor(family: str) -> None:
    width = widths(3, last=2).requires_grad_()
    make: Any = CONTINUOUS[family]
    rho, x = kdm.KDM(normal(M, 2, seed=0), None, make(width)), 0.5 * normal(3, 2, seed=2)
    assert rho.batch_shape == (3,)
    close(rho.log_prob(x), kdm.KDM(normal(M, 2, seed=0), None, kernel_of(family, width)).log_prob(x))
    rho.log_prob(x).sum().backward()
    assert width.grad is not None
    assert bool((width.grad != 0).any())


@every_family
@every_width
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("weighted", ["one for all", "each its own"])
def test_densities_and_moments(family: str, last: int, shared: bool, weighted: str) -> None:
    width = widths(3, last=last)
    c = normal(M, 2, seed=0) if shared else normal(3, M, 2, seed=0)
    w = simplex(M, seed=1) if weighted == "one for all" else simplex(3, M, seed=1)
    rho = kdm.KDM(c, w, kernel_of(family, width))
    assert rho.batch_shape == (3,)
    ones = [kdm.KDM(c if shared else c[i], w.expand(3, M)[i], kernel_of(family, width[i])) for i in range(3)]
    x = 0.5 * normal(7, 3, 2, seed=2)
    compare(lambda r, x: r.log_prob(x), rho, ones, x)
    compare(lambda r, x: r.log_projection(x), rho, ones, x)
    compare(lambda r, x: r.coordinates(1).cdf(x[..., 1:]), rho, ones, x)
    compare(lambda r, x: r.coordinates(0).icdf(x[..., 0].sigmoid()), rho, ones, x)
    close(rho.mean, torch.stack([one.mean for one in ones]))
    close(rho.variance, torch.stack([one.variance for one in ones]))
    # One value for all elements of the batch.
    close(rho.log_prob(x[0, 0]), torch.stack([one.log_prob(x[0, 0]) for one in ones]))


@every_family
@pytest.mark.parametrize("method", ["implicit", "gumbel"])
def test_draws(family: str, method: Any) -> None:
    rho = kdm.KDM(normal(M, 2, seed=0), simplex(3, M, seed=1), kernel_of(family, widths(3)))
    close(rho.sample((50_000,), generator=seeded(0)).var(0), rho.variance, rtol=0.05)
    close(rho.rsample((50_000,), method=method, generator=seeded(1)).var(0), rho.variance, rtol=0.05)


@every_family
def test_any_batch_shape(family: str) -> None:
    width = widths(2, 3, last=2)
    x = 0.5 * normal(4, 2, 3, 2, seed=2)
    c = normal(M, 2, seed=0)
    whole = kdm.KDM(c, simplex(3, M, seed=1), kernel_of(family, width))
    assert whole.batch_shape == (2, 3)
    for i in range(2):
        part = kdm.KDM(c, simplex(3, M, seed=1), kernel_of(family, width[i]))
        close(whole.log_prob(x)[:, i], part.log_prob(x[:, i]))
    row = kdm.KDM(c, simplex(3, M, seed=1), kernel_of(family, width[:, :1]))
    close(row.log_prob(x)[:, :, 0], whole.log_prob(x[:, :, :1])[:, :, 0])


@every_family
@pytest.mark.parametrize("observed", [None, [True, False, True]])
def test_inference(family: str, observed: list[bool] | None) -> None:
    """Bandwidths of evidence and of targets, with and without missing evidence."""
    of_x, of_y = widths(3, last=2), widths(3, seed=7)
    components = {"x": normal(M, 2, seed=0), "y": normal(M, 1, seed=1)}
    w, x, y = simplex(M, seed=2), 0.5 * normal(3, 2, seed=4), 0.5 * normal(4, 3, 1, seed=5)
    mask = {} if observed is None else {"x": torch.tensor(observed)}
    joint = kdm.JointKDM(components, w, {"x": kernel_of(family, of_x), "y": kernel_of(family, of_y)})
    assert joint.batch_shape == (3,)
    rho: kdm.KDM = joint.infer(x=x, observed=mask, target="y")
    singles = [
        kdm.JointKDM(components, w, {"x": kernel_of(family, of_x[i]), "y": kernel_of(family, of_y[i])})
        for i in range(3)
    ]
    ones = [
        single.infer(x=x[i], observed={k: v[i] for k, v in mask.items()}, target="y")
        for i, single in enumerate(singles)
    ]
    compare(lambda r, y: r.log_prob(y), rho, ones, y)
    close(rho.mean, torch.stack([one.mean for one in ones]))
    close(rho.log_weights, torch.stack([one.log_weights for one in ones]), rtol=1e-8)
    close(rho.log_evidence, torch.stack([one.log_evidence for one in ones]))
    wanted = torch.stack([single.log_prob(x=x[i], y=y[:, i]) for i, single in enumerate(singles)], 1)
    close(joint.log_prob(x=x, y=y), wanted)


def test_gradients_reach_the_bandwidths() -> None:
    width = widths(3).requires_grad_()
    x = 0.5 * normal(3, 2, seed=2)

    def log_prob(width: Tensor) -> Tensor:
        return kdm.KDM(normal(M, 2, seed=0), None, kernel_of("rbf", width)).log_prob(x)

    assert torch.autograd.gradcheck(log_prob, [width])


def test_crps() -> None:
    width, c, w = widths(3), normal(M, 1, seed=0), simplex(3, M, seed=1)
    y = normal(3, 1, seed=2)
    ones = [kdm.KDM(c, w[i], kdm.RBF(width[i])) for i in range(3)]
    wanted = torch.stack([kdm.metrics.crps(one, y[i]) for i, one in enumerate(ones)])
    close(kdm.metrics.crps(kdm.KDM(c, w, kernel_of("rbf", width)), y), wanted)


@pytest.mark.usefixtures("unchecked")
def test_bandwidths_that_do_not_fit() -> None:
    c = normal(M, 2, seed=0)
    with pytest.raises(ValueError, match=f"^kernel: expected a bandwidth for each of {M} components, got 4"):
        kdm.KDM(c, None, kernel_of("rbf", torch.ones(3, 4, 1)))
    with pytest.raises(ValueError, match=r"weights, kernel: expected leading dimensions that broadcast"):
        kdm.KDM(c, simplex(2, M, seed=0), kernel_of("rbf", torch.ones(3, M, 1)))
    with pytest.raises(ValueError, match=r"^sigma: expected a scalar, \(2,\), .*, got shape \(3, 5, 4\)"):
        kdm.KDM(c, None, kernel_of("rbf", torch.ones(3, M, 4)))
    rho = kdm.KDM(c, None, kernel_of("rbf", torch.ones(3, M, 1)))
    with pytest.raises(ValueError, match="expected one bandwidth for all components, got one per component"):
        rho.purity()
    close(rho.variance.float()[:, 0] * 0 + 1, real([1.0, 1.0, 1.0]))
