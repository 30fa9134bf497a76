"""The type of a data set, and the names of all."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

from numpy.typing import NDArray

Array = NDArray[Any]
Name = Literal["mnist", "fashion_mnist", "cifar10", "adult", "magic", "digits"]
NAMES: tuple[Name, ...] = get_args(Name)


class Dataset(NamedTuple):
    """Training rows and test rows.

    Images are uint8, `(n, h, w)` or `(n, h, w, 3)`. Tables are `(n, columns)`: float64 where all columns are
    numbers, else objects (floats and texts). Labels are int64, `(n,)`.

    Args:
        x_train, y_train: rows to learn from, and their labels.
        x_test, y_test: rows to judge a model by; none where a set has no test part.

    >>> from kdmlab.datasets import load
    >>> load("digits").y_test.shape
    (360,)
    """

    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array
