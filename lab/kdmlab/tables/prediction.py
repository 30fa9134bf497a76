"""AUC of the target given the rest of a row: a table model, boosted trees, trees of synthetic rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

from kdmkit import KDMTable
from kdmlab.tables.data import Array, count, take
from kdmlab.tables.frames import frames

#: XGBoost trained on synthetic rows: what held-out synthetic rows choose from.
DEPTHS, LEAST_WEIGHTS, TREES = (3, 6, 10), (1, 10), (50, 100, 200)
GRID = {"max_depth": DEPTHS, "min_child_weight": LEAST_WEIGHTS, "n_estimators": TREES}
_RATE, _HELD_OUT = 0.1, 1 / 9


def auc(labels: Array, probs: Array, levels: Sequence[str]) -> float:
    """The area under the ROC curve; of several levels the mean over levels, each against the others.

    Args:
        labels: the true levels, `(n,)`.
        probs: the probability of every level, `(n, levels)`.
        levels: their names, in the order of `probs`.
    """
    areas = [
        roc_auc_score(labels == level, probs[:, i])
        for i, level in enumerate(levels)
        if 0 < np.mean(labels == level) < 1
    ]
    return float(np.mean(areas))


def table_auc(table: KDMTable, test: Mapping[str, Array], target: str) -> float:
    """The fitted table asked for the target given all other cells of each row."""
    rest = {name: column for name, column in test.items() if name != target}
    return auc(test[target], table.predict_proba(rest, target), [str(v) for v in table.levels(target)])


def boosting_auc(train: Mapping[str, Array], test: Mapping[str, Array], target: str, seed: int = 0) -> float:
    """scikit-learn's histogram boosting with default parameters on the same rows."""
    x, x_test = frames(train, test, leave_out=[target])
    model = HistGradientBoostingClassifier(categorical_features="from_dtype", random_state=seed)
    model.fit(x, train[target].astype(str))
    return auc(test[target], model.predict_proba(x_test), list(model.classes_))


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
        key=lambda candidate: auc(parts[1][target], candidate[0], levels),
    )
    return auc(test[target], best[1], levels)


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
