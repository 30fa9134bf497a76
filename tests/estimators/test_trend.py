"""The trend and the distribution of residuals about it: nothing judges its own training data."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import kdmkit as kdm
from estimators.problems import Array, heteroscedastic
from kdmkit.estimators.common.clusters import Clusters, min_target_std
from kdmkit.estimators.common.cross_fit import CrossFitting, held_out, held_out_mean, mean_over
from kdmkit.estimators.common.member_losses import target_errors
from kdmkit.estimators.regression.residuals import (
    LeaveOneOut,
    _excess_variance,
    _held_out_variance,
    _scaled_to_ensemble,
    layer_of_residuals,
    without_excess,
)
from kdmkit.nn import MLPEnsemble


def surface(n: int, seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 4))
    return X, 3 * X[:, 0] * X[:, 1] + np.sin(3 * X[:, 2]) + 0.1 * rng.normal(size=n)


def quick(**parameters: Any) -> kdm.KDMRegressor:
    return kdm.KDMRegressor(**{"max_epochs": 25, "random_state": 0, "n_members": 5, **parameters})


# ---- the ensemble


def test_members_share_nothing() -> None:
    torch.manual_seed(0)
    ensemble, x = MLPEnsemble([3, 8, 2], n_members=4), torch.randn(5, 3)
    before = ensemble(x)
    with torch.no_grad():
        for parameter in ensemble.parameters():
            parameter[1] += 1
    after = ensemble(x)
    assert torch.equal(before[:, [0, 2, 3]], after[:, [0, 2, 3]])
    assert not torch.equal(before[:, 1], after[:, 1])


def test_a_member_is_a_network() -> None:
    ensemble, x = MLPEnsemble([3, 8, 2], n_members=4), torch.randn(5, 3)
    with torch.no_grad():
        for parameter in ensemble.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(0))
    for member in range(4):
        hidden = nn.functional.gelu(x @ ensemble.weights[0][member] + ensemble.biases[0][member])
        wanted = hidden @ ensemble.weights[1][member] + ensemble.biases[1][member]
        torch.testing.assert_close(ensemble(x)[:, member], wanted + x @ ensemble.linear[member])


@pytest.mark.parametrize(("n", "members"), [(20, 5), (101, 16), (7, 16)])
def test_every_row_is_held_out_by_two_members(n: int, members: int) -> None:
    left_out = held_out(n, members, torch.Generator().manual_seed(0))
    assert left_out.shape == (n, members)
    assert (left_out.sum(1) == 2).all()
    # Members hold out equally many, up to the parts' sizes.
    assert left_out.sum(0).max() - left_out.sum(0).min() <= 2


@pytest.mark.parametrize("n", [1, 7, 40])
def test_held_out_means_are_those_of_all_answers(n: int) -> None:
    generator = torch.Generator().manual_seed(0)
    ensemble = MLPEnsemble([3, 8, 2], n_members=5, generator=generator)
    x, left_out = torch.randn(n, 3, generator=generator), held_out(n, 5, generator)
    with torch.no_grad():
        ensemble.linear.normal_(generator=generator)
        torch.testing.assert_close(held_out_mean(ensemble, x, left_out), mean_over(ensemble(x), left_out))


def test_held_out_targets_move_nothing() -> None:
    """A member's gradient does not know the targets it holds out."""
    torch.manual_seed(0)
    x, y = torch.randn(30, 2), torch.randn(30, 1)
    left_out = held_out(30, 5, torch.Generator().manual_seed(0))
    objective = CrossFitting(MLPEnsemble([2, 4, 1], n_members=5), target_errors).train()
    with torch.no_grad():
        objective.ensemble.weights[1].normal_()

    def gradient(targets: torch.Tensor) -> torch.Tensor:
        objective.zero_grad()
        objective(x, targets, left_out).sum().backward()
        return objective.ensemble.weights[0].grad[3].clone()

    changed = torch.where(left_out[:, 3:4], y + 5, y)
    assert torch.equal(gradient(y), gradient(changed))
    assert not torch.equal(gradient(y), gradient(torch.where(left_out[:, 3:4], y, y + 5)))


def test_validation_is_by_members_that_have_not_seen_the_row() -> None:
    x, y = torch.randn(12, 2), torch.randn(12, 1)
    left_out = held_out(12, 4, torch.Generator().manual_seed(0))
    objective = CrossFitting(MLPEnsemble([2, 4, 1], n_members=4), target_errors)
    with torch.no_grad():
        objective.ensemble.linear.normal_()
    objective.train()(x, y, left_out)
    answers = objective.averaged(x)
    assert answers.std() > 0.1
    wanted = [(answers[i][left_out[i]].mean() - y[i]).square().item() for i in range(12)]
    np.testing.assert_allclose(objective.eval()(x, y, left_out).detach(), wanted, rtol=1e-5)


