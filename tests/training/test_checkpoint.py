"""Fits that are killed and go on."""

import io
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from kdmkit.training import Rows
from kdmkit.training.checkpoint import Checkpoint, fingerprint
from training.problems import Objective, data, fitted, rows, same

TESTS = Path(__file__).parents[1]

# Fits take twice the time where annotations are checked.
pytestmark = pytest.mark.usefixtures("unchecked")


class Killed(Exception):
    pass


def _killer(epoch):
    """Raises after some epochs."""
    calls = []

    def on_epoch(_):
        calls.append(1)
        if len(calls) == epoch:
            raise Killed

    return on_epoch


FITS = {
    "plain": {},
    "dropout": {"dropout": 0.3},
    "cosine": {"schedule": "cosine"},
    "constant": {"schedule": "constant"},
    "patience": {"patience": 1},
    "bf16": {"precision": "bf16"},
    "averaging": {"averaging": 0.3},
    "averaging without validation": {"averaging": 0.3, "validation": None},
}


HELD_OUT = rows(20, seed=9)


def _fitted(folder=None, *, dropout=0.0, on_epoch=None, validation=HELD_OUT, **changes):
    return fitted(
        objective=Objective(dropout=dropout),
        train=rows(weighted=True),
        validation=validation,
        on_epoch=on_epoch,
        **{"max_epochs": 6, "checkpoint_dir": folder, **changes},
    )


@pytest.mark.parametrize("name", FITS)
@pytest.mark.parametrize("epoch", [1, 4])
def test_a_killed_fit_ends_where_the_uninterrupted_one_ends(tmp_path, name, epoch):
    wanted, history = _fitted(**FITS[name])
    with pytest.raises(Killed):
        _fitted(tmp_path, on_epoch=_killer(epoch), **FITS[name])
    torch.manual_seed(99)
    again = []
    got, resumed = _fitted(tmp_path, on_epoch=lambda _: again.append(1), **FITS[name])
    assert same(got, wanted)
    assert resumed == history
    assert len(again) == len(history) - epoch


def test_a_fit_killed_again_and_again(tmp_path):
    wanted, history = _fitted(dropout=0.3)
    for _ in range(5):
        with pytest.raises(Killed):
            _fitted(tmp_path, on_epoch=_killer(1), dropout=0.3)
    got, resumed = _fitted(tmp_path, dropout=0.3)
    assert same(got, wanted)
    assert resumed == history


