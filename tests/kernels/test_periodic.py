"""The kernel on a circle against quadrature, sums and the von Mises law."""

import math
from pathlib import Path

import pytest
import torch
from scipy import stats
from torch import Tensor

import kdmkit as kdm
from helpers import close, normal, quadrature, real, seeded
from kdmkit.kernels import FixedBandwidth
from kdmkit.kernels.calculus.von_mises import composed_log_arc_mass, log_arc_mass, turned

M = 4
P = 24.0
KAPPAS = [0.02, 3.0, 200.0]
every_kappa = pytest.mark.parametrize("kappa", KAPPAS)
#: Arcs in one turn, across its end, turns away, of a period and more, and with open ends.
ARCS = [(3.0, 9.5), (22.0, 26.0), (-49.0, -40.5), (100.0, 100.01), (3.0, 27.0), (5.0, 80.0), (2.0, 2.0)]


def centres() -> Tensor:
    return real([[0.3], [23.9], [11.0], [-30.0]])


def circle(n: int = 20_000) -> tuple[Tensor, float]:
    """Points of one turn, `(n, 1)`, and their distance: sums over a period converge exponentially."""
    return (torch.arange(n, dtype=torch.float64) * (P / n)).unsqueeze(-1), P / n


def log_density(kernel: kdm.Kernel, x: Tensor, c: Tensor) -> Tensor:
    return kernel.log_overlap(x.unsqueeze(-2), c) + kernel.log_norm(c)


def arc_mass(kernel: kdm.Kernel, low: float, high: float, c: Tensor) -> Tensor:
    """The log mass of an arc under every component."""
    return quadrature(lambda x: log_density(kernel, x.unsqueeze(-1), c).mT, low, high, panels=400)


@every_kappa
def test_the_density_is_von_mises(kappa: float) -> None:
    kernel, (x, width) = kdm.Periodic(kappa, P), circle(2000)
    got = log_density(kernel, x, centres())
    angles = (x - centres().squeeze(-1)) * (2 * math.pi / P)
    wanted = real(stats.vonmises.logpdf(angles.numpy(), kappa).tolist()) + math.log(2 * math.pi / P)
    close(got, wanted, rtol=1e-8)
    close(got.exp().sum(0) * width, torch.ones(M).double(), rtol=1e-9)


@pytest.mark.parametrize("kappa", [*KAPPAS, [[0.5], [2.0], [40.0], [0.1]]])
@pytest.mark.parametrize("period", [1, 7])
def test_whole_numbers_sum_to_one(kappa: object, period: int) -> None:
    kernel = kdm.Periodic(kappa, period, whole=True)
    i = torch.arange(period).unsqueeze(-1)
    got = log_density(kernel, i, centres())
    close(got.exp().sum(0), torch.ones(M).double(), rtol=1e-12)
    close(kernel.term(i, centres()).exact() + kernel.log_norm(centres()), got, rtol=1e-9)
    close(log_density(kernel, i - 3 * period, centres()), got, rtol=1e-9)


@pytest.mark.parametrize(
    "kappa", [2.0, [0.5, 3.0], [[0.5], [2.0], [4.0], [0.1]], [[0.5, 1.0], [2.0, 3.0], [4.0, 0.2], [0.1, 7.0]]]
)
def test_dimensions_multiply(kappa: object) -> None:
    """Every form of κ, as a sum over dimensions of one-dimensional kernels."""
    kernel, c, x = kdm.Periodic(kappa, P), 9 * normal(M, 2, seed=0), 9 * normal(5, 2, seed=1)
    each = torch.as_tensor(kappa, dtype=torch.float64).expand(M, 2)
    wanted, masses = torch.zeros(5, M).double(), torch.zeros(5, M).double()
    for j in range(M):
        for k in (0, 1):
            one = kdm.Periodic(each[j, k], P)
            wanted[:, j] += log_density(one, x[:, [k]], c[j : j + 1, [k]]).squeeze(-1)
            masses[:, j] += one.log_mass(kdm.Interval(x[:, [k]], x[:, [k]] + 2.5), c[j : j + 1, [k]]).squeeze(
                -1
            )
    close(log_density(kernel, x, c), wanted)
    close(kernel.term(x, c).matrix() + kernel.log_norm(c), wanted, rtol=1e-7)
    close(kernel.log_mass(kdm.Interval(x, x + 2.5), c), masses)


