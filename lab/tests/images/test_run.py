"""The whole experiment on a few hundred digits: trained, judged, drawn, written, and taken up again."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import kdmkit
from kdmlab import cli, images
from kdmlab.common import FORMAT, read_rows, runner
from kdmlab.images import Plan, jobs, table1
from kdmlab.images.data import NOVEL
from kdmlab.images.recipes import DECODER_RECIPES, MODELS, RECIPES, DecoderRecipe, changed

# Fits take twice the time where annotations are checked.


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs._pictures.cache_clear()
    _set_epochs(monkeypatch, encoder=2, joint=1, head=1, likelihood=1, decoder=1)


def _set_epochs(monkeypatch: pytest.MonkeyPatch, *, decoder: int, **epochs: int) -> None:
    short = {"batch_size": 32, "components": 20, **{f"{phase}_epochs": n for phase, n in epochs.items()}}
    for encoder in ("paper", "resnet"):
        monkeypatch.setitem(RECIPES, ("digits", encoder), changed(RECIPES["digits", encoder], short))
    recipe = DecoderRecipe(epochs=decoder, batch_size=32, draws=100)
    monkeypatch.setitem(DECODER_RECIPES, "digits", recipe)


@pytest.mark.slow
def test_everything_and_again(
    tmp_path: Path, few_digits: None, digits: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    _set_epochs(monkeypatch, encoder=8, joint=2, head=3, likelihood=3, decoder=14)
    output = tmp_path / "results"
    report = images.run(output, digits, verbose=False, say=lambda _: None)

    rows = read_rows(output / "table1.jsonl")
    assert all(row["augmented"] == (row["encoder"] == "resnet") for row in rows)
    assert [(row["encoder"], row["model"]) for row in rows] == [
        *(("paper", model) for model in MODELS),
        *(("resnet", model) for model in ("dense", "kdm", "ml-kdm")),
    ]
    by_model = {row["model"]: row for row in rows if row["encoder"] == "paper"}
    assert all(row["test_accuracy"] > 0.6 for row in by_model.values())
    assert abs(by_model["dense"]["head_parameters"] / by_model["kdm"]["head_parameters"] - 1) < 0.05
    # Maximum likelihood raises the density of images that it has not seen.
    assert by_model["ml-kdm"]["test_log_density"] > by_model["kdm"]["test_log_density"]
    assert 0 <= by_model["ml-kdm"]["novelty_auroc"]["noise"] <= 1
    # Its encoder is that of the baseline's first phase.
    seconds = [by_model[model]["phase_seconds"] for model in ("dense", "kdm")]
    assert [set(some) for some in seconds] == [{"encoder", "dense"}, {"encoder", "kdm"}]
    assert seconds[0]["encoder"] == seconds[1]["encoder"]

    drawn = {row["generator"]: row for row in read_rows(output / "table1-generation.jsonl")}
    assert drawn["ml-kdm"]["recognised"] > 0.3  # a tenth would be chance
    assert drawn["ml-kdm"]["frechet"] < drawn["vae"]["frechet"]
    text = (output / "table1.md").read_text(encoding="utf-8")
    assert text.count("| digits | paper | no |") == 6
    assert "## Generation" in text
    assert {file.name for file in report.files} >= {"table1.jsonl", "table1.md", "digits-ml-kdm.png"}

    # Again: nothing is trained, nothing is added.
    monkeypatch.setattr(table1, "measure", _fail)
    monkeypatch.setattr(table1, "generate", _fail)
    again = images.run(output, digits, verbose=False, say=lambda _: None)
    assert again.rows == report.rows
    assert len(read_rows(output / "table1.jsonl")) == len(rows)


def _fail(*_: Any) -> None:
    raise AssertionError("measured again")


def test_a_killed_run_is_taken_up(
    tmp_path: Path, few_digits: None, digits: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while the KDM is trained: the encoder is not trained again, and the numbers are the same."""
    job = digits.jobs("digits", "paper")[0]

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(jobs, "train_kdm", killed)
        with pytest.raises(KeyboardInterrupt):
            jobs.measure(job, "kdm")
    with monkeypatch.context() as patch:
        # Also by another version of the library.
        patch.setattr(kdmkit, "__version__", "9.9.9")
        patch.setattr(jobs, "train_encoder", _fail)
        resumed = jobs.measure(job, "kdm")
    assert set(resumed["phase_seconds"]) == {"encoder", "kdm"}

    elsewhere = replace(job, place=replace(job.place, work_dir=tmp_path / "elsewhere"))
    uninterrupted = jobs.measure(elsewhere, "kdm")
    assert set(uninterrupted["phase_seconds"]) == {"encoder", "kdm"}
    assert uninterrupted["test_nll"] == pytest.approx(resumed["test_nll"], rel=1e-5)