def test_validation_asks_no_member_about_rows_that_it_has_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two answers for every row, however many members there are."""
    left_out = held_out(64, 8, torch.Generator().manual_seed(0))
    objective = CrossFitting(MLPEnsemble([2, 4, 1], n_members=8), target_errors).eval()
    asked: list[int] = []
    of_members = MLPEnsemble.of_members

    def counted(ensemble: MLPEnsemble, x: torch.Tensor) -> torch.Tensor:
        asked.append(x.shape[:-1].numel())
        return of_members(ensemble, x)

    monkeypatch.setattr(MLPEnsemble, "of_members", counted)
    objective(torch.randn(64, 2), torch.randn(64, 1), left_out)
    assert sum(asked) == 2 * 64


def test_residuals_are_scaled_to_those_of_the_whole_ensemble() -> None:
    """Answers with member noise of known variance: the scaled residuals have the ensemble mean's error."""
    generator = torch.Generator().manual_seed(0)
    n, members, noise = 20_000, 10, 0.8
    y = torch.randn(n, 1, generator=generator)
    answers = noise * torch.randn(n, members, 1, generator=generator)
    left_out = held_out(n, members, generator)
    share = torch.full((n,), 1 / n, dtype=torch.float64)
    raw, variance = y - mean_over(answers, left_out), _held_out_variance(answers, left_out, share)
    assert variance.item() == pytest.approx(noise**2, rel=0.03)
    scaled = _scaled_to_ensemble(raw, variance, members, share)
    assert raw.square().mean() == pytest.approx(1 + noise**2 / 2, rel=0.03)
    assert scaled.square().mean() == pytest.approx(1 + noise**2 / members, rel=0.03)


def test_of_few_rows_less_is_taken_off() -> None:
    residuals, variance = torch.ones(2000, 1), torch.tensor([1.0], dtype=torch.float64)
    scales = []
    for n in (10, 50, 2000):
        share = torch.full((n,), 1 / n, dtype=torch.float64)
        scales.append(_scaled_to_ensemble(residuals[:n], variance, 10, share)[0].item())
    assert scales[0] > 1 > scales[1] > scales[2]
    # A member's variance of 1 takes .4 of 1 off, and no more than the bound of .36.
    assert scales[2] == pytest.approx(0.8, abs=0.02)


def test_residuals_and_excess_variance_together_have_the_residuals_variance() -> None:
    generator = torch.Generator().manual_seed(0)
    residuals, share = torch.randn(500, 2, generator=generator), torch.full((500,), 1 / 500).double()
    excess = torch.rand(500, 2, generator=generator) * torch.tensor([0.2, 0.0])
    left = without_excess(residuals, excess, share)
    torch.testing.assert_close((left.square() + excess).mean(0), residuals.square().mean(0))
    # A bounded share is removed.
    assert without_excess(residuals, excess + 9, share).std() > 0.7


def test_excess_variance_is_what_exceeds_the_typical_variance() -> None:
    """The scale is that of rows that members have not seen: twice their variance on these."""
    spread = torch.tensor([0.1, 1.0, 2.0])
    answers = spread.view(3, 1, 1) * torch.randn(3, 4000, 1, generator=torch.Generator().manual_seed(0))
    mean = spread.square().mean().double()
    excess = _excess_variance(answers, 2 * mean[None], torch.full((3,), 1 / 3).double())
    wanted = (2 * spread.square() - 2 * mean).clamp_min(0).float()
    torch.testing.assert_close(excess[:, 0], wanted, atol=0.15, rtol=0.1)


# ---- the residuals


def clusters_of(n: int = 60, m: int = 7, weights: Any = None) -> tuple[Any, ...]:
    rng = torch.Generator().manual_seed(0)
    x, r = torch.randn(n, 2, generator=rng), torch.randn(n, 1, generator=rng)
    return x, r, Clusters.of(x, r, weights, m, seed=0)


def test_clusters_without_a_row_are_those_of_the_others() -> None:
    weights = torch.rand(60, generator=torch.Generator().manual_seed(1)) + 0.1
    x, r, clusters = clusters_of(weights=weights)
    for row in range(60):
        others = (clusters.member_of == clusters.member_of[row]) & (torch.arange(60) != row)
        w = weights[others, None]
        if not others.any():
            assert clusters.log_weight_without[row] == -torch.inf
            continue
        torch.testing.assert_close(clusters.x_without[row], (w * x[others]).sum(0) / w.sum())
        torch.testing.assert_close(clusters.r_without[row], (w * r[others]).sum(0) / w.sum())
        torch.testing.assert_close(clusters.log_weight_without[row], w.sum().log())


