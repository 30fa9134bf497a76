"""Draws follow the density: Kolmogorov–Smirnov, χ² and covariances, all with fixed seeds."""

import pytest
import torch
from scipy import stats

import kdmkit as kdm
from helpers import CONTINUOUS, close, normal, real, seeded, simplex, unit_variance

N = 20_000
ALPHA = 1e-3  # seeds are fixed: a failure is a change of the draws, and then most likely a wrong one


def _ks(draws, rho):
    return stats.kstest(rho.cdf(draws.reshape(-1, 1)).numpy(), "uniform").pvalue


@pytest.mark.parametrize("family", CONTINUOUS)
def test_draws_follow_the_cdf(family):
    rho = kdm.KDM(2 * normal(5, 1, seed=0), simplex(5, seed=1), CONTINUOUS[family](0.8))
    assert _ks(rho.sample((N,), generator=seeded(2)), rho) > ALPHA


def test_draws_with_a_bandwidth_per_component_follow_the_cdf():
    rho = kdm.KDM(normal(3, 1, seed=0), simplex(3, seed=1), kdm.RBF([[0.1], [0.7], [2.0]]))
    assert _ks(rho.sample((N,), generator=seeded(2)), rho) > ALPHA


@pytest.mark.parametrize("batched", ["weights", "components"])
def test_every_row_of_a_batch_follows_its_own_cdf(batched):
    components = normal(*((3,) if batched == "components" else ()), 4, 1, seed=0)
    weights = simplex(*((3,) if batched == "weights" else ()), 4, seed=1)
    rho = kdm.KDM(components, weights, kdm.RBF(0.4))
    draws = rho.sample((N,), generator=seeded(2))
    for i in range(3):
        points = components[i] if batched == "components" else components
        one = kdm.KDM(points, weights[i] if batched == "weights" else weights, kdm.RBF(0.4))
        other = kdm.KDM(points + 0.1, one.weights, kdm.RBF(0.4))
        assert _ks(draws[:, i], one) > ALPHA
        assert _ks(draws[:, i], other) < ALPHA  # the test can tell
    correlation = torch.corrcoef(draws.squeeze(-1).T).fill_diagonal_(0)
    assert correlation.abs().max() < 5 / N**0.5  # rows are independent


def test_inferred_kdms_are_drawn_row_by_row():
    joint = kdm.JointKDM(
        {"x": real([[-1.0], [1.0]]), "y": real([[-3.0], [3.0]])}, None, {"x": kdm.RBF(1.0), "y": kdm.RBF(0.5)}
    )
    rho = joint.infer(x=real([[-1.0], [0.0], [0.3]]))
    draws = rho.sample((N,), generator=seeded(0))
    assert draws.shape == (N, 3, 1)
    for i in range(3):
        assert _ks(draws[:, i], kdm.KDM(rho.components, rho.weights[i], rho.kernel)) > ALPHA


METRIC = real([[1.5, 0.0, 0.0], [-0.8, 0.9, 0.0], [0.3, 0.5, 0.7]])


@pytest.mark.parametrize("kernel", ["metric", "ard", "epanechnikov", "tricube"])
def test_draws_in_three_dimensions(kernel):
    c, w, scale = normal(4, 3, seed=0), simplex(4, seed=1), real([0.5, 1.0, 2.0])
    k = {
        "metric": lambda: kdm.RBF.from_metric(METRIC),
        "ard": lambda: kdm.RBF(scale),
        "epanechnikov": lambda: kdm.Epanechnikov(scale),
        "tricube": lambda: kdm.Tricube(scale),
    }[kernel]()
    family = {"metric": "rbf", "ard": "rbf"}.get(kernel, kernel)
    within = unit_variance(family) * torch.diag(scale**2)
    if kernel == "metric":
        within = 0.5 * torch.linalg.inv(METRIC.T @ METRIC)
    mean = w @ c
    wanted = within + torch.einsum("j,ja,jb->ab", w, c - mean, c - mean)
    draws = kdm.KDM(c, w, k).sample((100_000,), generator=seeded(2))
    spread = wanted.diagonal().sqrt()
    assert ((draws.mean(0) - mean).abs() < 5 * spread / 100_000**0.5).all()
    # The standard error of a covariance is at most about 1.5·s_a·s_b/√n for these light tails.
    assert ((draws.T.cov() - wanted).abs() < 7 * torch.outer(spread, spread) / 100_000**0.5).all()
    for i in range(3):
        marginal = kdm.KDM(
            c[:, i : i + 1], w, CONTINUOUS[family]((within[i, i] / unit_variance(family)).sqrt())
        )
        assert _ks(draws[:20_000, i], marginal) > ALPHA