def test_search_looks_at_held_out_images_only(
    tmp_path: Path, few_digits: None, digits: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    read = jobs.pictures

    def noted(*args: Any, held_out: bool, **options: Any) -> Any:
        asked.append(held_out)
        return read(*args, held_out=held_out, **options)

    monkeypatch.setattr(jobs, "pictures", noted)
    some = images.plan(
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


@pytest.mark.slow
def test_search_draws_images(tmp_path: Path, few_digits: None, monkeypatch: pytest.MonkeyPatch) -> None:
    few = replace(DECODER_RECIPES["digits"], epochs=1, draws=20)
    monkeypatch.setitem(DECODER_RECIPES, "digits", few)
    some = images.plan(
        ["digits"], ["ml-kdm"], ["paper"], data_dir="-", work_dir=tmp_path, runs=1, device="cpu"
    )
    space = {"encoder_epochs": [1], "drawing.spread": [0.5, 1]}
    report = images.search(tmp_path, some, space, verbose=False, say=lambda _: None)
    rows = read_rows(tmp_path / "table1-search-generation.jsonl")
    assert [row["drawing"]["spread"] for row in rows] == [0.5, 1.0]
    assert [row["settings"]["encoder_epochs"] for row in rows] == [1, 1]
    assert "## Generated images" in report.markdown()
    assert len(list((tmp_path / "digits-paper-0-validation-half0").glob("decoder-*"))) == 1


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
        (["--search", "--vary", "latent=2.7"], "latent: expected a whole number, got 2.7"),
        (["--search", "--vary", "latent=inf"], "latent: expected a whole number, got inf"),
        (["--search", "--vary", "smoothing=1.5"], "smoothing: expected a share, at most 1, got 1.5"),
        (["--search", "--vary", "latent=2", "--vary", "latent=4"], "vary: expected every setting once"),
        (["--search", "--vary", "drawing.depth=2"], "vary: expected settings among epochs"),
        (["--vary", "latent=2"], "vary: expected together with --search"),
    ],
)
def test_bad_options(
    untrained: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    message: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    usual = [] if "--dataset" in options else ["--dataset", "digits"]
    code, output = invoke(tmp_path, *usual, *options)
    assert code == 2
    assert message in output


def test_broken_data(untrained: None, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mnist.npz").write_bytes(b"PK\x03\x04 and no more")
    code, output = invoke(tmp_path, "--dataset", "mnist")
    assert code == 2
    assert "mnist.npz: expected a whole .npz file" in output


def test_broken_images_of_a_strange_set(
    untrained: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are needed only after training, and known before."""
    monkeypatch.setitem(NOVEL, "digits", ("mnist",))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mnist.npz").write_text("<html>", encoding="utf-8")
    code, output = invoke(tmp_path, "--dataset", "digits")
    assert code == 2
    assert "mnist.npz: expected a whole .npz file" in output


def test_folder_of_weights_is_a_file(untrained: None, tmp_path: Path) -> None:
    (tmp_path / "w").write_text("", encoding="utf-8")
    code, output = invoke(tmp_path, "--dataset", "digits")
    assert code == 2
    assert "File exists" in output


def test_errors_may_look_like_markup(untrained: None, tmp_path: Path) -> None:
    code, output = invoke(tmp_path, "--dataset", "[/red]")
    assert code == 2
    assert "got '[/red]'" in output


def test_broken_weights(tmp_path: Path, few_digits: None) -> None:
    digits = images.plan(
        ["digits"], ["dense"], ["paper"], data_dir="-", work_dir=tmp_path / "w", runs=1, device="cpu"
    )
    images.run(tmp_path, digits, generation=0, verbose=False, say=lambda _: None)
    (encoder,) = (tmp_path / "w").glob("*/encoder-*")
    encoder.write_bytes(encoder.read_bytes()[:1000])
    (dense,) = (tmp_path / "w").glob("*/dense-*")
    dense.unlink()
    (tmp_path / "table1.jsonl").unlink()
    with pytest.raises(ValueError, match=r"encoder-.*: expected weights that this command has kept"):
        images.run(tmp_path, digits, generation=0, verbose=False, say=lambda _: None)


@pytest.mark.slow
def test_fresh_measures_again_what_is_asked_for(
    tmp_path: Path, few_digits: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def some(*models: str) -> Plan:
        return images.plan(
            ["digits"], models, ["paper"], data_dir="-", work_dir=tmp_path / "w", runs=1, device="cpu"
        )

    def run(*models: str, fresh: bool = False) -> dict[str, str]:
        images.run(tmp_path, some(*models), generation=0, fresh=fresh, verbose=False, say=lambda _: None)
        return {row["model"]: row["finished"] for row in read_rows(tmp_path / "table1.jsonl")}

    times = iter(range(100))
    monkeypatch.setattr(runner, "_measure", _timed(runner._measure, times))
    first = run("dense", "kdm")
    assert run("dense", "kdm") == first
    again = run("dense", fresh=True)
    assert again["kdm"] == first["kdm"]
    assert again["dense"] != first["dense"]
    assert not list((tmp_path / "w").glob("*/kdm-*"))  # trained again as well, from the start


def _timed(measure: Any, times: Iterator[int]) -> Any:
    return lambda task: {**measure(task), "finished": f"2026-01-01T00:00:{next(times):02d}+00:00"}


def test_fresh_keeps_lines_when_data_is_broken(untrained: None, tmp_path: Path) -> None:
    line = json.dumps({"format": FORMAT})
    (tmp_path / "table1.jsonl").write_text(line + "\n", encoding="utf-8")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mnist.npz").write_bytes(b"PK and no more")
    assert invoke(tmp_path, "--dataset", "mnist", "--fresh")[0] == 2
    assert (tmp_path / "table1.jsonl").read_text(encoding="utf-8") == line + "\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"format": 0}, "expected lines of format 1, got format 0 in line 1"),
        ({"format": 99}, "got format 99 in line 1"),
        (["a", "list"], "got format unknown in line 1"),
    ],
)
def test_lines_of_another_format(untrained: None, tmp_path: Path, line: Any, message: str) -> None:
    (tmp_path / "table1.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    code, output = invoke(tmp_path, "--dataset", "digits")
    assert code == 2
    assert message in output


def test_lines_that_are_no_json(untrained: None, tmp_path: Path) -> None:
    (tmp_path / "table1.jsonl").write_text("accuracy: good\n", encoding="utf-8")
    code, output = invoke(tmp_path, "--dataset", "digits")
    assert code == 2
    assert "table1.jsonl: expected JSON lines" in output
