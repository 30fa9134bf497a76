"""Tables with a training and a test part: columns by name, as arrays.

Numbers are arrays of numbers, a missing one is NaN. Categories are arrays of objects: texts, and None where
a cell is missing.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdmlab.common.checks import bad_argument
from kdmlab.datasets import load

Array = NDArray[Any]
Rows = dict[str, Array]

ADULT = (
    *("age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation"),
    *("relationship", "race", "sex", "capital_gain", "capital_loss", "hours_per_week", "native_country"),
)
MAGIC = (
    *("fLength", "fWidth", "fSize", "fConc", "fConc1", "fAsym", "fM3Long", "fM3Trans", "fAlpha", "fDist"),
)
#: Whole numbers of Shoppers that are codes.
SHOPPERS_CODES = ("Month", "OperatingSystems", "Browser", "Region", "TrafficType")
SHOPPERS_CATEGORIES = (*SHOPPERS_CODES, "returning_visitor", "weekend", "Revenue")
#: The published copy of Shoppers has these codes as numbers, and the other categories as texts.
CODES_PUBLISHED_AS_NUMBERS = frozenset(SHOPPERS_CODES) - {"Month"}
_SHOPPERS_FILE = "online_shoppers_intention.csv"
#: The seed of the split of tables without a test part, and the share of their test rows.
SPLIT_SEED, TEST_SHARE = 0, 0.1


@dataclass(frozen=True)
class TableData:
    """A table.

    Args:
        name: of the table.
        train, test: its rows.
        target: the category that models predict.
        codes: categories that are numbers in the published copy.
    """

    name: str
    train: Rows
    test: Rows
    target: str
    codes: frozenset[str] = frozenset()

    @property
    def categories(self) -> list[str]:
        return [name for name, column in self.train.items() if column.dtype == object]

    @property
    def numbers(self) -> list[str]:
        return [name for name, column in self.train.items() if column.dtype != object]

    def limited(self, rows: int | None) -> TableData:
        """At most `rows` training rows and test rows, drawn by a fixed seed; None keeps all."""
        if rows is None:
            return self
        return replace(self, train=sample_rows(self.train, rows), test=sample_rows(self.test, rows))


# ---- rows


def count(rows: Mapping[str, Array]) -> int:
    return len(next(iter(rows.values())))


def take(rows: Mapping[str, Array], index: Array) -> Rows:
    return {name: column[index] for name, column in rows.items()}


def is_missing(column: Array) -> Array:
    """Which cells are missing.

    >>> is_missing(np.array(["a", None], dtype=object))
    array([False,  True])
    """
    if column.dtype == object:
        return np.array([cell is None for cell in column], dtype=bool)
    return np.isnan(column)


def complete(rows: Mapping[str, Array]) -> Rows:
    """The rows without a missing cell."""
    return take(rows, ~np.any([is_missing(column) for column in rows.values()], axis=0))


def sample_rows(rows: Mapping[str, Array], most: int, seed: int = SPLIT_SEED) -> Rows:
    """A uniform sample of at most `most` rows, in their order."""
    order = np.random.default_rng(seed).permutation(count(rows))
    return take(rows, np.sort(order[:most]))


def halves(rows: Mapping[str, Array], seed: int) -> tuple[Rows, Rows]:
    """Two random halves of the rows."""
    order = np.random.default_rng(seed).permutation(count(rows))
    middle = len(order) // 2
    return take(rows, order[:middle]), take(rows, order[middle:])


def split(name: str, rows: Rows, target: str, codes: frozenset[str] = frozenset()) -> TableData:
    """90 % of the rows to train, 10 % to test. Rows without a target are left out."""
    rows = take(rows, ~is_missing(rows[target]))
    order = np.random.default_rng(SPLIT_SEED).permutation(count(rows))
    n_test = round(TEST_SHARE * len(order))
    return TableData(
        name, take(rows, np.sort(order[n_test:])), take(rows, np.sort(order[:n_test])), target, codes
    )


# ---- the tables of the comparison with published results


def adult(data_dir: Path) -> TableData:
    """UCI's training and test files; an unknown cell, `?`, is a level, as in published runs.

    The level is called "not stated": `KDMTable` takes `?` for a missing cell.
    """
    return _adult_with("not stated", "adult", data_dir)


def adult_missing(data_dir: Path) -> TableData:
    """The same; an unknown cell is missing."""
    return _adult_with(None, "adult-missing", data_dir)


def _adult_with(unknown: str | None, name: str, data_dir: Path) -> TableData:
    """Adult with another cell in place of `?`."""
    data = load("adult", _folder(data_dir, "uci"), download=False)
    train, test = (
        {column: _replaced(cells, unknown) for column, cells in _adult(*part).items()}
        for part in ((data.x_train, data.y_train), (data.x_test, data.y_test))
    )
    return TableData(name, train, test, "income")


def _replaced(column: Array, unknown: str | None) -> Array:
    if column.dtype != object:
        return column
    return np.array([unknown if cell == "?" else cell for cell in column], dtype=object)


def _adult(x: Array, y: Array) -> Rows:
    rows = {name: _whole_or_text(column) for name, column in zip(ADULT, x.T, strict=True)}
    return {**rows, "income": np.where(y == 1, ">50K", "<=50K").astype(object)}


def _whole_or_text(column: Array) -> Array:
    return column if isinstance(column[0], str) else column.astype(np.float64).astype(np.int64)


def magic(data_dir: Path) -> TableData:
    data = load("magic", _folder(data_dir, "uci"), download=False)
    rows = dict(zip(MAGIC, data.x_train.astype(np.float64).T, strict=True))
    return split("magic", {**rows, "class": np.where(data.y_train == 1, "g", "h").astype(object)}, "class")


def shoppers(data_dir: Path) -> TableData:
    """Coded columns are categories. Empty cells are missing (the published copy has none)."""
    folder = _folder(data_dir, "tables")
    plain, zipped = folder / _SHOPPERS_FILE, folder / f"{_SHOPPERS_FILE}.gz"
    if not (plain.exists() or zipped.exists()):
        wanted = f"a folder with {_SHOPPERS_FILE} or {_SHOPPERS_FILE}.gz"
        raise FileNotFoundError(bad_argument("data_dir", wanted, folder))
    text = (
        plain.read_text("utf-8") if plain.exists() else gzip.decompress(zipped.read_bytes()).decode("utf-8")
    )
    header, *lines = csv.reader(io.StringIO(text))
    names = [name.replace(" ", "") for name in header]
    rows = {
        name: _cells(cells, name in SHOPPERS_CATEGORIES)
        for name, cells in zip(names, zip(*lines, strict=True), strict=True)
    }
    return split("shoppers", rows, "Revenue", CODES_PUBLISHED_AS_NUMBERS)


def _cells(cells: tuple[str, ...], category: bool) -> Array:
    if category:
        return np.array([cell.strip() or None for cell in cells], dtype=object)
    return np.array([float(cell) if cell.strip() else np.nan for cell in cells])


def _folder(data_dir: Path, name: str) -> Path:
    """The subfolder of that name, or the folder itself where there is none."""
    return data_dir / name if (data_dir / name).is_dir() else data_dir


PAPER: dict[str, Callable[[Path], TableData]] = {
    "adult": adult,
    "adult-missing": adult_missing,
    "magic": magic,
    "shoppers": shoppers,
}
