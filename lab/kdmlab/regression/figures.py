"""Figures: predictive bands of one-dimensional problems, and calibration on test rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdmkit import KDMRegressor
from kdmkit.plotting import plot_calibration_curve, plot_pit, plot_predictive_bands
from kdmlab.common import Row
from kdmlab.estimators import PROBLEMS
from kdmlab.regression.scores import PIT_BINS

Array = NDArray[Any]

_TITLES = {
    "heteroscedastic": "Noise that grows outwards",
    "bimodal": "Two branches",
    "gaps": "A gap, and beyond the data",
}


def gaps(rng: np.random.Generator, rows: int) -> tuple[Array, Array]:
    """A sine wave with no rows in the middle of its range."""
    x = rng.choice([-1, 1], rows) * rng.uniform(0.7, 2, rows)
    return x.reshape(-1, 1), np.sin(2 * x) + 0.1 * rng.normal(size=rows)


def save_bands(path: Path, *, rows: int = 1000, seed: int = 0) -> Path:
    """Default predictions: intervals of a heteroscedastic problem and of gaps, density of a bimodal one."""
    import matplotlib.pyplot as plt

    problems = {**PROBLEMS, "gaps": gaps}
    figure, axes = plt.subplots(1, len(problems), figsize=(16, 3.9), layout="constrained")
    for ax, (name, problem) in zip(axes, problems.items(), strict=True):
        X, y = problem(np.random.default_rng(seed), rows)
        model = KDMRegressor(random_state=seed).fit(X, y)
        beyond = 1.0 if name == "gaps" else 0.0
        grid = np.linspace(X.min() - beyond, X.max() + beyond, 240).reshape(-1, 1)
        plot_predictive_bands(
            grid, model.predict_dist(grid), data=(X, y), ax=ax, show_density=name == "bimodal"
        )
        ax.set_title(_TITLES[name], pad=26)
    return _saved(figure, path)


def save_pit(rows: Sequence[Row], path: Path) -> Path:
    """Histograms of F(y) on test rows, of the KDM on every set."""
    return _panels(rows, path, height=3.2, draw=lambda values, ax: plot_pit(values, 20, ax=ax))


def save_calibration(rows: Sequence[Row], path: Path) -> Path:
    """How often y fell below its predicted quantiles, of the KDM on every set."""
    return _panels(rows, path, height=3.8, draw=lambda values, ax: plot_calibration_curve(values, ax=ax))


def _panels(rows: Sequence[Row], path: Path, *, height: float, draw: Any) -> Path:
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(row["dataset"] for row in rows if row["method"] == "kdm"))
    figure, axes = plt.subplots(
        1, len(names), figsize=(3.8 * len(names), height), layout="constrained", squeeze=False
    )
    for ax, name in zip(axes[0], names, strict=True):
        draw(pit_values(rows, name), ax)
        ax.set_title(name)
    return _saved(figure, path)


def pit_values(rows: Sequence[Row], dataset: str) -> Array:
    """The transforms of a set's test rows, all splits together, at the middles of their bins."""
    counts = [row["pit_counts"] for row in rows if (row["dataset"], row["method"]) == (dataset, "kdm")]
    middles = (np.arange(PIT_BINS) + 0.5) / PIT_BINS
    return np.repeat(middles, np.sum(counts, axis=0))


def _saved(figure: Any, path: Path) -> Path:
    import matplotlib.pyplot as plt

    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path
