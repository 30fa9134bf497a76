"""Monotone changes of variable, and kernels between bounds."""

import copy
import json
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch.distributions import ComposeTransform
from torch.distributions.transforms import AffineTransform, ExpTransform, SigmoidTransform, TanhTransform

import kdmkit as kdm
from helpers import close, normal, real, seeded
from kdmkit.kernels import FixedBandwidth, kernel_from_config
from kdmkit.kernels.calculus.transforms import Change

CHAINS = {
    "exp-inverse": ExpTransform().inv,
    "sigmoid-inverse": SigmoidTransform().inv,
    "affine": AffineTransform(2.0, -3.0),
    "affine-inverse": AffineTransform(2.0, 0.1).inv,
    "shifted-log": ComposeTransform(
        [AffineTransform(-5.0, 1.0), ExpTransform().inv, AffineTransform(1.0, 2.0)]
    ),
    "reflected-log": ComposeTransform([AffineTransform(7.0, -1.0), ExpTransform().inv]),
    "quantile": kdm.QuantileNormal([0.0, 1.0, 4.0, 4.5], [-1.0, 0.2, 0.5, 3.0]),
    "quantile-of-log": ComposeTransform(
        [ExpTransform().inv, kdm.QuantileNormal([-1.0, 0.0, 2.0], [-2.0, 0.0, 0.7])]
    ),
}
every_chain = pytest.mark.parametrize("name", CHAINS)


@every_chain
def test_changes_invert_and_have_their_slopes(name: str) -> None:
    change = Change(CHAINS[name])
    z = real([-6.0, -1.3, 0.4, 0.7, 2.2])
    x = change.inverse(z).requires_grad_()
    assert change.inside(x).all()
    close(change(x), z, rtol=1e-9, atol=1e-9)
    (slope,) = torch.autograd.grad(change(x).sum(), x)
    close(change.log_slope(x), slope.abs().log())
    assert change.increasing == bool((slope > 0).all())
    close(CHAINS[name](x), change(x))
    again = Change.from_config(json.loads(json.dumps(change.config())))
    close(again(x), change(x))


@every_chain
def test_ends_of_the_domain(name: str) -> None:
    change = Change(CHAINS[name])
    low, high = (end.item() for end in change.ends())
    wanted = {"exp-inverse": (0, math.inf), "sigmoid-inverse": (0, 1), "shifted-log": (5, math.inf),
              "reflected-log": (-math.inf, 7), "quantile-of-log": (0, math.inf)}  # fmt: skip
    assert (low, high) == wanted.get(name, (-math.inf, math.inf))
    assert change.everywhere == (name not in wanted)
    ends = change.bound(real([low - 1 if math.isfinite(low) else -math.inf, high]))
    assert ends.tolist() == ([-math.inf, math.inf] if change.increasing else [math.inf, -math.inf])


def test_quantiles_become_those_of_a_normal() -> None:
    x = torch.from_numpy(stats.gamma.rvs(1.3, size=4000, random_state=0))
    transform = kdm.QuantileNormal.from_data(x)
    assert 30 < len(transform.values) <= 128
    z = transform(x)
    assert stats.kstest(z.numpy(), "norm").statistic < 0.02
    close(transform.inv(z), x, rtol=1e-9, atol=1e-9)
    # Linear tails: far outside, and invertible there.
    far = real([-1e6, 1e6])
    close(transform.inv(transform(far)), far, rtol=1e-9)


def test_quantiles_of_repeated_values() -> None:
    x = torch.cat([torch.zeros(50), torch.linspace(1, 2, 50), torch.full((3,), math.nan)])
    transform = kdm.QuantileNormal.from_data(x, 9)
    assert transform.values[0] == 0
    close(transform.scores[0], torch.special.ndtri(real(0.25)))
    assert (transform.values.diff() > 0).all()
    for constant in ([3.0, 3.0], [], [math.nan]):
        with pytest.raises(ValueError, match=r"^values: expected at least two distinct numbers"):
            kdm.QuantileNormal.from_data(constant)


