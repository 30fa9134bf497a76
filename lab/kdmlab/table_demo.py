"""A demonstration on a table: one model of scikit-learn's wines answers questions in any direction."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from sklearn.datasets import load_wine

from kdmkit import KDMTable
from kdmlab.common import Report

_COLUMNS = ("alcohol", "malic_acid", "flavanoids", "color_intensity", "proline")
_QUESTIONS = (
    "P(alcohol | cultivar = class_0)",
    "P(cultivar | alcohol > 13, color_intensity in [4, 6])",
    "P(proline > 1000 | cultivar in {class_0, class_1}, flavanoids >= 2)",
)


def run(*, seed: int = 0, say: Callable[[str], None] = print) -> Report:
    """Fits a table of wines with missing cells, asks it, fills in a row and explains an odd one.

    Args:
        seed: of the missing cells, the fit and the draws.
        say: takes one line of commentary at a time.
    """
    wines = load_wine()
    place = [list(wines.feature_names).index(name) for name in _COLUMNS]
    frame = {name: wines.data[:, i].copy() for name, i in zip(_COLUMNS, place, strict=True)}
    rng = np.random.default_rng(seed)
    for values in frame.values():
        values[rng.random(len(values)) < 0.1] = np.nan
    frame["cultivar"] = np.asarray(wines.target_names)[wines.target]
    say(f"Fitting one model to a table of {len(wines.data)} wines, a tenth of whose numbers are missing …")
    table = KDMTable(n_components=12, max_epochs=60, random_state=seed).fit(frame)
    rows = [[question, _answer(table, question)] for question in _QUESTIONS]
    row = {"alcohol": np.array([13.5]), "proline": np.array([np.nan]), "cultivar": np.array(["class_0"])}
    rows.append(["a missing proline, at alcohol 13.5 in class_0", f"{table.impute(row)['proline'][0]:.0f}"])
    odd = table.explain({"alcohol": 12.0, "flavanoids": 3.0, "proline": 1300.0, "cultivar": "class_2"})[0]
    rows.append(["the oddest cell of a strange wine", f"{odd.column}: {odd.value}, expected {odd.expected}"])
    return Report("One model of a table", ["question", "answer"], rows)


def _answer(table: KDMTable, question: str) -> str:
    """The answer in one line."""
    return "; ".join(line.strip() for line in repr(table.query(question)).splitlines()[1:])
