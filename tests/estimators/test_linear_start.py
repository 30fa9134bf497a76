"""Members start from linear models of the rows that they learn from, and stay with them unless better."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import log_loss

import kdmkit as kdm
from kdmkit.estimators.common.cross_fit import held_out
from kdmkit.estimators.common.member_losses import (
    LinearModels,
    MemberLoss,
    label_losses,
    start_linear,
    target_errors,
)
from kdmkit.nn import MLPEnsemble

K = 5


def started(
    x: torch.Tensor, y: torch.Tensor, loss: MemberLoss, weights: torch.Tensor | None = None, outputs: int = 1
) -> tuple[MLPEnsemble, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    ensemble = MLPEnsemble([x.shape[1], 4, outputs], n_members=K, generator=generator)
    left_out = held_out(len(x), K, generator)
    start_linear(ensemble, x, y, weights, left_out, loss)
    return ensemble, left_out


def linear_rows(n: int, d: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, d, generator=generator)
    return x, x @ torch.randn(d, 1, generator=generator) + 3 + 0.1 * torch.randn(n, 1, generator=generator)


def test_a_member_has_the_least_squares_of_its_rows() -> None:
    x, y = linear_rows(400, 3)
    ensemble, left_out = started(x, y, target_errors)
    ones = torch.cat([x, torch.ones(len(x), 1)], 1)
    for member in range(K):
        learned = ~left_out[:, member]
        wanted = torch.linalg.lstsq(ones[learned], y[learned]).solution
        # The weakest penalty is a thousandth of the rows' weight.
        torch.testing.assert_close(ensemble.linear[member], wanted[:-1], rtol=0.01, atol=0.01)
        torch.testing.assert_close(ensemble.biases[-1][member, 0], wanted[-1], rtol=0.01, atol=0.01)


@pytest.mark.parametrize("loss", [target_errors, label_losses])
def test_a_member_does_not_know_what_it_holds_out(loss: MemberLoss) -> None:
    """With a penalty that is the same: which penalty is best is a choice for all rows and members."""
    x, y = linear_rows(60, 2)
    targets = y if loss is target_errors else (y[:, 0] > 3).long()
    rows, left_out = torch.cat([x, torch.ones(60, 1)], 1), held_out(60, K, torch.Generator().manual_seed(0))
    row = int(left_out[:, 2].nonzero()[0, 0])
    changed = targets.clone()
    changed[row] = 1 - changed[row]

    def models(y: torch.Tensor) -> torch.Tensor:
        constants = torch.zeros(K, 1 if loss is target_errors else 2)
        linear = LinearModels(rows, y, torch.ones(60), left_out, loss, constants)
        return linear.with_penalty(10.0, linear.constant)

    one, other = models(targets), models(changed)
    for member in range(K):
        assert torch.equal(one[member], other[member]) == bool(left_out[row, member])


def test_weights_count_as_repetitions() -> None:
    x, y = linear_rows(200, 2)
    weights = torch.ones(200)
    weights[:50] = 3.0
    ensemble, left_out = started(x, y, target_errors, weights)
    ones = torch.cat([x, torch.ones(len(x), 1)], 1)
    w = (weights * ~left_out[:, 0]).sqrt().unsqueeze(1)
    wanted = torch.linalg.lstsq(w * ones, w * y).solution
    torch.testing.assert_close(ensemble.linear[0], wanted[:-1], rtol=0.01, atol=0.01)


def test_wild_targets_do_not_bend_it() -> None:
    x, y = linear_rows(300, 2)
    y = (y - y.mean()) / y.std()
    wild = y.clone()
    wild[:6] += 50.0
    clean, bent = started(x, y, target_errors)[0], started(x, wild, target_errors)[0]
    assert (clean.linear - bent.linear).abs().max() < 0.15


def test_noise_keeps_the_constant() -> None:
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(60, 20, generator=generator), torch.randn(60, 1, generator=generator)
    ensemble, _ = started(x, y, target_errors)
    assert ensemble.linear.abs().max() < 0.1


def test_more_columns_than_rows() -> None:
    """The penalty is chosen on held-out rows: about as good as a cross-validated ridge regression."""
    x, y = linear_rows(500, 200)
    y = (y - y.mean()) / y.std()
    ensemble, _ = started(x[:80], y[:80], target_errors)
    ridge = RidgeCV(np.geomspace(1, 1e4, 9)).fit(x[:80].numpy(), y[:80, 0].numpy())
    with torch.no_grad():
        answers = ensemble(x[80:]).mean(1)[:, 0].numpy()
    errors = [np.mean((a - y[80:, 0].numpy()) ** 2) for a in (answers, ridge.predict(x[80:].numpy()))]
    assert errors[0] < 1.1 * errors[1]


def test_classifiers_of_linear_problems_are_logistic_regressions() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 5))
    y = (rng.uniform(size=600) < 1 / (1 + np.exp(-X @ [2, -1, 1, 0, 0]))).astype(int)
    model = kdm.KDMClassifier(effort="fast", random_state=0).fit(X[:300], y[:300])
    logistic = LogisticRegression().fit(X[:300], y[:300])
    losses = [log_loss(y[300:], m.predict_proba(X[300:])) for m in (model, logistic)]
    assert losses[0] < 1.05 * losses[1]


def test_regressors_of_linear_problems_are_ridge_regressions() -> None:
    x, y = (tensor.numpy() for tensor in linear_rows(240, 6))
    model = kdm.KDMRegressor(effort="fast", random_state=0).fit(x[:120], y[:120, 0])
    ridge = RidgeCV(np.geomspace(1e-3, 1e3, 9)).fit(x[:120], y[:120, 0])
    errors = [np.mean((m.predict(x[120:]) - y[120:, 0]) ** 2) for m in (model, ridge)]
    assert errors[0] < 1.05**2 * errors[1]
