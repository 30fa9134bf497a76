"""The comparison on UCI sets: data, peers, scores, tables, resuming."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

import kdmkit as kdm
from kdmlab import regression
from kdmlab.regression import cross_fit, dense, figures, gp, methods, others, report, tuned
from kdmlab.regression.data import Split, load
from kdmlab.regression.problems import N_TEST, PROBLEMS
from kdmlab.regression.scores import Gaussians, Mixtures, scores

Array = np.ndarray[Any, Any]

# Fits take twice the time where annotations are checked.


def problem(n: int, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    return X, 100 + 20 * np.sin(X[:, 0]) + 10 * X[:, 1] + rng.normal(size=n)


def split(n: int = 150) -> Split:
    return Split(*problem(n), *problem(60, 1))


def write(folder: Path, name: str = "concrete", **changes: Any) -> Path:
    X, y = problem(60)
    mask = np.zeros((2, 60), dtype=bool)
    mask[0, :10] = mask[1, 10:20] = True
    arrays = {"X": X, "y": y, "test_mask": mask, **changes}
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / f"{name}.npz", **{key: value for key, value in arrays.items() if value is not None})
    return folder


# ---- data


@pytest.mark.parametrize("inside", [".", "regression", "uci/regression"])
def test_data_is_found_in_its_usual_folders(tmp_path: Path, inside: str) -> None:
    write(tmp_path / inside)
    table = load(tmp_path, "concrete")
    assert table.n_splits == 2
    part = table.split(1)
    assert part.X.shape == (50, 3)
    np.testing.assert_array_equal(part.y_test, table.y[10:20])
    assert not set(part.y) & set(part.y_test)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test_mask": None}, "expected arrays X, y and test_mask, got no \\['test_mask'\\]"),
        ({"y": np.zeros(59)}, "expected X \\(n, d\\), y \\(n,\\)"),
        ({"y": np.full(60, np.nan)}, "expected finite numbers"),
        ({"test_mask": np.ones((2, 60), dtype=bool)}, "test and training rows in every split"),
    ],
)
def test_bad_files(tmp_path: Path, changes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(write(tmp_path, **changes), "concrete")


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"data_dir: expected a folder with energy\.npz"):
        load(tmp_path, "energy")
    (tmp_path / "energy.npz").write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(ValueError, match="expected a NumPy archive"):
        load(tmp_path, "energy")


# ---- scores


def test_gaussian_scores_are_those_of_a_one_component_kdm() -> None:
    rng = np.random.default_rng(0)
    mean, y = rng.normal(size=8), rng.normal(size=8)
    rho = kdm.KDM(torch.from_numpy(mean).reshape(8, 1, 1), None, kdm.RBF.from_std(0.7))
    first, second = scores(Gaussians(mean, np.full(8, 0.7)), y), scores(Mixtures(rho), y)
    for name in ("rmse", "nll", "crps", "coverage90", "width90"):
        assert first[name] == pytest.approx(second[name], rel=1e-9)
    assert first["pit_counts"] == second["pit_counts"]


def test_crps_of_gaussians_is_its_integral() -> None:
    value = Gaussians(np.array([1.0]), np.array([2.0])).crps(np.array([2.5]))[0]
    wanted, _ = quad(lambda t: (norm.cdf(t, 1, 2) - (t >= 2.5)) ** 2, -30, 30, points=[2.5])
    assert value == pytest.approx(wanted, rel=1e-6)


# ---- methods


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same code with fewer steps."""
    real = methods.KDMRegressor
    monkeypatch.setattr(
        methods, "KDMRegressor", lambda **options: real(max_epochs=40, n_members=4, **options)
    )
    monkeypatch.setattr(dense, "KDMRegressor", partial(real, max_epochs=15, n_members=3))
    monkeypatch.setattr(cross_fit, "trend_epochs", lambda n, batch: 25)
    monkeypatch.setattr(dense, "MEMBERS", 3)
    monkeypatch.setattr(gp, "ITERATIONS", 8)
    monkeypatch.setattr(gp, "INDUCING", 32)
    monkeypatch.setattr(gp, "STEPS", 40)
    monkeypatch.setattr(tuned, "ITERATIONS", 8)
    monkeypatch.setattr(tuned, "COMPARED_ROWS", 60)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "name", ["sparse gp", *(m for m in methods.METHODS if m not in ("kdm-without-memory", "committee-dense"))]
)
def test_every_method_learns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "sparse gp":
        pytest.importorskip("gpytorch")
        monkeypatch.setattr(gp, "EXACT_ROWS", 10)
    if name == "ngboost-tuned":
        pytest.importorskip("ngboost")
        monkeypatch.setattr(tuned, "TREES", 200)
        monkeypatch.setattr(tuned, "RATE", 0.1)
    if name == "ngboost":
        module = pytest.importorskip("ngboost")
        quicker = partial(module.NGBRegressor, n_estimators=60, learning_rate=0.05)
        monkeypatch.setattr(module, "NGBRegressor", quicker)
    result = methods.measure(methods.METHODS[name.removeprefix("sparse ")], split(), seed=0)
    # The targets' standard deviation is 17, their noise 1.
    assert result["rmse"] < 6
    assert result["nll"] < 4.0
    assert result["crps"] < result["rmse"]
    assert 0.5 < result["coverage90"] <= 1
    assert sum(result["pit_counts"]) == 60
    json.dumps(result)


