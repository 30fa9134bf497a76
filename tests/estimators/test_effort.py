"""Effort: fewer members, fewer steps, and phases in closed form."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone

import kdmkit as kdm
from estimators.problems import Array
from kdmkit.estimators.common.clusters import (
    Clusters,
    log_density_without_row,
    maximize_density,
    scores_without_row,
)
from kdmkit.estimators.common.cross_fit import CrossFitting, held_out
from kdmkit.estimators.common.effort import EFFORTS, patience_of
from kdmkit.estimators.common.member_losses import MemberLoss, label_losses, target_errors
from kdmkit.estimators.regression.residuals import LeaveOneOut, layer_of_residuals
from kdmkit.kernels import RBF
from kdmkit.nn import MLPEnsemble
from kdmkit.training.devices import WritesGradients

X = np.random.default_rng(0).normal(size=(120, 3))
TARGETS = X[:, 0] + 0.1 * np.random.default_rng(1).normal(size=120)
LABELS = (X[:, 0] + X[:, 1] > 0).astype(int)
ESTIMATORS: dict[str, tuple[Any, Array]] = {
    "classifier": (kdm.KDMClassifier(random_state=0, max_epochs=4), LABELS),
    "regressor": (kdm.KDMRegressor(random_state=0, max_epochs=4), TARGETS),
}


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("effort", EFFORTS)
def test_effort_chooses_the_ensemble(name: str, effort: Any) -> None:
    estimator, y = ESTIMATORS[name]
    ensemble = clone(estimator).set_params(effort=effort).fit(X, y).module_.trend.ensemble
    assert ensemble.n_members == EFFORTS[effort].n_members
    assert ensemble.sizes[1:-1] == EFFORTS[effort].hidden(len(X))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_given_parameters_go_before_effort(name: str) -> None:
    estimator, y = ESTIMATORS[name]
    model = clone(estimator).set_params(effort="best", n_members=3).fit(X, y)
    assert model.module_.trend.ensemble.n_members == 3


@pytest.mark.parametrize("estimator", [kdm.KDMClassifier, kdm.KDMRegressor, kdm.KDMDensity])
def test_other_efforts_are_refused(estimator: Any) -> None:
    model = estimator(effort="much")
    with pytest.raises(ValueError, match="effort: expected one of 'fast', 'default', 'best', got 'much'"):
        model.fit(X, LABELS)


@pytest.mark.parametrize(
    ("effort", "patience", "steps", "wanted"),
    [
        ("best", "auto", 50, 40),
        ("fast", "auto", 4, 10),
        ("fast", "auto", 1, 40),
        ("fast", "auto", 100, 3),
        ("default", None, 10, None),
        ("default", 7, 10, 7),
    ],
)
def test_patience_in_epochs(effort: Any, patience: Any, steps: int, wanted: int | None) -> None:
    assert patience_of(kdm.KDMRegressor(effort=effort, patience=patience), steps) == wanted


# ---- gradients


def cross_fitting(loss: MemberLoss, outputs: int, y: torch.Tensor) -> tuple[Any, tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(0)
    objective = CrossFitting(MLPEnsemble([3, 6, 5, outputs], n_members=4, generator=generator), loss)
    with torch.no_grad():
        for parameter in objective.ensemble.parameters():
            parameter.normal_(generator=generator)
    x = torch.from_numpy(X[:40]).float()
    return objective, (x, y, held_out(40, 4, generator))


def leave_one_out(outputs: int, alpha: float) -> tuple[Any, tuple[torch.Tensor, ...]]:
    x = torch.from_numpy(X[:40]).float()
    r = torch.stack([torch.from_numpy(TARGETS[:40]).float(), x[:, 1]], 1)[:, :outputs]
    clusters = Clusters.of(x, r, None, 6, 0)
    layer = layer_of_residuals(clusters, torch.ones(outputs), sigma=1.2, min_sigma=0.1)
    objective = LeaveOneOut(layer, n_rows=40, generative_weight=alpha)
    with torch.no_grad():
        for parameter in objective.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
    without = (clusters.x_without, clusters.r_without, clusters.log_weight_without)
    return objective, (x, r, clusters.member_of, *without)


OBJECTIVES = {
    "labels": lambda: cross_fitting(label_losses, 3, torch.arange(40) % 3),
    "targets": lambda: cross_fitting(target_errors, 2, torch.from_numpy(X[:40, :2]).float()),
    "residuals": lambda: leave_one_out(1, 0.0),
    "residuals and rows": lambda: leave_one_out(2, 0.7),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradients_are_those_of_autograd(name: str) -> None:
    objective, rows = OBJECTIVES[name]()
    assert isinstance(objective, WritesGradients)
    share = torch.rand(40, generator=torch.Generator().manual_seed(3))
    losses = objective.train()(*rows)
    (losses @ share).backward()
    wanted = [p.grad for p in objective.parameters() if p.requires_grad]
    with torch.no_grad():
        written, gradients = objective.with_gradients(*rows, share)
    torch.testing.assert_close(written, losses.detach(), rtol=1e-5, atol=1e-5)
    for gradient, truth in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(gradient, truth, rtol=1e-4, atol=1e-5 * float(truth.abs().max()))


def test_impossible_labels_have_finite_slopes() -> None:
    logits = torch.tensor([[0.0, 500.0]])
    losses, slopes = label_losses.with_slopes(logits, torch.tensor([0]))
    torch.testing.assert_close(losses, torch.tensor([500.0]))
    torch.testing.assert_close(slopes, torch.tensor([[-1.0, 1.0]]))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_fits_with_and_without_checkpoints_agree(name: str, tmp_path: Any) -> None:
    """With checkpoints gradients come from autograd: the same steps."""
    estimator, y = ESTIMATORS[name]
    plain = clone(estimator).fit(X, y)
    saved = clone(estimator).set_params(checkpoint_dir=str(tmp_path)).fit(X, y)
    answer = "predict" if name == "regressor" else "predict_proba"
    np.testing.assert_allclose(getattr(plain, answer)(X), getattr(saved, answer)(X), rtol=1e-3, atol=1e-4)


def test_parameters_of_a_fit_share_no_memory() -> None:
    model = clone(ESTIMATORS["regressor"][0]).fit(X, TARGETS)
    storages = [p.untyped_storage() for p in model.module_.parameters()]
    assert all(s.nbytes() == p.nbytes for s, p in zip(storages, model.module_.parameters(), strict=True))


# ---- bandwidths of p(x)


def test_bandwidths_maximise_the_density() -> None:
    """Each step raises the likelihood, and at the end no bandwidth is better by far."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 2, generator=generator) * torch.tensor([1.0, 3.0])
    clusters = Clusters.of(x, torch.zeros(400, 1), None, 20, 0)
    layer = clusters.layer(RBF(torch.full((2,), 4.0), sigma_min=0.01))
    history = maximize_density(layer, x, clusters, None, generator)
    losses = [entry["loss"] for entry in history]
    assert all(after < before + 1e-4 for before, after in pairwise(losses))
    assert losses[-1] < losses[0] - 0.1
    best = layer.kernel("x").sigma.detach().clone()
    for factor in (0.8, 1.25):
        for column in range(2):
            layer.kernel("x").sigma = torch.where(torch.arange(2) == column, factor * best, best)
            log_sigma, (member_of, _, log_weight) = layer.kernel("x").sigma.log(), clusters.without_row()
            scores = scores_without_row(log_sigma, clusters.x, layer.logits, x, *clusters.without_row())
            log_density = log_density_without_row(scores, log_sigma, layer.logits, member_of, log_weight)
            assert -float(log_density.detach().mean()) > losses[-1] - 0.01


