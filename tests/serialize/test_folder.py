"""Bad folders, and saves that are interrupted."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import kdmkit as kdm
from estimators.problems import ConvNet, Deconv, blobs

X, y = blobs(40)


def model(sigma: float = 1.0) -> kdm.KDMClassifier:
    return kdm.KDMClassifier("nonparametric", sigma=sigma, random_state=0).fit(X, y)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    kdm.save(model(), tmp_path / "model")
    return tmp_path / "model"


def change(folder: Path, **entries: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **entries}))


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no folder": (shutil.rmtree, "path: expected a folder that kdmkit.save wrote, got .*model"),
    "no weights": (
        lambda f: (f / "model.safetensors").unlink(),
        "path: expected a folder with config.json and model.safetensors, got .* without model.safetensors",
    ),
    "no configuration": (
        lambda f: (f / "config.json").unlink(),
        "path: expected a folder with config.json and model.safetensors, got .* without config.json",
    ),
    "half a configuration": (
        lambda f: (f / "config.json").write_text((f / "config.json").read_text()[:50]),
        "config.json: expected JSON, got .* in .*config.json",
    ),
    "no text": (
        lambda f: (f / "config.json").write_bytes(b"\xff\xfe\x00"),
        "config.json: expected JSON, got",
    ),
    "another configuration": (
        lambda f: (f / "config.json").write_text("[1, 2]"),
        "config.json: expected an object with a format number, got something else",
    ),
    "a newer format": (
        lambda f: change(f, format=3, kdmkit="9.1"),
        "config.json: expected format 2, which kdmkit .* reads, got 3, written by kdmkit 9.1: update kdmkit",
    ),
    "an impossible format": (lambda f: change(f, format=0), "config.json: expected format 1 to 2, got 0"),
    "a format that is no number": (
        lambda f: change(f, format="1"),
        "expected an object with a format number",
    ),
    "an unknown class": (
        lambda f: change(f, **{"class": "Magic"}),
        "config.json: expected class one of .*'Magic'",
    ),
    "no module": (lambda f: change(f, module={}), "config.json: expected the description of a KDMClassifier"),
    "other parameters": (
        lambda f: change(f, parameters={"magic": 1}),
        "config.json: expected the description of a KDMClassifier, got TypeError.*magic",
    ),
    "methods in place of attributes": (
        lambda f: change(f, fitted={"predict": 3}),
        "config.json: expected fitted attributes, got 'predict'",
    ),
    "damaged weights": (
        lambda f: flip(f / "model.safetensors"),
        "model.safetensors: expected the file that config.json was written with, got another or a damaged",
    ),
    "half of the weights": (
        lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:100]),
        "model.safetensors: expected the file that config.json was written with",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_bad_folders(name: str, folder: Path) -> None:
    damage, message = DAMAGES[name]
    damage(folder)
    with pytest.raises(ValueError, match=message):
        kdm.load(folder)


def test_weights_that_are_no_safetensors(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "model.safetensors").write_bytes(b"\x80\x04pickle")
    monkeypatch.setattr(
        "kdmkit.serialize.folder._digest",
        lambda file: json.loads((folder / "config.json").read_text())["sha256"],
    )
    with pytest.raises(ValueError, match=r"model.safetensors: expected a safetensors file, got"):
        kdm.load(folder)


def test_weights_of_another_shape(folder: Path, tmp_path: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["module"]["layer"]["n_components"] = 7
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        ValueError, match=r"model.safetensors: expected parameters as they were saved, got .*size mismatch"
    ):
        kdm.load(folder)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    with pytest.raises(ValueError, match=r"path: expected a folder that kdmkit.save wrote"):
        kdm.load(file)
    with pytest.raises(ValueError, match=r"path: expected a new folder, .* got the file"):
        kdm.save(model(), file)
    assert file.read_text() == "precious"


def test_devices_that_are_not_there(folder: Path) -> None:
    for device in ("magic", "cuda:99"):
        with pytest.raises(ValueError, match=f"device: expected a device of this machine, got '{device}'"):
            kdm.load(folder, device=device)


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


def test_modules_that_nobody_asked_for(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"encoder: expected None: .*got Linear"):
        kdm.load(folder, encoder=nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"decoder: expected None: .*got Linear"):
        kdm.load(folder, decoder=nn.Linear(2, 2))


def test_missing_encoders_of_kernels(tmp_path: Path) -> None:
    rho = kdm.KDM(torch.randn(3, 2), None, kdm.Composed(nn.Linear(2, 2), kdm.RBF(1.0)))
    kdm.save(rho, tmp_path / "rho")
    with pytest.raises(ValueError, match=r"encoder: expected load\(path, encoder=...\)"):
        kdm.load(tmp_path / "rho")


# ---- replacing


def sigma_of(path: Path) -> float:
    return float(kdm.load(path).sigma)


def test_a_save_replaces(folder: Path) -> None:
    kdm.save(model(2.0), folder)
    assert sigma_of(folder) == 2.0
    assert [p.name for p in folder.parent.iterdir()] == ["model"]


def test_folders_are_made(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "a" / "b", tmp_path / "empty", str(tmp_path / "text")):
        kdm.save(model(), path)
        assert sigma_of(Path(path)) == 1.0


def test_links_are_followed(folder: Path) -> None:
    link = folder.parent / "link"
    link.symlink_to(folder)
    kdm.save(model(2.0), link)
    assert link.is_symlink()
    assert sigma_of(folder) == sigma_of(link) == 2.0


def test_folders_with_other_things_are_left_alone(folder: Path) -> None:
    (folder / "notes.txt").write_text("precious")
    with pytest.raises(ValueError, match=r"path: expected a new folder, or one .* got .* with notes.txt"):
        kdm.save(model(2.0), folder)
    assert (folder / "notes.txt").read_text() == "precious"
    assert sigma_of(folder) == 1.0


class Interrupt:
    """Lets a function work so many times, then fails; half done where it is told how."""

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
@pytest.mark.parametrize(
    "step", ["save_file", "_digest", "_flush-0", "_flush-1", "rename-0", "rename-1", "_flush-2"]
)
def test_interrupted_saves(step: str, after: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, _, allowed = step.partition("-")
    target = "os.rename" if name == "rename" else f"kdmkit.serialize.folder.{name}"
    function = (
        os.rename
        if name == "rename"
        else getattr(__import__("kdmkit.serialize.folder", fromlist=["x"]), name)
    )
    with monkeypatch.context() as patch:
        patch.setattr(target, Interrupt(function, int(allowed or 0), after=after))
        with pytest.raises(KeyboardInterrupt):
            kdm.save(model(2.0), folder)
    # One of the two, whole; and nothing is left beside it.
    assert sigma_of(folder) in (1.0, 2.0)
    kdm.save(model(3.0), folder)
    assert sigma_of(folder) == 3.0
    assert [p.name for p in folder.parent.iterdir()] == ["model"]


def test_a_save_killed_between_its_renames(folder: Path) -> None:
    """No handler runs when a process is killed: the earlier model is found where it was put aside."""
    folder.rename(folder.parent / ".model.earlier")
    assert sigma_of(folder) == 1.0
    kdm.save(model(2.0), folder)
    assert sigma_of(folder) == 2.0
    assert [p.name for p in folder.parent.iterdir()] == ["model"]
