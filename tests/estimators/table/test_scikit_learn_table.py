"""`KDMTable` among scikit-learn's estimators."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

import kdmkit as kdm

X = np.random.default_rng(0).normal(size=(60, 2))
QUICK: dict[str, Any] = {"n_components": 2, "max_epochs": 1, "random_state": 0}

# Checks that do not suit a table, and why.
EXPECTED = {
    "check_n_features_in_after_fitting": "columns that new rows lack are marginalised",
    "check_sample_weights_pandas_series": "the target x0 is no column of the frame of the check",
    "check_sample_weight_equivalence_on_dense_data": "probabilities of a column of numbers are refused",
    "check_methods_subset_invariance": "sums in float32 depend on the number of rows: errors of 1e-6",
    "check_fit2d_1sample": "in one row the target is a constant, which the error tells",
}
FEW = (
    "check_estimators_unfitted",
    "check_dict_unchanged",
    "check_estimators_empty_data_messages",
    "check_estimator_sparse_array",
    "check_fit2d_predict1d",
    "check_complex_data",
    "check_dont_overwrite_attributes",
    "check_parameters_default_constructible",
)


def checks() -> list[Any]:
    """All checks of scikit-learn; those that are not among the few are slow."""
    found = []
    for estimator, check in estimator_checks_generator(kdm.KDMTable(**QUICK)):
        name = check.func.__name__
        marks = [] if name in FEW else [pytest.mark.slow]
        if name in EXPECTED:
            marks.append(pytest.mark.xfail(reason=EXPECTED[name], strict=False))
        found.append(pytest.param(estimator, check, id=name, marks=marks))
    return found


@pytest.mark.parametrize(("estimator", "check"), checks())
@pytest.mark.filterwarnings("ignore")
def test_checks_of_scikit_learn(estimator: Any, check: Any, unchecked: None) -> None:
    check(estimator)


def test_searches_pipelines_copies_and_pickles(unchecked: None) -> None:
    search = GridSearchCV(kdm.KDMTable(**QUICK), {"n_components": [2, 3]}, cv=2, error_score="raise")
    best = search.fit(X).best_estimator_
    assert np.isfinite(search.best_score_)
    pipe = make_pipeline(clone(best)).fit(X)
    assert pipe.score(X) == best.score(X) == pickle.loads(pickle.dumps(best)).score(X)
    with pytest.raises(NotFittedError):
        clone(best).predict(X, "x0")


def test_the_only_target_is_the_default(unchecked: None) -> None:
    table = kdm.KDMTable(targets=["x1"], **QUICK).fit(X)
    np.testing.assert_array_equal(table.predict(X), table.predict(X, "x1"))
    with pytest.raises(ValueError, match="target: expected a column"):
        kdm.KDMTable(**QUICK).fit(X).predict(X)


# ---- y is a column and the target

RNG = np.random.default_rng(1)
POINTS = RNG.normal(size=(200, 2))
LABELS = (POINTS[:, 0] + 0.3 * RNG.normal(size=200) > 0).astype(int)
FRAME = pd.DataFrame(POINTS, columns=["a", "b"])
FAST: dict[str, Any] = {"n_components": 6, "max_epochs": 120, "random_state": 0}


@pytest.mark.parametrize(
    ("y", "name", "classes"),
    [
        (LABELS, "y", [0, 1]),
        (LABELS[:, None].astype(float), "y", [0, 1]),
        (LABELS + (POINTS[:, 1] > 0), "y", [0, 1, 2]),
        ((LABELS == 1).tolist(), "y", [False, True]),
        (pd.Series(np.where(LABELS, "yes", "no"), name="bought"), "bought", ["no", "yes"]),
        (pd.Series(np.where(LABELS, "yes", "no"), dtype="category", name=3), "3", ["no", "yes"]),
        (pl.Series("bought", np.where(LABELS, "yes", "no")), "bought", ["no", "yes"]),
        (pd.DataFrame({"bought": LABELS}), "bought", [0, 1]),
    ],
)
@pytest.mark.parametrize("X", [POINTS, FRAME, pl.from_pandas(FRAME)], ids=["array", "pandas", "polars"])
def test_y_is_a_column_and_the_target(X: Any, y: Any, name: str, classes: list[Any], unchecked: None) -> None:
    table = kdm.KDMTable(**QUICK).fit(X, y)
    assert table.targets_ == [name]
    assert list(table.classes_) == table.levels(name) == classes
    assert table.n_features_in_ == 2
    assert name not in table.feature_names_in_
    assert is_classifier(table)
    assert set(table.predict(X)) <= set(classes)
    assert table.predict_proba(X).shape == (200, len(classes))
    drawn = table.sample(9, random_state=0)
    values = drawn[:, -1] if isinstance(drawn, np.ndarray) else drawn[name]
    assert set(np.asarray(values).tolist()) <= set(classes)


def test_scores_searches_and_pipelines_with_y(unchecked: None) -> None:
    table = kdm.KDMTable(**FAST)
    folds = StratifiedKFold(2)
    least = {"roc_auc": 0.8, "accuracy": 0.7, "neg_log_loss": -0.6}
    scores = cross_validate(table, FRAME, LABELS, cv=folds, scoring=list(least), error_score="raise")
    for scoring, bound in least.items():
        assert (scores[f"test_{scoring}"] > bound).all(), scoring
    y = POINTS @ [1.0, 2.0] + 0.1 * RNG.normal(size=200)
    assert (cross_val_score(table, FRAME, y, cv=2, scoring="r2", error_score="raise") > 0.5).all()
    pipe = make_pipeline(StandardScaler(), table)
    search = GridSearchCV(pipe, {"kdmtable__n_components": [6]}, cv=folds, scoring="roc_auc")
    assert search.fit(POINTS, LABELS).best_score_ > 0.8
    assert (search.predict(POINTS) == LABELS).mean() > 0.8
    table.fit(FRAME, y)
    assert is_regressor(table)
    assert not hasattr(table, "classes_")
    assert table.score(FRAME, y) == pytest.approx(table.score(FRAME.assign(y=y)))
    assert table.score(FRAME, y) > table.score(FRAME.assign(y=RNG.permutation(y)))


def test_y_in_chunks_and_files(unchecked: None, tmp_path: Any) -> None:
    table = kdm.KDMTable(**QUICK)
    table.partial_fit(FRAME[:100], LABELS[:100]).partial_fit(FRAME[100:], pd.Series(LABELS[100:], name="z"))
    assert table.targets_ == ["y"]
    kdm.save(table, tmp_path / "model")
    loaded = kdm.load(tmp_path / "model")
    assert is_classifier(loaded)
    np.testing.assert_array_equal(loaded.predict(FRAME), table.predict(FRAME))
    (answer,) = loaded.stream("predict", iter([FRAME]))
    assert answer.column_names == ["y"]


def test_kinds_of_y_are_decided_by_the_caller(unchecked: None) -> None:
    table = kdm.KDMTable(types={"y": "count"}, **QUICK).fit(FRAME, LABELS)
    assert is_regressor(table)
    assert table.columns_["y"].kind == "count"
    assert kdm.KDMTable(**QUICK).fit(FRAME, np.arange(200) // 10).columns_["y"].kind == "count"


@pytest.mark.parametrize(
    ("X", "y", "options", "text"),
    [
        (FRAME, LABELS[:7], {}, "y: expected as many rows as X has \\(200\\), got 7"),
        (FRAME, FRAME["a"], {}, "y: expected a column that X lacks .*, got 'a'"),
        (FRAME, LABELS, {"targets": ["a"]}, "y: expected None, since `targets` are columns of X"),
        ("data.csv", LABELS, {}, "y: expected None for files and streams"),
        (FRAME, np.zeros(200), {}, "y: expected a column of the model, got 'y', which is left out"),
        (FRAME, np.zeros((200, 2)), {}, "y.*: expected one dimension"),
    ],
)
def test_bad_y(X: Any, y: Any, options: dict[str, Any], text: str, unchecked: None) -> None:
    with pytest.raises(ValueError, match=text):
        kdm.KDMTable(**options, **QUICK).fit(X, y)


def test_one_target_needs_no_list(unchecked: None) -> None:
    table = kdm.KDMTable(targets="b", **QUICK).fit(FRAME)
    assert table.targets_ == ["b"]
    np.testing.assert_array_equal(table.predict(FRAME), table.predict(FRAME, "b"))