def test_bandwidths_keep_their_bound() -> None:
    x = torch.tensor([[0.0], [1.0]]).repeat(50, 1)
    clusters = Clusters.of(x, torch.zeros(100, 1), None, 2, 0)
    layer = clusters.layer(RBF(torch.ones(1), sigma_min=0.3))
    maximize_density(layer, x, clusters, None, torch.Generator().manual_seed(0))
    assert float(layer.kernel("x").sigma.detach()) == pytest.approx(0.3, rel=0.01)


def test_a_row_far_from_all_others_does_not_widen_bandwidths() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 2, generator=generator)
    sigmas = []
    for rows in (x, torch.cat([x, torch.full((1, 2), 1e5)])):
        clusters = Clusters.of(rows, torch.zeros(len(rows), 1), None, 10, 0)
        layer = clusters.layer(RBF(torch.ones(2), sigma_min=0.01))
        maximize_density(layer, rows, clusters, None, generator)
        sigmas.append(layer.kernel("x").sigma.detach())
    torch.testing.assert_close(sigmas[1], sigmas[0], rtol=0.3, atol=0)


def test_offsets_are_learned_with_the_best_effort_only() -> None:
    y = LABELS ^ (X[:, 2] > 1)
    offsets = {
        name: clone(ESTIMATORS["classifier"][0]).set_params(**given).fit(X, y).module_.trend.offsets
        for name, given in {
            "default": {},
            "best": {"effort": "best"},
            "weight": {"generative_weight": 0.5},
        }.items()
    }
    assert not offsets["default"].any()
    assert offsets["best"].any()
    assert offsets["weight"].any()


# ---- densities


def test_fast_densities_have_groups_of_rows() -> None:
    rows = np.random.default_rng(0).normal(size=(9500, 2))
    fast = kdm.KDMDensity(effort="fast").fit(rows[:9000])
    assert fast.kdm_.n_components <= 8192
    assert fast.n_samples_seen_ == 9000
    whole = kdm.KDMDensity().fit(rows[:9000])
    assert fast.score(rows[9000:]) == pytest.approx(whole.score(rows[9000:]), abs=0.03)
    assert ((fast.novelty(rows[9000:]) < 0.05).mean()) == pytest.approx(0.05, abs=0.03)


def test_few_rows_are_not_grouped() -> None:
    rows = np.random.default_rng(0).normal(size=(300, 2))
    fast, whole = (kdm.KDMDensity(effort=effort).fit(rows) for effort in ("fast", "default"))
    np.testing.assert_array_equal(fast.score_samples(rows), whole.score_samples(rows))