# ---- masses


@every_kappa
def test_arcs_against_quadrature(kappa: float) -> None:
    kernel, c = kdm.Periodic(kappa, P), centres()
    got = kernel.log_mass(kdm.Interval(*(end.unsqueeze(-1) for end in real(ARCS).T)), c)
    for (low, high), row in zip(ARCS, got, strict=True):
        if high - low >= P:
            assert torch.equal(row, torch.zeros(M).double())
        elif high == low:
            assert torch.isneginf(row).all()
        else:
            close(row, arc_mass(kernel, low, high, c), rtol=1e-6, atol=1e-9)


def test_arcs_far_from_the_mode_and_next_to_all_of_the_circle() -> None:
    """Down to −690, and where what is outside an arc is 1e-60."""
    kernel, c = kdm.Periodic(340.0, P), real([[12.0]])
    far = kernel.log_mass(
        kdm.Interval(real([[-0.5], [23.9], [0.0]]), real([[1.0], [23.95], [1e-6]])), c
    ).squeeze(-1)
    wanted = [arc_mass(kernel, low, high, c) for low, high in ((-0.5, 1.0), (23.9, 23.95), (0.0, 1e-6))]
    close(far, torch.cat(wanted), rtol=1e-8)
    assert far.min() < -690
    most = kernel.log_mass(kdm.Interval(6.0, 18.0), c)
    close(most, -arc_mass(kernel, 18.0, 30.0, c).exp(), rtol=1e-6, atol=0)


def test_open_ends_are_those_of_a_turn() -> None:
    kernel, c = kdm.Periodic(2.0, P), centres()

    def mass(low: float | None, high: float | None) -> Tensor:
        return kernel.log_mass(kdm.Interval(low, high), c)

    for pair, other in (
        ((None, 5.0), (0.0, 5.0)),
        ((5.0, None), (5.0, 24.0)),
        ((None, 29.0), (24.0, 29.0)),
        ((-3.0, None), (-3.0, 0.0)),
        ((None, None), (0.0, 24.0)),
        ((None, 24.0), (0.0, 24.0)),
        ((None, 0.0), (0.0, 0.0)),
    ):
        close(mass(*pair), mass(*other))
    close(mass(None, 5.0).exp(), kernel.cdf(real(5.0), c))


def test_float32_agrees_with_float64() -> None:
    kappa = (3 * normal(60, 1, seed=0)).exp().float()
    c, x = 40 * normal(60, 1, seed=1).float(), 40 * normal(30, 1, seed=2).float()
    narrow, wide = kdm.Periodic(kappa, P), kdm.Periodic(kappa.double(), P)
    for answer in (
        lambda kernel, x, c: kernel.term(x, c).matrix() + kernel.log_norm(c),
        lambda kernel, x, c: kernel.log_mass(kdm.Interval(x, x + 0.5), c),
        lambda kernel, x, c: kernel.log_mass(kdm.Interval(x, x + 13), c),
    ):
        got, wanted = answer(narrow, x, c).double(), answer(wide, x.double(), c.double())
        used = wanted > -80
        error = ((got - wanted).abs() / (1 + wanted.abs()))[used]
        assert used.sum() > 500
        assert error.max() <= 1e-4


