"""Loads a data set from files, from OpenML or from scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kdmlab.common.checks import check_choice, check_path
from kdmlab.datasets import images, openml, tables
from kdmlab.datasets._types import NAMES, Dataset, Name


def load(
    name: Name, data_dir: Path | str = "data", *, download: bool = True, say: Callable[[str], None] = print
) -> Dataset:
    """A data set by its name.

    - `mnist`, `fashion_mnist`: 60,000 training and 10,000 test images 28×28, in `<name>.npz`
    - `cifar10`: 50,000 training and 10,000 test images 32×32×3, in `cifar10.npz`
    - `adult`: 32,561 training and 16,281 test rows of 14 columns, in `adult.data` and `adult.test`, plain or
      `.gz`
    - `magic`: 19,020 rows of 10 columns without a test part, in `magic04.data`, plain or `.gz`
    - `digits`: 1,437 training and 360 test images 8×8, stratified; they come with scikit-learn

    An `.npz` holds `x_train`, `y_train`, `x_test` and `y_test` as uint8 arrays. The files of the two tables
    are UCI's. Missing data is fetched from OpenML and compared with a checksum; images are written to a file.

    Args:
        name: one of the names above.
        data_dir: the folder of the files, and where fetched ones are kept.
        download: whether to fetch missing data from OpenML.
        say: takes one line about a download.

    Returns:
        Training rows and test rows.

    Raises:
        FileNotFoundError: where the files are missing and may not be fetched.
        ConnectionError: where the files are missing and OpenML cannot be reached.
        ValueError: where a file is cut off, has the wrong shape, or a download is not what it should be.

    >>> from kdmlab.datasets import load
    >>> digits = load("digits")
    >>> digits.x_train.shape, digits.x_test.shape
    ((1437, 8, 8), (360, 8, 8))
    """
    check_choice("name", name, NAMES)
    check_path("data_dir", data_dir)
    folder = Path(data_dir)
    if name == "digits":
        return images.digits()
    if name in tables.FILES:
        there = tables.present(name, folder)
        return tables.read(name, folder) if there else _fetched(name, folder, download, say)
    path = folder / f"{name}.npz"
    if path.exists():
        return images.read(name, path)
    dataset = _fetched(name, folder, download, say)
    images.write(dataset, path)
    say(f"{name}: written to {path}")
    return dataset


def _fetched(name: Name, folder: Path, download: bool, say: Callable[[str], None]) -> Dataset:
    files = tables.FILES.get(name, (f"{name}.npz",))
    if not download:
        raise FileNotFoundError(f"data_dir: expected {' and '.join(files)} in {folder}, got no such file")
    return openml.fetch(name, folder, files, say)
