"""The command line."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import kdmkit
from kdmlab import cli, density, estimators
from kdmlab.common import Report

RESULTS = Path(__file__).parents[2] / "results"
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
    monkeypatch.setattr(estimators, "run", lambda folder, **options: asked.update(options) or REPORT)
    invoke("reproduce", "estimators", "--only", "scale", "--only", "digits", "--fresh")
    assert asked == {"only": [estimators.Measure.scale, estimators.Measure.digits], "fresh": True}


@pytest.mark.parametrize(
    ("command", "file"),
    [
        (["bench", "--device", "cuda"], "bench-cuda.md"),
        (["reproduce", "binary"], "binary.md"),
        (["reproduce", "density"], "density.md"),
        (["reproduce", "estimators"], "estimators.md"),
        (["reproduce", "streams"], "streams-test.md"),
        (["reproduce", "table1"], "table1.md"),
        (["reproduce", "table2"], "table2.md"),
        (["reproduce", "table2", "--search"], "table2-search.md"),
        (["reproduce", "uci-regression", "--no-figures"], "uci-regression.md"),
        (["reproduce", "regression-others"], "regression-others.md"),
    ],
)
def test_reports_are_those_of_the_committed_lines(
    command: list[str], file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every table under `results` is what its lines give, whatever the version of the library."""
    monkeypatch.setattr(kdmkit, "__version__", "9.9.9")
    for pattern in ("*.jsonl", "*-notes.md", "uci-regression-*.png"):
        for path in RESULTS.glob(pattern):
            shutil.copy(path, tmp_path)
    invoke(*command, "--only-report", "--output", str(tmp_path))
    assert (tmp_path / file).read_text(encoding="utf-8") == (RESULTS / file).read_text(encoding="utf-8")


def test_unknown_measure_is_refused() -> None:
    result = CliRunner().invoke(cli.app, ["reproduce", "estimators", "--only", "taste"])
    assert result.exit_code == 2
    assert "only: expected one of 'accuracy'" in result.output


COMMANDS = {
    "demo --seed -1": "--seed",
    "demo --output {file}": "--output",
    "demo --output /proc/nowhere": "output: expected a folder to write to",
    "bench --output {file} --seconds 0.1 --no-growth --device cpu": "--output",
    "reproduce density --folds 100000 --output {folder}": "folds: expected 2 to 150",
    "reproduce density --output {file}": "--output",
    "reproduce density --output /proc/nowhere": "output: expected a folder to write to",
    "reproduce estimators --output {file}": "--output",
    "reproduce regression-others --output {file}": "--output",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_tell_what_is_wrong_with_an_option(command: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    arguments = command.format(file=file, folder=tmp_path / "folder").split()
    result = CliRunner().invoke(cli.app, arguments, env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    assert COMMANDS[command] in result.output
