"""Data sets from OpenML, compared with the checksums of the originals."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path

import numpy as np

from kdmlab.common.checks import bad_argument
from kdmlab.datasets._types import Array, Dataset
from kdmlab.datasets.uci import NUMERIC

#: OpenML's name and version of each.
SOURCES = {
    "mnist": ("mnist_784", 1),
    "fashion_mnist": ("Fashion-MNIST", 1),
    "cifar10": ("CIFAR_10", 1),
    "adult": ("adult", 2),
    "magic": ("MagicTelescope", 1),
}
#: SHA-256 of the arrays that `digest` reads.
CHECKSUMS = {
    "mnist": "1e35582d42a90940c55b956deb61875c020b567ed20e3c5b174f52bf7809ed9b",
    "fashion_mnist": "ece172613115fb18b120bec8f6c02271af90b8b8f0a5af5c51cbd5ceed68e619",
    "cifar10": "6b3883dca6c867f1e58def548c063d1865569b8575fcbce06b3e468a89f9895a",
    "adult": "765e708bc2908e5042352dcfe6b75fe2513820c0e61c40643b1dd1fa602fa7b0",
    "magic": "b34932030090e0906305dbd563be6a44295afd11da46dfd4b8eee46c7e924ba5",
}
_ADULT_TEST = 16_281


def fetch(name: str, folder: Path, files: Sequence[str], say: Callable[[str], None]) -> Dataset:
    """A data set from OpenML; scikit-learn keeps what it fetched in `folder/openml`."""
    source, version = SOURCES[name]
    say(f"{name}: no {' or '.join(files)} in {folder}, asking OpenML for {source} (this can take minutes) …")
    try:
        x, y = _downloaded(source, version, folder / "openml")
    except (OSError, HTTPException) as error:
        wanted = f"{' and '.join(files)} in {folder}, or a connection to OpenML"
        raise ConnectionError(bad_argument(name, wanted, f"neither ({error})")) from error
    dataset = _MAKE[name](x, y)
    checksum = digest(dataset)
    if checksum != CHECKSUMS[name]:
        raise ValueError(bad_argument(f"{source} from OpenML", f"SHA-256 {CHECKSUMS[name]}", checksum))
    say(f"{name}: {len(dataset.y_train)} training and {len(dataset.y_test)} test rows, checksum right")
    return dataset


def digest(dataset: Dataset) -> str:
    """SHA-256 of all rows: images and labels as bytes, tables as text."""
    summary = hashlib.sha256()
    for array in dataset:
        if array.dtype == object:
            summary.update("\n".join(",".join(map(str, row)) for row in array.tolist()).encode())
        else:
            summary.update(np.ascontiguousarray(array).tobytes())
    return summary.hexdigest()


def _downloaded(source: str, version: int, cache: Path) -> tuple[Array, Array]:
    from sklearn.datasets import fetch_openml

    bunch = fetch_openml(source, version=version, data_home=str(cache), as_frame=False, parser="liac-arff")
    x = _decoded(np.asarray(bunch.data), bunch.feature_names, bunch.categories or {})
    return x, np.asarray(bunch.target)


def _decoded(x: Array, names: Sequence[str], categories: Mapping[str, Sequence[str]]) -> Array:
    """Replaces the codes of categories by their texts; the code of an unknown value is NaN."""
    if not categories:
        return x
    columns = [
        np.array(["?" if code != code else categories[name][int(code)] for code in column], dtype=object)
        if name in categories
        else column.astype(object)
        for name, column in zip(names, x.T, strict=True)
    ]
    return np.stack(columns, axis=1)


def _grey(x: Array, y: Array) -> Dataset:
    return _split(x.reshape(-1, 28, 28), y, 60_000)


def _coloured(x: Array, y: Array) -> Dataset:
    """OpenML keeps one colour after the other."""
    return _split(x.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), y, 50_000)


def _split(x: Array, y: Array, n: int) -> Dataset:
    x, labels = np.ascontiguousarray(x).astype(np.uint8), y.astype(np.int64)
    return Dataset(x[:n], labels[:n], x[n:], labels[n:])


def _adult(x: Array, y: Array) -> Dataset:
    """OpenML puts UCI's test rows first."""
    labels = np.array([str(label).startswith(">50K") for label in y], dtype=np.int64)
    for column in NUMERIC:
        x[:, column] = x[:, column].astype(np.float64)
    n = _ADULT_TEST
    return Dataset(x[n:], labels[n:], x[:n], labels[:n])


def _magic(x: Array, y: Array) -> Dataset:
    x, labels = x.astype(np.float64), (y == "g").astype(np.int64)
    return Dataset(x, labels, x[:0], labels[:0])


_MAKE: dict[str, Callable[[Array, Array], Dataset]] = {
    "mnist": _grey,
    "fashion_mnist": _grey,
    "cifar10": _coloured,
    "adult": _adult,
    "magic": _magic,
}
