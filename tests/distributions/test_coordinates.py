"""Marginals of some coordinates of an event, and other kernels on the same components."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import kdmkit as kdm
from helpers import close, grid, normal, real, seeded, simplex
from kdmkit.distributions.weights import Inferred

M = 6
CX, CY = normal(M, 2, seed=0), normal(M, 3, seed=1)
KERNELS: dict[str, Callable[[], kdm.Kernel]] = {
    "rbf": lambda: kdm.RBF(0.6),
    "ard": lambda: kdm.RBF([0.3, 0.6, 0.9]),
    "per component": lambda: kdm.RBF(0.3 + simplex(M, 3, seed=2)),
    "metric": lambda: kdm.RBF.from_metric(real([[2.0, 0, 0], [-1.0, 1.2, 0], [0.5, 0.3, 1.5]])),
    "low rank": lambda: kdm.LowRank([0.3, 0.6, 0.9], 0.4 * normal(M, 3, 2, seed=8)),
    "tricube": lambda: kdm.Tricube([1.5, 2.0, 2.5]),
}


def made(name: str, form: str) -> kdm.KDM:
    """A KDM over three coordinates, of batch shape (4,)."""
    joint = kdm.JointKDM({"x": CX, "y": CY}, simplex(M, seed=3), {"x": kdm.RBF(0.8), "y": KERNELS[name]()})
    inferred: kdm.KDM = joint.infer(x=normal(4, 2, seed=4), target="y")
    if form == "given":
        return kdm.KDM(CY, inferred.weights, KERNELS[name]())
    if "shifted" in form:
        inferred = inferred.shifted(normal(4, 3, seed=5))
    if "convolved" in form:
        inferred = inferred.convolved(normal(4, 3, seed=6).square())
    return inferred


FORMS = [
    (name, form)
    for name in KERNELS
    for form in ("given", "inferred", "shifted", "convolved", "shifted and convolved")
    if not ("convolved" in form and name in ("metric", "low rank", "tricube"))
]
every_form = pytest.mark.parametrize(("name", "form"), FORMS)


@every_form
def test_the_marginal_is_the_integral_over_the_others(name: str, form: str) -> None:
    rho = made(name, form)
    part = rho.coordinates([2, 0])
    at = normal(4, 2, seed=7)
    points, width = grid(-15, 15, 3001)
    full = torch.stack(
        [
            at[:, 1].expand(len(points), 4),
            points.expand(len(points), 4),
            at[:, 0].expand(len(points), 4),
        ],
        -1,
    )
    wanted = (rho.log_prob(full).exp().sum(0) * width).log()
    close(part.log_prob(at), wanted, rtol=1e-6)
    close(part.mean, rho.mean[:, [2, 0]])
    close(part.variance, rho.variance[:, [2, 0]])


@every_form
@pytest.mark.parametrize("index", [1, -2, slice(1, 2), [1], range(1, 2), torch.tensor([1]).tolist()])
def test_quantiles_of_one_coordinate(name: str, form: str, index: Any) -> None:
    rho = made(name, form)
    one = rho.coordinates(index)
    assert one.event_shape == (1,)
    assert one.batch_shape == (4,)
    q = real([0.1, 0.5, 0.9]).unsqueeze(-1)
    x = one.icdf(q)
    assert x.shape == (3, 4, 1)
    close(one.cdf(x), q.expand(3, 4), rtol=1e-7)
    draws = rho.sample((20_000,), generator=seeded(0))[..., 1]
    assert (draws < x[2].squeeze(-1)).double().mean(0).sub(0.9).abs().max() < 0.02


@every_form
def test_against_a_kdm_made_of_the_coordinates(name: str, form: str) -> None:
    rho = made(name, form)
    if name in ("metric", "low rank"):
        pytest.skip("its marginal has another metric")
    part = rho.coordinates(slice(0, 2))
    width = rho.kernel.bandwidth.value  # type: ignore[union-attr, operator]
    width = width[..., :2] if width.ndim else width
    fixed = kdm.kernels.FixedBandwidth("h" if name == "tricube" else "sigma", width)
    direct = kdm.KDM(
        rho.components[..., :2],
        None,
        kdm.Tricube(fixed) if name == "tricube" else kdm.RBF(fixed),
        log_weights=rho.log_weights,
    )
    x = normal(5, 4, 2, seed=8)
    close(part.log_prob(x), direct.log_prob(x))


@every_form
def test_inferred_weights_stay_inferred(name: str, form: str) -> None:
    rho = made(name, form)
    for other in (rho.coordinates(0), rho.with_kernel(rho.kernel.scaled(0.5))):
        assert other._weights is rho._weights
        if form != "given":
            assert isinstance(other._weights, Inferred)
            close(other.log_evidence, rho.log_evidence)


def test_gradients_reach_bandwidths_weights_and_components() -> None:
    layer = kdm.nn.JointLayer(2, 3, M, out_kernel=kdm.RBF(torch.ones(M, 3)))
    one = layer(torch.zeros(4, 2)).coordinates(1)
    one.log_prob(torch.ones(4, 1)).sum().backward()
    for parameter in (layer.logits, layer.components["y"], layer.kernels["y"].bandwidth.raw):
        slope = parameter.grad  # type: ignore[union-attr]
        assert slope.any()  # type: ignore[union-attr, operator]
    assert not layer.components["y"].grad[:, [0, 2]].any()  # type: ignore[index]


@pytest.mark.usefixtures("unchecked")
def test_bad_indices() -> None:
    rho = kdm.KDM(CY, None, kdm.RBF(0.5))
    for index in (3, -4, [0, 3], 1.5, "x", [0.5], None):
        with pytest.raises(ValueError, match=r"^index: expected coordinates in 0 … 2, got"):
            rho.coordinates(index)  # type: ignore[arg-type]
    for empty in ([], slice(3, 3), [1, 1], [0, -3]):
        with pytest.raises(ValueError, match=r"^index: expected one or more different coordinates, got"):
            rho.coordinates(empty)
    with pytest.raises(TypeError, match=r"^coordinates: expected a continuous kernel .*, got Cosine$"):
        kdm.KDM.from_probs([0.5, 0.5]).coordinates(0)


# ---- another kernel


def test_with_kernel() -> None:
    rho = kdm.KDM(CY, simplex(M, seed=0), kdm.RBF(0.5))
    x = normal(5, 3, seed=1)
    other = rho.with_kernel(kdm.Epanechnikov(3.0))
    close(other.log_prob(x), kdm.KDM(CY, rho.weights, kdm.Epanechnikov(3.0)).log_prob(x))
    close(
        rho.with_kernel(rho.kernel.scaled(2.0)).log_prob(x),
        kdm.KDM(CY, rho.weights, kdm.RBF(1.0)).log_prob(x),
    )


@pytest.mark.usefixtures("unchecked")
def test_kernels_that_do_not_fit() -> None:
    rho = kdm.KDM(CY, None, kdm.RBF(0.5))
    with pytest.raises(ValueError, match=r"^kernel: expected one on events like those of RBF\(sigma=0.5\)"):
        rho.with_kernel(kdm.Categorical(3))
    with pytest.raises(ValueError, match=r"^kernel: expected a bandwidth for each of 6 components, got 4"):
        rho.with_kernel(kdm.RBF(torch.ones(4, 1)))
    with pytest.raises(TypeError, match=r"^kernel: expected a kernel such as"):
        rho.with_kernel(0.5)  # type: ignore[arg-type]


def test_one_coordinate_of_a_metric_has_a_plain_bandwidth() -> None:
    """Noise can be added to it, and its variance is exact."""
    one = made("metric", "given").coordinates(1)
    assert one.kernel.metric is None
    close(one.convolved(real([0.7])).variance, one.variance + 0.7)
