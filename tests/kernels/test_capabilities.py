"""Abilities of kernels: other units, some coordinates, added noise, starting values."""

import copy
import math
import pickle

import pytest
import torch
from torch import Tensor

import kdmkit as kdm
from helpers import KERNELS, M, close, events, grid, normal, real, seeded
from kdmkit.kernels import (
    Continuous,
    FixedBandwidth,
    Kernel,
    LearnedBandwidth,
    kernel_from_config,
    typical_distance,
)
from kdmkit.kernels.bandwidth import BOUND

CONTINUOUS = [name for name, make in KERNELS.items() if isinstance(make(), Continuous)]
OTHERS = [name for name in KERNELS if name not in CONTINUOUS]
every_continuous = pytest.mark.parametrize("name", CONTINUOUS)


def log_density(kernel: Kernel, x: Tensor, c: Tensor) -> Tensor:
    """log f̂_j(x_i), `(n, m)`."""
    return kernel.log_overlap(x.unsqueeze(-2), c) + kernel.log_norm(c)


# ---- scaled


@every_continuous
@pytest.mark.parametrize("factor", [3.0, [0.5, 7.0]])
def test_scaled_is_the_kernel_of_the_variable_times_the_factor(name: str, factor: object) -> None:
    kernel, f = KERNELS[name](), torch.as_tensor(factor, dtype=torch.float64).expand(2)
    x, c = normal(7, 2, seed=0), normal(M, 2, seed=1)
    close(log_density(kernel.scaled(factor), f * x, f * c), log_density(kernel, x, c) - f.log().sum())


def test_scaled_keeps_the_kind_of_bandwidth_and_leaves_the_kernel_alone() -> None:
    kernel = kdm.RBF([0.3, 0.8], sigma_min=0.1, trainable=True)
    scaled = kernel.scaled([10.0, 100.0])
    assert scaled.bandwidth.raw.requires_grad
    assert scaled.bandwidth.minimum.item() == pytest.approx(1.0)
    with torch.no_grad():
        scaled.bandwidth.raw.add_(1.0)
    close(kernel.sigma, real([0.3, 0.8]))
    # Training may have brought the value down to its bound.
    with torch.no_grad():
        kernel.bandwidth.raw.fill_(-1e9)
    close(kernel.scaled(2.0).sigma, real([0.2, 0.2]))
    width = real([0.3, 0.8]).requires_grad_()
    fixed = kdm.RBF(FixedBandwidth("sigma", width)).scaled(2.0)
    (slope,) = torch.autograd.grad(fixed.sigma.sum(), width)
    close(slope, real([2.0, 2.0]))


@pytest.mark.usefixtures("unchecked")
def test_factors_are_positive() -> None:
    for kernel in (kdm.RBF(0.3), kdm.Tricube(FixedBandwidth("h", 0.3))):
        with pytest.raises(ValueError, match=r"^factor: expected > 0, got -1.0$"):
            kernel.scaled(-1.0)


# ---- coordinates


@every_continuous
@pytest.mark.parametrize("i", [0, 1])
def test_coordinates_are_the_marginal_density(name: str, i: int) -> None:
    kernel, c = KERNELS[name](), 0.3 * normal(M, 2, seed=1)
    at = normal(3, seed=2)
    # Over the other coordinate by quadrature.
    points, width = grid(-9, 9, 4001)
    pairs = torch.stack([at.unsqueeze(-1).expand(-1, len(points)), points.squeeze(-1).expand(3, -1)], -1)
    pairs = pairs if i == 0 else pairs.flip(-1)
    wanted = log_density(kernel, pairs, c).exp().sum(1) * width
    got = log_density(kernel.coordinates([i]), at.unsqueeze(-1), c[:, [i]]).exp()
    close(got, wanted, rtol=1e-6, atol=1e-9)


@every_continuous
def test_all_coordinates_in_another_order(name: str) -> None:
    kernel = KERNELS[name]()
    x, c = normal(5, 2, seed=0), normal(M, 2, seed=1)
    close(log_density(kernel.coordinates([1, 0]), x.flip(-1), c.flip(-1)), log_density(kernel, x, c))


@every_continuous
def test_coordinates_carry_gradients_and_share_no_storage(name: str) -> None:
    kernel = KERNELS[name]().requires_grad_()
    part = kernel.coordinates([1])
    for parameter in kernel.parameters():
        (slope,) = torch.autograd.grad(part.log_norm(torch.zeros(M, 1)).sum(), parameter, retain_graph=True)
        assert torch.isfinite(slope).all()
    before = kernel.bandwidth.value.clone()  # type: ignore[operator]
    part.load_state_dict({key: value + 1 for key, value in part.state_dict().items()})
    close(kernel.bandwidth.value, before)  # type: ignore[arg-type]