def _chi_square(labels, probs):
    counts = torch.bincount(labels, minlength=len(probs)).double()
    return stats.chisquare(counts.numpy(), (probs / probs.sum() * counts.sum()).numpy()).pvalue


def test_cosine_draws_are_one_hots_with_the_right_frequencies():
    rho = kdm.KDM(normal(4, 5, seed=0), simplex(4, seed=1), kdm.Cosine())
    draws = rho.sample((N,), generator=seeded(2))
    assert ((draws == 0) | (draws == 1)).all()
    assert (draws.sum(-1) == 1).all()
    assert _chi_square(draws.argmax(-1), rho.probs) > ALPHA


@pytest.mark.parametrize("smoothing", [0.0, 0.4])
def test_categorical_draws_have_the_right_frequencies(smoothing):
    rho = kdm.KDM(torch.tensor([0, 2, 2, 3]), simplex(3, 4, seed=1), kdm.Categorical(4, smoothing))
    draws = rho.sample((N,), generator=seeded(2))
    assert draws.shape == (N, 3)
    assert draws.dtype == torch.int64
    for i in range(3):
        possible = rho.probs[i] > 0
        assert possible[draws[:, i]].all()
        codes = possible.cumsum(0)[draws[:, i]] - 1
        assert _chi_square(codes, rho.probs[i][possible].double()) > ALPHA


def test_joint_draws_keep_variables_together():
    c, y, w = 2 * normal(5, 2, seed=0), normal(5, 3, seed=1), simplex(5, seed=2)
    kernels = {"x": kdm.RBF(0.5), "y": kdm.Cosine(), "k": kdm.Categorical(5, 0.1)}
    joint = kdm.JointKDM({"x": c, "y": y, "k": torch.arange(5)}, w, kernels)
    drawn = joint.sample((N,), generator=seeded(3))
    assert drawn["x"].shape == (N, 2)
    probs_y = (y / y.norm(dim=-1, keepdim=True)) ** 2
    probs_k = kernels["k"].probs(torch.arange(5)).double()
    # E[x ⊗ 1(y)], E[x ⊗ 1(k)] and P(y, k) of the mixture.
    one_hot = torch.nn.functional.one_hot(drawn["k"], 5).double()
    error = 5 * c.norm(dim=-1).max().item() / N**0.5
    close(drawn["x"].T @ drawn["y"] / N, torch.einsum("j,ja,jb->ab", w, c, probs_y), rtol=0, atol=error)
    close(drawn["x"].T @ one_hot / N, torch.einsum("j,ja,jb->ab", w, c, probs_k), rtol=0, atol=error)
    table = torch.einsum("j,ja,jb->ab", w, probs_y, probs_k)
    assert _chi_square(drawn["y"].argmax(-1) * 5 + drawn["k"], table.flatten()) > ALPHA
    independent = torch.outer(table.sum(1), table.sum(0))
    assert _chi_square(drawn["y"].argmax(-1) * 5 + drawn["k"], independent.flatten()) < ALPHA


def test_joint_draws_of_a_batch():
    joint = kdm.JointKDM(
        {"x": real([[-5.0], [5.0]]), "k": torch.tensor([0, 1])},
        real([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]),
        {"x": kdm.RBF(0.1), "k": kdm.Categorical(2)},
    )
    drawn = joint.sample((50,), generator=seeded(0))
    assert drawn["x"].shape == (50, 3, 1)
    assert ((drawn["x"].squeeze(-1) > 0) == (drawn["k"] == 1)).all()
    assert (drawn["k"][:, 0] == 0).all()
    assert (drawn["k"][:, 1] == 1).all()
    assert 0 < drawn["k"][:, 2].sum() < 50


