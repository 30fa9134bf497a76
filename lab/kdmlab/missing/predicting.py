"""A column predicted from rows with missing cells: a table with that target, and histogram boosting."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import r2_score, roc_auc_score
from sklearn.model_selection import train_test_split

from kdmkit import KDMTable
from kdmlab.missing.data import Prediction, load


def measure(prediction: Prediction, seed: int) -> dict[str, Any]:
    """AUC of levels (of several the mean, one against the others) or R² of numbers, in held-out rows."""
    dataset, target = prediction
    frame = load(dataset)
    frame = frame[frame[target].notna()].reset_index(drop=True)
    is_number = frame[target].dtype.kind in "iuf"
    if not is_number:
        frame[target] = frame[target].astype(str)
    strata = None if is_number else frame[target]
    train, test = train_test_split(frame, test_size=0.3, random_state=seed, stratify=strata)
    truth, rest = test[target], test.drop(columns=target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = KDMTable(targets=[target], random_state=seed).fit(train)
        if is_number:
            table_score = float(r2_score(truth, table.predict(rest)))
        else:
            table_score = _auc(truth, table.predict_proba(rest), table.levels(target))
        boosted = _boosted(train, rest, truth, target, is_number, seed)
    missing = float(frame.drop(columns=target).isna().to_numpy().mean())
    return {
        "score": "R²" if is_number else "AUC",
        "rows": len(frame),
        "columns": frame.shape[1],
        "missing": missing,
        "table": table_score,
        "boosting": boosted,
    }


def _boosted(train: Any, rest: Any, truth: Any, target: str, is_number: bool, seed: int) -> float:
    cls = HistGradientBoostingRegressor if is_number else HistGradientBoostingClassifier
    x, x_test = _categorical(train.drop(columns=target), rest)
    model = cls(categorical_features="from_dtype", random_state=seed).fit(x, train[target])
    if is_number:
        return float(r2_score(truth, model.predict(x_test)))
    return _auc(truth, model.predict_proba(x_test), list(model.classes_))


def _categorical(train: Any, test: Any) -> tuple[Any, Any]:
    """Columns that are no numbers as categories; levels beyond the 254 most frequent ones are missing."""
    train, test = train.copy(), test.copy()
    for name in train:
        if train[name].dtype.kind not in "iufb":
            levels = train[name].value_counts().index[:254]
            for frame in (train, test):
                frame[name] = frame[name].astype(object).where(frame[name].isin(levels)).astype("category")
                frame[name] = frame[name].cat.set_categories(sorted(map(str, levels)))
    return train, test


def _auc(truth: Any, probs: np.ndarray, levels: list[Any]) -> float:
    truth = np.asarray(truth)
    return float(np.mean([roc_auc_score(truth == level, probs[:, i]) for i, level in enumerate(levels)]))
