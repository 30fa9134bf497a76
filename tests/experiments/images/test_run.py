"""The whole experiment on a few hundred digits: trained, judged, drawn, written, and taken up again."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kdmkit import cli
from kdmkit.experiments import images
from kdmkit.experiments._results import read_rows
from kdmkit.experiments.images import Wanted, jobs, table1
from kdmkit.experiments.images.recipes import DRAWINGS, RECIPES, Drawing, changed


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs._pictures.cache_clear()
    short = {
        "encoder_epochs": 8,
        "joint_epochs": 2,
        "head_epochs": 3,
        "likelihood_epochs": 3,
        "batch_size": 32,
        "components": 20,
    }
    for encoder in ("paper", "resnet"):
        monkeypatch.setitem(RECIPES, ("digits", encoder), changed(RECIPES["digits", encoder], short))
    monkeypatch.setitem(DRAWINGS, "digits", Drawing(epochs=14, batch_size=32, critics=1, draws=100))


def test_everything_and_again(
    tmp_path: Path, few_digits: None, digits: Wanted, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "results"
    report = images.run(output, digits, verbose=False, say=lambda _: None)

    rows = read_rows(output / "table1.jsonl")
    assert [(row["model"], row["encoder"], row["augmented"]) for row in rows] == [
        (model, encoder, encoder == "resnet")
        for encoder in ("paper", "resnet")
        for model in ("dense", "kdm", "ml-kdm")
    ]
    by_model = {row["model"]: row for row in rows if row["encoder"] == "paper"}
    assert all(row["test_accuracy"] > 0.6 for row in by_model.values())
    assert abs(by_model["dense"]["head_parameters"] / by_model["kdm"]["head_parameters"] - 1) < 0.05
    # Maximum likelihood raises the density of images that it has not seen.
    assert by_model["ml-kdm"]["test_log_density"] > by_model["kdm"]["test_log_density"]
    assert 0 <= by_model["ml-kdm"]["novelty_auroc"]["noise"] <= 1
    assert set(by_model["kdm"]["phase_seconds"]) == {
        "kdm"
    }  # its encoder is that of the baseline's first phase

    drawn = {row["generator"]: row for row in read_rows(output / "table1-generation.jsonl")}
    assert drawn["ml-kdm"]["recognised"] > 0.3  # a tenth would be chance
    assert drawn["ml-kdm"]["frechet"] < drawn["vae"]["frechet"]
    text = (output / "table1.md").read_text(encoding="utf-8")
    assert text.count("| digits | paper | no |") == 3
    assert "## Generation" in text
    assert {file.name for file in report.files} >= {"table1.jsonl", "table1.md", "digits-ml-kdm.png"}

    # Again: nothing is trained, nothing is added.
    monkeypatch.setattr(table1, "measure", _fail)
    monkeypatch.setattr(table1, "draw", _fail)
    again = images.run(output, digits, verbose=False, say=lambda _: None)
    assert again.rows == report.rows
    assert len(read_rows(output / "table1.jsonl")) == len(rows)


def _fail(*_: Any) -> None:
    raise AssertionError("measured again")


def test_a_killed_run_is_taken_up(
    tmp_path: Path, few_digits: None, digits: Wanted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while the KDM is trained: the encoder is not trained again, and the numbers are the same."""
    job = digits.jobs("digits", "paper")[0]

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(jobs, "train_kdm", killed)
        with pytest.raises(KeyboardInterrupt):
            jobs.measure(job, "kdm")
    resumed = jobs.measure(job, "kdm")
    assert set(resumed["phase_seconds"]) == {"kdm"}

    elsewhere = replace(job, place=replace(job.place, work_dir=tmp_path / "elsewhere"))
    uninterrupted = jobs.measure(elsewhere, "kdm")
    assert set(uninterrupted["phase_seconds"]) == {"encoder", "kdm"}
    assert uninterrupted["test_nll"] == pytest.approx(resumed["test_nll"], rel=1e-5)