def test_cells_of_whole_numbers_have_their_shares() -> None:
    """Under a standard normal each rounding cell has exactly the share of the rows that are in it."""
    counts = torch.tensor([400, 90, 200, 10, 60, 40])
    x = torch.arange(6.0).repeat_interleave(counts)
    transform = kdm.QuantileNormal.from_data(x, 64)
    edges = torch.special.ndtr(transform(torch.arange(0.5, 5.0)))
    close(edges.diff(), counts[1:-1] / 800.0, atol=1e-6)


def test_values_that_repeat_often_have_knots_on_both_sides() -> None:
    """A fifth of the numbers are 0.31, among neighbours with one number each; 8 knots lie at even ranks."""
    x = torch.cat([torch.arange(400.0), torch.full((100,), 31.0)]).double() / 100
    transform = kdm.QuantileNormal.from_data(x, 8)
    cell = transform(real([0.305, 0.315]).double())
    close(torch.special.ndtr(cell).diff(), real([101 / 500]).double())
    assert len(transform.values) <= 10


def test_a_heavy_tail_is_more_than_one_segment() -> None:
    x = torch.from_numpy(stats.lognorm.rvs(2.0, size=10_000, random_state=0))
    transform = kdm.QuantileNormal.from_data(x)
    top = x.quantile(0.999)
    assert len(transform.values) <= 128
    assert (transform(top) - stats.norm.ppf(0.999)).abs() < 0.05


def test_numbers_of_a_transform_stay_in_float64() -> None:
    """Knots that float32 cannot tell apart, and an offset that it would move."""
    values = 1e6 + real([0.0, 0.01, 0.02, 0.05])
    kernel = kdm.Transformed(kdm.RBF(0.3), kdm.QuantileNormal(values, [-1.0, 0.0, 1.0, 2.0]))
    layer = kdm.nn.DensityLayer(1, 3, kernel=kernel, dtype=torch.float32)
    assert layer.kernel("x").change.steps[0].values.dtype == torch.float64
    assert layer.kernel("x").learned_bandwidth.raw.dtype == torch.float32
    close(layer.kernel("x").change(values), real([-1.0, 0.0, 1.0, 2.0]), atol=1e-8)
    state = kernel.state_dict()
    assert "change.steps.0.values" in state
    other = kernel_from_config(kernel.config())
    other.load_state_dict(state)
    assert torch.equal(copy.deepcopy(other).change(values), kernel.change(values))


def test_log_normal_moments_are_exact() -> None:
    for low in (0.0, -3.0):
        kernel = kdm.Transformed.log(kdm.RBF.from_std(1.3), low)
        c = real([[-1.0], [0.5]])
        law = stats.lognorm(1.3, scale=np.exp(c.numpy()))
        close(kernel.mean(c), torch.from_numpy(law.mean()) + low)
        close(kernel.variance(c), torch.from_numpy(law.var()))
        close(kernel.mode(c), torch.from_numpy(np.exp(c.numpy() - 1.3**2)) + low, rtol=1e-6)
    reflected = kdm.Transformed(kdm.RBF.from_std(0.5), CHAINS["reflected-log"])
    close(reflected.mean(real([[0.2]])), 7 - torch.from_numpy(stats.lognorm.mean(0.5, scale=np.exp([[0.2]]))))


def test_densities_are_those_of_scipy() -> None:
    x = real([[0.2], [1.0], [7.0]])
    kernel = kdm.Transformed.log(kdm.RBF.from_std(0.7))
    rho = kdm.KDM.pure(real([2.0]), kernel)
    close(rho.log_prob(x), torch.from_numpy(stats.lognorm.logpdf(x.numpy(), 0.7, scale=2.0)).squeeze(-1))
    kernel = kdm.Truncated(kdm.RBF.from_std(0.7), 0.0, 2.0)
    for c in (-9.0, 0.3, 5.0):
        a, b = (0.0 - c) / 0.7, (2.0 - c) / 0.7
        x = torch.linspace(0, 2, 5, dtype=torch.float64).unsqueeze(-1)
        law = stats.truncnorm(a, b, loc=c, scale=0.7)
        close(kdm.KDM(real([[c]]), None, kernel).log_prob(x), torch.from_numpy(law.logpdf(x.numpy())[:, 0]),
              rtol=1e-6)  # fmt: skip
        close(kernel.mean(real([[c]])), real([[law.mean()]]), rtol=1e-6)


