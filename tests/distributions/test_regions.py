"""Intervals and sets as evidence of joint KDMs, and the log-density of the observed part of rows."""

import copy
import math
import pickle

import pytest
import torch
from torch import Tensor

import kdmkit as kdm
from helpers import close, grid, normal, real

M = 4


def joint() -> kdm.JointKDM:
    components = {
        "x": normal(M, 2, seed=0),
        "y": normal(M, 1, seed=1),
        "z": torch.tensor([0, 1, 2, 1]),
    }
    kernels = {
        "x": kdm.RBF(0.8),
        "y": kdm.Epanechnikov([[1.0], [2.0], [1.5], [0.7]]),
        "z": kdm.Categorical(3, 0.2),
    }
    return kdm.JointKDM(components, real([0.1, 0.2, 0.3, 0.4]), kernels)


def masses_of_x(rho: kdm.JointKDM, low: Tensor, high: Tensor) -> Tensor:
    """Masses of the components' boxes by the error function."""
    std = rho.kernels["x"].std  # type: ignore[union-attr]
    c = rho.components["x"]
    sides = [0.5 * torch.erf((end - c) / (std * math.sqrt(2))) for end in (low, high)]
    return (sides[1] - sides[0]).prod(-1)


def test_an_interval_weighs_components_by_their_masses() -> None:
    rho = joint()
    low, high = real([-1.0, 0.0]), real([0.5, 2.0])
    result = rho.infer(x=kdm.Interval(low, high), target="y")
    mass = rho.weights * masses_of_x(rho, low, high)
    close(result.weights, mass / mass.sum(), rtol=1e-9)
    close(result.log_evidence, mass.sum().log(), rtol=1e-9)


def test_a_set_weighs_components_by_the_sum_of_its_codes() -> None:
    rho = joint()
    result = rho.infer(z=kdm.OneOf([0, 2, 2]), target="x")
    mass = rho.weights * rho.kernels["z"].probs(rho.components["z"])[:, [0, 2]].sum(-1)
    close(result.weights, mass / mass.sum(), rtol=1e-6)
    close(result.log_evidence, mass.sum().log(), rtol=1e-6)


def test_regions_points_and_kdms_together() -> None:
    """Evidence multiplies: each variable's masses or densities, for every point of an input KDM."""
    rho = joint()
    y = kdm.KDM(normal(3, 1, seed=5), real([0.2, 0.3, 0.5]), kdm.Epanechnikov(1.0))
    result = rho.infer(x=kdm.Interval(real([-1.0, -9.0]), None), y=y, target="z")
    box = masses_of_x(rho, real([-1.0, -9.0]), real([99.0, 99.0]))
    wanted, evidence = torch.zeros(M, dtype=torch.float64), real(0.0)
    for point, weight in zip(y.components, y.weights, strict=True):
        kernel, c = rho.kernels["y"], rho.components["y"]
        score = rho.weights * box * (kernel.log_overlap(point, c) + kernel.log_norm(c)).exp()
        wanted += weight * score / score.sum()
        evidence += weight * score.sum()
    close(result.weights, wanted, rtol=1e-6)
    close(result.log_evidence, evidence.log(), rtol=1e-6)


def test_batches_of_regions_broadcast_with_points_and_masks() -> None:
    rho = joint()
    low = normal(5, 1, 2, seed=3)
    z, keep = torch.tensor([0, 1, 2]), torch.tensor([True, False, True])
    result = rho.infer(x=kdm.Interval(low, low + 1), z=z, observed={"z": keep}, target="y")
    assert result.batch_shape == (5, 3)
    for i in range(5):
        for j in range(3):
            box = kdm.Interval(low[i, 0], low[i, 0] + 1)
            one = rho.infer(x=box, z=z[j], target="y") if keep[j] else rho.infer(x=box, target="y")
            close(result.weights[i, j], one.weights, rtol=1e-6)
            close(result.log_evidence[i, j], one.log_evidence, rtol=1e-6)


def test_masked_regions_are_left_out() -> None:
    rho = joint()
    keep = torch.tensor([True, False])
    result = rho.infer(x=kdm.Interval(0.0, 1.0), observed={"x": keep}, target="y")
    close(result.weights[0], rho.infer(x=kdm.Interval(0.0, 1.0), target="y").weights)
    close(result.weights[1], rho.weights)


def test_the_density_of_the_observed_part_of_a_row() -> None:
    rho = joint()
    x, y, z = normal(4, 2, seed=6), 0.3 * normal(4, 1, seed=7), torch.tensor([0, 1, 2, 0])
    x[1] = math.nan
    observed = {
        "x": torch.tensor([True, False, True, False]),
        "y": torch.tensor([True, True, False, False]),
        "z": torch.tensor([True, True, True, True]),
    }
    got = rho.log_prob(x=x, y=y, z=z, observed=observed)
    close(got[0], rho.log_prob(x=x[0], y=y[0], z=z[0]), rtol=1e-6)
    close(got[1], rho.marginal("y", "z").log_prob(y=y[1], z=z[1]), rtol=1e-6)  # type: ignore[call-arg]
    close(got[2], rho.marginal("x", "z").log_prob(x=x[2], z=z[2]), rtol=1e-6)  # type: ignore[call-arg]
    close(got[3], rho.marginal("z").log_prob(z[3]), rtol=1e-6)