@pytest.mark.parametrize("kappa", [0.5, 30.0])
def test_whole_arcs_and_sets_are_sums(kappa: float) -> None:
    kernel, c = kdm.Periodic(kappa, 12, whole=True), centres()
    table = log_density(kernel, torch.arange(12).unsqueeze(-1), c)
    for (low, high), members in {
        (3.0, 5.0): [3, 4, 5],
        (2.5, 3.5): [3],
        (10.2, 14.0): [11, 0, 1, 2],
        (-1.0, 0.0): [11, 0],
        (4.0, 15.0): list(range(12)),
        (4.0, 14.0): [i for i in range(12) if i != 3],
    }.items():
        close(kernel.log_mass(kdm.Interval(low, high), c), table[members].logsumexp(0), rtol=1e-9)
    assert torch.isneginf(kernel.log_mass(kdm.Interval(2.2, 2.8), c)).all()
    close(kernel.log_mass(kdm.OneOf([3, 15, 7]), c), table[[3, 7]].logsumexp(0))


# ---- gradients


def test_gradients() -> None:
    kernel = kdm.Periodic([[0.4], [5.0], [60.0]], P, trainable=True)
    c = real([[1.0], [20.0], [12.0]]).requires_grad_()
    low = real([[2.0], [18.0], [11.5], [10.0]]).requires_grad_()
    length = real([[3.0], [20.0], [1.0], [0.01]]).requires_grad_()

    def function(c: Tensor, low: Tensor, length: Tensor, _: Tensor) -> tuple[Tensor, ...]:
        mass = kernel.log_mass(kdm.Interval(low, low + length), c)
        return mass, log_density(kernel, low, c), kernel.mean_features(c)

    assert torch.autograd.gradcheck(function, (c, low, length, kernel.bandwidth.raw))


def test_explicit_derivatives_equal_those_of_the_operations() -> None:
    start, width = (
        real([0.3, -1.0, 2.0, -0.5, -3.0, 0.1, -0.1, 1.0, -0.2]),
        real([1, 2, 2, 0.1, 0.5, 6.2, 6, 5.9, 3.9]),
    )
    kappa = real([1.0, 2.0, 20.0, 3.0, 5.0, 0.5, 0.1, 3.0, 8.0])
    values, gradients = [], []
    for function in (log_arc_mass, composed_log_arc_mass):
        leaves = [part.clone().requires_grad_() for part in (start, width, kappa)]
        log_mass = function(leaves[0], turned(leaves[0] + leaves[1], 2 * math.pi), *leaves[1:])
        values.append(log_mass)
        gradients.append(torch.stack(torch.autograd.grad(log_mass.sum(), leaves)))
    close(*values)
    close(*gradients, rtol=1e-7, atol=1e-9)


def test_gradients_of_whole_numbers() -> None:
    kernel = kdm.Periodic(3.0, 7, whole=True, trainable=True)
    c, i = real([[1.3], [5.8]]).requires_grad_(), torch.tensor([[2], [6]])

    def function(c: Tensor, _: Tensor) -> tuple[Tensor, ...]:
        masses = [kernel.log_mass(region, c) for region in (kdm.Interval(2, 4), kdm.OneOf([0, 1]))]
        return log_density(kernel, i, c), kernel.mean(c), *masses

    assert torch.autograd.gradcheck(function, (c, kernel.bandwidth.raw))


def test_no_gradient_without_mass_and_no_nan() -> None:
    kernel = kdm.Periodic([[1e-8], [1.0], [1e8]], P, trainable=True)
    c = real([[1.0], [20.0], [12.0]]).requires_grad_()
    low, high = real([[2.0], [3.0], [11.0], [0.0]]), real([[2.0], [80.0], [13.0], [23.999999]])
    log_mass = kernel.log_mass(kdm.Interval(low, high), c)
    gradients = torch.autograd.grad(log_mass[:2].sum(), [c, kernel.bandwidth.raw], retain_graph=True)
    assert not any(g.any() for g in gradients)
    gradients = torch.autograd.grad(log_mass[2:].sum(), [c, kernel.bandwidth.raw])
    assert all(torch.isfinite(g).all() for g in gradients)
    assert not torch.isnan(log_mass).any()


# ---- distribution functions, means and draws