@pytest.mark.usefixtures("quick")
def test_the_committee_alone_answers_with_one_gaussian() -> None:
    results = methods.METHODS["committee-gaussian"].predict(split(), 0)
    assert isinstance(results, Mixtures)
    assert results.rho.n_components == 1
    assert methods.METHODS["kdm-without-memory"].settings == {"estimator": "KDMRegressor(memory=False)"}


@pytest.mark.usefixtures("quick")
def test_the_dense_head_finds_where_noise_is_large() -> None:
    """σ grows from .1 to 1.1 along the first feature; the same Gaussian everywhere cannot say so."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (250, 1))
    std = 0.1 + X[:, 0]
    y = 3 * X[:, 0] + std * rng.normal(size=250)
    results = dense.committee_dense(Split(X[:200], y[:200], X[200:], y[200:]), 0)
    spread = results.rho.stddev.squeeze(-1).numpy()
    assert np.corrcoef(spread, std[200:])[0, 1] > 0.7
    assert spread.max() > 2 * spread.min()


def test_the_dense_head_is_trained_by_the_likelihood_of_its_mixture() -> None:
    """The loss is −log p(r) of the mixture that answers are made of, up to the constant of the Gaussian."""
    answers, r = torch.randn(4, 15, dtype=torch.float64), torch.randn(4, 1, dtype=torch.float64)
    log_weights, shifts, variances = dense.mixture(answers)
    kernel = kdm.RBF.from_std(variances.sqrt().unsqueeze(-1))
    rho = kdm.KDM(shifts.unsqueeze(-1), None, kernel, log_weights=log_weights)
    wanted = -rho.log_prob(r) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(dense.mixture_loss(answers, r), wanted, rtol=1e-10)


@pytest.mark.parametrize(("name", "nu"), [("RBF", np.inf), ("Matérn 5/2", 2.5), ("Matérn 3/2", 1.5)])
def test_tuned_processes_are_gaussian_processes(name: str, nu: float) -> None:
    """Marginal likelihood, gradient and predictions are scikit-learn's."""
    part, lengths = split(40), np.array([0.7, 1.5, 3.0])
    y = (part.y - part.y.mean()) / part.y.std()
    kernel = ConstantKernel(2.0) * Matern(lengths, nu=nu) + WhiteKernel(0.05)
    model = GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None).fit(part.X, y)
    point = np.log([*lengths, 2.0, 0.05])
    x, targets = torch.from_numpy(part.X), torch.from_numpy(y)
    value, gradient = tuned.negative_log_likelihood(x, targets, tuned.KERNELS[name], point)
    # scikit-learn has the amplitude first.
    wanted, slope = model.log_marginal_likelihood(point[[3, 0, 1, 2, 4]], eval_gradient=True)
    assert value == pytest.approx(-wanted)
    np.testing.assert_allclose(gradient, -slope[[1, 2, 3, 0, 4]], rtol=1e-6)
    mean, std = model.predict(part.X_test, return_std=True)
    queries = torch.from_numpy(part.X_test)
    ours = tuned.conditioned(x, targets, queries, tuned.KERNELS[name], torch.from_numpy(point))
    np.testing.assert_allclose(ours[0], mean, atol=1e-8)
    np.testing.assert_allclose(np.sqrt(ours[1]), std, atol=1e-8)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", ["kdm", "deep-ensemble"])
def test_scores_are_in_the_units_of_y(name: str) -> None:
    """Targets in other units: errors scale, likelihoods shift by the log of the factor, coverage stays."""
    near, here = split(), split()
    far = Split(here.X, 1e3 * here.y, here.X_test, 1e3 * here.y_test)
    first, second = (methods.measure(methods.METHODS[name], some, 0) for some in (near, far))
    assert second["rmse"] == pytest.approx(1e3 * first["rmse"], rel=0.05)
    assert second["nll"] == pytest.approx(first["nll"] + np.log(1e3), abs=0.1)
    assert second["crps"] == pytest.approx(1e3 * first["crps"], rel=0.05)


def test_unknown_and_missing_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"method: expected one of kdm, .*, gp, .*, got 'svm'"):
        methods.check_methods(["svm"])
    monkeypatch.setattr(methods.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"lab\[regression\]"):
        methods.check_methods(["ngboost"])


# ---- the command


