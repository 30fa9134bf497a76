"""Models to start with, on data that needs no download: a small table and handwritten digits."""

from __future__ import annotations

import csv
from importlib import resources
from typing import Any

import numpy as np

from kdmkit.explore.models import Entry


def example_models() -> dict[str, Entry]:
    """Penguins and digits, which are fitted while the page opens: this takes some seconds."""
    return {
        "penguins": Entry("penguins", fit_penguins, "table", "Fitting a table of 344 penguins …"),
        "digits": Entry("digits", fit_digits, "images", "Fitting 1,797 handwritten digits …"),
    }


def penguins() -> dict[str, Any]:
    """Penguins of the Palmer Archipelago (Gorman, Williams and Fraser 2014; package palmerpenguins, CC0)."""
    text = resources.files("kdmkit.explore").joinpath("data", "penguins.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    found: dict[str, Any] = {}
    for name in rows[0]:
        cells = [row[name] for row in rows]
        if name.endswith(("_mm", "_g")):
            found[name] = np.array([float(cell or "nan") for cell in cells])
        else:
            found[name] = np.array([cell or None for cell in cells], dtype=object)
    return found


def fit_penguins() -> Any:
    """A table of penguins. With these few components and epochs it is there in seconds."""
    from kdmkit.estimators import KDMTable

    return KDMTable(n_components=16, max_epochs=60, random_state=0).fit(penguins())


def fit_digits(n: int | None = None) -> Any:
    """A joint KDM of scikit-learn's digits, or of the first n; without an ensemble it is there in seconds."""
    from sklearn.datasets import load_digits

    from kdmkit.estimators import KDMClassifier

    X, y = load_digits(return_X_y=True)
    model = KDMClassifier(trend=None, generative_weight=1.0, max_epochs=20, random_state=0)
    return model.fit(X[:n], y[:n])
