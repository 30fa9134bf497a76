"""UCI's files of Adult and MAGIC, as arrays: plain or gzipped, in UCI's layout."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kdmlab.common.checks import bad_argument
from kdmlab.datasets._types import Array

__all__ = ["Census", "read_adult", "read_magic"]

# What UCI's files hold: shorter ones were cut off.
_ADULT_ROWS = {"adult.data": 32_561, "adult.test": 16_281}
_MAGIC_ROWS = 19_020
#: Positions of Adult's columns.
NUMERIC = (0, 2, 4, 10, 11, 12)
_CATEGORICAL = (1, 3, 5, 6, 7, 8, 9, 13)


class Census(NamedTuple):
    """Rows of Adult: `numeric (n, 6)`, `categorical (n, 8)` as text, `y (n,)`, 1 for an income above 50K.

    Args:
        numeric: six columns of numbers, `(n, 6)`.
        categorical: eight columns of texts, `(n, 8)`.
        y: 1 for an income above 50K, `(n,)`.

    >>> import numpy as np
    >>> Census(np.zeros((2, 6)), np.full((2, 8), "?"), np.array([0, 1])).y.mean()
    np.float64(0.5)
    """

    numeric: Array
    categorical: Array
    y: Array


def read_adult(folder: Path | str) -> tuple[Census, Census]:
    """UCI's Adult (census income): the rows of `adult.data` and of `adult.test`.

    An unknown value, `?`, is a category like any other.

    Args:
        folder: where the two files are, plain or `.gz`.

    Returns:
        The rows of `adult.data`, and those of `adult.test`.

    >>> train, test = read_adult("data")  # doctest: +SKIP
    >>> train.numeric.shape, test.numeric.shape  # doctest: +SKIP
    ((32561, 6), (16281, 6))
    """
    train, test = (_census(Path(folder), name, rows) for name, rows in _ADULT_ROWS.items())
    return train, test


def read_magic(folder: Path | str) -> tuple[Array, Array]:
    """UCI's MAGIC gamma telescope: `X (n, 10)` and `y (n,)`, 1 for gamma rays and 0 for hadrons.

    Args:
        folder: where `magic04.data` is, plain or `.gz`.

    Returns:
        Rows X and labels y.

    >>> X, y = read_magic("data")  # doctest: +SKIP
    >>> X.shape  # doctest: +SKIP
    (19020, 10)
    """
    name = "magic04.data"
    table = _table(Path(folder), name, _MAGIC_ROWS, columns=11)
    return _numbers(name, table[:, :10]), _labels(name, table[:, 10], negative="h", positive="g")


def _census(folder: Path, name: str, rows: int) -> Census:
    table = _table(folder, name, rows, columns=15)
    labels = np.char.rstrip(table[:, 14], ".")  # those of adult.test end in a dot
    y = _labels(name, labels, negative="<=50K", positive=">50K")
    return Census(_numbers(name, table[:, NUMERIC]), table[:, _CATEGORICAL], y)


def _table(folder: Path, name: str, rows: int, columns: int) -> Array:
    """All values of a file as text."""
    lines = csv.reader(io.StringIO(_text(folder, name)), skipinitialspace=True)
    values = [line for line in lines if line and not line[0].startswith("|")]  # a remark in adult.test
    wrong = next((i for i, line in enumerate(values) if len(line) != columns), None)
    if wrong is not None:
        got = f"{len(values[wrong])} in row {wrong}"
        raise ValueError(bad_argument(name, f"{columns} columns in every row", got))
    if len(values) != rows:
        raise ValueError(bad_argument(name, f"{rows} rows, as UCI has them", len(values)))
    return np.array(values)


def _text(folder: Path, name: str) -> str:
    plain, zipped = folder / name, folder / f"{name}.gz"
    path = plain if plain.exists() else zipped
    if not path.exists():
        raise FileNotFoundError(bad_argument("data_dir", f"a folder with {name} or {name}.gz", folder))
    try:
        data = path.read_bytes()
        return (data if path == plain else gzip.decompress(data)).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        wanted = "a file of text" if path == plain else "a whole gzip file of text"
        raise ValueError(bad_argument(str(path), wanted, error)) from error


def _numbers(name: str, values: Array) -> Array:
    try:
        numbers = values.astype(np.float64)
    except ValueError as error:
        raise ValueError(bad_argument(name, "numbers in its numeric columns", error)) from error
    if not np.isfinite(numbers).all():
        raise ValueError(bad_argument(name, "finite numbers", numbers[~np.isfinite(numbers)][0]))
    return numbers


def _labels(name: str, values: Array, *, negative: str, positive: str) -> Array:
    unknown = ~np.isin(values, [negative, positive])
    if unknown.any():
        raise ValueError(bad_argument(name, f"the label {negative} or {positive}", values[unknown][0]))
    return (values == positive).astype(np.int64)