# ---- convolved


@pytest.mark.parametrize("name", [n for n in CONTINUOUS if n.startswith("rbf") and "metric" not in n])
def test_convolved_adds_independent_noise(name: str) -> None:
    kernel, c = KERNELS[name](), normal(M, 2, seed=1)
    variance = real([0.5, 0.0]).expand(M, 2)
    noisy = kernel.convolved(variance)
    close(noisy.variance(c), kernel.variance(c) + variance)
    x = normal(3, 2, seed=2)
    noise, width = grid(-9, 9, 4001)
    shifted = x.unsqueeze(1) - torch.cat([noise, torch.zeros_like(noise)], -1)
    weights = (-noise.squeeze(-1).square()).exp() / math.sqrt(math.pi)
    wanted = (log_density(kernel, shifted, c).exp() * weights.unsqueeze(-1)).sum(1) * width
    close(log_density(noisy, x, c).exp(), wanted, rtol=1e-6, atol=1e-9)


def test_a_convolved_kernel_is_on_its_own() -> None:
    kernel = kdm.RBF(0.5)
    noisy = kernel.convolved(torch.full((4, 3, 2), 2.0))
    assert noisy.batch_shape == (4,)
    for change in (lambda: noisy.learned_bandwidth.bound(0.4), lambda: setattr(noisy, "sigma", 2.0)):
        with pytest.raises(TypeError, match="kernel: expected one with a learned bandwidth, got RBF"):
            change()
    assert not hasattr(noisy.bandwidth, "bound")
    assert kernel.sigma.item() == pytest.approx(0.5)
    assert kernel.bandwidth.minimum.item() < 1e-5


def test_noise_carries_gradients_to_the_bandwidth_and_to_itself() -> None:
    kernel, variance = kdm.RBF(0.5, trainable=True), torch.tensor([[2.0, 0.0]], requires_grad=True)
    total = kernel.convolved(variance).variance(torch.zeros(1, 2)).sum()
    to_raw, to_noise = torch.autograd.grad(total, [kernel.bandwidth.raw, variance])
    assert to_raw.item() == pytest.approx(2 * 0.5**2, rel=1e-5)
    torch.testing.assert_close(to_noise, torch.ones(1, 2))


# ---- what a kernel cannot do


@pytest.mark.parametrize("name", OTHERS)
def test_other_kernels_say_that_they_cannot(name: str) -> None:
    kernel = KERNELS[name]()
    kind = type(kernel).__name__
    asked = [
        lambda: kernel.scaled(2.0),
        lambda: kernel.convolved(torch.ones(M, 2)),
        lambda: kernel.coordinates([0]),
    ]
    if not kernel.has_moments:
        asked.append(lambda: kernel.mean(torch.ones(M, 2)))
    for ask in asked:
        with pytest.raises(TypeError, match=rf"^kernel: expected .*, got {kind}\("):
            ask()


@pytest.mark.parametrize("name", ["rbf-metric", "epanechnikov", "tricube-ard"])
def test_some_kernels_cannot_be_convolved(name: str) -> None:
    with pytest.raises(TypeError, match=r"^kernel: expected an RBF kernel without a metric, got"):
        KERNELS[name]().convolved(torch.ones(M, 2))


def test_compact_kernels_of_different_widths_have_no_expected_distance() -> None:
    rho = kdm.KDM(torch.zeros(2, 1), None, kdm.Tricube([[1.0], [2.0]]))
    with pytest.raises(TypeError, match=r"^kernel: expected one bandwidth for all components, or RBF, got"):
        kdm.metrics.crps(rho, [0.0])


# ---- fixed bandwidths


def computed() -> tuple[Tensor, kdm.RBF]:
    """A kernel whose bandwidth is the result of a computation."""
    source = normal(4, 3, 2, seed=0).requires_grad_()
    return source, kdm.RBF(FixedBandwidth("sigma", source.exp()))


def test_fixed_bandwidths_copy_move_pickle_and_save() -> None:
    source, kernel = computed()
    copied, moved = copy.deepcopy(kernel), copy.deepcopy(kernel).to(torch.float32)
    for other in (copied, moved):
        (slope,) = torch.autograd.grad(other.sigma.sum(), source, retain_graph=True)
        close(slope, source.detach().exp(), rtol=1e-6)
        assert other.sigma.data_ptr() != kernel.sigma.data_ptr()
    assert moved.sigma.dtype == torch.float32
    assert kernel.sigma.dtype == torch.float64
    close(pickle.loads(pickle.dumps(kernel)).sigma, kernel.sigma)
    again = kernel_from_config(kernel.config())
    assert torch.isnan(again.sigma).all()  # type: ignore[arg-type]
    again.load_state_dict(kernel.state_dict(), assign=True)
    close(again.sigma, kernel.sigma.detach())  # type: ignore[arg-type]
    assert not list(kernel.parameters())
    close(copy.deepcopy(kernel.bandwidth).value, kernel.sigma)


