"""The whole comparison on a small table: fitted, measured, written, and taken up again."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from kdmkit import KDMTable
from kdmkit.metrics import dcr_share
from kdmlab import cli, tables
from kdmlab.tables import answers, fits, methods, parts
from kdmlab.tables.claims import mean_ranks, preferred

from .conftest import rows

METHODS = ("kdm", "kdm-targets", "independent", "real", "boosting", "mean and mode")


def run(folder: Path, **options: Any) -> Any:
    settings = {"datasets": ["magic"], "chosen": METHODS, "seeds": 1, "device": "cpu", "verbose": False}
    return tables.run(folder, folder, work_dir=folder / "runs", **{**settings, **options})


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "tables.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.usefixtures("small_table")
def test_every_part_is_measured_reported_and_not_fitted_twice(tmp_path, monkeypatch):
    run(tmp_path, only_fits=True)
    made = sorted(path.name for path in (tmp_path / "runs").iterdir())
    kinds = ("kdm-all", "kdm-half", "kdm-incomplete", "kdm-targets")
    assert made == sorted(
        [*(f"magic-all-{kind}-0-cpu" for kind in kinds)]
        + [f"magic-all-independent-{kind}-0-cpu" for kind in ("all", "half")]
    )
    assert not (tmp_path / "tables.jsonl").exists()
    monkeypatch.setattr(fits, "_write", None)  # measures need no fit any more
    report = run(tmp_path)
    results = {(row["part"], row["method"]): row for row in lines(tmp_path)}
    assert len(results) == 12
    kdm = results["generation", "kdm"]
    assert 0 <= kdm["c2st_xgb"] <= 1
    assert kdm["fit_seconds"] > 0
    assert kdm["parameters"] > 0
    assert kdm["fitted_on"]["machine"] == kdm["machine"]
    assert results["generation", "real"]["tstr_auc"] > 0.9
    assert 0 <= results["copying", "kdm"]["dcr_share"] <= 1
    assert results["prediction", "boosting"]["auc"] > 0.9
    assert results["imputation", "mean and mode"]["nrmse"] == pytest.approx(1, abs=0.1)
    assert 0 < results["intervals", "kdm"]["coverage"] <= 1
    assert results["intervals", "kdm"]["claimed"] == pytest.approx(0.9, abs=0.02)  # MAGIC's are densities
    assert results["intervals", "kdm"]["claimed_other"] == pytest.approx(0.9, abs=0.02)
    assert results["queries", "kdm"]["query_ms_p95"] >= results["queries", "kdm"]["query_ms_p50"] > 0
    text = report.files[1].read_text("utf-8")
    for part in parts.PARTS:
        assert f"## {part.capitalize()}" in text
    assert "| magic | C2ST by XGBoost | ≥ 0.9 |" in text
    assert "of 1 run" in text
    monkeypatch.setattr(parts.Job, "measure", lambda job: pytest.fail("nothing is left to measure"))
    assert run(tmp_path).markdown() == report.markdown()


def forbid(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """Importing one of the packages fails."""
    whole = builtins.__import__

    def some(name: str, *args: Any, **options: Any) -> Any:
        if name.partition(".")[0] in packages:
            raise ImportError(name)
        return whole(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", some)


@pytest.mark.usefixtures("small_table")
def test_fits_need_no_peers_and_measures_need_no_device(tmp_path, monkeypatch):
    options: Any = {"parts": ["queries"], "chosen": ["kdm"]}
    with pytest.raises(ValueError, match="device: expected fits of that device"):
        run(tmp_path, device="cuda", **options)
    with monkeypatch.context() as bare:
        forbid(bare, "xgboost", "sdmetrics", "miceforest")
        run(tmp_path, only_fits=True, **options)
    made = tmp_path / "runs" / "magic-all-kdm-all-0-cpu"
    made.rename(made.with_name("magic-all-kdm-all-0-cuda"))
    run(tmp_path, device="cuda", **options)
    assert [row["device"] for row in lines(tmp_path)] == ["cuda"]


@pytest.mark.usefixtures("small_table")
def test_fresh_fits_again(tmp_path):
    options: Any = {"parts": ["copying"], "chosen": ["independent"]}
    run(tmp_path, **options)
    first = (tmp_path / "runs" / "magic-all-independent-half-0-cpu" / "fit.json").stat().st_mtime_ns
    run(tmp_path, fresh=True, **options)
    assert len(lines(tmp_path)) == 1
    assert (tmp_path / "runs" / "magic-all-independent-half-0-cpu" / "fit.json").stat().st_mtime_ns > first


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"datasets": ["digits"]}, "dataset: expected some of adult"),
        ({"parts": ["novelty"]}, "part: expected some of generation"),
        ({"chosen": ["oracle"]}, "method: expected some of kdm"),
        ({"device": "tpu"}, "device: expected one of"),
    ],
)
def test_unknown_choices_are_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        run(tmp_path, **options)


def test_the_command_writes_an_empty_report(tmp_path):
    arguments = ["reproduce", "tables", "--only-report", "--output", str(tmp_path)]
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 0, result.output
    assert "Nothing was measured yet" in (tmp_path / "tables.md").read_text("utf-8")


# ---- copies


def test_copies_are_nearer_to_the_seen_rows():
    seen, unseen = rows(80, 0), rows(80, 1)
    assert dcr_share(seen, seen, unseen) == 1
    assert dcr_share(seen, unseen, seen) == 0
    assert dcr_share(rows(400, 2), seen, unseen) == pytest.approx(0.5, abs=0.1)
    few = {name: seen[name] for name in ("size", "kind")}
    assert dcr_share(few, seen, unseen) == 1


def test_ties_count_one_half_and_missing_cells_differ():
    seen = rows(40, 0)
    assert dcr_share(seen, seen, seen) == 0.5
    holes = {**seen, "kind": np.where(np.arange(40) < 20, None, seen["kind"])}
    assert dcr_share(seen, seen, holes) == 0.75


def test_distances_are_those_of_the_formula():
    one, two, three = rows(20, 0), rows(15, 1), rows(15, 2)
    real = {name: np.concatenate([two[name], three[name]]) for name in two}

    def distance(i: int, j: int, other: Any) -> float:
        numbers = sum(abs(one[c][i] - other[c][j]) / np.ptp(real[c]) for c in ("size", "noise"))
        return numbers + 2 * sum(one[c][i] != other[c][j] for c in ("colour", "kind"))

    nearest = [[min(distance(i, j, other) for j in range(15)) for i in range(20)] for other in (two, three)]
    wanted = np.mean(np.array(nearest[0]) < np.array(nearest[1]))
    assert dcr_share(one, two, three, block=7) == pytest.approx(wanted)


# ---- answers, methods, ranks


class Intervals(KDMTable):
    """Answers with the central 90 % of a standard normal."""

    columns_: Any = ("noise",)

    def predict_interval(self, X: Any, target: str, coverage: float = 0.9) -> Any:
        assert target not in X
        return np.tile([-1.645, 1.645], (len(X["kind"]), 1))

    def interval_probability(self, X: Any, target: str, coverage: float = 0.9) -> Any:
        return np.full(len(X["kind"]), coverage)


class Zeros(Intervals):
    """Answers 0, of which every second row is sure."""

    def predict_interval(self, X: Any, target: str, coverage: float = 0.9) -> Any:
        return np.zeros((len(X["kind"]), 2))

    def interval_probability(self, X: Any, target: str, coverage: float = 0.9) -> Any:
        return np.where(np.arange(len(X["kind"])) % 2, 0.98, 0.86)


def test_coverage_is_the_share_of_cells_within_their_interval():
    table = rows(4000, 0)
    table["noise"][:1000] = np.nan
    results = answers.interval_scores(Intervals(), table)
    assert results["coverage_by_column"] == {"noise": results["coverage"]}
    assert results["coverage"] == pytest.approx(0.9, abs=0.02)
    assert [results["claimed"], results["claimed_other"]] == pytest.approx([0.9, 0.9])
    assert results["coverage_other"] == pytest.approx(results["coverage"])
    assert results["width"] == pytest.approx(3.29, abs=0.15)


def test_cells_that_are_sure_are_told_apart():
    table = rows(200, 0)
    table["noise"][1::4] = 0.0
    results = answers.interval_scores(Zeros(), table)
    assert results["claimed"] == pytest.approx(0.92)
    assert results["coverage"] == pytest.approx(0.25)
    assert results["claimed_other"] == pytest.approx(0.86)
    assert results["coverage_other"] == 0.0


def test_independent_columns_have_the_cells_of_the_rows():
    table = rows(50, 0)
    drawn = methods.independent(table, 0)(200)
    methods.check_rows(drawn, 200)
    assert set(drawn["size"]) <= set(table["size"])
    with pytest.raises(ValueError, match="expected 10 complete rows"):
        methods.check_rows(drawn, 10)


def test_synthetic_rows_come_back_from_the_disk(tmp_path):
    table = {"file": np.array(["x", "y"], dtype=object), "n": np.array([1, 2])}
    fits.write_arrays(tmp_path / "synthetic.npz", fits._stored(table))
    back = fits.synthetic_in(tmp_path)
    assert back["file"].dtype == object
    np.testing.assert_array_equal(back["file"], table["file"])
    np.testing.assert_array_equal(back["n"], table["n"])


def test_ranks_are_among_methods_with_the_score():
    scores = {"kdm": (0.5, 0.9), "KNN": (0.4, 0.8), "ExtraTrees": (0.6, None)}
    results = [
        {"dataset": "d", "method": name, "seed": 0, "nrmse": nrmse, "accuracy": accuracy}
        for name, (nrmse, accuracy) in scores.items()
    ]
    assert mean_ranks(results) == {("d", "kdm"): 1.5, ("d", "KNN"): 1.5, ("d", "ExtraTrees"): 3}


def test_the_device_with_more_seeds_is_preferred():
    def line(device: str, seed: int) -> dict[str, Any]:
        return {"part": "copying", "dataset": "d", "method": "kdm", "device": device, "seed": seed}

    results = preferred([line("cpu", 0), line("cuda", 0), line("cuda", 1)])
    assert [row["device"] for row in results] == ["cuda", "cuda"]


def test_a_fit_of_other_defaults_is_made_again(tmp_path, monkeypatch):
    fit = fits.Fit("magic", "independent", "all", 0, "cpu", None)
    data = parts.TableData("magic", rows(40, 0), rows(40, 1), "kind")
    made = fits.make(fit, data, tmp_path) / "fit.json"
    first = made.stat().st_mtime_ns
    assert fits.make(fit, data, tmp_path, processes=3) == made.parent
    assert made.stat().st_mtime_ns == first
    monkeypatch.setattr(methods, "settings", lambda method: {"recipe": "another"})
    fits.make(fit, data, tmp_path, processes=3)
    assert fits.facts(made.parent)["processes"] == 3
    assert json.loads(made.read_text("utf-8"))["settings"] == {"recipe": "another"}


def test_lines_of_other_defaults_are_not_reported():
    recipe = methods.settings("kdm")
    assert tables.is_current({"method": "kdm", "settings": {**recipe, "most_rows": 9}})
    assert not tables.is_current({"method": "kdm", "settings": {"recipe": {**recipe["recipe"], "tree": {}}}})
    assert tables.is_current({"method": "boosting", "settings": {}})
    weight = "target_weight"  # changes nothing where no target is named
    assert weight not in recipe["recipe"]["table"]
    assert weight in methods.settings("kdm-targets")["recipe"]["table"]
