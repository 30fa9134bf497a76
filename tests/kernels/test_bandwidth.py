"""Bandwidths: positive, bounded below, assignable, trainable when asked."""

import math

import pytest
import torch

import kdmkit as kdm
from helpers import close, real
from kdmkit.kernels import LearnedBandwidth, LocationScale
from kdmkit.kernels.bandwidth import bandwidth_from_config

KERNELS = {
    "rbf": (kdm.RBF, "sigma"),
    "epanechnikov": (kdm.Epanechnikov, "h"),
    "tricube": (kdm.Tricube, "h"),
}
every_kernel = pytest.mark.parametrize(("make", "name"), KERNELS.values(), ids=list(KERNELS))


@every_kernel
def test_value_is_what_was_given(make: type[LocationScale], name: str) -> None:
    for value in (0.3, 2, [0.3, 0.8], torch.tensor([0.3, 0.8]), torch.tensor(1e-6), 1e6):
        kernel = make(value)  # type: ignore[call-arg]
        got = getattr(kernel, name)
        close(got, torch.as_tensor(value, dtype=got.dtype), rtol=1e-6)
    assert getattr(make(0.3), name).item() == pytest.approx(0.3, rel=1e-14)  # type: ignore[call-arg]


@every_kernel
def test_assignment_inverts(make: type[LocationScale], name: str) -> None:
    kernel = make([0.3, 0.8])  # type: ignore[call-arg]
    for value in (0.5, [0.2, 1.4], torch.tensor([3.0, 4.0])):
        setattr(kernel, name, value)
        close(getattr(kernel, name), torch.as_tensor(value).double().expand(2), rtol=1e-6)
    setattr(kernel, name, 0.25)
    assert getattr(kernel, name).tolist() == pytest.approx([0.25, 0.25], rel=1e-14)


@every_kernel
def test_lower_bound_holds_whatever_training_does(make: type[LocationScale], name: str) -> None:
    kernel = make(0.5, trainable=True, **{f"{name}_min": 0.1})  # type: ignore[call-arg]
    with torch.no_grad():
        kernel.bandwidth.raw.fill_(-1e9)
    assert getattr(kernel, name) == 0.1
    x, c = torch.full((1, 1), 0.05), torch.zeros(1, 1)
    total = kernel.log_overlap(x, c) + kernel.log_norm(c)
    total.sum().backward()
    assert torch.isfinite(total)
    assert torch.isfinite(kernel.bandwidth.raw.grad).all()  # type: ignore[arg-type]


@every_kernel
def test_default_bound_is_tiny_and_positive(make: type[LocationScale], name: str) -> None:
    kernel = make([0.5, 3.0])  # type: ignore[call-arg]
    assert 0 < kernel.bandwidth.minimum <= 1e-5 * 0.5


@every_kernel
def test_gradients_reach_a_trainable_bandwidth(make: type[LocationScale], name: str) -> None:
    x, c = torch.full((1, 1), 0.1), torch.zeros(1, 1)
    for trainable in (False, True):
        kernel = make(0.5, trainable=trainable)  # type: ignore[call-arg]
        density = kernel.term(x, c).matrix().sum() + kernel.log_norm(c)
        assert density.requires_grad == trainable
    density.backward()
    assert kernel.bandwidth.raw.grad != 0


def test_scale_free_steps() -> None:
    """The same step of raw moves σ by the same factor, whatever its size."""
    small, large = LearnedBandwidth("sigma", 1e-3), LearnedBandwidth("sigma", 1e3)
    for bandwidth in (small, large):
        before = bandwidth.value.item()
        with torch.no_grad():
            bandwidth.raw.add_(0.1)
        assert bandwidth.value.item() / before == pytest.approx(math.exp(0.1), rel=1e-5)


def test_a_new_bound_keeps_values_above_it() -> None:
    bandwidth = LearnedBandwidth("sigma", [0.05, 0.5])
    bandwidth.bound(0.1)
    low, high = bandwidth.value.tolist()
    assert 0.1 < low < 0.1001
    assert high == pytest.approx(0.5, rel=1e-9)
    bandwidth.bound(0.0)
    assert bandwidth.value.tolist() == pytest.approx([low, high], rel=1e-9)


@pytest.mark.parametrize("minimum", [-1.0, math.nan, math.inf])
def test_bad_bounds(minimum: float) -> None:
    with pytest.raises(ValueError, match="sigma_min: expected a finite number ≥ 0, got"):
        LearnedBandwidth("sigma", 1.0).bound(minimum)


@pytest.mark.parametrize("std", [0.5, [0.5, 2.0], torch.tensor([0.5, 2.0]), 2])
def test_from_std(std: object) -> None:
    kernel = kdm.RBF.from_std(std)
    wanted = torch.as_tensor(std).double()
    close(kernel.std, wanted, rtol=1e-6)
    close(kernel.sigma, wanted * math.sqrt(2), rtol=1e-6)


def test_from_std_has_the_digits_of_python() -> None:
    assert kdm.RBF.from_std(0.1).std.item() == pytest.approx(0.1, rel=1e-14)


def test_a_metric_trains_below_its_diagonal_only() -> None:
    kernel = kdm.RBF.from_metric(real([[1.0, 0.0], [0.5, 2.0]]), trainable=True)
    (
        kernel.log_overlap(real([[1.0, 2.0]]), real([[0.0, 0.0]])).sum() + kernel.log_norm(real([[0.0, 0.0]]))
    ).backward()
    gradient = kernel.shear.grad  # type: ignore[union-attr]
    assert gradient is not None
    assert gradient[1, 0] != 0
    assert not gradient.triu().any()


