"""Measures of synthetic rows: on rows for which the answer is clear, and as sdmetrics computes them."""

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from kdmkit import metrics
from kdmkit.metrics.synthetic_rows import copied, nearest_distances


def rows(n: int, seed: int, shift: float = 0.0) -> dict[str, Any]:
    """Two numbers that depend on a level, another level, and missing cells."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, 3, n)
    size = (2.0 * kind + rng.normal(shift, 1, n)).round(1)
    colour = np.where(rng.random(n) < 0.8, kind, 0)
    cells = {
        "size": np.where(rng.random(n) < 0.1, np.nan, size),
        "weight": (size + rng.normal(0, 1, n)).round(1),
        "kind": np.array(["a", "b", "c"], dtype=object)[kind],
        "colour": np.array(["red", "blue", None], dtype=object)[colour],
    }
    return cells


#: By sdmetrics 0.32.0 (KSComplement, TVComplement, CorrelationSimilarity, ContingencySimilarity) of
#: `rows(200, 0)` and `rows(150, 1, shift=0.5)`.
SDMETRICS_COLUMNS = {"size": 0.87962529274, "weight": 0.9, "kind": 0.975, "colour": 0.998251748252}
SDMETRICS_PAIRS = {
    ("size", "weight"): 0.979065401979,
    ("size", "kind"): 0.748333333333,
    ("size", "colour"): 0.761666666667,
    ("weight", "kind"): 0.803333333333,
    ("weight", "colour"): 0.801666666667,
    ("kind", "colour"): 0.945,
}


def test_columns_and_pairs_are_those_of_sdmetrics() -> None:
    real, synthetic = rows(200, 0), rows(150, 1, shift=0.5)
    assert metrics.column_similarity(real, synthetic) == pytest.approx(SDMETRICS_COLUMNS, abs=1e-9)
    assert metrics.pair_similarity(real, synthetic) == pytest.approx(SDMETRICS_PAIRS, abs=1e-9)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_frames_are_taken_as_mappings_are(frame: Any) -> None:
    real, synthetic = rows(100, 0), rows(100, 1)
    of_frames = metrics.column_similarity(frame(real), frame(synthetic))
    assert of_frames == metrics.column_similarity(real, synthetic)


def test_equal_rows_are_equal_and_constants_have_no_correlation() -> None:
    real = {**rows(100, 0), "constant": np.ones(100), "empty": np.full(100, np.nan)}
    columns, pairs = metrics.column_similarity(real, real), metrics.pair_similarity(real, real)
    assert np.isnan(columns.pop("empty"))
    assert columns == dict.fromkeys(columns, 1.0)
    assert np.isnan(pairs["size", "constant"])
    assert pairs["size", "weight"] == 1
    assert pairs["kind", "constant"] == 1


def test_c2st_sees_dependence_missing_cells_and_shifts() -> None:
    real = rows(400, 0)
    rng = np.random.default_rng(1)
    shuffled = {name: rng.permutation(column) for name, column in real.items()}
    whole = {**rows(400, 2), "size": rows(400, 2)["weight"]}
    alike = metrics.c2st(real, rows(400, 3))
    assert alike > 0.85
    assert metrics.c2st(real, shuffled) < 0.5
    assert metrics.c2st(real, whole) < alike - 0.03
    assert metrics.c2st(real, rows(400, 3, shift=3)) < 0.3


def test_c2st_takes_another_classifier() -> None:
    from sklearn.dummy import DummyClassifier

    seen: list[list[bool]] = []

    def constant(is_level: list[bool]) -> Any:
        seen.append(is_level)
        return DummyClassifier()

    assert metrics.c2st(rows(60, 0), rows(60, 1), constant) == 1
    assert seen[0] == [False, False, True, True]


def test_trees_learn_levels_and_numbers() -> None:
    train, test = rows(600, 0), rows(300, 1)
    shuffled = {**train, "kind": np.random.default_rng(0).permutation(train["kind"])}
    assert metrics.boosting_score(train, test, "kind") > 0.9
    assert abs(metrics.boosting_score(shuffled, test, "kind") - 0.5) < 0.1
    assert metrics.boosting_score(train, test, "weight") > 0.6
    assert np.isnan(metrics.boosting_score({**train, "kind": np.repeat("a", 600)}, test, "kind"))
    with pytest.raises(ValueError, match="target: expected a column of both parts, got 'x'"):
        metrics.boosting_score(train, test, "x")


def test_copies_are_nearer_to_the_rows_that_they_copy() -> None:
    seen, unseen = rows(150, 0), rows(150, 1)
    assert metrics.dcr_share(seen, seen, unseen) > 0.9
    assert metrics.dcr_share(rows(400, 2), seen, unseen) == pytest.approx(0.5, abs=0.1)
    assert metrics.dcr_share(rows(50, 2), seen, unseen, block=7) == pytest.approx(
        metrics.dcr_share(rows(50, 2), seen, unseen), abs=1e-6
    )
    (to_itself,) = nearest_distances(seen, seen)
    assert to_itself.max() < 1e-5


def test_distances_by_hand() -> None:
    real = {"x": np.array([0.0, 10.0]), "y": np.array(["a", "b"], dtype=object)}
    synthetic = {"x": np.array([2.0, 2.0]), "y": np.array(["a", "c"], dtype=object)}
    (distances,) = nearest_distances(synthetic, real)
    assert distances == pytest.approx([0.2, 2.2])


def test_copies_are_counted_with_their_missing_cells() -> None:
    real = rows(80, 0)
    assert copied(real, real).all()
    assert copied(rows(80, 1), real).mean() < 0.1


def test_parts_without_a_common_column_are_refused() -> None:
    with pytest.raises(ValueError, match="rows: expected parts with at least one column in common"):
        metrics.c2st({"x": np.ones(3)}, {"y": np.ones(3)})
