"""Images in `.npz` files, and the digits that come with scikit-learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kdmlab.common.checks import bad_argument
from kdmlab.common.files import read_arrays, write_arrays
from kdmlab.datasets._types import Array, Dataset

#: Shapes of the official training and test images.
SHAPES = {
    "mnist": ((60_000, 28, 28), (10_000, 28, 28)),
    "fashion_mnist": ((60_000, 28, 28), (10_000, 28, 28)),
    "cifar10": ((50_000, 32, 32, 3), (10_000, 32, 32, 3)),
}
CLASSES = 10


def digits() -> Dataset:
    """scikit-learn's 8×8 digits with grey values 0 … 255; a fifth of every class is for tests."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    x = np.round(x.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    parts = train_test_split(x, y.astype(np.int64), test_size=360, stratify=y, random_state=0)
    return Dataset(parts[0], parts[2], parts[1], parts[3])


def read(name: str, path: Path) -> Dataset:
    """The arrays of a file, as `load` describes it."""
    arrays = read_arrays(path, "a whole .npz file")
    missing = [key for key in Dataset._fields if key not in arrays]
    if missing:
        got = f"none for {', '.join(missing)}"
        raise ValueError(bad_argument(str(path), f"the arrays {', '.join(Dataset._fields)}", got))
    return checked(name, Dataset(*(arrays[key] for key in Dataset._fields)), str(path))


def checked(name: str, arrays: Dataset, where: str) -> Dataset:
    """The arrays, with the shapes, values and types of the data set."""
    for part, shape in zip(("train", "test"), SHAPES[name], strict=True):
        _check(f"x_{part} of {where}", getattr(arrays, f"x_{part}"), shape)
    for part, (n, *_) in zip(("train", "test"), SHAPES[name], strict=True):
        what, labels = f"y_{part} of {where}", getattr(arrays, f"y_{part}")
        _check(what, labels, (n,))
        if int(labels.max()) >= CLASSES:
            raise ValueError(bad_argument(what, f"labels 0 … {CLASSES - 1}", int(labels.max())))
    return arrays._replace(y_train=arrays.y_train.astype(np.int64), y_test=arrays.y_test.astype(np.int64))


def _check(what: str, array: Array, shape: tuple[int, ...]) -> None:
    if array.shape != shape or array.dtype != np.uint8:
        got = f"{array.dtype} of shape {array.shape}"
        raise ValueError(bad_argument(what, f"uint8 of shape {shape}", got))


def write(dataset: Dataset, path: Path) -> None:
    """Writes images to a file, which is complete or not there."""
    write_arrays(path, {key: value.astype(np.uint8) for key, value in dataset._asdict().items()})