@pytest.mark.parametrize("alpha", [0.0, 0.7])
def test_the_loss_of_a_row_is_that_of_a_model_without_it(alpha: float) -> None:
    x, r, clusters = clusters_of()
    layer = layer_of_residuals(clusters, r.std(0), sigma=1.0, min_sigma=0.01)
    objective = LeaveOneOut(layer, n_rows=60, generative_weight=alpha)
    without = (clusters.x_without, clusters.r_without, clusters.log_weight_without)
    with torch.no_grad():
        objective.layer.kernels["x"].bandwidth.raw[0] += 0.5
    losses = objective(x, r, clusters.member_of, *without) - 2.0 * 0.25 / 60  # the prior's part
    contraction = objective.logit.detach().sigmoid()
    for row in range(0, 60, 7):
        cx, cr, logits = clusters.x.clone(), clusters.r.clone(), clusters.log_weight.clone()
        cluster = clusters.member_of[row]
        cx[cluster], cr[cluster], logits[cluster] = (part[row] for part in without)
        joint = kdm.JointKDM(
            {"x": cx, "y": contraction * cr},
            None,
            dict(layer.kernels.items()),
            log_weights=torch.log_softmax(logits, -1),
        )
        wanted = -joint.infer(x=x[row], target="y").log_prob(r[row])
        wanted = wanted - alpha * joint.marginal("x").log_prob(x[row])
        torch.testing.assert_close(losses[row], wanted, rtol=1e-4, atol=1e-4)


def test_rows_that_coincide_make_fewer_clusters() -> None:
    x, r = torch.ones(30, 2), torch.zeros(30, 1)
    clusters = Clusters.of(x, r, None, 5, seed=0)
    assert len(clusters.x) == 1
    assert torch.isfinite(clusters.x_without).all()


# ---- the bound


def test_the_bound_is_half_the_smallest_gap() -> None:
    y = torch.tensor([[3.0, 0.0], [4.0, 0.1], [4.0, 1.0], [6.0, 5.0]], dtype=torch.float64)
    torch.testing.assert_close(min_target_std(y), torch.tensor([0.5, 0.05], dtype=torch.float64))
    # A hundredth of a standard deviation at least, which is a millionth of its value for a constant target;
    # rounding is no gap.
    y = torch.tensor([[1.0, 2.0], [1.0 + 1e-13, 2.0], [3.0, 2.0], [3.0 + 1e-9, 2.0]], dtype=torch.float64)
    torch.testing.assert_close(
        min_target_std(y), torch.tensor([1.0, 2e-8], dtype=torch.float64), atol=1e-9, rtol=1e-6
    )


@pytest.mark.parametrize("trend", ["auto", None])
def test_components_are_never_narrower(trend: Any) -> None:
    X, y = surface(300, 0)
    grades = np.round(y).astype(int)
    model = quick(trend=trend, max_epochs=60).fit(X, grades)
    std = model.predict_dist(X[:5]).kernel.std
    assert std.min() >= 0.5 * (1 - 1e-6)
    # Spikes on the grades would exceed the density of a Gaussian as wide as the bound.
    log_density = model.predict_dist(X).log_prob(torch.from_numpy(grades).double()[:, None])
    assert log_density.max() <= -np.log(0.5 * np.sqrt(2 * np.pi)) + 1e-6


def test_every_output_has_its_own_bound() -> None:
    X, y = surface(300, 0)
    model = quick(max_epochs=40).fit(X, np.column_stack([np.round(y), y]))
    std = model.predict_dist(X[:5]).kernel.std
    assert std[..., 0].min() >= 0.5 * (1 - 1e-6)
    assert std[..., 1].max() < 0.5


# ---- the whole


def test_components_move_with_the_trend() -> None:
    X, y = surface(300, 0)
    model = quick().fit(X, y)
    rho = model.predict_dist(X[:3])
    centres, excess = model.module_.trend(torch.from_numpy(X[:3]))
    joint = model.module_.joint()
    torch.testing.assert_close(rho.components, centres.unsqueeze(1) + joint.components["y"])
    variances = joint.kernels["y"].std.square() + excess.unsqueeze(1)
    torch.testing.assert_close(rho.kernel.std.square(), variances)
    mean, std = model.predict(X[:3], return_std=True)
    np.testing.assert_allclose(mean, rho.mean[:, 0], rtol=1e-6)
    np.testing.assert_allclose(std, rho.stddev[:, 0], rtol=1e-6)
    low, high = model.predict_interval(X[:3]).T
    np.testing.assert_allclose(rho.cdf(torch.from_numpy(low)[:, None]), 0.05, rtol=1e-5)
    np.testing.assert_allclose(rho.cdf(torch.from_numpy(high)[:, None]), 0.95, rtol=1e-5)
    assert rho.log_evidence.shape == (3,)
    np.testing.assert_allclose(rho.log_evidence, model.score_samples(X[:3]))


