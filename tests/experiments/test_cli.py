"""The command line."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from kdmkit import cli
from kdmkit.experiments import density, tabular
from kdmkit.experiments._results import Report

REPORT = Report("Title", ["what", "value"], [["something", "0.123"]], files=(Path("results/x.md"),))


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(cli.app, arguments, env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (["--help"], "reproduce"),
        (["demo", "--help"], "--seed"),
        (["reproduce", "--help"], "estimators"),
        (["reproduce", "density", "--help"], "--folds"),
        (["reproduce", "estimators", "--help"], "--only"),
    ],
)
def test_help(command: list[str], text: str) -> None:
    assert text in invoke(*command)


def test_density_prints_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}
    monkeypatch.setattr(
        density, "run", lambda folder, **options: asked.update(options, folder=folder) or REPORT
    )
    output = invoke("reproduce", "density", "--output", "here", "--folds", "3")
    assert asked == {"folder": Path("here"), "folds": 3, "fresh": False}
    assert "something" in output
    assert "wrote results/x.md" in output


def test_estimators_takes_some_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}
    monkeypatch.setattr(tabular, "run", lambda folder, **options: asked.update(options) or REPORT)
    invoke("reproduce", "estimators", "--only", "scale", "--only", "digits", "--fresh")
    assert asked == {"only": [tabular.Measure.scale, tabular.Measure.digits], "fresh": True}


def test_unknown_measure_is_refused() -> None:
    assert CliRunner().invoke(cli.app, ["reproduce", "estimators", "--only", "taste"]).exit_code == 2
