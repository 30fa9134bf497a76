"""AUC of the target given the rest of a row: a table model, boosted trees, trees of synthetic rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np

from kdmkit import KDMTable
from kdmkit.metrics import level_auc
from kdmlab.tables.data import Array, count, take
from kdmlab.tables.frames import frames

#: XGBoost trained on synthetic rows: what held-out synthetic rows choose from.
DEPTHS, LEAST_WEIGHTS, TREES = (3, 6, 10), (1, 10), (50, 100, 200)
GRID = {"max_depth": DEPTHS, "min_child_weight": LEAST_WEIGHTS, "n_estimators": TREES}
_RATE, _HELD_OUT = 0.1, 1 / 9


def table_auc(table: KDMTable, test: Mapping[str, Array], target: str) -> float:
    """The fitted table asked for the target given all other cells of each row."""
    rest = {name: column for name, column in test.items() if name != target}
    return level_auc(test[target], table.predict_proba(rest, target), [str(v) for v in table.levels(target)])


def trained_auc(train: Mapping[str, Array], test: Mapping[str, Array], target: str, seed: int = 0) -> float:
    """XGBoost trained on some rows, synthetic or real, and tested on real ones.

    A ninth of the training rows is held out and chooses one of 18 settings by AUC. Rows with a single level
    have nothing to learn from: ½.
    """
    order = np.random.default_rng(seed).permutation(count(train))
    n_validation = round(_HELD_OUT * len(order))
    parts = [take(train, order[n_validation:]), take(train, order[:n_validation]), test]
    x, x_held, x_test = frames(*parts, leave_out=[target])
    levels = sorted(set(parts[0][target]))
    if len(levels) < 2:
        return 0.5
    y = np.searchsorted(levels, parts[0][target].astype(str))
    best = max(
        _fits(x, y, x_held, x_test),
        key=lambda candidate: level_auc(parts[1][target], candidate[0], levels),
    )
    return level_auc(test[target], best[1], levels)


def _fits(x: Any, y: Array, *others: Any) -> Iterator[list[Array]]:
    """Probabilities of other rows by every setting of the grid; more trees continue fewer."""
    from xgboost import XGBClassifier

    for depth, weight in product(DEPTHS, LEAST_WEIGHTS):
        model = XGBClassifier(
            max_depth=depth,
            min_child_weight=weight,
            n_estimators=max(TREES),
            learning_rate=_RATE,
            enable_categorical=True,
            random_state=0,
        ).fit(x, y)
        for trees in TREES:
            yield [model.predict_proba(other, iteration_range=(0, trees)) for other in others]