@pytest.mark.slow
def test_where_there_are_no_rows_the_answer_is_wide() -> None:
    """Widths grow in a gap, and beyond the last row."""
    rng = np.random.default_rng(0)
    X = np.sign(rng.normal(size=(200, 1))) * rng.uniform(1, 2, (200, 1))
    y = np.sin(3 * X[:, 0]) + 0.1 * rng.normal(size=200)
    model = kdm.KDMRegressor(random_state=0).fit(X, y)
    _, std = model.predict(np.array([[-1.5], [1.5], [0.0], [10.0]]), return_std=True)
    assert std[:2].max() < 0.2
    assert std[2:].min() > 0.8
    # Who asks the module gets the same, with derivatives of the width.
    x = torch.tensor([[0.1]], dtype=torch.float64, requires_grad=True)
    rho = model.module_(x)
    np.testing.assert_allclose(
        rho.stddev.detach(), model.predict([[0.1]], return_std=True)[1][:, None], rtol=1e-5
    )
    (slope,) = torch.autograd.grad(rho.stddev.sum(), x)
    assert slope.abs() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("n", [10, 20, 40])
def test_intervals_cover_where_rows_are_few(n: int) -> None:
    covered = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(n + 500, 5))
        y = X @ [1, -2, 0.5, 0, 1.5] + rng.normal(size=n + 500)
        model = kdm.KDMRegressor(random_state=seed).fit(X[:n], y[:n])
        low, high = model.predict_interval(X[n:]).T
        covered.append(((low <= y[n:]) & (y[n:] <= high)).mean())
    assert 0.76 < np.mean(covered) < 0.96


@pytest.mark.slow
def test_intervals_are_honest_where_networks_overfit() -> None:
    X, y = surface(200, 0)
    noisy = y + np.random.default_rng(1).normal(size=200)
    X_test, y_test = surface(1000, 2)
    y_test = y_test + np.random.default_rng(3).normal(size=1000)
    model = quick(max_epochs=200, patience=None).fit(X, noisy)
    low, high = model.predict_interval(X_test).T
    inside = ((y_test >= low) & (y_test <= high)).mean()
    # Residuals of the training rows are much smaller than those of new ones.
    assert np.std(noisy - model.predict(X)) < 0.85 * np.std(y_test - model.predict(X_test))
    assert 0.84 < inside < 0.96


def test_the_trend_beats_components_alone() -> None:
    X, y = surface(400, 0)
    X_test, y_test = surface(400, 1)
    about, alone = quick(max_epochs=80).fit(X, y), quick(trend=None, max_epochs=80).fit(X, y)
    assert about.score(X_test, y_test) > 0.95
    assert about.score(X_test, y_test) > alone.score(X_test, y_test) + 0.03


def test_without_a_trend_components_stay() -> None:
    X, y = heteroscedastic(200, 0)
    model = quick(trend=None).fit(X, y)
    assert model.module_.trend is None
    assert model.predict_dist(X[:3]).components.ndim == 2


def test_few_rows_and_constant_targets_have_no_trend() -> None:
    X, y = surface(7, 0)
    assert quick().fit(X, y).module_.trend is None
    X, y = surface(40, 0)
    assert quick().fit(X, y).module_.trend is not None
    assert quick().fit(X, np.full(40, 3.0)).module_.trend is None


def test_weights_count() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 2)), rng.integers(2, size=300).astype(float)
    model = quick(max_epochs=40).fit(X, y, sample_weight=np.where(y == 1, 9.0, 1.0))
    assert model.predict(X).mean() == pytest.approx(9 / 10, abs=0.07)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"trend": "spline"}, "trend: expected 'auto', 'mlp' or None, got 'spline'"),
        ({"trend": "mlp", "encoder": "mlp"}, "trend: expected 'auto' or None beside an encoder"),
        ({"n_members": 2}, "n_members: expected a whole number > 2 or 'auto', got 2"),
        ({"n_members": 3.5}, "n_members: expected a whole number > 2 or 'auto'"),
        ({"max_epochs": "many"}, "max_epochs"),
    ],
)
def test_bad_parameters(parameters: Any, message: str) -> None:
    X, y = surface(40, 0)
    with pytest.raises(ValueError, match=message):
        quick(**parameters).fit(X, y)