def test_a_truncated_kernel_far_from_its_centre() -> None:
    """A hundred standard deviations outside it is nearly an exponential law at the edge."""
    kernel, c = kdm.Truncated(kdm.RBF.from_std(1.0), 0.0), real([[-100.0]])
    rate = 100.0
    x = real([[0.0], [0.01], [0.05]])
    got = kdm.KDM(c, None, kernel).log_prob(x)
    # By Mills' ratio the normaliser is r·(1 + 1/r² − 2/r⁴ …), and (x + r)² − r² = 2rx + x².
    law = math.log(rate) + rate**-2 - rate * x.squeeze(-1) - 0.5 * x.squeeze(-1).square()
    close(got, law, rtol=0, atol=10 * rate**-4)
    assert kernel.mean(c).item() == pytest.approx(1 / rate, rel=1e-3)
    draws = kernel.sample(c.expand(2000, 1), torch.zeros(2000, dtype=torch.long), seeded(0))
    assert stats.kstest(draws.squeeze(-1).numpy() * rate, "expon").pvalue > 1e-3
    single = kdm.KDM(c.float(), None, kdm.Truncated(kdm.RBF.from_std(1.0), 0.0)).log_prob(x.float())
    close(single.double(), got, rtol=0, atol=3e-3)


def test_a_truncated_kernel_without_mass_is_zero_and_has_no_gradient() -> None:
    kernel = kdm.Truncated(kdm.Epanechnikov(1.0), 0.0, 1.0)
    c = real([[5.0], [0.5]]).requires_grad_()
    rho = kdm.KDM(c, None, kernel)
    x = real([[0.4], [0.9]])
    close(rho.log_prob(x), kdm.KDM(c[1:], None, kernel).log_prob(x) - math.log(2))
    rho.log_prob(x).sum().backward()
    assert torch.isfinite(c.grad).all()
    assert not c.grad[0].any()


def test_bounds_keep_their_digits() -> None:
    """0.1 is inside [0.1, 0.7] in either precision, also after the kernel was converted."""
    kernel = kdm.Truncated(kdm.RBF(1.0), 0.1, 0.7).float()
    for dtype in (torch.float32, torch.float64):
        assert kernel.inside(torch.tensor([[0.1], [0.7]], dtype=dtype)).all()


def test_narrow_intervals_in_float32() -> None:
    """log brings both ends so close that float32 has four digits of their difference."""
    kernel, c = kdm.Transformed.log(kdm.RBF.from_std(0.5)), torch.tensor([[6.5]])
    ends = torch.tensor([1000.0]), torch.tensor([1000.05])
    got = kernel.log_mass(kdm.Interval(*ends), c)
    wanted = kernel.log_mass(kdm.Interval(*(end.double() for end in ends)), c.double())
    assert got.dtype == torch.float32
    close(got.double(), wanted, rtol=1e-6)


def test_two_dimensions() -> None:
    kernel = kdm.Truncated(kdm.RBF([0.5, 0.9]), [0.0, -1.0], [1.0, math.inf])
    c = real([[0.2, -2.0], [0.9, 0.4]])
    for i in (0, 1):
        part = kdm.Truncated(kdm.RBF([0.5, 0.9][i]), [0.0, -1.0][i], [1.0, None][i])
        close(kernel.mean(c)[:, i : i + 1], part.mean(c[:, i : i + 1]))
    x = real([[0.3, 0.1], [0.3, -1.1]])
    parts = [
        kdm.Truncated(kdm.RBF(0.5), 0.0, 1.0).log_overlap(x[:, :1], c[0, :1]),
        kdm.Truncated(kdm.RBF(0.9), -1.0).log_overlap(x[:, 1:], c[0, 1:]),
    ]
    close(kernel.log_overlap(x, c[0]), sum(parts))
    draws = kernel.sample(c.expand(500, 2, 2), torch.arange(2).expand(500, 2), seeded(0))
    assert kernel.inside(draws).all()
    assert json.loads(json.dumps(kernel.config(), allow_nan=False))["high"] == [1.0, None]


