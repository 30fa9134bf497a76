"""A classifier of images on the page."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kdmkit._core.checks import bad_argument
from kdmkit.estimators import KDMClassifier
from kdmkit.estimators.table.display import plain, shown
from kdmkit.explore.endpoints import ImageLabel, ImagePixels

# Draws of every class with which an image is compared.
_DRAWS = 20
# Pixels whose mean is above this share of the brightest one are inside the frame that images fill.
_INSIDE = 0.15
_LEAST_SIDE = 4


def image_shape(model: KDMClassifier) -> tuple[int, int] | None:
    """Height and width, if the features of a model can be the pixels of a square image."""
    side = math.isqrt(int(model.n_features_in_))
    return (side, side) if side >= _LEAST_SIDE and side * side == model.n_features_in_ else None


class ImageModel:
    """A classifier of images with the methods that endpoints call.

    Args:
        name: the name on the page.
        model: a fitted classifier whose rows are images, pixel by pixel.
        shape: height and width.
    """

    kind = "images"

    def __init__(self, name: str, model: KDMClassifier, shape: tuple[int, int]) -> None:
        self.name, self.model, self.shape = name, model, shape
        drawn = np.concatenate([model.sample(_DRAWS, y=y, random_state=1) for y in model.classes_.tolist()])
        self._scores = np.sort(model.score_samples(drawn))
        typical = drawn if model.module_.encoder is not None else model.joint_.components["x"].cpu().numpy()
        self.low, self.high = _bounds(typical)
        self.box = _frame(typical.mean(0).reshape(shape))
        self.ink = float((typical.mean() - self.low) / (self.high - self.low))

    def view(self) -> dict[str, Any]:
        height, width = self.shape
        return {
            "kind": self.kind,
            "name": self.name,
            "height": height,
            "width": width,
            "low": self.low,
            "high": self.high,
            "box": list(self.box),
            "ink": self.ink,
            "classes": [plain(label) for label in self.model.classes_.tolist()],
        }

    def read(self, question: ImagePixels) -> dict[str, Any]:
        """Class probabilities of an image, and how usual it is."""
        if len(question.pixels) != math.prod(self.shape):
            raise ValueError(bad_argument("pixels", f"{math.prod(self.shape)} numbers", len(question.pixels)))
        row = np.asarray([question.pixels], dtype=np.float64).clip(self.low, self.high)
        probs = self.model.predict_proba(row)[0].tolist()
        score = float(self.model.score_samples(row)[0])
        return {
            "probabilities": probs,
            "shares": [f"{p:.1%}" for p in probs],
            "log_density": shown(score),
            "usual": float(np.searchsorted(self._scores, score) / len(self._scores)),
        }

    def draw(self, question: ImageLabel) -> dict[str, Any]:
        """Images of a label, from p(x|y)."""
        drawn = self.model.sample(
            question.n, y=question.label, spread=float(question.spread), random_state=question.seed
        )
        return {"images": np.round(drawn.clip(self.low, self.high), 3).tolist()}


def _bounds(images: np.ndarray) -> tuple[float, float]:
    """The values of black and white, rounded to whole numbers if their range is large."""
    low, high = map(float, np.quantile(images, [0.01, 0.99]))
    return (float(round(low)), float(round(high))) if high - low > 3 else (round(low, 1), round(high, 1))


def _frame(mean: np.ndarray) -> tuple[int, int, int, int]:
    """Top, left, bottom, right of the part of images that drawings fill; the ends are included."""
    inside = mean - mean.min() > _INSIDE * (mean.max() - mean.min())
    rows, columns = np.flatnonzero(inside.any(1)), np.flatnonzero(inside.any(0))
    return int(rows[0]), int(columns[0]), int(rows[-1]), int(columns[-1])
