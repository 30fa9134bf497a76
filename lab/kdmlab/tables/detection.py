"""C2ST: whether a classifier can tell synthetic rows from real ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from kdmkit import metrics
from kdmlab.tables.data import Array, complete


def xgboost_classifier(is_level: Sequence[bool] | None = None) -> Any:
    """XGBoost with its treatment of categories and default parameters.

    Args:
        is_level: which columns have codes of levels; None: a frame says so.
    """
    from xgboost import XGBClassifier

    kinds = None if is_level is None else ["c" if level else "q" for level in is_level]
    return XGBClassifier(feature_types=kinds, enable_categorical=True, eval_metric="logloss", random_state=0)


def c2st(
    real: Mapping[str, Array],
    synthetic: Mapping[str, Array],
    classifier: Callable[[list[bool]], Any] = xgboost_classifier,
) -> float:
    """`kdmkit.metrics.c2st` by XGBoost, as in published tables.

    Real rows with a missing cell are left out: synthetic rows of published runs have none.
    """
    return metrics.c2st(complete(real), synthetic, classifier)


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
