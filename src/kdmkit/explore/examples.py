"""Models to start with, on data that needs no download: a small table and handwritten digits."""

from __future__ import annotations

import csv
from importlib import resources
from typing import Any

import numpy as np

from kdmkit.explore.models import Entry

# Deformed copies of every digit, how far they are turned and moved (in pixels), and the bandwidth of
# components in standard deviations of pixels. Of 28 models of the first 1,200 digits none reads more of the
# others (96.8 %), and this one finds fewer than 5 % of them novel.
_COPIES, _TURN, _MOVE, _SIGMA = 3, 0.06, 0.3, 1.0


def example_models() -> dict[str, Entry]:
    """Penguins and digits, which are fitted while the page opens: this takes some seconds.

    Returns:
        What `show` and `create_app` take: models by name, which are fitted in the background.

    >>> sorted(example_models())
    ['digits', 'penguins']
    """
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
    """A joint KDM of scikit-learn's digits, or of the first n: every image is a component.

    Deformed copies stand for the ways in which other people write, here with a mouse.
    """
    from sklearn.datasets import load_digits

    from kdmkit.estimators import KDMClassifier

    X, y = load_digits(return_X_y=True)
    X, y, rng = X[:n], y[:n], np.random.default_rng(0)
    images = [X, *(np.stack([_deformed(row, rng) for row in X]) for _ in range(_COPIES))]
    model = KDMClassifier("nonparametric", sigma=_SIGMA)
    return model.fit(np.concatenate(images), np.tile(y, len(images)))


def _deformed(row: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """An image of 8 × 8 pixels, slightly turned, stretched, slanted and moved."""
    from scipy import ndimage

    turn = np.eye(2) + rng.normal(0.0, _TURN, (2, 2))
    turn[1, 0] += rng.normal(0.0, _TURN)
    middle = np.full(2, 3.5)
    offset = middle - turn @ middle + rng.normal(0.0, _MOVE, 2)
    moved = ndimage.affine_transform(row.reshape(8, 8), turn, offset, order=1)
    return np.asarray(moved.reshape(-1).clip(0.0, 16.0))