def test_a_fixed_bandwidth_owns_its_numbers() -> None:
    given = torch.ones(2)
    kernel = kdm.Epanechnikov(FixedBandwidth("h", given))
    kernel.load_state_dict({"bandwidth.fixed": torch.full((2,), 5.0)})
    assert given.tolist() == [1.0, 1.0]
    assert kernel.h.tolist() == [5.0, 5.0]


@pytest.mark.usefixtures("unchecked")
def test_fixed_bandwidths_are_checked() -> None:
    with pytest.raises(ValueError, match=r"^sigma: expected > 0, got -1.0$"):
        FixedBandwidth("sigma", -1.0)
    with pytest.raises(TypeError, match=r"^sigma: expected a number or a tensor, got 'wide'$"):
        FixedBandwidth("sigma", "wide")
    bandwidth = FixedBandwidth("sigma", 1.0)
    for options in ({"sigma_min": 0.1}, {"trainable": True}):
        with pytest.raises(ValueError, match=r"^sigma: expected a number or a tensor beside sigma_min or"):
            kdm.RBF(bandwidth, **options)  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        bandwidth.value = torch.ones(())  # type: ignore[misc]


def test_a_layer_keeps_a_fixed_bandwidth() -> None:
    layer = kdm.nn.DensityLayer(2, 5, kernel=kdm.RBF(FixedBandwidth("sigma", [0.3, 0.8])))
    layer.initialize(normal(40, 2, seed=0))
    close(layer.kernels["x"].sigma, real([0.3, 0.8]), rtol=1e-6)
    assert [name for name, _ in layer.named_parameters()] == ["logits", "components.x"]
    assert "kernels.x.bandwidth.fixed" in layer.state_dict()


# ---- starting values


def test_bandwidths_start_from_distances() -> None:
    points = normal(30, 2, seed=0)
    kernel = kdm.RBF(1.0)
    kernel.initialize_bandwidth(points, "nearest")
    assert kernel.sigma.item() == pytest.approx(typical_distance(points, "nearest"))
    assert kernel.learned_bandwidth.minimum.item() == pytest.approx(BOUND * kernel.sigma.item())
    kernel.initialize_bandwidth(points, 0.25)
    assert kernel.sigma.item() == pytest.approx(0.25)
    encoder = torch.nn.Linear(2, 2, bias=False).double()
    with torch.no_grad():
        encoder.weight.copy_(3 * torch.eye(2))
    composed = kdm.Composed(encoder, kdm.Tricube(1.0))
    composed.initialize_bandwidth(points, "mean")
    assert composed.learned_bandwidth.value.item() == pytest.approx(3 * typical_distance(points, "mean"))
    kdm.Cosine().initialize_bandwidth(points, "nearest")  # there is none to set


@pytest.mark.parametrize("name", KERNELS)
def test_initial_components_are_events(name: str) -> None:
    kernel = KERNELS[name]()
    x = events(kernel, M, seed=0)
    start = kernel.initial_components(x, x.shape[1:])
    kernel.check_component_values("x", start, x.shape[1:])
    assert kernel.components_trainable == start.is_floating_point()
    if kernel.components_are_events and name != "cosine":
        assert start is x


def test_restart_sets_value_and_bound_whatever_they_were() -> None:
    bandwidth = LearnedBandwidth("sigma", [5.0, 6.0], 4.0)
    bandwidth.restart(1.0, 0.5)
    close(bandwidth.value, real([1.0, 1.0]))
    assert bandwidth.minimum == 0.5


def test_seeded_draws_of_a_batch_of_bandwidths() -> None:
    """Draws of each element of the batch have its width."""
    width = real([0.1, 1.0, 10.0]).reshape(3, 1, 1).expand(3, 2, 1)
    for make, variance in ((kdm.RBF, 0.5), (kdm.Epanechnikov, 1 / 7)):
        name = "sigma" if make is kdm.RBF else "h"
        rho = kdm.KDM(torch.zeros(2, 1).double(), None, make(FixedBandwidth(name, width)))
        draws = rho.sample((20_000,), generator=seeded(0))
        close(draws.var(0).squeeze(-1), variance * real([0.01, 1.0, 100.0]), rtol=0.05)
