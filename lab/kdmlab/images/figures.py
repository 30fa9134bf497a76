"""The generated images, ten of each class, beside the training images nearest to some of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdmkit import plotting
from kdmlab.common.files import read_arrays
from kdmlab.images.generation import MIXED, NARROW, NEIGHBOURS, SHOWN

Array = NDArray[Any]
_WORDS = {
    "fashion_mnist": "T-shirt, trouser, pullover, dress, coat, sandal, shirt, sneaker, bag, boot",
    "cifar10": "airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck",
}
_DIGITS = "0, 1, 2, 3, 4, 5, 6, 7, 8, 9"


def save_figures(samples: Path, say: Callable[[str], None] = print) -> list[Path]:
    """A figure beside every file of samples; none where matplotlib is missing."""
    files = sorted(samples.glob("*.npz"))
    if not files:
        return []
    os.environ.setdefault("MPLBACKEND", "Agg")
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        say("no figures: matplotlib is not installed")
        return []
    saved = []
    for file in files:
        arrays = read_arrays(file, "images of a run")
        figure = _figure(file.stem, {key: _last(value) for key, value in arrays.items()})
        figure.savefig(file.with_suffix(".png"), dpi=110)
        plt.close(figure)
        saved.append(file.with_suffix(".png"))
    return saved


def _figure(stem: str, arrays: dict[str, Array]) -> Any:
    import matplotlib.pyplot as plt

    dataset = stem.split("-")[0]
    names = _WORDS.get(dataset, _DIGITS).split(", ")
    if "neighbours" not in arrays:
        return _grid(arrays["grid"], names, SHOWN, None, stem).figure
    _, (left, middle, right) = plt.subplots(
        1, 3, figsize=(17, 7.4), layout="constrained", width_ratios=[SHOWN + 1, SHOWN + 1, NEIGHBOURS + 2]
    )
    both = " or ".join(names[label] for label in MIXED)
    grid = np.concatenate([arrays["grid"], arrays["mixed"]])
    _grid(grid, [*names, both], SHOWN, left, f"{dataset}: draws for each class")
    _grid(arrays["narrow"], names, SHOWN, middle, f"at {NARROW} of that spread")
    _grid(_beside(arrays), names, NEIGHBOURS + 1, right, "a draw, then the nearest\ntraining images")
    return left.figure


def _beside(arrays: dict[str, Array]) -> Array:
    """Every first image followed by its neighbours."""
    first, near = arrays["first"], arrays["neighbours"]
    near = near.reshape(len(first), -1, *near.shape[1:])
    return np.concatenate([first[:, None], near], 1).reshape(-1, *first.shape[1:])


def _grid(images: Array, names: list[str], columns: int, ax: Any, title: str) -> Any:
    ax = plotting.plot_image_grid(images, names, columns, ax=ax, value_range=(0, 255))
    ax.set_title(title, fontsize="medium")
    ax.set_anchor("N")
    return ax


def _last(images: Array) -> Array:
    """Channels last, none where there is one."""
    return images[:, 0] if images.shape[1] == 1 else images.transpose(0, 2, 3, 1)
