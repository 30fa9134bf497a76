"""Rows as data frames, for libraries that need them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kdmlab.tables.data import Array, is_missing

if TYPE_CHECKING:
    import pandas as pd

#: The most levels of a category that boosted trees take; the rarest ones become missing.
MOST_LEVELS = 254


def frames(*parts: Mapping[str, Array], leave_out: Sequence[str] = ()) -> list[pd.DataFrame]:
    """Data frames of several parts of a table; their columns of categories share their levels.

    Columns that a part lacks are left out: a table model does not draw identifiers.
    """
    import pandas as pd

    names = [name for name in parts[0] if name not in leave_out and all(name in part for part in parts)]
    levels = {
        name: levels_of(*(part[name] for part in parts)) for name in names if parts[0][name].dtype == object
    }
    return [
        pd.DataFrame(
            {
                name: pd.Categorical(part[name], levels[name]) if name in levels else _numbers(part[name])
                for name in names
            }
        )
        for part in parts
    ]


def levels_of(*columns: Array) -> list[str]:
    """The most frequent levels of some columns together, sorted."""
    cells = np.concatenate(columns)
    levels, counts = np.unique(cells[~is_missing(cells)].astype(str), return_counts=True)
    return sorted(levels[np.argsort(-counts, kind="stable")[:MOST_LEVELS]].tolist())


def _numbers(column: Array) -> Array:
    return np.asarray(column, np.float64)
