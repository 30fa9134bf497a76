"""Fits on a CUDA device: close to those on a CPU, and the same again."""

import warnings

import numpy as np
import pytest
import torch

from kdmkit.estimators import KDMClassifier, KDMDensity, KDMRegressor

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

RANDOM = np.random.default_rng(0)
# Rows that nearly repeat: a memory helps. One bandwidth of it is better than all others by a third: where two
# are equally good, rounding chooses, and the answers of two devices differ.
X = np.repeat(RANDOM.normal(size=(80, 3)), 6, 0) + 0.03 * RANDOM.normal(size=(480, 3))
Y = np.repeat(RANDOM.normal(size=(80, 2)), 6, 0)
LABELS = (Y[:, 0] > 0).astype(int)
WEIGHTS = RANDOM.uniform(0.5, 2, 480)

FITS = {
    "regressor": lambda **k: KDMRegressor(**k).fit(X, Y, WEIGHTS).predict(X),
    "regressor, one output": lambda **k: KDMRegressor(**k).fit(X, Y[:, 0]).predict(X),
    "regressor without a trend": lambda **k: KDMRegressor(trend=None, **k).fit(X, Y).predict(X),
    "classifier": lambda **k: KDMClassifier(**k).fit(X, LABELS, WEIGHTS).predict_proba(X),
    "classifier without a trend": lambda **k: KDMClassifier(trend=None, **k).fit(X, LABELS).predict_proba(X),
    "density": lambda **k: KDMDensity("likelihood", **k).fit(X).score_samples(X),
}


@pytest.mark.parametrize("case", FITS)
def test_fits_are_those_of_a_cpu(case):
    """Noise is drawn by other generators: fits without a trend differ a little more."""
    settings = {"max_epochs": 6, "random_state": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        result = FITS[case](device="cuda", **settings)
    wanted = FITS[case](device="cpu", **settings)
    noisy = "without" in case or case == "density"
    np.testing.assert_allclose(result, wanted, atol=0.3 if noisy else 2e-3)


@pytest.mark.parametrize("case", ["regressor", "classifier", "density"])
def test_fits_repeat_to_the_last_bit(case):
    settings = {"max_epochs": 6, "random_state": 0, "device": "cuda"}
    np.testing.assert_array_equal(FITS[case](**settings), FITS[case](**settings))
