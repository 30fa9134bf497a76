"""Likelihood, coverage and calibration of predictive distributions."""

import numpy as np
import pytest
import torch

import kdmkit as kdm
from helpers import CONTINUOUS, close, normal, real, seeded, simplex
from kdmkit.metrics import (
    crps,
    interval_coverage,
    interval_width,
    mean_nll,
    pit,
    quantile_calibration,
    quantile_calibration_error,
)


def test_nll_is_the_mean_of_the_rows():
    rho = kdm.KDM(normal(4, 1, seed=0), simplex(3, 4, seed=1), kdm.RBF(0.5))
    y = normal(3, seed=2)
    wanted = -rho.log_prob(y.unsqueeze(-1)).mean()
    close(mean_nll(rho, y), wanted)
    close(mean_nll(rho, y.numpy()), wanted)
    close(mean_nll(rho, y.unsqueeze(-1)), wanted)


def test_nll_of_labels_and_of_several_dimensions():
    probs = simplex(5, 3, seed=0)
    labels = np.array([0, 2, 1, 1, 0])
    close(mean_nll(kdm.KDM.from_probs(probs), labels), -probs[range(5), labels].log().mean())
    codes = kdm.KDM(torch.arange(3), probs[0], kdm.Categorical(3))
    close(mean_nll(codes, labels), -probs[0, labels].log().mean())
    rho = kdm.KDM(normal(4, 3, seed=1), simplex(3, 4, seed=2), kdm.RBF(0.5))
    y = normal(3, 3, seed=3)
    close(mean_nll(rho, y), -rho.log_prob(y).mean())


@pytest.mark.parametrize("family", CONTINUOUS)
def test_pit_of_own_draws_is_uniform(family):
    rho = kdm.KDM(2 * normal(5, 1, seed=0), simplex(4, 5, seed=1), CONTINUOUS[family](0.5))
    values = pit(rho, rho.sample((20_000,), generator=seeded(2))).flatten()
    assert values.shape == (80_000,)
    levels, observed = quantile_calibration(values)
    # Dvoretzky–Kiefer–Wolfowitz at a probability of 1e-6.
    close(observed, levels, rtol=0, atol=(np.log(2e6) / (2 * 80_000)) ** 0.5)
    assert quantile_calibration_error(values) < 0.005


def test_pit_shapes():
    rho = kdm.KDM(normal(4, 1, seed=0), simplex(3, 4, seed=1), kdm.RBF(0.5))
    y = normal(3, seed=2)
    close(pit(rho, y), rho.cdf(y.unsqueeze(-1)))
    assert pit(rho, normal(7, 1, 1, seed=3)).shape == (7, 3)


def test_intervals_from_quantiles_cover_what_they_say():
    rho = kdm.KDM(2 * normal(5, 1, seed=0), simplex(50, 5, seed=1), kdm.RBF(0.5))
    lower, upper = rho.icdf(torch.full((50,), 0.05)), rho.icdf(torch.full((50,), 0.95))
    y = rho.sample((2_000,), generator=seeded(2))
    covered = interval_coverage(lower.expand_as(y), upper.expand_as(y), y)
    assert covered.item() == pytest.approx(0.9, abs=0.005)
    close(interval_width(lower, upper), (upper - lower).mean())


def test_coverage_counts_the_ends():
    lower, upper = np.zeros(4), np.ones(4)
    assert interval_coverage(lower, upper, np.array([0.0, 1.0, 1.0001, -0.1])) == 0.5
    assert interval_width(lower, upper) == 1


def test_quantile_calibration_counts():
    levels, observed = quantile_calibration(np.array([[0.1, 0.25], [0.5, 0.9]]), [0.0, 0.25, 0.6, 1.0])
    assert levels.tolist() == [0, 0.25, 0.6, 1.0]
    assert observed.tolist() == [0, 0.5, 0.75, 1.0]
    assert quantile_calibration_error([0.5], [0.25, 0.5]).item() == 0.375
    close(quantile_calibration([0.5]).levels, real([0.05 * i for i in range(1, 20)]))


def test_scores_are_of_one_scale_with_their_units():
    """CRPS and widths scale with y, likelihood shifts by the logarithm of the unit."""
    c, w, y = normal(5, 1, seed=0), simplex(3, 5, seed=1), normal(3, seed=2)
    one, thousand = kdm.KDM(c, w, kdm.RBF(0.5)), kdm.KDM(1e3 * c, w, kdm.RBF(500.0))
    close(crps(thousand, 1e3 * y), 1e3 * crps(one, y))
    close(mean_nll(thousand, 1e3 * y), mean_nll(one, y) + np.log(1e3))
    close(pit(thousand, 1e3 * y), pit(one, y))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: mean_nll(3, [0.0]), TypeError, "rho: expected a KDM, got int|parameter 'rho'"),
        (
            lambda: mean_nll(kdm.KDM([[0.0]], None, kdm.RBF(1.0)), torch.zeros(0, 1)),
            ValueError,
            "y: expected at least one row",
        ),
        (
            lambda: pit(kdm.KDM.from_probs(torch.ones(2) / 2), [0]),
            TypeError,
            "rho: expected a KDM with a continuous kernel",
        ),
        (
            lambda: interval_coverage([0], [1], [1, 2]),
            ValueError,
            r"y: expected the shape of lower .* got \(2,\)",
        ),
        (lambda: interval_coverage([0, 0], [1], [1]), ValueError, "upper: expected the shape of lower"),
        (lambda: interval_width([0, 2], [1, 1]), ValueError, "upper: expected values not below lower, got 1"),
        (lambda: interval_width([0, np.nan], [1, 1]), ValueError, "lower: expected finite values"),
        (lambda: interval_width([], []), ValueError, "lower: expected at least one value"),
        (
            lambda: quantile_calibration([1.2]),
            ValueError,
            r"pit_values: expected values in \[0, 1\], got 1.2",
        ),
        (lambda: quantile_calibration([0.2], [[0.1]]), ValueError, r"levels: expected shape \(k,\)"),
        (
            lambda: quantile_calibration([0.2], [5]),
            ValueError,
            r"levels: expected values in \[0, 1\], got 5.0",
        ),
    ],
)
def test_bad_input_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