def test_search_looks_at_held_out_images_only(
    tmp_path: Path, few_digits: None, digits: Wanted, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    read = jobs.pictures

    def noted(*args: Any, held_out: bool, **options: Any) -> Any:
        asked.append(held_out)
        return read(*args, held_out=held_out, **options)

    monkeypatch.setattr(jobs, "pictures", noted)
    some = images.wanted(
        ["digits"], ["dense"], ["paper"], data_dir="-", work_dir=tmp_path, runs=1, device="cpu"
    )
    report = images.search(tmp_path, some, {"encoder_epochs": [1], "smoothing": [0, 0.1]}, verbose=False)
    assert asked == [True]
    assert list(report.header[3:-2]) == ["smoothing"]
    assert [row[:3] for row in report.rows] == 2 * [["digits", "paper", "dense"]]
    rows = read_rows(tmp_path / "table1-search.jsonl")
    assert all("test_accuracy" not in row and "validation_accuracy" in row for row in rows)
    best = max(rows, key=lambda row: row["validation_accuracy"])
    assert report.rows[0][3] == str(best["settings"]["smoothing"])


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table1, "measure", _fail)


def invoke(tmp_path: Path, *options: str) -> tuple[int, str]:
    folders = [
        "--data-dir",
        str(tmp_path / "data"),
        "--output",
        str(tmp_path),
        "--work-dir",
        str(tmp_path / "w"),
    ]
    result = CliRunner().invoke(cli.app, ["reproduce", "table1", *folders, *options], env={"COLUMNS": "300"})
    return result.exit_code, result.output


def test_only_the_report(tmp_path: Path, untrained: None) -> None:
    code, output = invoke(tmp_path, "--only-report")
    assert code == 0
    text = (tmp_path / "table1.md").read_text(encoding="utf-8")
    assert "| mnist, paper encoder, kdm: accuracy | ≥ 0.994 |  | 0 | not run |" in text
    assert "table1.md" in output


# ---- bad input, before anything is trained


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dataset", "imagenet"], "dataset: expected one of 'mnist'"),
        (["--model", "tree"], "model: expected one of 'dense', 'kdm', 'ml-kdm'"),
        (["--encoder", "vgg"], "encoder: expected one of 'paper', 'resnet'"),
        (["--device", "tpu"], "device: expected one of"),
        (["--device", "cuda"], "device: expected 'cpu' or 'auto' where there is no CUDA device"),
        (["--search", "--vary", "depth=3"], "vary: expected settings among components"),
        (["--search", "--vary", "latent=two"], "vary: expected setting=number,number…"),
        (["--search", "--vary", "latent=-2"], "latent: expected > 0, got -2"),
    ],
)
def test_bad_options(
    untrained: None, unchecked: None, tmp_path: Path, options: list[str], message: str
) -> None:
    known = [] if "--dataset" in options else ["--dataset", "digits"]
    code, output = invoke(tmp_path, *known, *options)
    assert code == 2
    assert message in output


def test_broken_data(untrained: None, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mnist.npz").write_bytes(b"PK\x03\x04 and no more")
    code, output = invoke(tmp_path, "--dataset", "mnist")
    assert code == 2
    assert "mnist.npz: expected a whole .npz file" in output


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"format": 0, "versions": {"kdmkit": "0.0.1"}}, "got format 0 by kdmkit 0.0.1 in line 1"),
        ({"format": table1.FORMAT, "versions": {"kdmkit": "99.0"}}, "by kdmkit 99.0 in line 1"),
        ({"task": {}}, "got format None"),
        (["a", "list"], "another format in line 1"),
    ],
)
def test_lines_of_another_version(
    untrained: None, unchecked: None, tmp_path: Path, line: Any, message: str
) -> None:
    (tmp_path / "table1.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    code, output = invoke(tmp_path, "--dataset", "digits")
    assert code == 2
    assert message in output


def test_lines_that_are_no_json(untrained: None, tmp_path: Path) -> None:
    (tmp_path / "table1.jsonl").write_text("accuracy: good\n", encoding="utf-8")
    code, output = invoke(tmp_path, "--dataset", "digits")
    assert code == 2
    assert "table1.jsonl: expected JSON lines" in output