def test_the_same_seed_gives_the_same_draws():
    for rho in (
        kdm.KDM(normal(4, 2, seed=0), None, kdm.RBF(0.5)),
        kdm.KDM(normal(4, 2, seed=0), None, kdm.Epanechnikov(0.5)),
        kdm.KDM(normal(4, 2, seed=0), None, kdm.Tricube(0.5)),
        kdm.KDM(normal(4, 2, seed=0), None, kdm.Cosine()),
        kdm.KDM(torch.arange(4), None, kdm.Categorical(4, 0.1)),
    ):
        assert torch.equal(rho.sample((20,), generator=seeded(1)), rho.sample((20,), generator=seeded(1)))
        assert not torch.equal(rho.sample((20,), generator=seeded(1)), rho.sample((20,), generator=seeded(2)))
        methods = ["gumbel"] if isinstance(rho.kernel, kdm.Cosine) else ["gumbel", "implicit"]
        for method in methods if not isinstance(rho.kernel, kdm.Categorical) else []:
            first, second = (rho.rsample((20,), method=method, generator=seeded(1)) for _ in range(2))
            assert torch.equal(first, second)
    joint = kdm.JointKDM({"x": normal(4, 2, seed=0)}, None, {"x": kdm.RBF(0.5)})
    assert torch.equal(
        joint.sample((9,), generator=seeded(1))["x"], joint.sample((9,), generator=seeded(1))["x"]
    )


def test_a_generator_leaves_the_global_one_alone():
    state = torch.random.get_rng_state()
    kdm.KDM(normal(4, 2, seed=0), None, kdm.Tricube(0.5)).sample((20,), generator=seeded(1))
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("method", ["sample", "implicit", "gumbel"])
def test_components_of_weight_zero_are_never_drawn(method):
    w = torch.zeros(2, 9, dtype=torch.float64)
    w[0, [2, 4, 7]] = real([0.2, 0.3, 0.5])
    w[1, [0, 8]] = 0.5
    c = torch.arange(9.0).unsqueeze(-1)
    rho = kdm.KDM(c, w, kdm.Epanechnikov(0.4))
    if method == "sample":
        draws = rho.sample((50_000,), generator=seeded(0))
    else:
        draws = rho.rsample((50_000,), method=method, generator=seeded(0))
    chosen = draws.squeeze(-1).round().long()
    for row in range(2):
        assert (w[row][chosen[:, row]] > 0).all()
        used = w[row] > 0
        frequencies = torch.bincount(chosen[:, row], minlength=9)[used]
        assert stats.chisquare(frequencies.numpy(), (50_000 * w[row][used]).numpy()).pvalue > ALPHA


def test_a_million_components_are_drawn_evenly():
    m = 1_000_000
    c = torch.arange(m, dtype=torch.float64).unsqueeze(-1) / m
    rho = kdm.KDM(c, None, kdm.RBF(1e-7))
    draws = rho.sample((N,), generator=seeded(0)).flatten()
    assert stats.kstest(draws.numpy(), "uniform").pvalue > ALPHA


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3)])
def test_sample_shapes(shape):
    for rho, event in (
        (kdm.KDM(normal(4, 2, seed=0), simplex(5, 4, seed=1), kdm.RBF(0.5)), (2,)),
        (kdm.KDM(normal(4, 2, seed=0), simplex(5, 4, seed=1), kdm.Cosine()), (2,)),
        (kdm.KDM(torch.arange(4), simplex(5, 4, seed=1), kdm.Categorical(4)), ()),
    ):
        assert rho.sample(shape).shape == (*shape, 5, *event)
        if event and isinstance(rho.kernel, kdm.RBF):
            assert rho.rsample(shape).shape == (*shape, 5, *event)
        if event:
            assert rho.rsample(shape, method="gumbel").shape == (*shape, 5, *event)
