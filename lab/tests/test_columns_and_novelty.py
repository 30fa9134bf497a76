"""Experiments with densities of columns, and with novelty."""

from pathlib import Path

import numpy as np
import pytest
from scipy import integrate, stats

from kdmlab import novelty
from kdmlab.columns import data, measure
from kdmlab.columns.mass import Mixture, cell_width, log_mass


def test_cells_of_columns() -> None:
    rng = np.random.default_rng(0)
    assert cell_width(rng.normal(size=200).round(1)) == pytest.approx(0.1)
    assert cell_width(rng.normal(size=200)) < 1e-3


def test_masses_of_cells_are_integrals() -> None:
    covariance = np.array([[1.0, 0.6], [0.6, 0.5]])
    mixture = Mixture(np.array([[0.0, 1.0], [3.0, 0.0]]), covariance, np.array([0.25, 0.75]))
    parts = [stats.multivariate_normal(mean, covariance) for mean in mixture.means]

    def density(y: float, x: float) -> float:
        return 0.25 * parts[0].pdf([x, y]) + 0.75 * parts[1].pdf([x, y])

    for x in (np.array([0.5, 0.5]), np.array([3.0, -1.0])):
        mass, _ = integrate.dblquad(density, x[0] - 0.5, x[0] + 0.5, x[1] - 0.25, x[1] + 0.25)
        computed = log_mass(mixture, x[None], np.array([1.0, 0.5]))[0]
        assert computed == pytest.approx(np.log(mass / 0.5), abs=1e-5)
    narrow = Mixture(np.zeros((1, 1)), np.full((1, 1), 1e-12), np.ones(1))
    assert log_mass(narrow, np.zeros((1, 1)), np.ones(1))[0] == pytest.approx(0)


@pytest.mark.parametrize("method", measure.METHODS)
def test_a_column_is_measured(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).normal(size=(150, 2)).round(1)
    monkeypatch.setattr(measure, "rows_of", lambda names: 7 + 3 * x)
    result = measure.held_out(method, ("table", "a", "b"), 0)
    truth = -np.log(2 * np.pi) - 1
    assert result["log_likelihood"] == pytest.approx(truth, abs=0.4)


def test_lists_are_drawn_from_suitable_columns() -> None:
    assert len(data.DEVELOPMENT) == len(data.TEST) == 10
    assert {len(names) for names in (*data.DEVELOPMENT, *data.TEST)} == {2, 3}
    column = np.random.default_rng(0).normal(size=200)
    assert data._is_suitable("weight", column)
    assert not data._is_suitable("patient.id", column)
    assert not data._is_suitable("weight", np.sort(column))
    assert not data._is_suitable("weight", column.round(0))


def test_novelty_is_measured_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    X = np.r_[rng.normal(size=(120, 3)), rng.normal(size=(20, 3)) + 5]
    monkeypatch.setattr(novelty, "PARTS", {"development": ("made",), "test": ("other",)})
    monkeypatch.setattr(novelty, "SEEDS", (0,))
    np.savez(tmp_path / "made.npz", X=X, y=np.arange(140) >= 120)
    report = novelty.run(tmp_path, tmp_path, part="development", verbose=False)
    assert [row[1] for row in report.rows] == ["made"]
    assert all(float(cell) > 0.95 for cell in report.rows[0][2:5])
    assert report == novelty.summarize(tmp_path)
