"""The baseline: an unbiased loss, its minimiser, and the choice of the penalty."""

import numpy as np
import pytest
from scipy.optimize import minimize as scipy_minimize
from scipy.special import expit
from sklearn.metrics import roc_auc_score
from sklearn.metrics.pairwise import rbf_kernel

from kdmlab.proportions.bags import draw_bags
from kdmlab.proportions.lmmcm import LMMCM, coefficients


def problem(total: int = 256, size: int = 16, seed: int = 0):  # type: ignore[no-untyped-def]
    """Rows, bags, shares, and the labels nobody sees."""
    rng = np.random.default_rng(seed)
    y = np.arange(4 * total) % 2
    X = rng.normal(size=(len(y), 2)) + 2.0 * y[:, None]
    bags = draw_bags(y, total=total, size=size, interval=(0, 0.5), rng=rng)
    rows = bags.rows.ravel()
    return X[rows], np.repeat(np.arange(total // size), size), bags.share, y[rows]


def test_coefficients_are_those_of_the_paper() -> None:
    share, bags = np.array([0.5, 0.1, 0.2, 0.4]), np.array([0, 1, 1, 2, 3, 3])
    plus, minus = coefficients(bags, share, np.arange(4))
    weights = np.array([0.4**2, 0.2**2]) / (0.4**2 + 0.2**2)
    # The pair of bags 1 (γ⁻ = .1, two rows) and 0 (γ⁺ = .5, one row).
    assert plus[0] == pytest.approx(weights[0] * 0.9 / 0.4)
    assert minus[0] == pytest.approx(-weights[0] * 0.1 / 0.4)
    assert plus[1] == pytest.approx(weights[0] * -0.5 / 0.4 / 2)
    assert minus[1] == pytest.approx(weights[0] * 0.5 / 0.4 / 2)
    # The pair of bags 2 and 3.
    assert plus[3] == pytest.approx(weights[1] * (0.4 - 1) / 0.2)
    assert minus[4] == pytest.approx(weights[1] * -0.2 / 0.2 / 2)


def test_loss_is_unbiased() -> None:
    """Whatever f is, the corrected loss estimates the balanced risk that labels would give."""
    corrected, supervised = [], []
    for seed in range(20):
        X, bags, share, y = problem(total=4096, size=64, seed=seed)
        f = np.sin(X[:, 0]) + X[:, 1]
        losses = np.array([np.logaddexp(0, -f), np.logaddexp(0, f)])
        corrected.append((coefficients(bags, share, np.arange(len(share))) * losses).sum())
        supervised.append(losses[0][y == 1].mean() + losses[1][y == 0].mean())
    error = np.array(corrected) - np.array(supervised)
    assert abs(error.mean()) < 4 * error.std(ddof=1) / np.sqrt(20)
    assert abs(error.mean()) < 0.1


def test_an_odd_bag_and_equal_shares_count_nothing() -> None:
    plus, minus = coefficients(np.arange(3), np.array([0.1, 0.3, 0.6]), np.arange(3))
    assert plus[1] == minus[1] == 0
    assert not coefficients(np.arange(2), np.array([0.3, 0.3]), np.arange(2)).any()


@pytest.mark.parametrize("penalty", [1.0, 1e-3])
def test_minimiser_is_the_same_in_other_coordinates(penalty: float) -> None:
    X, bags, share, _ = problem(total=96, size=8)
    model = LMMCM(penalties=[penalty]).fit(X, bags, share)
    kernel = rbf_kernel(X, gamma=1 / (2 * X.var())) + 1e-8 * np.eye(96)
    plus, minus = coefficients(bags, share, np.arange(len(share)))

    def objective(beta: np.ndarray) -> tuple[float, np.ndarray]:
        f = kernel @ beta
        value = plus @ np.logaddexp(0, -f) + minus @ np.logaddexp(0, f) + penalty * beta @ f
        return value, kernel @ (minus * expit(f) - plus * expit(-f) + 2 * penalty * beta)

    best = scipy_minimize(
        objective, np.zeros(96), jac=True, method="L-BFGS-B", options={"maxiter": 20_000, "ftol": 1e-15}
    )
    fitted = model._beta.squeeze(1).numpy()
    assert objective(fitted)[0] <= best.fun + 1e-7
    np.testing.assert_allclose(model.decision_function(X), kernel @ best.x, atol=2e-2)


def test_cross_validation_chooses_the_smallest_loss() -> None:
    X, bags, share, _ = problem(total=256)
    model = LMMCM().fit(X, bags, share)
    assert model.losses_.shape == (6,)
    assert model.penalty_ == model.penalties[int(model.losses_.argmin())]
    # Held-out bags expose both too much and too little of it.
    assert 1e-5 < model.penalty_ < 1


def test_rows_are_told_apart() -> None:
    X, bags, share, _ = problem(total=512)
    X_new, _, _, y_new = problem(total=512, seed=1)
    assert roc_auc_score(y_new, LMMCM().fit(X, bags, share).decision_function(X_new)) > 0.93


def test_large_scores_stay_finite() -> None:
    """Almost no penalty on a loss that is unbounded below: values are large, none is NaN."""
    X, bags, share, _ = problem(total=64)
    model = LMMCM(penalties=[1e-10]).fit(1e3 * X, bags, share)
    assert np.isfinite(model.decision_function(1e3 * X)).all()


def test_fewer_bags_than_folds() -> None:
    X, bags, share, _ = problem(total=64, size=16)
    assert LMMCM().fit(X, bags, share).penalty_ in LMMCM().penalties


def test_equal_shares_give_a_constant() -> None:
    X, bags, _, _ = problem(total=64, size=16)
    np.testing.assert_array_equal(LMMCM().fit(X, bags, np.full(4, 0.25)).decision_function(X), 0)


def test_shares_outside_the_unit_interval() -> None:
    X, bags, share, _ = problem(total=64, size=16)
    with pytest.raises(ValueError, match=r"share: expected values in \[0, 1\], got 1.5"):
        LMMCM().fit(X, bags, np.append(share[1:], 1.5))


def test_penalties_do_not_depend_on_each_other() -> None:
    """The cross-validated loss of a penalty is the same beside others."""
    X, bags, share, _ = problem(total=128)
    together = LMMCM(penalties=[1.0, 1e-2]).fit(X, bags, share).losses_
    alone = [LMMCM(penalties=[penalty]).fit(X, bags, share).losses_[0] for penalty in (1.0, 1e-2)]
    np.testing.assert_array_equal(together, alone)
