"""Models to start with, on data that needs no download: a small table and handwritten digits."""

from __future__ import annotations

from importlib import resources
from typing import Any

from kdmkit.explore.models import Entry


def example_models() -> dict[str, Entry]:
    """Penguins and digits; they are fitted when the page is opened, in some seconds.

    The penguins are 344 of the Palmer Archipelago (Gorman, Williams and Fraser 2014; palmerpenguins, CC0).
    """
    return {
        "penguins": Entry("penguins", fit_penguins, "table", "Fitting a table of 344 penguins …"),
        "digits": Entry("digits", fit_digits, "images", "Fitting 1,797 handwritten digits …"),
    }


def fit_penguins() -> Any:
    """A table of penguins. Few components and epochs: it is there in seconds, and as good on held-out rows."""
    from kdmkit.estimators import KDMTable

    with resources.as_file(resources.files("kdmkit.explore").joinpath("data", "penguins.csv")) as path:
        return KDMTable(n_components=16, max_epochs=60, random_state=0).fit(read_penguins(path))


def read_penguins(path: Any) -> dict[str, Any]:
    """The columns as arrays: numbers, and texts with None where a cell is missing."""
    import csv

    import numpy as np

    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found: dict[str, Any] = {}
    for name in rows[0]:
        cells = [row[name] for row in rows]
        if name.endswith(("_mm", "_g")):
            found[name] = np.array([float(cell or "nan") for cell in cells])
        else:
            found[name] = np.array([cell or None for cell in cells], dtype=object)
    return found


def fit_digits() -> Any:
    """A joint KDM of scikit-learn's digits, without an ensemble: it is there in seconds."""
    from sklearn.datasets import load_digits

    from kdmkit.estimators import KDMClassifier

    X, y = load_digits(return_X_y=True)
    return KDMClassifier(trend=None, generative_weight=1.0, max_epochs=20, random_state=0).fit(X, y)
