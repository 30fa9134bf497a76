"""Data sets from files and from OpenML, and what is said where they are missing or broken."""

import gzip
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import sklearn.datasets

from kdmlab.datasets import NAMES, Dataset, images, load, openml, tables, uci

SIZES = ((20, 28, 28), (10, 28, 28))


def arrays(**changed: Any) -> dict[str, Any]:
    """A small MNIST."""
    rng = np.random.default_rng(0)
    whole = {
        "x_train": rng.integers(0, 256, SIZES[0], dtype=np.uint8),
        "y_train": np.arange(20, dtype=np.uint8) % 10,
        "x_test": rng.integers(0, 256, SIZES[1], dtype=np.uint8),
        "y_test": np.arange(10, dtype=np.uint8),
    }
    return {key: value for key, value in {**whole, **changed}.items() if value is not None}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(images.SHAPES, "mnist", SIZES)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise URLError("no route to host")

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", refuse)


# ---- files


def test_digits_are_embedded(offline: None) -> None:
    digits = load("digits", "nowhere")
    assert digits.x_train.dtype == np.uint8
    assert digits.x_train.max() == 255
    assert np.bincount(digits.y_test).min() >= 34  # a fifth of every class
    again = load("digits")
    assert all(np.array_equal(a, b) for a, b in zip(digits, again, strict=True))


def test_images_from_a_file(tmp_path: Path, small: None) -> None:
    written = arrays()
    np.savez_compressed(tmp_path / "mnist.npz", **written)
    read = load("mnist", tmp_path)
    assert all(np.array_equal(getattr(read, key), value) for key, value in written.items())
    assert read.y_train.dtype == np.int64


def test_what_is_written_is_read(tmp_path: Path, small: None) -> None:
    dataset = Dataset(**arrays())
    images.write(dataset, tmp_path / "new" / "mnist.npz")
    read = load("mnist", tmp_path / "new")
    assert openml.digest(read) == openml.digest(images.checked("mnist", dataset, "memory"))
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["mnist.npz"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x_test": None}, "none for x_test"),
        ({"x_train": np.zeros((20, 28, 27), np.uint8)}, r"x_train of .* uint8 of shape \(20, 28, 28\)"),
        ({"x_train": np.zeros((19, 28, 28), np.uint8)}, r"got uint8 of shape \(19, 28, 28\)"),
        ({"x_train": np.zeros((20, 28, 28))}, "got float64"),
        ({"y_test": np.zeros(9, np.uint8)}, r"y_test of .* shape \(10,\)"),
        ({"y_test": np.full(10, 10, np.uint8)}, "labels 0 … 9, got 10"),
    ],
)
def test_wrong_images(tmp_path: Path, small: None, changed: dict[str, Any], message: str) -> None:
    np.savez_compressed(tmp_path / "mnist.npz", **arrays(**changed))
    with pytest.raises(ValueError, match=message):
        load("mnist", tmp_path)


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9])
def test_truncated_images(tmp_path: Path, small: None, keep: float) -> None:
    path = tmp_path / "mnist.npz"
    np.savez_compressed(path, **arrays())
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(ValueError, match=r"mnist.npz: expected a whole .npz file"):
        load("mnist", tmp_path)


@pytest.mark.parametrize("kind", ["a page", "one array", "objects"])
def test_other_files_under_the_name(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "mnist.npz"
    with path.open("wb") as file:
        if kind == "a page":
            file.write(b"<html>not found</html>")
        elif kind == "one array":
            np.save(file, np.zeros(3))
        else:
            np.savez(file, x_train=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match=r"mnist.npz: expected a whole .npz file"):
        load("mnist", tmp_path)


def test_unknown_name() -> None:
    with pytest.raises(ValueError, match=r"name: expected one of 'mnist', .* got 'imagenet'"):
        load("imagenet")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "digits"])
def test_missing_files_are_named(tmp_path: Path, name: Any) -> None:
    with pytest.raises(FileNotFoundError, match=rf"{tables.FILES.get(name, (f'{name}.npz',))[0]}.* in "):
        load(name, tmp_path, download=False)


# ---- tables

ADULT = [
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, "
    "40, United-States, <=50K",
    "52, ?, 209642, HS-grad, 9, Married-civ-spouse, Exec-managerial, Husband, White, Male, 0, 0, 45, "
    "United-States, >50K",
]