@pytest.mark.usefixtures("unchecked")
class TestErrors:
    @every_kernel
    @pytest.mark.parametrize(
        ("value", "got"),
        [
            (0.0, "> 0, got 0.0"),
            (-1.0, "> 0, got -1.0"),
            ([0.5, -2.0], "> 0, got -2.0"),
            ([], "> 0, got no values"),
        ],
    )
    def test_not_positive(self, make: type[LocationScale], name: str, value: object, got: str) -> None:
        with pytest.raises(ValueError, match=f"^{name}: expected {got}$"):
            make(value)  # type: ignore[call-arg]

    @every_kernel
    @pytest.mark.parametrize("value", [math.nan, math.inf, [0.5, math.nan]])
    def test_not_finite(self, make: type[LocationScale], name: str, value: object) -> None:
        with pytest.raises(
            ValueError, match=rf"^{name}: expected finite values, got 1 that are not \((nan|inf)\)$"
        ):
            make(value)  # type: ignore[call-arg]

    @every_kernel
    @pytest.mark.parametrize("value", ["wide", None, [0.5, "wide"], object()])
    def test_not_a_number(self, make: type[LocationScale], name: str, value: object) -> None:
        with pytest.raises(TypeError, match=f"^{name}: expected a number or a tensor, got "):
            make(value)  # type: ignore[call-arg]

    @every_kernel
    def test_too_many_dimensions_to_learn(self, make: type[LocationScale], name: str) -> None:
        with pytest.raises(ValueError, match=rf"^{name}: expected shape .*, got \(2, 3, 4\)$"):
            make(torch.ones(2, 3, 4), trainable=True)  # type: ignore[call-arg]

    @every_kernel
    @pytest.mark.parametrize("bound", [-0.1, 0.5, 1.0, math.nan])
    def test_bound_out_of_range(self, make: type[LocationScale], name: str, bound: float) -> None:
        with pytest.raises(ValueError, match=rf"^{name}_min: expected 0 ≤ {name}_min < {name} \(0.5\), got "):
            make(0.5, **{f"{name}_min": bound})

    @every_kernel
    def test_assignments(self, make: type[LocationScale], name: str) -> None:
        kernel = make([0.5, 0.8], **{f"{name}_min": 0.1})  # type: ignore[call-arg]
        for value, message in [
            (-1.0, "> 0, got -1.0"),
            (math.nan, "finite values, got 1 that are not"),
            (0.1, rf"> {name}_min \(0.1\), got 0.1"),
            ([0.5, 0.6, 0.7], r"shape \(2,\), got \(3,\)"),
            (torch.ones(2, 2), r"shape \(2,\), got \(2, 2\)"),
        ]:
            with pytest.raises(ValueError, match=f"^{name}: expected {message}"):
                setattr(kernel, name, value)
        with pytest.raises(TypeError, match=f"^{name}: expected a number or a tensor, got 'wide'"):
            setattr(kernel, name, "wide")
        assert getattr(kernel, name).tolist() == pytest.approx([0.5, 0.8])

    @every_kernel
    def test_another_number_of_dimensions(self, make: type[LocationScale], name: str) -> None:
        kernel, x = make([0.5, 0.8]), torch.zeros(1, 3)  # type: ignore[call-arg]
        wanted = rf"^{name}: expected a scalar, \(3,\), .* for events of shape \(3,\), got shape \(2,\)$"
        with pytest.raises(ValueError, match=wanted):
            kernel.log_norm(x)
        with pytest.raises(ValueError, match=wanted):
            kernel.term(x, x)

    def test_std_is_called_by_its_name(self) -> None:
        with pytest.raises(ValueError, match=r"^std: expected > 0, got -1.0$"):
            kdm.RBF.from_std(-1.0)

    @pytest.mark.parametrize(
        "factor",
        [[[1.0, 0.5], [0.0, 1.0]], [[1.0, 0.0], [0.5, -1.0]], [[1.0, 0.0]], [[[1.0]]], [[0.0]]],
    )
    def test_factors_that_are_not_triangular(self, factor: object) -> None:
        with pytest.raises(ValueError, match=r"^factor: expected a lower triangular \(d, d\) matrix"):
            kdm.RBF.from_metric(real(factor))

    @pytest.mark.parametrize(
        ("shear", "message"),
        [
            ([[0.0, 0.0], [math.nan, 0.0]], "finite values, got 1 that are not"),
            ([[0.0, 0.3], [0.2, 0.0]], "zeros on and above the diagonal, got"),
            ([[0.1, 0.0], [0.2, 0.0]], "zeros on and above the diagonal, got"),
            ([[0.0]], r"a \(d, d\) matrix beside a \(d,\) sigma, here \(2,\), got \(1, 1\)"),
            ([0.0, 0.0], r"a \(d, d\) matrix beside a \(d,\) sigma, here \(2,\), got \(2,\)"),
        ],
    )
    def test_shear(self, shear: object, message: str) -> None:
        with pytest.raises(ValueError, match=f"^shear: expected {message}"):
            kdm.RBF([0.5, 0.8], shear=shear)


def test_a_description_of_a_copy_is_the_same() -> None:
    values = torch.logspace(-9, 9, 4000, dtype=torch.float64).view(-1, 1)
    config = LearnedBandwidth("sigma", values, 3e-10).config()
    for _ in range(3):
        again = bandwidth_from_config("sigma", config).config()
        assert again == config
        config = again
    torch.testing.assert_close(torch.tensor(config["sigma"], dtype=torch.float64), values, rtol=1e-11, atol=0)


def test_a_bandwidth_at_its_bound_can_be_described() -> None:
    bandwidth = LearnedBandwidth("sigma", 0.1 + 1e-14, 0.1)
    assert bandwidth_from_config("sigma", bandwidth.config()).value > 0.1
