"""Laws of the kernels for columns: masses, distribution functions, quantiles and draws fit the density."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from scipy import stats
from torch import Tensor

import kdmkit as kdm
from helpers import close, normal, quadrature, real, seeded
from kdmkit.kernels import FixedBandwidth
from kdmkit.ops import score_matrix


def exponential(n: int, seed: int = 0) -> Tensor:
    return -torch.rand(n, 1, dtype=torch.float64, generator=seeded(seed)).log()


#: Kernels of one dimension with components `(3, …)`, and an interval that holds nearly all of their mass.
CONTINUOUS: dict[str, tuple[Callable[[], kdm.Kernel], list[float], tuple[float, float]]] = {
    "log": (lambda: kdm.Transformed.log(kdm.RBF.from_std(0.4)), [-0.5, 0.1, 1.0], (0.0, 40.0)),
    "log-compact": (lambda: kdm.Transformed.log(kdm.Epanechnikov(1.0), -2), [-0.5, 0.1, 1.0], (-2.0, 6.0)),
    "logit": (lambda: kdm.Transformed.logit(kdm.RBF.from_std(0.8), 1, 5), [-1.0, 0.1, 2.0], (1.0, 5.0)),
    "affine": (lambda: kdm.Transformed.affine(kdm.RBF.from_std(0.5), 3.0, -2.0), [-1.0, 0.1, 2.0], (-15, 20)),
    "quantile": (
        lambda: kdm.Transformed.quantile_normal(kdm.RBF.from_std(0.4), exponential(500), 12),
        [-1.0, 0.1, 2.0],
        (-3.0, 30.0),
    ),
    "log-truncated": (
        lambda: kdm.Transformed.log(kdm.Truncated(kdm.RBF.from_std(0.5), -1.0, 1.5)),
        [-2.0, 0.1, 1.4],
        (math.exp(-1), math.exp(1.5)),
    ),
    "truncated": (lambda: kdm.Truncated(kdm.RBF.from_std(0.5), 0.0, 2.0), [-2.0, 0.3, 1.9], (0.0, 2.0)),
    "truncated-one-side": (lambda: kdm.Truncated(kdm.RBF.from_std(0.5), 0.0), [-9.0, 0.3, 4.0], (0.0, 9.0)),
    "truncated-compact": (lambda: kdm.Truncated(kdm.Tricube(1.5), high=1.0), [-1.0, 0.3, 2.2], (-3.0, 1.0)),
    "truncated-per-component": (
        lambda: kdm.Truncated(kdm.RBF([[0.3], [0.6], [1.1]]), 0.0, 2.0),
        [-0.2, 0.3, 1.9],
        (0.0, 2.0),
    ),
}
every_continuous = pytest.mark.parametrize("name", CONTINUOUS)


def made(name: str, dtype: torch.dtype = torch.float64) -> tuple[kdm.Kernel, Tensor, float, float]:
    make, centres, (low, high) = CONTINUOUS[name]
    return make(), torch.tensor(centres, dtype=dtype).unsqueeze(-1), low, high


def log_density(kernel: kdm.Kernel, x: Tensor, c: Tensor) -> Tensor:
    """Whole log-densities of x `(n,)` under every component, `(m, n)`."""
    events = x.unsqueeze(-1)
    scores = score_matrix([kernel.term(events, c)], torch.zeros(len(c), dtype=c.dtype))
    jacobian = kernel.log_jacobian(events)
    scores = scores + kernel.log_norm(c).to(scores)
    return (scores if jacobian is None else scores + jacobian.unsqueeze(-1)).mT


def log_integral(
    kernel: kdm.Kernel,
    c: Tensor,
    low: float,
    high: float,
    panels: int,
    log_factor: Callable[[Tensor], Tensor] = torch.zeros_like,
) -> Tensor:
    """log ∫ density·factor from `low` to `high`, segment by segment if T has knots."""
    steps = kernel.change.steps if isinstance(kernel, kdm.Transformed) else []
    knots = [x for step in steps if step.kind == "quantile_normal" for x in step.values.tolist()]
    edges = [low, *(x for x in knots if low < x < high), high]

    def function(x: Tensor) -> Tensor:
        return log_density(kernel, x, c) + log_factor(x)

    parts = [quadrature(function, *pair, max(2, panels // len(edges))) for pair in itertools.pairwise(edges)]
    return torch.stack(parts).logsumexp(0)


@every_continuous
def test_density_integrates_to_one(name: str) -> None:
    kernel, c, low, high = made(name)
    close(log_integral(kernel, c, low, high, 600).exp(), torch.ones(3), rtol=0, atol=1e-6)


@every_continuous
def test_nothing_lies_outside_the_support(name: str) -> None:
    kernel, c, low, high = made(name)
    steps = torch.linspace(1e-9, 9, 7, dtype=torch.float64)
    outside = torch.cat([low - steps, high + steps]).requires_grad_()
    density = log_density(kernel, outside, c)
    if name not in ("affine", "quantile"):
        first = torch.isneginf(density[:, :7]).all()
        last = torch.isneginf(density[:, 7:]).all() or name in ("log", "truncated-one-side")
        assert first or name == "truncated-compact"
        assert last
    (slope,) = torch.autograd.grad(density[torch.isfinite(density)].sum() + 0 * outside.sum(), outside)
    assert torch.isfinite(slope).all()
    dead = torch.isneginf(density).all(0)
    assert not slope[dead].any()


@every_continuous
def test_masses_are_integrals_of_the_density_down_to_minus_690(name: str) -> None:
    """Intervals all over the line; tails by components of small bandwidths."""
    kernel, c, low, high = made(name)
    u, v = torch.rand(2, 6, dtype=torch.float64, generator=seeded(1))
    starts = (low + (high - low) * 0.9 * u).tolist()
    least = 0.0
    compact = "compact" in name or "per" in name
    parts = [kernel] if compact else [kernel, *(narrower(kernel, factor) for factor in (0.3, 0.1))]
    for part in parts:
        for start, length in zip(starts, (0.2 * v).tolist(), strict=True):
            stop = start + length * (high - low) / 4
            wanted = log_integral(part, c, start, stop, 100)
            got = part.log_mass(kdm.Interval(start, stop), c)
            used = wanted > -690
            assert torch.equal(torch.isneginf(got[used]), torch.isneginf(wanted[used]))
            close(got[used], wanted[used], rtol=1e-6, atol=1e-6)
            least = min([least, *wanted[used].tolist()])
    assert least < (-1 if compact else -500)


def narrower(kernel: kdm.Kernel, factor: float) -> kdm.Kernel:
    narrow = FixedBandwidth("sigma", kernel.learned_bandwidth.value.detach() * factor)
    if isinstance(kernel, kdm.Truncated):
        return kdm.Truncated(kdm.RBF(narrow), kernel.low, kernel.high)
    assert isinstance(kernel, kdm.Transformed)
    inner = kernel.kernel
    if isinstance(inner, kdm.Truncated):
        return kdm.Transformed(narrower(inner, factor), kernel.change)
    return kdm.Transformed(kdm.RBF(narrow), kernel.change)


@every_continuous
def test_masses_in_float32(name: str) -> None:
    kernel, c, low, high = made(name)
    starts = real([low + (high - low) * t for t in (0.02, 0.2, 0.5, 0.8)])
    for width in (0.01, 0.5):
        ends = starts.float(), (starts + width * (high - low) / 2).float()
        got = kernel.float().log_mass(kdm.Interval(*(end.unsqueeze(-1) for end in ends)), c.float())
        wanted = kernel.double().log_mass(kdm.Interval(*(end.double().unsqueeze(-1) for end in ends)), c)
        used = (wanted > -80) & torch.isfinite(wanted)
        assert got.dtype == torch.float32
        assert used.any()
        close(got[used].double(), wanted[used], rtol=1e-4, atol=1e-4)


@every_continuous
def test_distribution_function_is_the_mass_below(name: str) -> None:
    kernel, c, low, high = made(name)
    x = torch.linspace(low, high, 9, dtype=torch.float64)[1:-1]
    masses = kernel.log_mass(kdm.Interval(torch.full((7, 1), -math.inf), x.unsqueeze(-1)), c)
    close(kernel.cdf(x, c), masses.exp(), rtol=1e-9, atol=1e-12)
    close(kernel.cdf(real([low - 100, high + 1000]), c), real([[0.0] * 3, [1.0] * 3]), atol=1e-9)


@every_continuous
def test_quantiles_invert_the_distribution_function(name: str) -> None:
    kernel, c, _, _ = made(name)
    rho = kdm.KDM(c, real([0.2, 0.5, 0.3]), kernel)
    q = real([1e-6, 0.05, 0.3, 0.5, 0.77, 0.999])
    close(rho.cdf(rho.icdf(q)), q, rtol=1e-6, atol=1e-9)


@every_continuous
def test_moments_are_integrals(name: str) -> None:
    kernel, c, low, high = made(name)
    if name.startswith("log") and name != "log-compact":
        high = low + 300 if name != "log-truncated" else high
    mean = low + log_integral(kernel, c, low, high, 2000, lambda x: (x - low).log()).exp()
    square = log_integral(kernel, c, low, high, 2000, lambda x: 2 * (x - mean.unsqueeze(-1)).abs().log())
    close(kernel.mean(c).squeeze(-1), mean, rtol=1e-4, atol=1e-4)
    close(kernel.variance(c).squeeze(-1), square.exp(), rtol=2e-3, atol=1e-5)


@every_continuous
def test_draws_follow_the_distribution_function(name: str) -> None:
    kernel, c, _, _ = made(name)
    n = 500
    x = kernel.sample(c.expand(n, 3, 1), torch.arange(3).expand(n, 3), seeded(3)).squeeze(-1)
    assert torch.isfinite(log_density(kernel, x.flatten(), c)).any(0).all()
    for j in range(3):
        levels = kernel.cdf(x[:, j], c)[:, j]
        assert stats.kstest(levels.detach().numpy(), "uniform").pvalue > 1e-3


def test_an_exponential_sample_loses_no_mass_below_zero() -> None:
    """A Gaussian estimate of the same data has several per cent there."""
    x = exponential(400)
    lost = kdm.KDM.from_samples(x, kdm.RBF.from_std(0.3)).log_mass(kdm.Interval(None, 0.0)).exp()
    assert lost > 0.05
    for kernel in (kdm.Transformed.log(kdm.RBF.from_std(0.5)), kdm.Truncated(kdm.RBF.from_std(0.3), 0.0)):
        rho = kdm.KDM.from_samples(x, kernel)
        assert rho.log_mass(kdm.Interval(None, 0.0)) == -math.inf
        close(rho.log_mass(kdm.Interval(0.0, None)).exp(), real(1.0), atol=1e-9)
        assert torch.isneginf(rho.log_prob(real([[-0.1], [-5.0]]))).all()
        assert (rho.sample((500,), generator=seeded(0)) >= 0).all()


# ---- layers: what can be trained is trained, saved and loaded


def table_column(name: str) -> Tensor:
    x = exponential(300, seed=5).float()
    if name.startswith("rounded"):
        return (4 * x).round() / 4
    if name.startswith("inflated"):
        x[:60], x[60:90] = 0.0, 2.5
        x[90:120] = math.nan if "missing" in name else 2.5
        return (4 * x).round() / 4 if "rounded" in name else x
    return x


LAYERS: dict[str, Callable[[], kdm.Kernel]] = {
    "transformed": lambda: kdm.Transformed.log(kdm.RBF(1.0)),
    "quantile": lambda: kdm.Transformed.quantile_normal(kdm.RBF(1.0), exponential(300, seed=5)),
    "truncated": lambda: kdm.Truncated(kdm.RBF(1.0), 0.0),
    "rounded": lambda: kdm.Rounded(kdm.Truncated(kdm.RBF(1.0), 0.0), 0.25),
    "inflated": lambda: kdm.Inflated(kdm.Transformed.log(kdm.RBF(1.0)), [0.0, 2.5]),
    "inflated-missing": lambda: kdm.Inflated(kdm.Transformed.log(kdm.RBF(1.0)), [0.0, 2.5, math.nan]),
    "inflated-rounded-missing": lambda: kdm.Inflated(
        kdm.Rounded(kdm.Transformed.log(kdm.RBF(1.0)), 0.25), [0.0, 2.5, math.nan]
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_train_and_are_saved(name: str, tmp_path) -> None:
    x = table_column(name)
    layer = kdm.nn.DensityLayer(1, 8, kernel=LAYERS[name]()).initialize(x, generator=seeded(0))
    before = [parameter.detach().clone() for parameter in layer.parameters()]
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    losses = []
    for _ in range(6):
        loss = -layer().log_prob(x).mean()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < losses[0] - 0.02
    for old, new in zip(before, layer.parameters(), strict=True):
        assert torch.isfinite(new).all()
        assert not torch.equal(old, new)
    kdm.save(layer, tmp_path / "layer")
    again = kdm.load(tmp_path / "layer")
    assert torch.equal(again().log_prob(x), layer().log_prob(x))
    rho = layer()
    kdm.save(rho, tmp_path / "rho")
    close(kdm.load(tmp_path / "rho").log_prob(x), rho.log_prob(x).detach(), rtol=1e-6)


def test_a_joint_of_all_kinds_of_columns() -> None:
    variables = [
        kdm.nn.Variable("level", kdm.Levels(4, 0.05, trainable=True), ()),
        kdm.nn.Variable("price", kdm.Transformed.log(kdm.RBF(1.0)), 1),
        kdm.nn.Variable("hours", kdm.Inflated(kdm.Rounded(kdm.RBF(1.0), 0.25), [0.0, math.nan]), 1),
    ]
    layer = kdm.nn.JointLayer.from_variables(variables, 12, inputs=["level", "hours"])
    price = exponential(200).float()
    hours = table_column("inflated-rounded-missing")[:200]
    level = (price.squeeze(-1) > 1).long() + 2 * hours.isnan().squeeze(-1)
    layer.initialize(level=level, price=price, hours=hours, generator=seeded(0))
    rho = layer(level=level, hours=hours)
    loss = -rho.log_prob(price).mean() - layer.joint().marginal("level").log_prob(level).mean()
    loss.backward()
    assert all(torch.isfinite(p.grad).all() and p.grad.any() for p in layer.parameters())
    joint = layer.joint()
    given = joint.infer(level=kdm.OneOf([0, 1]), hours=kdm.Interval(0.0, 1.0), target="price")
    assert torch.isfinite(given.log_prob(price)).all()
    masked = joint.infer(
        price=price, hours=hours, observed={"price": torch.arange(200) % 2 == 0}, target="level"
    )
    close(masked.probs.sum(-1), torch.ones(200), rtol=1e-5)
    drawn = joint.sample((50,), generator=seeded(1))
    assert drawn["level"].dtype == torch.int64
    assert {name: value.shape for name, value in drawn.items()} == {
        "level": (50,),
        "price": (50, 1),
        "hours": (50, 1),
    }


# ---- evidence by distributions


def test_a_distribution_over_numbers_is_evidence_by_its_points() -> None:
    kernel = kdm.Transformed.log(kdm.RBF.from_std(0.4))
    x, y = exponential(6), normal(6, 1, seed=1)
    joint = kdm.JointKDM({"x": kernel.components_from(x), "y": y}, None, {"x": kernel, "y": kdm.RBF(0.5)})
    points, weights = exponential(3, seed=2), real([0.2, 0.5, 0.3])
    rho = joint.infer(x=kdm.KDM(kernel.components_from(points), weights, kernel))
    wanted = (weights.unsqueeze(-1) * joint.infer(x=points).weights).sum(0)
    close(rho.weights, wanted)


def test_inflated_evidence_weighs_atoms_and_numbers() -> None:
    kernel = kdm.Inflated(kdm.RBF.from_std(0.4), [0.0, math.nan])
    c, y = normal(5, 4, seed=0), normal(5, 1, seed=1)
    joint = kdm.JointKDM({"x": c, "y": y}, None, {"x": kernel, "y": kdm.RBF(0.5)})
    given = kdm.KDM(normal(2, 4, seed=2), real([0.4, 0.6]), kernel)
    points, log_weights = kernel.evidence_points(given.components, given.log_weights)
    close(log_weights.exp().sum(), real(1.0))
    assert torch.equal(points[:2].nan_to_num(9.0), real([[0.0], [9.0]]))
    wanted = (log_weights.exp().unsqueeze(-1) * joint.infer(x=points).weights).sum(0)
    close(joint.infer(x=given).weights, wanted)


RESTRICTED = {
    "density": (lambda: kdm.RBF(0.7), (-0.2, 0.9)),
    "bounded": (lambda: kdm.Truncated(kdm.RBF(0.7), 0.0, None), (None, 1.3)),
    "transformed": (lambda: kdm.Transformed.log(kdm.RBF(0.7)), (0.4, 2.0)),
    "grid": (lambda: kdm.Rounded(kdm.RBF(0.7), 0.25), (-0.3, 0.8)),
    "atoms": (lambda: kdm.Inflated(kdm.RBF(0.7), [0.0, 2.0, torch.nan]), (-0.5, 1.0)),
    "no atom inside": (lambda: kdm.Inflated(kdm.Rounded(kdm.RBF(0.7), 0.25), [0.0]), (0.25, 1.0)),
}


@pytest.mark.parametrize("name", RESTRICTED)
def test_restricted_densities_are_those_inside_over_their_mass(name):
    make, ends = RESTRICTED[name]
    kernel, region = make(), kdm.Interval(*ends)
    c = kernel.components_from(torch.tensor([[0.1], [0.6], [1.7]], dtype=torch.float64))
    inside, inside_c = kernel.restricted(region, c)
    mass = kernel.log_mass(region, c).reshape(-1)

    def log_density(kernel, c, x):
        scores = kernel.log_overlap(x.unsqueeze(1), c) + kernel.log_norm(c)
        jacobian = kernel.log_jacobian(x)
        return scores if jacobian is None else scores + jacobian.unsqueeze(-1)

    x = torch.tensor([[0.5], [0.75]], dtype=torch.float64)
    torch.testing.assert_close(log_density(inside, inside_c, x), log_density(kernel, c, x) - mass)
    outside = torch.tensor([[2.5]], dtype=torch.float64)
    assert (log_density(inside, inside_c, outside) < -1000).all()
    draws = inside.sample(inside_c[torch.arange(3).repeat(200)], torch.arange(3).repeat(200))
    assert (draws >= (-torch.inf if ends[0] is None else ends[0])).all()
    assert (draws <= ends[1]).all()
