"""Drawn texts that occur once in the data."""

from __future__ import annotations

import warnings
from typing import Any

from kdmkit import KDMTable
from kdmlab.missing.data import load

_DRAWS, _MOST_ROWS = 10_000, 3000


def measure(dataset: str, seed: int) -> dict[str, Any]:
    """Drawn texts that one row of the data has; defaults but for short training."""
    frame = load(dataset, seed, _MOST_ROWS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = KDMTable(max_epochs=2, random_state=seed).fit(frame)
        drawn = table.sample(_DRAWS, random_state=seed)
    cells = once = 0
    columns = []
    for name in frame:
        texts = frame[name].astype(object)
        is_text = texts.map(lambda cell: isinstance(cell, str))
        counts = texts[is_text].value_counts()
        single = set(counts.index[counts == 1])
        if not single or table.columns_[name].codec.numeric or table.columns_[name].kind == "date":
            continue  # written numbers and dates are no texts
        columns.append(f"{name}: {table.columns_[name].kind}")
        if name in drawn:
            here = drawn[name].astype(object)
            cells += int(here.map(lambda cell: isinstance(cell, str)).sum())
            once += int(here.isin(single).sum())
    return {"rows": len(frame), "columns": columns, "cells": cells, "once": once}
