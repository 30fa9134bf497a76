"""Seconds of whole fits, through `fit` with its defaults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from sklearn.datasets import load_digits, make_classification
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from kdmkit.estimators import KDMClassifier, KDMRegressor
from kdmkit.experiments.bench.measure import extra_memory, time_calls

Kind = Literal["KDMClassifier(n_components=256)", "KDMClassifier()", "KDMRegressor()"]


@dataclass(frozen=True)
class FitCase:
    """A fit of an estimator, on a CPU beside gradient boosting.

    Args:
        rows, features: of the data; None takes the digits.
    """

    kind: Kind
    device: torch.device
    rows: int | None = None
    features: int = 8

    @property
    def key(self) -> dict[str, Any]:
        of = "digits" if self.rows is None else f"{self.rows:,} × {self.features}"
        return {"case": f"{self.kind}.fit, {of}"}

    def peers(self) -> dict[str, Callable[[], Any]]:
        ours: Callable[..., Any]
        other: Callable[..., Any]
        if self.kind == "KDMRegressor()":
            ours, other = KDMRegressor, HistGradientBoostingRegressor
        else:
            n_components = 256 if "256" in self.kind else "auto"
            ours, other = partial(KDMClassifier, n_components=n_components), HistGradientBoostingClassifier
        found: dict[str, Callable[[], Any]] = {
            "kdmkit": partial(ours, device=self.device.type, random_state=0)
        }
        if self.device.type == "cpu":
            found["gradient boosting"] = partial(other, random_state=0)
        return found

    def data(self) -> tuple[Any, Any]:
        if self.rows is None:
            digits: tuple[Any, Any] = load_digits(return_X_y=True)
            return digits
        if self.kind != "KDMRegressor()":
            labels = {"n_informative": self.features // 2, "n_classes": 10}
            made: tuple[Any, Any] = make_classification(self.rows, self.features, **labels, random_state=0)
            return made
        random = np.random.default_rng(0)
        X, noise = random.normal(size=(self.rows, self.features)), random.normal(size=self.rows)
        return X, np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * (1 + X[:, 3] ** 2) * noise

    def measure(self, peer: str, seconds: float) -> dict[str, Any]:
        """The median time of three fits or more, after a first one."""
        X, y = self.data()
        make = self.peers()[peer]
        memory = extra_memory(lambda: make().fit(X, y), self.device)
        # By the clock of the host, whatever the device: a fit ends with numbers that it reads back.
        timing = time_calls(lambda: make().fit(X, y), seconds=seconds, device=torch.device("cpu"))
        return {**asdict(timing), "extra_bytes": memory, "error": None}


def fit_cases(device: torch.device) -> list[FitCase]:
    return [
        FitCase("KDMClassifier(n_components=256)", device, 50_000, 30),
        FitCase("KDMClassifier()", device),
        FitCase("KDMRegressor()", device, 8192),
    ]