def test_scores_of_transformed_kernels_in_blocks() -> None:
    """Large problems are computed in blocks, with the values and gradients of whole matrices."""
    kernel = kdm.Transformed.log(kdm.Truncated(kdm.RBF(0.5), -2.0))
    from kdmkit.ops import log_mix

    x, c = normal(30, 1, seed=0).exp(), normal(9, 1, seed=1).requires_grad_()
    x[3] = -1.0
    results = []
    for options in ({"backend": "torch"}, {"backend": "chunked", "block": (7, 4)}, {"backend": "reference"}):
        value = log_mix(kernel.term(x, c), torch.zeros(9).double(), **options)
        kept = value[torch.isfinite(value)]
        results.append((value.detach(), torch.autograd.grad(kept.sum(), c)[0]))
    for value, slope in results[1:]:
        close(value, results[0][0])
        close(slope, results[0][1])


def test_bad_input(unchecked: None) -> None:
    with pytest.raises(TypeError, match=r"^transform: expected affine, exp, sigmoid or QuantileNormal"):
        kdm.Transformed(kdm.RBF(1.0), TanhTransform())
    with pytest.raises(ValueError, match=r"^transform: expected one whose image holds the support"):
        kdm.Transformed(kdm.RBF(1.0), ExpTransform())
    assert kdm.Transformed(kdm.Truncated(kdm.RBF(1.0), 0.0), ExpTransform()).change.everywhere
    with pytest.raises(ValueError, match=r"^scale: expected numbers other than 0 of one sign"):
        kdm.Transformed.affine(kdm.RBF(1.0), 0.0, 0.0)
    with pytest.raises(ValueError, match=r"^low, high: expected finite numbers with low < high"):
        kdm.Transformed.logit(kdm.RBF(1.0), 1.0, 1.0)
    with pytest.raises(TypeError, match=r"^kernel: expected a continuous kernel"):
        kdm.Transformed.log(kdm.Cosine())
    with pytest.raises(ValueError, match=r"^events: expected values between 0.0 and inf, got -1.0"):
        kdm.KDM.from_samples(torch.tensor([[-1.0]]), kdm.Transformed.log(kdm.RBF(1.0)))
    with pytest.raises(ValueError, match=r"^low, high: expected low < high"):
        kdm.Truncated(kdm.RBF(1.0), 1.0, 1.0)
    with pytest.raises(TypeError, match=r"^kernel: expected a continuous kernel \(RBF without a metric"):
        kdm.Truncated(kdm.RBF.from_metric(torch.eye(2)), 0.0)
    config = kdm.Transformed.quantile_normal(kdm.RBF(1.0), [0.0, 1.0, 3.0]).config()
    config["transform"][0]["values"].reverse()
    with pytest.raises(ValueError, match=r"^values: expected two or more strictly increasing"):
        kernel_from_config(config)
    for values in ([1.0], [1.0, 1.0], [2.0, 1.0]):
        with pytest.raises(ValueError, match=r"^values: expected two or more strictly increasing numbers"):
            kdm.QuantileNormal(values, values)


@pytest.mark.parametrize("ends", [(0.0, None), (None, 1.0), (None, None), (0.0, 2.0)])
def test_shares_of_all_pairs_are_those_of_pairs(ends: tuple[float | None, float | None]) -> None:
    """Bounds may be open, centres far outside, bandwidths very different."""
    sigma = torch.nn.Parameter(real([[0.02], [0.5], [1.0], [30.0]]))
    kernel = kdm.Truncated(kdm.RBF(FixedBandwidth("sigma", sigma, validate=False)), *ends)
    c = real([[-4.0], [-1.0], [0.5], [30.0]]).requires_grad_()
    low = real([[0.0], [0.3], [0.99], [-5.0]])
    high = low + real([[0.01], [0.5], [4.0], [1e3]])
    together = kernel.log_mass(kdm.Interval(low, high), c)
    pairs = kernel.pair_log_mass(low.unsqueeze(1), high.unsqueeze(1), c)
    close(together, pairs)
    finite = pairs.isfinite()
    assert bool(finite.any())
    for one, other in zip(
        torch.autograd.grad(together[finite].sum(), (c, sigma)),
        torch.autograd.grad(pairs[finite].sum(), (c, sigma)),
        strict=True,
    ):
        close(one, other)