def fake(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Predictions of the training mean; returns what was asked for."""
    asked = []

    def predict(part: Split, seed: int) -> Gaussians:
        asked.append((len(part.y), seed))
        return Gaussians(np.full(len(part.y_test), part.y.mean()), np.full(len(part.y_test), part.y.std()))

    monkeypatch.setitem(methods.METHODS, "kdm", methods.Method(predict, {"estimator": "mean"}))
    return asked


def test_a_run_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake(monkeypatch)
    data = write(tmp_path / "data")
    options: Any = {"datasets": ["concrete"], "methods": ["kdm"], "figures": False, "verbose": False}
    regression.run(tmp_path / "out", data, splits=1, **options)
    assert asked == [(50, 0)]
    table = regression.run(tmp_path / "out", data, splits=2, **options)
    assert asked == [(50, 0), (50, 1)]
    lines = [json.loads(line) for line in (tmp_path / "out/uci-regression.jsonl").read_text().splitlines()]
    assert [line["split"] for line in lines] == [0, 1]
    for line in lines:
        assert {"dataset", "split", "method", "rmse", "nll", "crps", "coverage90", "machine"} <= set(line)
    assert table.rows[0][:2] == ["concrete", "kdm"]
    assert table.rows[0][-1] == "2"
    assert "| concrete | NLL | ≤ 3 |" in (tmp_path / "out/uci-regression.md").read_text()


def test_too_many_splits_are_refused_before_any_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake(monkeypatch)
    with pytest.raises(ValueError, match="splits: expected at most 2 for concrete, got 3"):
        regression.run(tmp_path, write(tmp_path / "data"), datasets=["concrete"], methods=["kdm"], splits=3)
    assert not asked


def line(nll: float, rmse: float = 5.0, coverage: float = 0.9, number: int = 0) -> dict[str, Any]:
    return {
        "dataset": "concrete",
        "method": "kdm",
        "split": number,
        "nll": nll,
        "rmse": rmse,
        "crps": 1.0,
        "coverage90": coverage,
        "width90": 2.0,
        "fit_seconds": 1.0,
        "pit_counts": [1] * 100,
    }


@pytest.mark.parametrize(
    ("rows", "missed"),
    [
        ([line(2.9), line(2.95)], []),
        ([line(2.9), line(3.3)], ["NLL"]),
        ([line(2.9, rmse=6.0)], ["RMSE"]),
        ([line(2.9, coverage=0.95)], ["coverage"]),
        ([line(2.0), line(2.0), line(3.5)], ["worst split − median, NLL"]),
    ],
)
def test_targets_are_missed_where_they_are(rows: list[Any], missed: list[str]) -> None:
    table = report.targets(rows)
    assert [row[1] for row in table if row[-1] != "yes"] == missed


def test_additions_are_paired_by_split() -> None:
    with_it = [line(2.0 + n, rmse=4.0, number=n) for n in range(3)]
    without = [line(2.5 + n, rmse=5.0, number=n) | {"method": "committee-gaussian"} for n in range(2)]
    # The part lowers NLL by .5 in both common splits, whatever the splits' own level.
    assert report.additions([*with_it, *without]) == [
        ["concrete", "both", "0.500 ± 0.000", "0.000 ± 0.000", "1.000 ± 0.000", "2"]
    ]
    assert report.against([*with_it, *without])[0][:3] == ["concrete", "committee-gaussian", "0.500 ± 0.000"]


def test_figures_are_drawn_from_the_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    small = partial(figures.KDMRegressor, max_epochs=3, n_members=3)
    monkeypatch.setattr(figures, "KDMRegressor", small)
    rows = [line(2.9), line(2.95, number=1)]
    assert len(figures.pit_values(rows, "concrete")) == 200
    for path in (
        figures.save_bands(tmp_path / "bands.png", rows=60),
        figures.save_pit(rows, tmp_path / "pit.png"),
        figures.save_calibration(rows, tmp_path / "calibration.png"),
    ):
        assert path.stat().st_size > 5000


# ---- other problems


@pytest.mark.parametrize("name", PROBLEMS)
def test_problems_are_drawn_by_seed(name: str) -> None:
    problem, (first, again, other) = PROBLEMS[name], (PROBLEMS[name].split(seed) for seed in (0, 0, 1))
    assert len(first.X) == len(first.y) == problem.n
    assert len(first.X_test) == len(first.y_test) == (89 if name.startswith("diabetes") else N_TEST)
    np.testing.assert_array_equal(first.y_test, again.y_test)
    assert (first.y[:5] != other.y[:5]).any()
    assert np.isfinite(first.X).all()
    assert np.isfinite(first.y).all()


@pytest.mark.usefixtures("quick")
def test_other_problems_are_compared(tmp_path: Path) -> None:
    some = ["wave, 20 rows", "linear, 20 rows"]
    results = others.run(tmp_path, problems=some, seeds=1, verbose=False)
    assert [row[0] for row in results.rows] == some
    cells = dict(zip(results.header, results.rows[0], strict=True))
    assert float(cells["NLL, kdm"]) < float(cells["NLL, constant"])
    again = others.run(tmp_path, problems=some, seeds=1, verbose=False)
    assert again.rows == results.rows
    assert len((tmp_path / "regression-others.jsonl").read_text().splitlines()) == 6
