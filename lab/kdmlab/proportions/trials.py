"""One trial of a cell of Table 2: the same bags for every method, and the AUC on rows it never saw."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from kdmlab.proportions.bags import draw_bags
from kdmlab.proportions.data import DATASETS, Dataset, load
from kdmlab.proportions.methods import LEARN, TrainingBags
from kdmlab.proportions.settings import Interval

Array = NDArray[Any]


@dataclass(frozen=True)
class Trial:
    """A trial: its random bags and test rows depend on these fields."""

    dataset: str
    interval: Interval
    bag_size: int
    number: int

    @property
    def seed(self) -> list[int]:
        """Entropy of NumPy's seed sequence."""
        low, high = self.interval
        return [
            self.number,
            self.bag_size,
            round(100 * low),
            round(100 * high),
            list(DATASETS).index(self.dataset),
        ]

    def draw(self, data: Dataset) -> tuple[TrainingBags, Array, Array]:
        """The training bags, the features of the test rows, and the numbers of these rows."""
        rng = np.random.default_rng(self.seed)
        pool, test = data.split(rng)
        bags = draw_bags(data.y[pool], total=data.total, size=self.bag_size, interval=self.interval, rng=rng)
        inside = pool[bags.rows].ravel()
        features = data.standardized(inside)
        ids = np.repeat(np.arange(len(bags.rows)), self.bag_size)
        return TrainingBags(features[inside], ids, bags.share), features[test], test


def measure(
    trial: Trial, method: str, settings: dict[str, Any], data_dir: Path, device: str
) -> dict[str, Any]:
    """Learns from a trial's bags and scores its test rows. Their labels are used for the AUC alone."""
    return measured(trial, method, settings, loaded(trial.dataset, data_dir), device)


def measured(
    trial: Trial, method: str, settings: dict[str, Any], data: Dataset, device: str = "cpu"
) -> dict[str, Any]:
    training, X_test, test = trial.draw(data)
    scores = LEARN[method](training, trial.number, **settings, device=device)(X_test)
    auc = float(roc_auc_score(data.y[test], scores))
    return {"auc": auc, "test_rows": len(test), "scores": digest(scores)}


def digest(scores: Array) -> str:
    """A short hash of all scores: equal for equal scores."""
    return hashlib.sha256(np.ascontiguousarray(scores, dtype="<f8").tobytes()).hexdigest()[:16]


@lru_cache
def loaded(name: str, data_dir: Path) -> Dataset:
    return load(name, data_dir)
