"""Scores of predictive distributions, in the units of y: the same for all methods."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import norm

from kdmkit import KDM, metrics

Array = NDArray[Any]

COVERAGE = 0.9
# Bins of the histogram of F(y) in every line.
PIT_BINS = 100


class Predictive(Protocol):
    """The distribution of every test row's target."""

    @property
    def mean(self) -> Array: ...

    def log_prob(self, y: Array) -> Array: ...

    def crps(self, y: Array) -> Array: ...

    def cdf(self, y: Array) -> Array: ...

    def interval(self, coverage: float) -> tuple[Array, Array]: ...


@dataclass(frozen=True)
class Gaussians:
    """N(mean, std²), one for every row."""

    mean: Array
    std: Array

    def log_prob(self, y: Array) -> Array:
        return np.asarray(norm.logpdf(y, self.mean, self.std))

    def crps(self, y: Array) -> Array:
        """σ·(z·(2Φ(z) − 1) + 2φ(z) − 1/√π) with z = (y − μ)/σ (Gneiting and Raftery, 2007)."""
        z = (y - self.mean) / self.std
        return np.asarray(self.std * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / math.sqrt(math.pi)))

    def cdf(self, y: Array) -> Array:
        return np.asarray(norm.cdf(y, self.mean, self.std))

    def interval(self, coverage: float) -> tuple[Array, Array]:
        reach = norm.ppf((1 + coverage) / 2) * self.std
        return self.mean - reach, self.mean + reach


@dataclass(frozen=True)
class Mixtures:
    """The mixtures of a one-dimensional KDM of batch shape `(n,)`."""

    rho: KDM

    @property
    def mean(self) -> Array:
        return np.asarray(self.rho.mean.squeeze(-1))

    def log_prob(self, y: Array) -> Array:
        return np.asarray(self.rho.log_prob(torch.from_numpy(y).unsqueeze(-1)))

    def crps(self, y: Array) -> Array:
        return np.asarray(metrics.crps(self.rho, y))

    def cdf(self, y: Array) -> Array:
        return np.asarray(metrics.pit(self.rho, y))

    def interval(self, coverage: float) -> tuple[Array, Array]:
        ends = torch.tensor([[(1 - coverage) / 2], [(1 + coverage) / 2]], dtype=torch.float64)
        low, high = self.rho.icdf(ends).squeeze(-1)
        return np.asarray(low), np.asarray(high)


def scores(predictive: Predictive, y: Array) -> dict[str, Any]:
    """RMSE of the mean, mean NLL and CRPS, coverage and width of 90 % intervals, counts of F(y)."""
    low, high = predictive.interval(COVERAGE)
    counts, _ = np.histogram(np.clip(predictive.cdf(y), 0, 1), PIT_BINS, (0, 1))
    return {
        "rmse": float(np.sqrt(np.mean((predictive.mean - y) ** 2))),
        "nll": float(-predictive.log_prob(y).mean()),
        "crps": float(predictive.crps(y).mean()),
        "coverage90": float(metrics.interval_coverage(low, high, y)),
        "width90": float(metrics.interval_width(low, high)),
        "pit_counts": counts.tolist(),
    }
