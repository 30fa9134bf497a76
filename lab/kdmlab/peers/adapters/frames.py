"""Rows as data frames, and back, for the libraries that take these."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kdmlab.peers.model import Rows


def as_frame(rows: Rows) -> pd.DataFrame:
    """Levels as objects, numbers as integers."""
    return pd.DataFrame(
        {name: column if column.dtype == object else column.astype(int) for name, column in rows.items()}
    )


def as_rows(frame: pd.DataFrame, like: Rows) -> Rows:
    """The columns of `like`: levels as objects, numbers as floats."""
    return {
        name: np.array(frame[name].tolist(), dtype=object if column.dtype == object else float)
        for name, column in like.items()
    }
