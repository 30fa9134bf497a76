"""Paths that are checked, and files that are written completely or not at all."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from kdmkit._core.checks import bad_argument

# Other systems have no `fcntl`: there the temporary file of a killed process stays.
_POSIX = os.name == "posix"
if _POSIX:
    import fcntl


def checked_path(path: Any) -> Path:
    """`path` as a Path that this machine can have, whether or not a file is there."""
    try:
        checked = Path(path)
        checked.exists()
    except TypeError as error:
        raise TypeError(bad_argument("path", "text or a pathlib.Path", repr(path))) from error
    except (ValueError, OSError) as error:
        raise ValueError(bad_argument("path", "a path of this machine", error)) from error
    if "\0" in str(checked):
        raise ValueError(bad_argument("path", "a path of this machine", "a null character"))
    return checked


def checked_file(path: Any, wanted: str) -> Path:
    """The path of a file that exists and is not empty; other paths raise that `wanted` was expected."""
    file = checked_path(path)
    if not file.is_file():
        what = "a folder" if file.is_dir() else "no such file"
        raise FileNotFoundError(bad_argument("path", wanted, f"{str(file)!r} ({what})"))
    if file.stat().st_size == 0:
        raise ValueError(bad_argument("path", wanted, f"{str(file)!r} (empty)"))
    return file


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file that replaces `path` when the block ends without an error.

    A killed process leaves `path` as it was, and the next call removes the temporary file that it left.
    Several processes may replace one path at the same time.
    """
    prefix = f".kdmkit-{hashlib.sha256(os.fsencode(path.name)).hexdigest()[:16]}-"
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(path.parent, prefix)
    lock, temporary = _locked_file(path.parent, prefix)
    try:
        yield temporary
        os.fsync(lock.fileno())
        if not _POSIX:
            lock.close()
        os.replace(temporary, path)
    finally:
        lock.close()
        temporary.unlink(missing_ok=True)
    _flush_folder(path.parent)


def _locked_file(folder: Path, prefix: str) -> tuple[IO[bytes], Path]:
    """A new file with a lock, by which other processes know that it is still being written."""
    while True:
        temporary = folder / f"{prefix}{secrets.token_hex(8)}.tmp"
        lock = temporary.open("xb")
        if not _POSIX:
            return lock, temporary
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock.fileno()).st_nlink:
            return lock, temporary
        lock.close()  # another process removed it as a leftover before it was locked


def _remove_leftovers(folder: Path, prefix: str) -> None:
    """Removes the temporary files of killed processes: a process that ends loses its locks."""
    for leftover in folder.glob(f"{prefix}*.tmp") if _POSIX else ():
        with suppress(OSError), leftover.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            leftover.unlink()


def _flush_folder(folder: Path) -> None:
    """Writes the names of a folder's files to the disk."""
    if _POSIX:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