def test_a_region_among_the_values_of_a_log_prob() -> None:
    """p(x, y ∈ [a, b]) by quadrature over y."""
    rho = joint().marginal("x", "y")
    assert isinstance(rho, kdm.JointKDM)
    x = normal(3, 2, seed=8)
    got = rho.log_prob(x=x, y=kdm.Interval(-0.5, 0.75))
    points, width = grid(-0.5, 0.75, 20001)
    density = rho.log_prob(x=x.unsqueeze(1), y=points).exp()
    # The trapezoidal rule is off by at most h²/8 times the total variation of the derivative.
    error = width / 8 * density.diff(n=2).abs().sum(1)
    assert ((got.exp() - torch.trapezoid(density, dx=width)).abs() <= error).all()
    assert (error < 1e-6 * got.exp()).all()
    with pytest.raises(TypeError, match=r"^y: expected points \(a projection has no regions\), got Interval"):
        rho.log_projection(x=x, y=kdm.Interval(0.0, 1.0))


def test_an_impossible_region_leaves_the_prior() -> None:
    rho = joint()
    result = rho.infer(y=kdm.Interval(50.0, 60.0), target="x")
    assert result.log_evidence == -math.inf
    close(result.weights, rho.weights)
    close(result.mean, rho.marginal("x").mean)
    close(result.log_prob(real([0.0, 0.0])), rho.marginal("x").log_prob(real([0.0, 0.0])))


def test_gradients_reach_the_ends_and_the_components() -> None:
    rho = joint()
    low = real([-1.0, 0.0]).requires_grad_()
    c = rho.components["x"].clone().requires_grad_()

    def evidence(low: Tensor, c: Tensor) -> Tensor:
        moved = kdm.JointKDM({**rho.components, "x": c}, rho.weights, rho.kernels)
        return moved.infer(x=kdm.Interval(low, 2.0), target="y").log_evidence

    assert torch.autograd.gradcheck(evidence, (low, c))


def test_copies_and_moves_keep_regions() -> None:
    result = joint().infer(x=kdm.Interval(0.0, 1.0), z=kdm.OneOf([1, 2]))
    for other in (copy.deepcopy(result), pickle.loads(pickle.dumps(result)), result.to(torch.float64)):
        close(other.weights, result.weights, rtol=1e-6)
        close(other.log_evidence, result.log_evidence, rtol=1e-6)
    close(result.expand((3,)).weights[2], result.weights)  # type: ignore[union-attr]


@pytest.mark.usefixtures("unchecked")
class TestErrors:
    @pytest.mark.parametrize(
        ("ends", "message"),
        [
            ((1.0, 0.0), r"^low, high: expected low ≤ high, got 1.0 > 0.0$"),
            ((math.nan, 0.0), r"^low: expected a number, ±∞ or None, got NaN$"),
            (
                (torch.zeros(2), torch.ones(3)),
                r"^low, high: expected shapes that broadcast, got \(2,\) and \(3,\)",
            ),
        ],
    )
    def test_intervals(self, ends: tuple[object, object], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            kdm.Interval(*ends)

    def test_sets(self) -> None:
        for values in ([], torch.zeros(3, 0), 5):
            with pytest.raises(
                ValueError, match=r"^values: expected one or more outcomes in a sequence, got"
            ):
                kdm.OneOf(values)

    def test_regions_that_a_variable_does_not_have(self) -> None:
        rho = joint()
        for evidence in ({"x": kdm.OneOf([1.0])}, {"z": kdm.Interval("a", None)}):
            with pytest.raises(TypeError, match=r"^[xz]: expected .*, got (OneOf|Interval)"):
                rho.infer(**evidence)
        with pytest.raises(ValueError, match=r"^z: expected labels in 0 … 2, got 7"):
            rho.infer(z=kdm.OneOf([1, 7]))
        with pytest.raises(ValueError, match=r"^x: expected shape \(..., 2\), got \(3,\)"):
            rho.infer(x=kdm.Interval(torch.zeros(3), None))
        with pytest.raises(
            TypeError,
            match=r"^region: expected a region: kdmkit.Interval, kdmkit.OneOf, kdmkit.Missing, got float",
        ):
            rho.marginal("x").log_mass(0.5)  # type: ignore[arg-type]

    @pytest.mark.parametrize("kernel", [kdm.Levels(3), kdm.Transformed.log(kdm.RBF(0.5))])
    def test_overlaps_of_components_that_are_no_events(self, kernel: kdm.Kernel) -> None:
        rho = kdm.KDM(
            normal(M, *kernel.component_shape(torch.Size([1] * kernel.event_dim)), seed=0), None, kernel
        )
        assert not rho.has_rsample
        for ask in (rho.purity, lambda: rho.overlap(rho)):
            with pytest.raises(TypeError, match=r"^kernel: expected one whose components are events, got"):
                ask()


def test_a_mask_of_a_single_row() -> None:
    rho = joint()
    keep = torch.tensor(False)
    got = rho.infer(x=real([0.0, 0.0]), z=torch.tensor(1), observed={"z": keep}, target="y")
    close(got.weights, rho.infer(x=real([0.0, 0.0]), target="y").weights)
