"""Bad files, what cannot be saved, and saves that are interrupted."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import kdmkit as kdm
from estimators.problems import ConvNet, Deconv, blobs
from serialize.hostile import contents, folder_of_version_0_1, write

X, y = blobs(40)


def model(sigma: float = 1.0) -> kdm.KDMClassifier:
    return kdm.KDMClassifier("nonparametric", sigma=sigma, random_state=0).fit(X, y)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    kdm.save(model(), tmp_path / "model")
    return tmp_path / "model"


def rewrite(file: Path, **entries: Any) -> None:
    config, tensors = contents(file)
    write(file, {**config, **entries}, tensors)


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


FILES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no file": (Path.unlink, "path: expected a model that kdmkit.save wrote, got .*model, which is no file"),
    "a newer format": (
        lambda f: rewrite(f, format=3, kdmkit="9.1"),
        "model: expected format 2, which kdmkit .* reads, got format 3, written by kdmkit '9.1': update",
    ),
    "an impossible format": (lambda f: rewrite(f, format=0), "model: expected format 2, got format 0"),
    "a format that is no number": (
        lambda f: rewrite(f, format="2"),
        "model: expected format 2, got format '2'",
    ),
    "an unknown class": (
        lambda f: rewrite(f, **{"class": "Magic"}),
        "model: expected class one of .*'Magic'",
    ),
    "no module": (
        lambda f: rewrite(f, module={}),
        "model: expected the description and the tensors of a KDM",
    ),
    "other parameters": (
        lambda f: rewrite(f, parameters={"magic": 1}),
        "model: expected the description and the tensors of a KDMClassifier, got TypeError.*magic",
    ),
    "methods in place of attributes": (
        lambda f: rewrite(f, fitted={"predict": 3}),
        "model: expected the description .* got ValueError: 'predict' among the fitted attributes",
    ),
    "damaged tensors": (flip, "model: expected the file as it was saved, got a damaged one"),
    "half of the file": (
        lambda f: f.write_bytes(f.read_bytes()[:100]),
        "model: expected a safetensors file, got 100 bytes",
    ),
    "other tensors": (
        lambda f: save_file({"x": torch.zeros(3)}, f),
        "model: expected a model that kdmkit.save wrote, got other tensors",
    ),
    "text": (lambda f: f.write_text("precious"), "model: expected a safetensors file, got"),
}


@pytest.mark.parametrize("name", FILES)
def test_bad_files(name: str, file: Path) -> None:
    damage, message = FILES[name]
    damage(file)
    with pytest.raises(ValueError, match=message):
        kdm.load(file)


def test_models_of_version_0_1(tmp_path: Path) -> None:
    folder_of_version_0_1(tmp_path / "folder")
    with pytest.raises(
        ValueError, match=r"got a folder saved by kdmkit 0\.1: load and save it with kdmkit 0\.2"
    ):
        kdm.load(tmp_path / "folder")


def test_tensors_of_another_shape(file: Path) -> None:
    config, tensors = contents(file)
    config["module"]["layer"]["n_components"] = 7
    write(file, config, tensors)
    with pytest.raises(ValueError, match=r"tensors of a KDMClassifier, got RuntimeError: .*size mismatch"):
        kdm.load(file)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("path", [None, 3, b"model", 2.5])
def test_paths_of_other_types(path: Any, tmp_path: Path) -> None:
    for use in (lambda: kdm.load(path), lambda: kdm.save(model(), path)):
        with pytest.raises(TypeError, match=r"path: expected text or a pathlib.Path, got"):
            use()


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000])
def test_impossible_paths(name: str, tmp_path: Path) -> None:
    for use in (lambda: kdm.load(tmp_path / name), lambda: kdm.save(model(), tmp_path / name)):
        with pytest.raises(ValueError, match=r"path: expected a path of this machine, got"):
            use()


def test_places_that_cannot_be_written(file: Path) -> None:
    for path in ("/proc/nowhere/model", file / "model"):
        with pytest.raises(ValueError, match=r"path: expected a place where files can be written, got"):
            kdm.save(model(), path)


def test_a_folder_for_checkpoints_is_not_taken_from_a_file(file: Path, tmp_path: Path) -> None:
    config, tensors = contents(file)
    config["parameters"]["checkpoint_dir"] = str(tmp_path / "elsewhere")
    write(file, config, tensors)
    with pytest.raises(ValueError, match="checkpoint_dir"):
        kdm.load(file)


def test_numbers_that_are_nan_are_not_saved(tmp_path: Path) -> None:
    layer = kdm.nn.JointLayer(2, 3, 5)
    with torch.no_grad():
        layer.logits[2] = torch.nan
    with pytest.raises(ValueError, match=r"model: expected numbers without NaN, got NaN in logits"):
        kdm.save(layer, tmp_path / "layer")


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    text, tensors, folder = tmp_path / "text", tmp_path / "tensors", tmp_path / "folder"
    text.write_text("precious")
    save_file({"x": torch.zeros(3)}, tensors)
    folder.mkdir()
    for path in (text, tensors, folder):
        with pytest.raises(ValueError, match=r"path: expected a new file, or one that holds a saved model"):
            kdm.save(model(), path)
    assert text.read_text() == "precious"
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["folder", "tensors", "text"]


def test_devices_that_are_not_there(file: Path) -> None:
    for device in ("magic", "cuda:99"):
        with pytest.raises(ValueError, match=f"device: expected a device of this machine, got '{device}'"):
            kdm.load(file, device=device)


# ---- what cannot be saved


@pytest.mark.parametrize("thing", [3, nn.Linear(2, 2), kdm.RBF(1.0), {"a": 1}])
def test_other_things(thing: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"model: expected one of KDMDensity, .*got"):
        kdm.save(thing, tmp_path / "model")


def test_subclasses(tmp_path: Path) -> None:
    class Mine(kdm.KDMDensity):
        pass

    with pytest.raises(TypeError, match=r"model: expected one of .*got Mine"):
        kdm.save(Mine().fit(X), tmp_path / "model")


def test_estimators_before_fit(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"not fitted"):
        kdm.save(kdm.KDMRegressor(), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_labels_that_json_does_not_know(tmp_path: Path) -> None:
    days = np.array(["2020-01-01", "2020-01-02"], dtype="datetime64[D]")
    fitted = model()
    fitted.classes_ = days
    with pytest.raises(
        ValueError, match=r"classes_: expected numbers, strings.* got an array of datetime64\[D\]"
    ):
        kdm.save(fitted, tmp_path / "model")


# ---- modules of one's own


@pytest.fixture
def convolutional(tmp_path: Path) -> Path:
    rows, labels = np.random.default_rng(0).uniform(0, 16, (40, 1, 8, 8)), np.arange(40) % 2
    fitted = kdm.KDMClassifier(encoder=ConvNet(), decoder=Deconv(), max_epochs=1, random_state=0)
    kdm.save(fitted.fit(rows, labels), tmp_path / "model")
    return tmp_path / "model"


def test_missing_modules(convolutional: Path) -> None:
    with pytest.raises(
        ValueError, match=r"encoder: expected load\(path, encoder=...\) with the ConvNet .*got None"
    ):
        kdm.load(convolutional)
    with pytest.raises(
        ValueError, match=r"decoder: expected load\(path, decoder=...\) with the Deconv .*got None"
    ):
        kdm.load(convolutional, encoder=ConvNet())


def test_other_modules(convolutional: Path) -> None:
    for other in (ConvNet(width=3), nn.Linear(2, 2)):
        with pytest.raises(ValueError, match=r"encoder: expected parameters as they were saved, got"):
            kdm.load(convolutional, encoder=other, decoder=Deconv())


def test_modules_that_nobody_asked_for(file: Path) -> None:
    with pytest.raises(ValueError, match=r"encoder: expected None: .*got Linear"):
        kdm.load(file, encoder=nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"decoder: expected None: .*got Linear"):
        kdm.load(file, decoder=nn.Linear(2, 2))


def test_missing_encoders_of_kernels(tmp_path: Path) -> None:
    rho = kdm.KDM(torch.randn(3, 2), None, kdm.Composed(nn.Linear(2, 2), kdm.RBF(1.0)))
    kdm.save(rho, tmp_path / "rho")
    with pytest.raises(ValueError, match=r"encoder: expected load\(path, encoder=...\)"):
        kdm.load(tmp_path / "rho")


# ---- replacing


def sigma_of(path: Path) -> float:
    return float(kdm.load(path).sigma)


def test_a_save_replaces(file: Path) -> None:
    kdm.save(model(2.0), file)
    assert sigma_of(file) == 2.0
    assert [p.name for p in file.parent.iterdir()] == ["model"]


def test_folders_above_are_made(tmp_path: Path) -> None:
    for path in (tmp_path / "a" / "b", str(tmp_path / "text.safetensors"), tmp_path / ("x" * 255)):
        kdm.save(model(), path)
        assert sigma_of(Path(path)) == 1.0


def test_links_are_followed(file: Path) -> None:
    link = file.parent / "link"
    link.symlink_to(file)
    kdm.save(model(2.0), link)
    assert link.is_symlink()
    assert sigma_of(file) == sigma_of(link) == 2.0


class Interrupt:
    """Lets a function work `allowed` times, then fails: before the call, or after it."""

    def __init__(self, function: Callable[..., Any], allowed: int, *, after: bool) -> None:
        self.function, self.left, self.after = function, allowed, after

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self.left == 0:
            if self.after:
                self.function(*arguments, **named)
            raise KeyboardInterrupt
        self.left -= 1
        return self.function(*arguments, **named)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", ["fsync-0", "replace-0", "fsync-1"])
def test_interrupted_saves(step: str, after: bool, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, _, allowed = step.partition("-")
    with monkeypatch.context() as patch:
        patch.setattr(os, name, Interrupt(getattr(os, name), int(allowed), after=after))
        with pytest.raises(KeyboardInterrupt):
            kdm.save(model(2.0), file)
    # One of the two, whole; and nothing is left beside it.
    assert sigma_of(file) in (1.0, 2.0)
    assert [p.name for p in file.parent.iterdir()] == ["model"]
