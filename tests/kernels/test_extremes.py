"""Kernels far from their centres, at the ends of their supports, and with parts that do not fit."""

import math

import mpmath
import pytest
import torch

import kdmkit as kdm
from helpers import close, real


def exponential_limit(x: float, centre: float, high: float = 2.0) -> tuple[float, float, float]:
    """Log-density, distribution function at x, and mean of N(centre, 1) between 0 and `high`."""
    mpmath.mp.dps = 40
    c, edge = mpmath.mpf(centre), mpmath.mpf(0 if centre < 0 else high)

    def density(t: mpmath.mpf) -> mpmath.mpf:
        return mpmath.exp((edge - t) * (t + edge - 2 * c) / 2)

    near = 60 / abs(c - edge)
    cut = min(near, high / 2) if centre < 0 else high - min(near, high / 2)
    total = mpmath.quad(density, [0, cut, high])
    below = mpmath.quad(density, [0, *([cut] if cut < x else []), x]) / total
    mean = mpmath.quad(lambda t: t * density(t), [0, cut, high]) / total
    return float(mpmath.log(density(mpmath.mpf(x)) / total)), float(below), float(mean)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("centre", [-1e5, -1000.0, -100.0, -3.0, 3.0, 500.0])
def test_truncated_with_a_centre_far_outside(centre: float, dtype: torch.dtype, tolerance: float) -> None:
    c = torch.tensor([[centre]], dtype=dtype, requires_grad=True)
    rho = kdm.KDM(c, None, kdm.Truncated(kdm.RBF.from_std(1.0), 0.0, 2.0))
    depth = 0.7 / abs(centre)
    x = torch.tensor([[depth if centre < 0 else 2 - depth]], dtype=dtype)
    log_density, below, mean = exponential_limit(x.item(), centre)
    close(rho.log_prob(x).double(), real([log_density]), rtol=tolerance, atol=tolerance)
    if centre < 0 or dtype == torch.float64:
        close(rho.cdf(x).double(), real([below]), rtol=20 * tolerance, atol=0)
        close(rho.cdf(rho.icdf(below)).double(), real(below), rtol=20 * tolerance, atol=0)
        close(rho.mean.double(), real([mean]), rtol=max(20 * tolerance, 1e-8), atol=0)
    (slope,) = torch.autograd.grad(rho.log_prob(x).sum(), c)
    close(slope.double(), real([[x.item() - mean]]), rtol=1e-4, atol=1e-6 * abs(x.item()))


def test_far_centres_agree_for_pairs_and_all_events() -> None:
    kernel = kdm.Truncated(kdm.RBF([[0.3, 0.4], [1.0, 2.0]]), [0.0, -1.0], [2.0, 5.0])
    c, x = real([[-40.0, 9.0], [1.0, 2.0]]), real([[0.01, 4.9], [1.2, 0.3], [-0.1, 0.0]])
    pairs = kernel.log_overlap(x.unsqueeze(1), c)
    rho = kdm.KDM(c, None, kernel)
    close(rho.log_prob(x), torch.logsumexp(pairs + kernel.log_norm(c) - math.log(2), -1))
    assert torch.isneginf(rho.log_prob(x)[-1])


def test_cells_of_far_truncated_components_sum_to_one() -> None:
    c = torch.tensor([[50.0], [1e6], [3.0], [-7e4]])
    kernel = kdm.Rounded(kdm.Truncated(kdm.RBF.from_std(0.01), 0.0, 10.0), 1.0)
    masses = kernel.log_mass(kdm.Interval(None, None), c)
    close(masses, torch.zeros(4), rtol=0, atol=1e-5)
    close(kdm.KDM(c, None, kernel).log_mass(kdm.Interval(None, None)), torch.tensor(0.0), rtol=0, atol=1e-5)


@pytest.mark.parametrize("start", [1e-5, 1e-7, 1e-30, 1e-39])
@pytest.mark.parametrize("family", [kdm.Tricube, kdm.Epanechnikov])
def test_intervals_that_begin_at_the_end_of_a_support_have_gradients(
    family: type[kdm.Kernel], start: float
) -> None:
    c, low = torch.tensor([[1.0]], requires_grad=True), torch.tensor([start], requires_grad=True)
    mass = family(1.0).log_mass(kdm.Interval(low, torch.tensor([2.0])), c)
    mass.sum().backward()
    assert mass.abs() < 1e-12
    assert c.grad is not None
    assert low.grad is not None
    assert 0 <= c.grad < 1e-3
    assert low.grad == -c.grad


@pytest.mark.parametrize("family", [kdm.Tricube, kdm.Epanechnikov])
def test_a_huge_value_leaves_the_gradients_of_others(family: type[kdm.Kernel]) -> None:
    slopes = []
    for other in (3e38, 5.0):
        c = torch.tensor([[0.0], [0.3]], requires_grad=True)
        kdm.KDM(c, None, family(1.0)).log_prob(torch.tensor([[0.1], [other]]))[0].backward()
        slopes.append(c.grad)
    close(slopes[0], slopes[1])


