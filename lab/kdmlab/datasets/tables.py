"""The two tables of UCI, all columns of a row together."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kdmlab.datasets._types import Array, Dataset
from kdmlab.datasets.uci import NUMERIC, Census, read_adult, read_magic

FILES = {"adult": ("adult.data", "adult.test"), "magic": ("magic04.data",)}


def present(name: str, folder: Path) -> bool:
    """Whether any of a table's files is there: if only some are, reading says which one is missing."""
    names = [text for file in FILES[name] for text in (file, f"{file}.gz")]
    return any((folder / text).exists() for text in names)


def read(name: str, folder: Path) -> Dataset:
    if name == "adult":
        train, test = read_adult(folder)
        return Dataset(together(train), train.y, together(test), test.y)
    x, y = read_magic(folder)
    return Dataset(x, y, x[:0], y[:0])


def together(census: Census) -> Array:
    """Columns in UCI's order: numbers as floats, categories as texts."""
    numbers, texts = iter(census.numeric.T), iter(census.categorical.T)
    columns = [next(numbers if i in NUMERIC else texts).astype(object) for i in range(14)]
    return np.stack(columns, axis=1)
