"""Fits and answers do not depend on torch's modes and defaults around them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import kdmkit as kdm
from estimators.problems import bags, blobs


@contextmanager
def float64_by_default() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


SURROUNDINGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "float64 by default": float64_by_default,
}
X, LABELS = blobs(60)
TARGETS = X[:, 0] + LABELS
ROWS, BAGS, PROPORTIONS, _ = bags(90)
TWICE, TARGETS_TWICE = np.tile(X, (2, 1)), np.tile(np.random.default_rng(0).normal(size=len(X)), 2)
SHORT = {"max_epochs": 2, "random_state": 0}

FITS: dict[str, Callable[[], Any]] = {
    "regressor": lambda: kdm.KDMRegressor(n_members=3, **SHORT).fit(X, TARGETS).predict_interval(X),
    "regressor, memory": lambda: kdm.KDMRegressor(n_members=3, **SHORT).fit(TWICE, TARGETS_TWICE).predict(X),
    "regressor, no trend": lambda: kdm.KDMRegressor(trend=None, **SHORT).fit(X, TARGETS).predict(X),
    "classifier": lambda: kdm.KDMClassifier(**SHORT).fit(X, LABELS).predict_proba(X),
    "classifier, mlp": lambda: (
        kdm.KDMClassifier(encoder="mlp", decoder="mlp", **SHORT).fit(X, LABELS).sample(3, y=1)
    ),
    "classifier, nonparametric": lambda: (
        kdm.KDMClassifier("nonparametric", random_state=0).fit(X, LABELS).predict_proba(X)
    ),
    "density": lambda: kdm.KDMDensity(random_state=0).fit(X).score_samples(X),
    "density, likelihood": lambda: kdm.KDMDensity("likelihood", **SHORT).fit(X).score_samples(X),
    "proportions": lambda: (
        kdm.KDMProportionClassifier(**SHORT).fit(ROWS, BAGS, PROPORTIONS).predict_proba(ROWS)
    ),
}


@cache
def _plain(fit: str) -> Any:
    return FITS[fit]()


@pytest.mark.parametrize("surroundings", SURROUNDINGS)
@pytest.mark.parametrize("fit", FITS)
def test_fits_are_the_same_in_any_surroundings(fit: str, surroundings: str) -> None:
    wanted = _plain(fit)
    with SURROUNDINGS[surroundings]():
        answer = FITS[fit]()
    np.testing.assert_allclose(answer, wanted, rtol=1e-5, atol=1e-6)