def test_the_lower_tail_of_a_decreasing_transform() -> None:
    kernel = kdm.Transformed.affine(kdm.RBF.from_std(1.0), 0.0, -2.0)
    c = real([[1.0]])
    rho = kdm.KDM(c, None, kernel)
    x = real([[-60.0], [-2.0], [50.0]])
    close(rho.cdf(x), rho.log_mass(kdm.Interval(None, x)).exp(), rtol=1e-12, atol=0)
    assert 0 < rho.cdf(x)[0] < 1e-180
    close(rho.cdf(rho.icdf(1e-5)), real(1e-5), rtol=1e-9, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("step", [0.1, 0.5, 1.0, 3.0])
def test_quantiles_of_rounded_numbers_are_points_of_the_grid(step: float, dtype: torch.dtype) -> None:
    c = torch.tensor([[0.3], [4.0]], dtype=dtype)
    q = torch.linspace(0.01, 0.99, 40, dtype=dtype)
    for inner in (kdm.RBF.from_std(1.5), kdm.Transformed.log(kdm.RBF.from_std(0.5))):
        rho = kdm.KDM(c, None, kdm.Rounded(inner, step))
        x = rho.icdf(q)
        cells = (x.double() / step).round()
        points = cells / 10 if step == 0.1 else cells * step
        assert torch.equal(x, points.to(dtype))
        assert (rho.cdf(x) >= q).all()
        assert (rho.cdf(x - 0.6 * step) < q).all()


def test_quantiles_of_rounded_numbers_with_atoms() -> None:
    c = real([[0.0, 0.0, 2.2], [0.0, 1.0, -1.0]])
    rho = kdm.KDM(c, None, kdm.Inflated(kdm.Rounded(kdm.RBF.from_std(0.7), 1.0), [0.0]))
    x = rho.icdf(torch.linspace(0.05, 0.95, 19, dtype=torch.float64))
    assert torch.equal(x, x.round())
    assert x[9] == 0


def test_quantiles_where_nan_is_an_atom_are_those_of_the_numbers() -> None:
    c = real([[0.0, 1.0, 3.0, 0.0], [0.0, -1.0, 0.5, 4.0]])
    missing = kdm.KDM(c, [0.3, 0.7], kdm.Inflated(kdm.RBF.from_std(1.0), [2.0, torch.nan]))
    log_p = torch.log_softmax(c[:, :3], -1)
    weights = real([0.3, 0.7]) * log_p[:, :2].exp().sum(-1)
    numbers = kdm.KDM(c[:, [0, 1, 3]], weights / weights.sum(), kdm.Inflated(kdm.RBF.from_std(1.0), [2.0]))
    q, x = torch.linspace(0.05, 0.95, 10, dtype=torch.float64), real([[-3.0], [1.9], [2.0], [60.0]])
    close(missing.cdf(x), numbers.cdf(x))
    assert missing.cdf(x)[-1] == pytest.approx(1, abs=1e-12)
    close(missing.icdf(q), numbers.icdf(q), rtol=1e-9, atol=1e-9)
    close(missing.mean, numbers.mean)


BAD_SHAPES = {
    "low": lambda: kdm.Truncated(kdm.RBF(1.0), [0.0, 0.0]),
    "high": lambda: kdm.Truncated(kdm.RBF(1.0), high=[1.0, 1.0]),
    "loc": lambda: kdm.Transformed.affine(kdm.RBF(1.0), [1.0, 2.0], [0.5, 3.0]),
    "scale": lambda: kdm.Transformed.affine(kdm.RBF(1.0), 0.0, [0.5, 3.0]),
}


@pytest.mark.parametrize("name", BAD_SHAPES)
def test_numbers_per_dimension_fit_the_components(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: expected a number, or 3 for events of shape"):
        kdm.KDM(torch.zeros(2, 3), None, BAD_SHAPES[name]())
    if name == "low":
        with pytest.raises(ValueError, match="low: expected a number, or 1 for events"):
            kdm.KDM(torch.zeros(2, 3), None, kdm.Inflated(BAD_SHAPES[name](), [0.0]))


def test_the_smoothing_of_levels_keeps_its_digits() -> None:
    assert kdm.Levels(5, 0.1).smoothing.double().item() == pytest.approx(0.1, rel=1e-14)
    c = real([[0.5, -1.0, 0.0, 2.0, 0.3]])
    wanted = 0.9 * torch.softmax(c, -1) + 0.02
    close(kdm.Levels(5, 0.1).probs(c), wanted, rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    "kernel", [kdm.Truncated(kdm.RBF(1.0), 0.0), kdm.Transformed.log(kdm.RBF(1.0))], ids=["truncated", "log"]
)
def test_a_density_has_masses_of_numbers_and_none_at_a_single_one(kernel: kdm.Kernel) -> None:
    with pytest.raises(TypeError, match=r"^region: expected a region of numbers, got .*'a'"):
        kernel.log_mass(kdm.OneOf(["a"]), torch.zeros(1, 1))
    assert kernel.log_mass(kdm.OneOf([1.0]), torch.zeros(1, 1)).item() == -math.inf


def test_infinite_values_are_no_atoms() -> None:
    assert not len(kdm.kernels.find_atoms([math.inf, math.inf]))


@pytest.mark.parametrize("outside", [0.0, 0.4, 500.0])
def test_truncated_scores_in_float32_agree_with_float64(outside: float) -> None:
    """Centres between the bounds, a little outside, and far outside: three ways to the same scores."""
    centres, sigma = real([[0.1], [1.0], [1.9], [-outside]]), real([[0.3], [0.01], [2.0], [0.5]])
    x = real([[0.0], [0.02], [1.2], [2.0], [2.5]])
    results = []
    for dtype in (torch.float32, torch.float64):
        kernel = kdm.Truncated(kdm.RBF(sigma.to(dtype), trainable=True), 0.0, 2.0)
        c = centres.to(dtype).requires_grad_()
        log_p = kdm.KDM(c, None, kernel).log_prob(x.to(dtype))
        assert bool(torch.isneginf(log_p[-1]))
        gradients = torch.autograd.grad(log_p[:-1].sum(), [c, *kernel.parameters()])
        results.append([log_p[:-1], *gradients])
    for narrow, wide in zip(*results, strict=True):
        close(narrow.double(), wide, rtol=1e-4, atol=1e-4)
