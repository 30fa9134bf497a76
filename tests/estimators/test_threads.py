"""Fits in threads: each has its own random numbers, and the global ones stay as they are."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, get_ident
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import kdmkit as kdm
from estimators.problems import bags, blobs

X, LABELS = blobs(60)
TARGETS = X[:, 0] + LABELS
ROWS, BAGS, PROPORTIONS, _ = bags(90)
RANGES = np.stack([PROPORTIONS - 0.1, PROPORTIONS + 0.1], -1).clip(0, 1)
OWN = nn.Sequential(nn.Linear(X.shape[1], 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 4))


def _regressor(seed: int, **settings: Any) -> Any:
    model = kdm.KDMRegressor(max_epochs=3, n_members=3, random_state=seed, **settings)
    return model.fit(X, TARGETS).predict_interval(X)


def _classifier(seed: int, **settings: Any) -> Any:
    model = kdm.KDMClassifier(max_epochs=3, random_state=seed, **settings).fit(X, LABELS)
    return model.predict_proba(X) if model.decoder is None else model.sample(5, y=1)


def _density(seed: int, **settings: Any) -> Any:
    return kdm.KDMDensity(max_epochs=3, random_state=seed, **settings).fit(X).sample(5)


def _proportions(seed: int, known: Any = PROPORTIONS, **settings: Any) -> Any:
    model = kdm.KDMProportionClassifier(max_epochs=3, random_state=seed, **settings)
    return model.fit(ROWS, BAGS, known).predict_proba(ROWS)


FITS: dict[str, Callable[[int], Any]] = {
    "regressor": _regressor,
    "regressor, no trend": lambda seed: _regressor(seed, trend=None),
    "regressor, mlp": lambda seed: _regressor(seed, encoder="mlp"),
    "classifier": _classifier,
    "classifier, mlp": lambda seed: _classifier(seed, encoder="mlp", decoder="mlp"),
    "classifier, own encoder with dropout": lambda seed: _classifier(seed, encoder=OWN),
    "density": _density,
    "density, likelihood": lambda seed: _density(seed, method="likelihood"),
    "proportions": _proportions,
    "proportions, mlp": lambda seed: _proportions(seed, RANGES, encoder="mlp"),
}


def _states() -> list[Any]:
    name, keys, *rest = np.random.get_state()  # noqa: NPY002
    return [torch.get_rng_state().tolist(), name, np.asarray(keys).tolist(), *rest]


@pytest.mark.parametrize("fit", FITS)
def test_fits_at_once_equal_fits_one_after_the_other(fit: str) -> None:
    before = _states()
    alone = [FITS[fit](seed) for seed in (0, 1)]
    assert _states() == before
    start = Barrier(2)

    def run(seed: int) -> Any:
        start.wait()
        return FITS[fit](seed)

    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(run, (0, 1)))
    assert _states() == before
    for result, wanted in zip(together, alone, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-6, atol=1e-7)
    assert not np.allclose(alone[0], alone[1])


def test_loading_leaves_the_global_generator_alone(tmp_path: Any) -> None:
    model = kdm.KDMClassifier(encoder="mlp", max_epochs=1, random_state=0).fit(X, LABELS)
    kdm.save(model, tmp_path / "model.kdm")
    before = _states()
    kdm.load(tmp_path / "model.kdm")
    assert _states() == before


class _Seen(nn.Linear):
    """Remembers the threads that called it."""

    threads: ClassVar[set[int]] = set()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.threads.add(get_ident())
        return super().forward(x)


def test_many_rows_are_predicted_in_threads() -> None:
    """The numbers do not depend on the number of threads; users' encoders stay in the caller's thread."""
    rows = np.tile(X, (70, 1)) + np.linspace(0, 1, 70 * len(X))[:, None]
    custom = kdm.KDMRegressor(max_epochs=1, encoder=_Seen(X.shape[1], 2), random_state=0)
    models = [kdm.KDMRegressor(max_epochs=1, trend=None, random_state=0), custom]
    for model in models:
        model.fit(X, TARGETS)
        alone = model.predict(rows)
        torch.set_num_threads(2)
        try:
            np.testing.assert_array_equal(model.predict(rows), alone)
        finally:
            torch.set_num_threads(1)
    assert _Seen.threads == {get_ident()}
