"""Small data sets with known answers, and encoders as users write them."""

from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits, make_moons
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

Array = np.ndarray[Any, Any]


def blobs(n: int = 120, d: int = 2, seed: int = 0, classes: int = 2) -> tuple[Array, Array]:
    """Classes three apart along every dimension, with unit variances."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    return rng.normal(size=(n, d)) + 3.0 * y[:, None], y


def moons(n: int = 1000, seed: int = 0) -> tuple[Array, Array]:
    X, y = make_moons(n, noise=0.2, random_state=seed)
    return X, y


def digits() -> list[Array]:
    """X_train, X_test, y_train, y_test, in pixels."""
    X, y = load_digits(return_X_y=True)
    return train_test_split(X, y, random_state=0, stratify=y)


def heteroscedastic(n: int, seed: int) -> tuple[Array, Array]:
    """A wave whose noise grows from its middle outwards."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-3, 3, (n, 1))
    return x, np.sin(2 * x[:, 0]) + (0.1 + 0.2 * np.abs(x[:, 0])) * rng.normal(size=n)


def bimodal(n: int, seed: int) -> tuple[Array, Array]:
    """Two branches, equally likely, with nothing between them."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-3, 3, (n, 1))
    branch = rng.choice([-1.0, 1.0], n)
    return x, branch * (1.2 + 0.5 * np.sin(2 * x[:, 0])) + 0.15 * rng.normal(size=n)


def bags(n: int = 900, classes: int = 3, seed: int = 0) -> tuple[Array, Array, Array, Array]:
    """Rows, their bags (of very different sizes), the bags' proportions, and the labels nobody sees."""
    rng = np.random.default_rng(seed)
    centres = np.array([[0.0, 0.0], [3.0, 0.0], [0.0, 3.0]])[:classes]
    y = rng.integers(classes, size=n)
    X = centres[y] + 0.7 * rng.normal(size=(n, 2))
    # Squared uniform numbers: the first bags are large, the last ones have a row or two.
    ids = np.unique((rng.random(n) ** 2 * n / 8).astype(int), return_inverse=True)[1]
    counts = np.zeros((ids.max() + 1, classes))
    np.add.at(counts, (ids, y), 1)
    return X, ids, counts / counts.sum(1, keepdims=True), y


class ConvNet(nn.Module):
    """An encoder of 8 × 8 images, the same every time."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            self._build(width)

    def _build(self, width: int) -> None:
        torch.manual_seed(0)  # a module's start is its maker's: `random_state` is only the fit's
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()
        )
        self.head = nn.Linear(8 * 16, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x / 16))


class Deconv(nn.Module):
    """A decoder back to 8 × 8 images."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 64), nn.Unflatten(1, (1, 8, 8))
        )

    def forward(self, z: Tensor) -> Tensor:
        return 16 * self.body(z)
