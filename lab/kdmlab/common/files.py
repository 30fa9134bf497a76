"""Folders of results, and files that are written completely or not at all."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdmlab.common.checks import bad_argument


def make_folder(path: Path) -> None:
    """The folder of an experiment's results, and folders above it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(bad_argument("output", "a folder to write to", error)) from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file that replaces `path` when the block ends: a killed process leaves no partial file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_arrays(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    """A compressed `.npz` file."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def read_arrays(path: Path, wanted: str) -> dict[str, NDArray[Any]]:
    """The arrays of an `.npz` file; raises that `wanted` was expected if it cannot be read."""
    broken = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError)
    try:
        # NumPy would leave a broken file open.
        with path.open("rb") as raw:
            file = np.load(raw, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("a single array")
            return {name: file[name] for name in file.files}
    except broken as error:
        got = f"something that is broken or no such file ({error})"
        raise ValueError(bad_argument(str(path), wanted, got)) from error
