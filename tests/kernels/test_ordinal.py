"""The kernel on whole numbers against sums over enumerated numbers."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

import kdmkit as kdm
from helpers import close, normal, real, seeded
from kdmkit.kernels import FixedBandwidth

M = 4
#: The bounds of the numbers, and an enumeration that leaves nothing out that matters.
BOUNDS: dict[str, tuple[dict[str, int | None], range]] = {
    "all": ({"low": None, "high": None}, range(-900, 901)),
    "from-below": ({"low": None, "high": 3}, range(-900, 4)),
    "counts": ({}, range(1500)),
    "from-two": ({"low": 2}, range(2, 1500)),
    "finite": ({"low": 0, "high": 6}, range(7)),
    "negative": ({"low": -5, "high": -2}, range(-5, -1)),
    "single": ({"low": 3, "high": 3}, range(3, 4)),
}
every_bound = pytest.mark.parametrize("name", BOUNDS)
SHARES = [0.3, [0.05, 0.5, 0.9, 0.95]]
every_share = pytest.mark.parametrize("s", SHARES)


def centres() -> Tensor:
    """Between numbers, at one, beyond the bounds, and next to a number."""
    return real([0.4, 2.0, -7.3, 5.0 - 1e-9])


def log_table(name: str, s: object) -> tuple[Tensor, Tensor, kdm.Ordinal]:
    """The numbers `(n,)`, the logs of their probabilities `(n, m)` by enumeration, and the kernel."""
    options, numbers = BOUNDS[name]
    i = torch.tensor(numbers)
    log_s = torch.as_tensor(s, dtype=torch.float64).log()
    return i, torch.log_softmax((i[:, None] - centres()).abs() * log_s, 0), kdm.Ordinal(s, **options)


@every_bound
@every_share
def test_probabilities_are_those_of_the_enumeration(name: str, s: object) -> None:
    i, wanted, kernel = log_table(name, s)
    c = centres()
    got = kernel.log_overlap(i[:, None], c) + kernel.log_norm(c)
    close(got, wanted, rtol=1e-9)
    close(got.exp().sum(0), torch.ones(M).double(), rtol=1e-9)
    close(kernel.term(i, c).exact() + kernel.log_norm(c), wanted, rtol=1e-9)
    close(kdm.KDM(c, None, kernel).log_prob(i), wanted.logsumexp(-1) - math.log(M), rtol=1e-9)


@every_bound
@every_share
def test_masses_are_sums(name: str, s: object) -> None:
    i, table, kernel = log_table(name, s)
    middle = float(i[len(i) // 2])
    ends = [
        (-math.inf, middle),
        (middle + 0.2, middle + 0.9),
        (middle - 0.5, middle + 1.5),
        (middle, math.inf),
    ]
    ends += [(middle - 30, middle - 28), (-math.inf, math.inf), (-0.5, 0.5)]
    got = kernel.log_mass(kdm.Interval(*real(ends).T), centres())
    for (low, high), row in zip(ends, got, strict=True):
        inside = (i >= low) & (i <= high)
        wanted = table[inside].logsumexp(0) if inside.any() else torch.full((M,), -math.inf).double()
        close(row, wanted, rtol=1e-8, atol=1e-12)
    for members in (i[:1], i[[0, -1, 0]], i[: min(len(i), 50)]):
        wanted = table[[i.tolist().index(v) for v in sorted(set(members.tolist()))]].logsumexp(0)
        close(kernel.log_mass(kdm.OneOf(members), centres()), wanted, rtol=1e-8, atol=1e-12)


def test_masses_far_in_the_tails_and_next_to_one() -> None:
    """P(i ≥ n) = sⁿ for counts about 0, down to −690, and 1 minus it."""
    kernel, c = kdm.Ordinal(0.1), real([0.0])
    n = real([1.0, 50.0, 299.0])
    close(kernel.log_mass(kdm.Interval(n, None), c).squeeze(-1), n * math.log(0.1), rtol=1e-12)
    got = kernel.log_mass(kdm.Interval(None, n - 1), c).squeeze(-1)
    close(got, torch.log1p(-(0.1**n)), rtol=1e-12, atol=0)
    in_float32 = kernel.log_mass(kdm.Interval(real([30.0]), None), c.float())
    close(in_float32, torch.full((1, 1), 30 * math.log(0.1)), rtol=1e-6)


def test_float32_agrees_with_float64() -> None:
    s, c = torch.rand(200, dtype=torch.float64, generator=seeded(0)), 20 * normal(200, seed=1)
    i = torch.randint(40, (50,), generator=seeded(2))
    narrow, wide = kdm.Ordinal(s.float()), kdm.Ordinal(s.float().double())
    c = c.float()
    for answer in (
        lambda kernel, c: kernel.term(i, c).matrix() + kernel.log_norm(c),
        lambda kernel, c: kernel.log_mass(kdm.Interval(i - 3.0, i + 2.0), c),
        lambda kernel, c: kernel.log_mass(kdm.OneOf(i[:9]), c),
    ):
        got, wanted = answer(narrow, c), answer(wide, c.double())
        assert ((got - wanted).abs() <= 1e-4 * (1 + wanted.abs())).all()
        assert got.dtype == torch.float32


@pytest.mark.parametrize("name", ["all", "counts", "finite"])
def test_gradients(name: str) -> None:
    options, numbers = BOUNDS[name]
    kernel = kdm.Ordinal([0.3, 0.9], **options, trainable=True)
    c = real([0.4, 2.3]).requires_grad_()
    i = torch.tensor(numbers)[len(numbers) // 2 :][:3]

    def function(c: Tensor, _: Tensor) -> tuple[Tensor, ...]:
        density = kernel.log_overlap(i[:, None], c) + kernel.log_norm(c)
        interval = kernel.log_mass(kdm.Interval(i[:1] - 0.5, i[:1] + 1.5), c)
        return density, interval, kernel.log_mass(kdm.OneOf(i), c), kernel.mean(c), kernel.variance(c)

    assert torch.autograd.gradcheck(function, (c, kernel.bandwidth.raw), fast_mode=True)


def test_no_gradient_where_there_is_no_number() -> None:
    kernel = kdm.Ordinal(0.5, trainable=True)
    c = centres().requires_grad_()
    log_mass = kernel.log_mass(kdm.Interval(real([0.2, -5.0, 2.0]), real([0.8, -1.0, 2.0])), c)
    assert torch.isneginf(log_mass[:2]).all()
    gradients = torch.autograd.grad(log_mass[:2].sum(), [c, kernel.bandwidth.raw], retain_graph=True)
    assert not any(g.any() for g in gradients)
    gradients = torch.autograd.grad(log_mass.exp().sum(), [c, kernel.bandwidth.raw])
    assert all(torch.isfinite(g).all() for g in gradients)


@every_bound
def test_moments_and_modes(name: str) -> None:
    i, table, kernel = log_table(name, SHARES[1])
    c, p = centres(), table.exp()
    mean = (p * i[:, None]).sum(0)
    close(kernel.mean(c), mean, rtol=1e-8)
    close(kernel.variance(c), (p * (i[:, None] - mean).square()).sum(0), rtol=1e-7)
    likely = p.gather(0, (kernel.mode(c) - i[0]).unsqueeze(0)).squeeze(0)
    close(likely, p.amax(0), rtol=1e-9)
    rho = kdm.KDM(c, real([0.1, 0.2, 0.3, 0.4]), kernel)
    close(rho.mean, (p @ rho.weights * i).sum(), rtol=1e-8)
    close(rho.variance, (p @ rho.weights * (i - rho.mean).square()).sum(), rtol=1e-7)


@pytest.mark.parametrize("name", ["all", "counts", "finite"])
def test_distribution_functions_and_quantiles(name: str) -> None:
    """Quantiles are the smallest numbers whose cumulated probability reaches q."""
    i, table, kernel = log_table(name, SHARES[1])
    rho = kdm.KDM(centres(), real([0.1, 0.2, 0.3, 0.4]), kernel)
    cumulated = (table.exp() @ rho.weights).cumsum(0)
    close(rho.cdf(i), cumulated, rtol=1e-7)
    q = real([1e-6, 0.01, 0.2, 0.5, 0.77, 0.99, 1 - 1e-6])
    wanted = i[torch.searchsorted(cumulated, q)]
    assert torch.equal(rho.icdf(q), wanted.double())


@every_bound
def test_draws_follow_the_probabilities(name: str) -> None:
    s = [0.05, 0.5, 0.9, 0.7]
    i, table, kernel = log_table(name, s)
    n = 20_000
    index = torch.arange(M).repeat(n)
    drawn = kernel.sample(centres()[index], index, seeded(0))
    assert drawn.dtype == torch.int64
    first, last = int(i[0]), int(i[-1])
    assert drawn.min() >= first
    assert drawn.max() <= last
    for j in range(M):
        counts = torch.bincount(drawn[index == j] - first, minlength=len(i)).double()
        p = table[:, j].exp()
        likely = p > 1e-3
        error = (counts / n - p)[likely] / (p / n).sqrt()[likely]
        assert error.abs().max() < 4.5


def test_a_batch_of_components_and_widths() -> None:
    widths = normal(3, M, 1, seed=0).exp()
    c = 3 * normal(3, M, seed=1)
    rho = kdm.KDM(c, None, kdm.Ordinal(FixedBandwidth("width", widths)))
    i = torch.tensor([0, 3, 7])
    region = kdm.Interval(1, 4)
    for b in range(3):
        one = kdm.KDM(c[b], None, kdm.Ordinal((-1 / widths[b, :, 0]).exp()))
        close(rho.log_prob(i[:, None])[:, b], one.log_prob(i))
        close(rho.log_mass(region)[b], one.log_mass(region))
        close(rho.cdf(i[:, None])[:, b], one.cdf(i))
        close(rho.mean[b], one.mean)
    q = rho.icdf(real([0.3])[:, None])
    assert (rho.cdf(q) >= 0.3).all()
    assert rho.sample((5,), generator=seeded(0)).shape == (5, 3)


def test_layers_learn_a_geometric_distribution(tmp_path: Path) -> None:
    """Counts of a geometric law have the log-likelihood of the law itself, and survive a file."""
    x = (torch.rand(600, generator=seeded(0)).log() / math.log(0.7)).long()
    layer = kdm.nn.DensityLayer(1, 3, kernel=kdm.Ordinal(0.9))
    layer.initialize(x, method="random", generator=seeded(0))
    assert layer.kernels["x"].bandwidth.raw.requires_grad
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.2)
    for _ in range(30):
        optimizer.zero_grad()
        loss = -layer().log_prob(x).mean()
        loss.backward()
        optimizer.step()
    law = torch.distributions.Geometric(torch.tensor(1 / (1 + x.float().mean()).item()))
    assert loss.item() <= -law.log_prob(x.float()).mean().item() + 0.005
    kdm.save(layer, tmp_path / "layer.kdm")
    again = kdm.load(tmp_path / "layer.kdm")
    close(again().log_prob(x[:50]), layer().log_prob(x[:50]), rtol=1e-6)
    kdm.save(layer(), tmp_path / "rho.kdm")
    close(kdm.load(tmp_path / "rho.kdm").log_prob(x[:50]), layer().log_prob(x[:50]), rtol=1e-6)


def test_joints_take_counts_points_and_masks() -> None:
    c = {"n": real([1.0, 4.0, 9.5, 2.2]), "y": normal(M, 1, seed=0)}
    rho = kdm.JointKDM(c, None, {"n": kdm.Ordinal(0.6, low=1), "y": kdm.RBF(0.7)})
    kernel = rho.kernels["n"]
    i = torch.tensor([1, 5, 2])
    score = kernel.log_overlap(i[:, None], c["n"]) + kernel.log_norm(c["n"])
    close(rho.infer(n=i).weights, torch.softmax(score, -1))
    missing = rho.infer(n=torch.tensor([1, 0, 2]), observed={"n": torch.tensor([True, False, True])})
    close(missing.weights[1], rho.weights)
    assert rho.sample((7,), generator=seeded(0))["n"].dtype == torch.int64
    known = kdm.KDM(real([2.5, 6.0]), real([0.3, 0.7]), kernel)
    score = kernel.log_overlap(known.components[:, None], c["n"]) + kernel.log_norm(c["n"])
    close(rho.infer(n=known).weights, known.weights @ torch.softmax(score, -1))


@pytest.mark.usefixtures("unchecked")
class TestErrors:
    @pytest.mark.parametrize("s", [0.0, 1.0, -0.5, [0.5, 2.0], True])
    def test_shares(self, s: object) -> None:
        with pytest.raises(ValueError, match=r"^s: expected numbers strictly between 0 and 1, got"):
            kdm.Ordinal(s)

    def test_bounds(self) -> None:
        with pytest.raises(ValueError, match=r"^low, high: expected low ≤ high, got 3 > 2$"):
            kdm.Ordinal(0.5, low=3, high=2)
        with pytest.raises(ValueError, match=r"^low: expected a whole number or None, got 0.5$"):
            kdm.Ordinal(0.5, low=0.5)  # type: ignore[arg-type]

    def test_events(self) -> None:
        rho = kdm.KDM(torch.zeros(3), None, kdm.Ordinal(0.5, high=9))
        for value, got in ((10, "10"), (-1, "-1"), (torch.tensor(0.5), "0.5")):
            with pytest.raises(ValueError, match=rf"^value: expected whole numbers in 0 … 9, got {got}$"):
                rho.log_prob(value)
        with pytest.raises(ValueError, match=r"^region: expected whole numbers in 0 … 9, got 10$"):
            rho.log_mass(kdm.OneOf([3, 10]))
        close(rho.log_prob(torch.tensor(2.0)), rho.log_prob(2))

    def test_setting_s(self) -> None:
        kernel = kdm.Ordinal([0.5, 0.6])
        kernel.s = [0.1, 0.2]
        close(kernel.s, real([[0.1], [0.2]]))
        with pytest.raises(ValueError, match=r"^s: expected numbers strictly between 0 and 1"):
            kernel.s = 1.5