@pytest.fixture
def adult(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(uci, "_ADULT_ROWS", {"adult.data": 2, "adult.test": 1})
    (tmp_path / "adult.data").write_text("\n".join(ADULT) + "\n")
    with gzip.open(tmp_path / "adult.test.gz", "wt") as file:
        file.write("|1x3 Cross validator\n" + ADULT[1] + ".\n")
    return tmp_path


def test_adult(adult: Path) -> None:
    read = load("adult", adult)
    assert read.x_train[1].tolist()[:5] == [52.0, "?", 209642.0, "HS-grad", 9.0]
    assert read.x_train.shape == (2, 14)
    assert read.y_train.tolist() == [0, 1]
    assert read.y_test.tolist() == [1]


def test_half_of_adult_is_an_error(adult: Path) -> None:
    (adult / "adult.test.gz").unlink()
    with pytest.raises(FileNotFoundError, match=r"adult\.test"):
        load("adult", adult)


def test_magic_has_no_test_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uci, "_MAGIC_ROWS", 2)
    rows = [",".join(map(str, range(10))) + ",g", ",".join(map(str, range(10))) + ",h"]
    (tmp_path / "magic04.data").write_text("\n".join(rows))
    read = load("magic", tmp_path)
    assert read.x_train.shape == (2, 10)
    assert read.x_test.shape == (0, 10)
    assert read.y_train.tolist() == [1, 0]


# ---- OpenML


def answer(monkeypatch: pytest.MonkeyPatch, **bunch: Any) -> list[Any]:
    asked: list[Any] = []

    def fetch(name: str, **options: Any) -> SimpleNamespace:
        asked.append((name, options["version"]))
        return SimpleNamespace(**{"categories": None, "feature_names": [], **bunch})

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch)
    return asked


def test_offline_says_what_would_help(tmp_path: Path, offline: None) -> None:
    with pytest.raises(ConnectionError, match=r"mnist: expected mnist.npz in .* or a connection to OpenML"):
        load("mnist", tmp_path, say=lambda _: None)


def test_a_download_is_compared_and_kept(
    tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = arrays()
    x = np.concatenate([whole["x_train"], whole["x_test"]]).reshape(30, -1).astype(float)
    y = np.concatenate([whole["y_train"], whole["y_test"]]).astype(str).astype(object)
    monkeypatch.setitem(openml._MAKE, "mnist", lambda x, y: openml._split(x.reshape(-1, 28, 28), y, 20))
    asked = answer(monkeypatch, data=x, target=y)
    with pytest.raises(ValueError, match="mnist_784 from OpenML: expected SHA-256"):
        load("mnist", tmp_path, say=lambda _: None)
    assert not (tmp_path / "mnist.npz").exists()

    right = openml.digest(images.checked("mnist", Dataset(**whole), "memory"))
    monkeypatch.setitem(openml.CHECKSUMS, "mnist", right)
    said: list[str] = []
    load("mnist", tmp_path, say=said.append)
    assert any("asking OpenML for mnist_784" in line for line in said)
    again = load("mnist", tmp_path)  # from the file
    assert openml.digest(again) == right
    assert asked == [("mnist_784", 1)] * 2


def test_colours_of_openml_come_one_after_the_other() -> None:
    x = np.arange(3072)[None].repeat(2, 0) // 1024 * 100
    images_of_one_colour_each = openml._coloured(x, np.array(["1", "2"]))
    assert (images_of_one_colour_each.x_train[0, 5, 7] == [0, 100, 200]).all()


def test_adult_of_openml_is_that_of_uci(adult: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_uci = load("adult", adult)
    rows = np.concatenate([of_uci.x_test, of_uci.x_train])
    names = [f"c{i}" for i in range(14)]
    categories = {names[i]: sorted({*rows[:, i]} - {"?"}) for i in range(14) if i not in tables.NUMERIC}
    codes = np.array(
        [
            [
                categories[name].index(value)
                if value in categories.get(name, ())
                else (np.nan if name in categories else value)
                for name, value in zip(names, row, strict=True)
            ]
            for row in rows
        ],
        dtype=float,
    )
    labels = np.array([">50K", "<=50K", ">50K"], dtype=object)
    monkeypatch.setattr(openml, "_ADULT_TEST", 1)
    monkeypatch.setitem(openml.CHECKSUMS, "adult", openml.digest(of_uci))
    answer(monkeypatch, data=codes, target=labels, feature_names=names, categories=categories)
    fetched = load("adult", adult / "elsewhere", say=lambda _: None)
    assert fetched.x_train.tolist() == of_uci.x_train.tolist()


def test_files_of_tables_that_hold_no_text(tmp_path: Path) -> None:
    noise = bytes(range(256))
    (tmp_path / "adult.data").write_bytes(noise)
    (tmp_path / "magic04.data.gz").write_bytes(gzip.compress(noise))
    for name, file in {"adult": "adult.data", "magic": "magic04.data.gz"}.items():
        with pytest.raises(ValueError, match=rf"{file}: expected a .*text, got 'utf-8' codec"):
            load(name, tmp_path)


def test_the_error_names_the_folder() -> None:
    with pytest.raises((ValueError, TypeError), match=r"^data_dir[:,]"):
        load("mnist", None)