def test_sigkill(tmp_path):
    """The real thing: a process that gets no chance to tidy up."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "training.killed", str(tmp_path), "2"]
    result = subprocess.run(command, cwd=TESTS, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == -signal.SIGKILL, result.stderr
    validation = rows(20, seed=9)
    finished = []
    got, _ = fitted(
        objective=Objective(dropout=0.3),
        validation=validation,
        checkpoint_dir=tmp_path,
        on_epoch=lambda _: finished.append(1),
    )
    wanted, _ = fitted(objective=Objective(dropout=0.3), validation=validation)
    assert len(finished) == 2
    assert same(got, wanted)


def test_early_stopping_remembers_what_was_best(tmp_path):
    """The best epoch lies before the kill, the stop after it."""
    worse = {"learning_rate": 0.5, "patience": 3, "max_epochs": 12, "schedule": "constant", "clip_norm": None}
    wanted, history = _fitted(**worse)
    losses = [entry["validation_loss"] for entry in history]
    best = losses.index(min(losses))
    assert len(history) == best + 4 < 12
    with pytest.raises(Killed):
        _fitted(tmp_path, on_epoch=_killer(best + 2), **worse)
    got, resumed = _fitted(tmp_path, **worse)
    assert resumed == history
    assert same(got, wanted)


def test_a_finished_fit_is_not_repeated(tmp_path):
    wanted, history = _fitted(tmp_path)
    again = []
    got, resumed = _fitted(tmp_path, on_epoch=lambda _: again.append(1))
    assert not again
    assert resumed == history
    assert same(got, wanted)


def test_part_of_the_way_and_on(tmp_path):
    wanted, history = fitted(max_epochs=6)
    _, part = fitted(max_epochs=6, epochs=2, checkpoint_dir=tmp_path)
    assert part == history[:2]
    got, resumed = fitted(max_epochs=6, checkpoint_dir=tmp_path)
    assert resumed == history
    assert same(got, wanted)


def test_no_folder_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fitted()
    assert not list(tmp_path.iterdir())


def test_folders_are_made_and_hold_one_file(tmp_path):
    fitted(checkpoint_dir=tmp_path / "a" / "b")
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["checkpoint.pt"]


# ---- whose checkpoint it is


OTHERS = {
    "seed": {"seed": 4},
    "learning rate": {"learning_rate": 0.02},
    "batch size": {"batch_size": 32},
    "epochs": {"max_epochs": 7},
    "averaging": {"averaging": 0.5},
    "identity": {"identity": {"kind": "b"}},
    "rows": {"train": rows(seed=1)},
    "fewer rows": {"train": rows(50)},
    "weights": {"train": rows(weighted=True)},
    "validation": {"validation": rows(20)},
    "model": {"objective": Objective(dtype=torch.float32), "train": Rows(data(dtype=torch.float32))},
}


@pytest.mark.parametrize("case", OTHERS)
def test_a_checkpoint_of_another_fit(tmp_path, case):
    fitted(checkpoint_dir=tmp_path, epochs=1)
    before = (tmp_path / "checkpoint.pt").read_bytes()
    with pytest.raises(
        ValueError, match="checkpoint_dir: expected a checkpoint of this configuration and data"
    ):
        fitted(checkpoint_dir=tmp_path, **OTHERS[case])
    assert (tmp_path / "checkpoint.pt").read_bytes() == before


def test_weights_tell_fits_apart(tmp_path):
    fitted(checkpoint_dir=tmp_path, epochs=1, train=rows(weighted=True))
    x, y = rows().tensors
    weights = rows(weighted=True).weights.clone()
    weights[3] += 0.1
    with pytest.raises(
        ValueError, match="checkpoint_dir: expected a checkpoint of this configuration and data"
    ):
        fitted(checkpoint_dir=tmp_path, train=Rows((x, y), weights))


def test_a_model_of_another_shape(tmp_path):
    class Wider(Objective):
        def __init__(self):
            super().__init__()
            self.more = torch.nn.Parameter(torch.zeros(3))

    fitted(checkpoint_dir=tmp_path, epochs=1)
    with pytest.raises(
        ValueError, match="checkpoint_dir: expected a checkpoint of this configuration and data"
    ):
        fitted(checkpoint_dir=tmp_path, objective=Wider())


def test_what_does_not_matter(tmp_path, capsys):
    """Another place and a progress bar do not make another fit."""
    fitted(checkpoint_dir=tmp_path / "a", epochs=2)
    (tmp_path / "a").rename(tmp_path / "b")
    _, history = fitted(checkpoint_dir=str(tmp_path / "b"), verbose=True, device="auto")
    assert len(history) == 4
    assert "fit:" in capsys.readouterr().err


def test_fingerprints():
    x = torch.arange(6.0).reshape(2, 3)
    one = fingerprint({"a": 1, "b": 2}, [x])
    assert fingerprint({"b": 2, "a": 1}, [x.clone()]) == one
    others = [
        fingerprint({"a": 1}, [x]),
        fingerprint({"a": 1, "b": 2}, [x.T]),
        fingerprint({"a": 1, "b": 2}, [x.reshape(3, 2)]),
        fingerprint({"a": 1, "b": 2}, [x.view(torch.int32)]),
        fingerprint({"a": 1, "b": 2}, [x, x]),
        fingerprint({"a": 1, "b": 2}, [x.nextafter(torch.tensor(9.0))]),
    ]
    assert len({one, *others}) == 1 + len(others)


# ---- damage


def _truncated(content):
    return content[: len(content) // 2]


def _flipped(content):
    """Bits changed among the numbers, where nothing but a checksum can tell."""
    weights = Objective().layer.components["x"].detach()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        records = [archive.read(name) for name in archive.namelist()]
    record = next(r for r in records if len(r) == weights.nbytes)
    start = content.index(record)
    return content[:start] + bytes([record[0] ^ 1]) + content[start + 1 :]


DAMAGE = {
    "empty": lambda content: b"",
    "one byte": lambda content: content[:1],
    "truncated": _truncated,
    "all but the end": lambda content: content[:-10],
    "flipped": _flipped,
    "text": lambda content: b"hello, I am no checkpoint\n" * 100,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint(tmp_path, damage):
    fitted(checkpoint_dir=tmp_path, epochs=1)
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    with pytest.raises(ValueError, match="checkpoint_dir: expected a folder with a readable checkpoint"):
        fitted(checkpoint_dir=tmp_path)


@pytest.mark.parametrize("content", [[1, 2], {"version": 1}, torch.zeros(3)])
def test_a_file_that_is_something_else(tmp_path, content):
    torch.save(content, tmp_path / "checkpoint.pt")
    with pytest.raises(ValueError, match="checkpoint_dir: expected a folder with a readable checkpoint"):
        fitted(checkpoint_dir=tmp_path)


def test_a_newer_version(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("kdmkit.training.checkpoint._VERSION", 99)
        fitted(checkpoint_dir=tmp_path, epochs=1)
    with pytest.raises(ValueError, match="checkpoint_dir: expected a checkpoint of version 2, got 99"):
        fitted(checkpoint_dir=tmp_path)


def test_nothing_in_a_checkpoint_is_executed(tmp_path):
    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "executed",))

    torch.save({"version": 1, "identity": Evil()}, tmp_path / "checkpoint.pt")
    with pytest.raises(ValueError, match="checkpoint_dir: expected a folder with a readable checkpoint"):
        fitted(checkpoint_dir=tmp_path)
    assert not (tmp_path / "executed").exists()


def test_an_interrupted_save_leaves_the_old_file(tmp_path, monkeypatch):
    checkpoint = Checkpoint(tmp_path, "me")
    checkpoint.save({"value": torch.ones(3)})

    def half(content, file):
        file.write(b"half a checkpoint")
        raise OSError("no space left on device")

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(OSError, match="no space left"):
        checkpoint.save({"value": torch.zeros(3)})
    monkeypatch.undo()
    assert torch.equal(checkpoint.load()["value"], torch.ones(3))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_a_save_replaces_the_file_as_a_whole(tmp_path):
    """Whoever reads the old file meanwhile reads it to the end."""
    checkpoint = Checkpoint(tmp_path, "me")
    checkpoint.save({"value": torch.ones(3)})
    with checkpoint.path.open("rb") as old:
        checkpoint.save({"value": torch.zeros(3)})
        assert torch.equal(torch.load(old, weights_only=True)["value"], torch.ones(3))
    assert torch.equal(checkpoint.load()["value"], torch.zeros(3))


def test_a_fit_whose_save_fails_can_go_on_later(tmp_path, monkeypatch):
    wanted, _ = fitted(max_epochs=4)
    saves = []
    save = torch.save

    def third_fails(content, file):
        saves.append(1)
        if len(saves) == 3:
            file.write(b"half a checkpoint")
            raise OSError("no space left on device")
        save(content, file)

    monkeypatch.setattr(torch, "save", third_fails)
    with pytest.raises(OSError, match="no space left"):
        fitted(max_epochs=4, checkpoint_dir=tmp_path)
    monkeypatch.undo()
    got, history = fitted(max_epochs=4, checkpoint_dir=tmp_path)
    assert len(history) == 4
    assert same(got, wanted)


def test_a_path_that_is_a_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("here")
    with pytest.raises(ValueError, match="checkpoint_dir: expected a folder"):
        fitted(checkpoint_dir=path)