@every_kappa
def test_quantiles_invert_the_distribution_function(kappa: float) -> None:
    rho = kdm.KDM(centres(), real([0.1, 0.2, 0.3, 0.4]), kdm.Periodic(kappa, P))
    x, width = circle(4000)
    close(rho.cdf(x)[1:], torch.cumulative_trapezoid(rho.log_prob(x).exp(), dx=width), rtol=0, atol=2e-5)
    assert rho.cdf(real([-3.0])) == 0
    close(rho.cdf(real([P])), real(1.0))
    q = real([0.001, 0.2, 0.5, 0.9, 0.999])
    close(rho.cdf(rho.icdf(q)), q, rtol=1e-7)


def test_quantiles_of_whole_numbers() -> None:
    rho = kdm.KDM(centres(), None, kdm.Periodic(3.0, 12, whole=True))
    i = torch.arange(12).unsqueeze(-1)
    cumulated = rho.log_prob(i).exp().cumsum(0)
    close(rho.cdf(i), cumulated)
    q = real([0.01, 0.3, 0.5, 0.99])
    assert torch.equal(rho.icdf(q).squeeze(-1), torch.searchsorted(cumulated, q).double())


@pytest.mark.parametrize("whole", [False, True])
def test_means_are_circular(whole: bool) -> None:
    kernel = kdm.Periodic([[0.5], [3.0], [9.0], [1.0]], P, whole=whole)
    rho = kdm.KDM(centres(), real([0.1, 0.5, 0.1, 0.3]), kernel)
    x = torch.arange(24).unsqueeze(-1) if whole else circle(2000)[0]
    weights = rho.log_prob(x).exp()
    angle = x.squeeze(-1).double() * (2 * math.pi / P)
    wanted = torch.atan2((weights * angle.sin()).sum(), (weights * angle.cos()).sum()) * (P / (2 * math.pi))
    close(rho.mean, wanted.remainder(P).unsqueeze(0), rtol=1e-8)
    close(
        kdm.KDM(real([[23.0], [1.0]]), real([0.75, 0.25]), kdm.Periodic(50.0, P)).mean.round(), real([23.0])
    )
    if not whole:
        close(kernel.mean(centres()), centres().remainder(P), rtol=1e-8)


@pytest.mark.parametrize("kappa", [1e-9, 0.3, 5.0, 1e6])
def test_draws_are_von_mises(kappa: float) -> None:
    kernel, n = kdm.Periodic(kappa, P), 5000
    drawn = kernel.sample(real([[20.0]]).expand(n, 1), torch.zeros(n, dtype=torch.long), seeded(0))
    assert ((drawn >= 0) & (drawn < P)).all()
    angle = ((drawn.squeeze(-1) - 20 + P / 2).remainder(P) - P / 2) * (2 * math.pi / P)
    assert stats.kstest(angle.numpy(), lambda t: stats.vonmises.cdf(t, kappa)).pvalue > 1e-3


def test_whole_draws_follow_the_probabilities() -> None:
    kernel, n = kdm.Periodic([[2.0], [30.0]], 7, whole=True), 20_000
    c, index = real([[6.4], [2.5]]), torch.arange(2).repeat(n)
    drawn = kernel.sample(c[index], index, seeded(0))
    assert drawn.dtype == torch.int64
    for j in range(2):
        counts = torch.bincount(drawn[index == j, 0], minlength=7).double()
        p = log_density(kernel, torch.arange(7).unsqueeze(-1), c)[:, j].exp()
        assert ((counts / n - p).abs() <= 4.5 * (p / n).sqrt() + 1e-4).all()


# ---- in distributions and layers


def test_a_batch_of_widths() -> None:
    sigma, c = normal(3, M, 1, seed=0).exp(), 9 * normal(3, M, 1, seed=1)
    rho = kdm.KDM(c, None, kdm.Periodic(FixedBandwidth("sigma", sigma), P))
    x = real([[1.0], [20.0]])
    for b in range(3):
        one = kdm.KDM(c[b], None, kdm.Periodic(FixedBandwidth("sigma", sigma[b]), P))
        close(rho.log_prob(x.unsqueeze(1))[:, b], one.log_prob(x))
        close(rho.log_mass(kdm.Interval(1.0, 2.0))[b], one.log_mass(kdm.Interval(1.0, 2.0)))
        close(rho.mean[b], one.mean)
    assert rho.sample((5,), generator=seeded(0)).shape == (5, 3, 1)


