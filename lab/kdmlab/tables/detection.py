"""C2ST: whether a classifier can tell synthetic rows from real ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold

from kdmlab.tables.data import Array, complete
from kdmlab.tables.frames import frames

FOLDS = 3


def xgboost_classifier() -> Any:
    """XGBoost with its own treatment of categories and default parameters."""
    from xgboost import XGBClassifier

    return XGBClassifier(enable_categorical=True, eval_metric="logloss", random_state=0)


def c2st(
    real: Mapping[str, Array],
    synthetic: Mapping[str, Array],
    classifier: Callable[[], Any] = xgboost_classifier,
) -> float:
    """1 − (2·max(AUC, ½) − 1), mean over three shuffled stratified folds; 1: they cannot be told apart.

    Real rows with a missing cell are left out: synthetic rows have none.
    """
    import pandas as pd

    parts = frames(complete(real), synthetic)
    x, y = pd.concat(parts, ignore_index=True), np.repeat([1, 0], [len(part) for part in parts])
    scores = []
    for train, test in StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(x, y):
        model = classifier().fit(x.iloc[train], y[train])
        auc = roc_auc_score(y[test], model.predict_proba(x.iloc[test])[:, 1])
        scores.append(2 - 2 * max(float(auc), 0.5))
    return float(np.mean(scores))


def c2st_sdmetrics(
    real: Mapping[str, Array], synthetic: Mapping[str, Array], codes: Collection[str] = ()
) -> float:
    """The detection metric of sdmetrics with XGBoost, as in published tables: texts are one-hot.

    Args:
        codes: categories that are numbers in the published tables.
    """
    from sdmetrics.single_table.detection.sklearn import ScikitLearnClassifierDetectionMetric

    class Detection(ScikitLearnClassifierDetectionMetric):
        _get_classifier = staticmethod(xgboost_classifier)

    real_columns = complete({name: real[name] for name in synthetic})
    drawn = {name: _with_real_levels(column, real_columns[name]) for name, column in synthetic.items()}
    with _numpy_seed(0):  # the metric shuffles by numpy's global generator
        return float(Detection.compute(_published(real_columns, codes), _published(drawn, codes)))


def _with_real_levels(column: Array, real: Array) -> Array:
    """Levels that no real row has become the rarest real one: the metric takes no others."""
    if column.dtype != object:
        return column
    levels, counts = np.unique(real.astype(str), return_counts=True)
    is_real = np.isin(column.astype(str), levels)
    return np.where(is_real, column, levels[counts.argmin()]).astype(object)


def _published(rows: Mapping[str, Array], codes: Collection[str]) -> Any:
    import pandas as pd

    return pd.DataFrame(
        {name: column.astype(np.int64) if name in codes else column for name, column in rows.items()}
    )


@contextmanager
def _numpy_seed(seed: int) -> Iterator[None]:
    state = np.random.get_state()  # noqa: NPY002
    np.random.seed(seed)  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(state)  # noqa: NPY002
