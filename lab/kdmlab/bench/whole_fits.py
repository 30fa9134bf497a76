"""Seconds of whole fits and of predictions, through estimators with their defaults."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from sklearn.datasets import load_digits, make_classification
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from kdmkit import KDMClassifier, KDMRegressor
from kdmkit.nn import ResidualMemory, Trend
from kdmlab.bench.measure import extra_memory, time_calls

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
        fits: dict[str, Callable[[], Any]] = {
            "kdmkit": partial(ours, device=self.device.type, random_state=0)
        }
        if self.device.type == "cpu":
            fits["gradient boosting"] = partial(other, random_state=0)
        return fits

    def data(self) -> tuple[Any, Any]:
        if self.rows is None:
            digits: tuple[Any, Any] = load_digits(return_X_y=True)
            return digits
        if self.kind != "KDMRegressor()":
            labels = {"n_informative": self.features // 2, "n_classes": 10}
            made: tuple[Any, Any] = make_classification(self.rows, self.features, **labels, random_state=0)
            return made
        return made_regression(self.rows, self.features)

    def measure(self, peer: str, seconds: float) -> dict[str, Any]:
        """The median time of three fits or more, after a first one."""
        X, y = self.data()
        make = self.peers()[peer]
        return _measured(lambda: make().fit(X, y), seconds, self.device)


@dataclass(frozen=True)
class PredictCase:
    """`predict` of a regressor on a CPU, as it was fitted and beside a memory of all of its rows.

    A fit to these data finds no use for a memory: it is added by hand, with the bandwidths `WIDE` and
    `NARROW` in units of √d. Most pairs of a row and a query count beside the wide kernel, few beside the
    narrow one.

    Args:
        rows: to predict.
        fitted: the rows of the fit.
        features: d.
    """

    WIDE: ClassVar[float] = 0.3
    NARROW: ClassVar[float] = 0.05

    rows: int
    fitted: int = 20_000
    features: int = 20

    @property
    def key(self) -> dict[str, Any]:
        of = f"{self.rows:,} × {self.features}, fitted to {self.fitted:,}"
        return {"case": f"KDMRegressor().predict, {of}"}

    def peers(self) -> dict[str, Callable[[], Any]]:
        return {
            "kdmkit": self._regressor,
            "kdmkit, wide memory of all rows": partial(self._remembering, self.WIDE),
            "kdmkit, narrow memory of all rows": partial(self._remembering, self.NARROW),
            "gradient boosting": partial(self._fit, HistGradientBoostingRegressor(random_state=0)),
        }

    def measure(self, peer: str, seconds: float) -> dict[str, Any]:
        model = self.peers()[peer]()
        X = np.random.default_rng(1).normal(size=(self.rows, self.features))
        return _measured(lambda: model.predict(X), seconds, torch.device("cpu"))

    def _fit(self, model: Any) -> Any:
        return model.fit(*made_regression(self.fitted, self.features))

    def _regressor(self, *, memory: bool = True) -> KDMRegressor:
        fitted: KDMRegressor = self._fit(KDMRegressor(memory=memory, device="cpu", random_state=0))
        return fitted

    def _remembering(self, bandwidth: float) -> KDMRegressor:
        model = self._regressor(memory=False)
        trend = model.module_.trend
        assert isinstance(trend, Trend)
        X, y = made_regression(self.fitted, self.features)
        residuals = (torch.from_numpy(y - model.predict(X)).unsqueeze(1) / trend.y.scale).float()
        rows = trend.x(torch.from_numpy(X)).float()
        sigma = bandwidth * math.sqrt(self.features)
        trend.memory = ResidualMemory(rows, residuals, torch.zeros(self.fitted), sigma=sigma)
        trend.memory.sort()
        return model


def _measured(call: Callable[[], Any], seconds: float, device: torch.device) -> dict[str, Any]:
    """The memory of a call on a device, and the time of repeated ones."""
    memory = extra_memory(call, device)
    # The host's clock serves every device: calls of estimators end with numbers that are read back.
    timing = time_calls(call, seconds=seconds, device=torch.device("cpu"))
    return {**asdict(timing), "extra_bytes": memory, "error": None}


def made_regression(rows: int, features: int) -> tuple[Any, Any]:
    """Standard normal columns, four of which matter, and noise that depends on one of them."""
    random = np.random.default_rng(0)
    X, noise = random.normal(size=(rows, features)), random.normal(size=rows)
    return X, np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * (1 + X[:, 3] ** 2) * noise


def predict_cases() -> list[PredictCase]:
    return [PredictCase(1_000_000)]


def fit_cases(device: torch.device) -> list[FitCase]:
    return [
        FitCase("KDMClassifier(n_components=256)", device, 50_000, 30),
        FitCase("KDMClassifier()", device),
        FitCase("KDMRegressor()", device, 8192),
    ]