@pytest.mark.parametrize("whole", [False, True])
def test_layers_learn_from_hours(whole: bool, tmp_path: Path) -> None:
    """Data around midnight, where a kernel on the line has two halves."""
    hours = (2 * normal(600, 1, seed=0)).remainder(24).float()
    x = hours.floor().long() if whole else hours
    layer = kdm.nn.DensityLayer(1, 2, kernel=kdm.Periodic(0.5, 24, whole=whole))
    layer.initialize(x, method="random", sigma=1.0, generator=seeded(0))
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.2)
    for _ in range(40):
        optimizer.zero_grad()
        loss = -layer().log_prob(x).mean()
        loss.backward()
        optimizer.step()
    # The entropy of N(0, 4); cells of whole hours have the width 1.
    assert loss.item() == pytest.approx(0.5 * math.log(2 * math.pi * math.e * 4), abs=0.06)
    kdm.save(layer, tmp_path / "layer.kdm")
    close(kdm.load(tmp_path / "layer.kdm")().log_prob(x[:50]), layer().log_prob(x[:50]), rtol=1e-6)
    kdm.save(layer(), tmp_path / "rho.kdm")
    close(kdm.load(tmp_path / "rho.kdm").log_prob(x[:50]), layer().log_prob(x[:50]), rtol=1e-6)


def test_initial_widths_are_distances_on_the_circle() -> None:
    kernel = kdm.Periodic(1.0, P)
    kernel.initialize_bandwidth(real([[23.5], [0.5], [12.0], [13.0]]), "nearest")
    assert kernel.sigma.item() == pytest.approx(1.0, rel=0.01)
    kernel.initialize_bandwidth(real([[0.0]]), 0.5)
    assert kernel.sigma.item() == pytest.approx(0.5)
    kernel.kappa = 7.0
    assert kernel.kappa.item() == pytest.approx(7.0)


def test_a_narrow_kernel_is_the_gaussian() -> None:
    kernel, c, x = kdm.Periodic(1e6, P), real([[12.0]]), real([[12.004]])
    wanted = kdm.RBF(kernel.sigma)
    close(log_density(kernel, x, c), log_density(wanted, x, c), rtol=1e-5)


@pytest.mark.usefixtures("unchecked")
class TestErrors:
    def test_parameters(self) -> None:
        with pytest.raises(ValueError, match=r"^kappa: expected > 0, got -1.0$"):
            kdm.Periodic(-1.0, 24)
        with pytest.raises(ValueError, match=r"^period: expected a finite number > 0, got 0$"):
            kdm.Periodic(1.0, 0)
        with pytest.raises(ValueError, match=r"^period: expected a whole number if events are whole"):
            kdm.Periodic(1.0, 1.5, whole=True)
        with pytest.raises(ValueError, match=r"^kappa: expected a scalar, \(1,\), \(m, 1\)"):
            kdm.Periodic([1.0, 2.0], 24).log_norm(torch.zeros(3, 1))

    def test_events_and_regions(self) -> None:
        whole = kdm.KDM(centres(), None, kdm.Periodic(1.0, 24, whole=True))
        with pytest.raises(ValueError, match=r"^value: expected whole numbers, got 0.5$"):
            whole.log_prob(real([0.5]))
        close(whole.log_prob(real([5.0])), whole.log_prob(torch.tensor([5])))
        smooth = kdm.KDM(centres(), None, kdm.Periodic(1.0, 24))
        assert smooth.log_mass(kdm.OneOf([1])).item() == -math.inf
        with pytest.raises(
            TypeError, match="kernel: expected one of numbers, which have a variance, got Periodic"
        ):
            _ = smooth.variance
