"""The file on disk: tensors with a description of the model beside them, whole or not there."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.serialize.description import parse
from kdmkit.serialize.folder import is_folder, read_folder
from kdmkit.serialize.weights import check_length, check_no_nan, digest, read_metadata, read_tensors

# Elsewhere there are no such locks, and files that a killed save left are not removed.
_POSIX = os.name == "posix"
if _POSIX:
    import fcntl

FORMAT = 2
# The entry of the safetensors header's metadata: one, for their order is random.
_MODEL = "kdmkit"


def write_model(path: Any, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Writes beside `path`, then takes its place in one step."""
    file = checked_path(path).resolve()
    _check_replaceable(file)
    # Copies: safetensors takes neither views nor tensors that share memory.
    plain = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    check_no_nan("model", plain)
    described = {"format": FORMAT, "kdmkit": _version(), **config}
    text = json.dumps(described, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    data = save(plain, {_MODEL: _digest_entry(digest(text, plain)) + text[1:]})
    header = int.from_bytes(data[:8], "little")
    check_length("model", header, len(data) - 8 - header)
    parse("model", text, len(data) - 8 - header)
    with _replacing(file) as stream:
        stream.write(data)


def _digest_entry(digest: object) -> str:
    """How a description starts; the digest is that of the description without it."""
    return f'{{"sha256":"{digest}",'


def checked_path(path: Any) -> Path:
    """A path of this machine, whether or not something is there."""
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


def _check_replaceable(file: Path) -> None:
    if not file.exists():
        return
    try:
        known = file.is_file() and _MODEL in read_metadata(file)
    except ValueError:
        known = False
    if not known:
        raise ValueError(bad_argument("path", "a new file, or one that holds a saved model", file))


@contextmanager
def _replacing(file: Path) -> Iterator[Any]:
    """A temporary file that takes the place of `file`. It is locked: an unlocked one was left by a kill."""
    prefix = f".kdmkit-{hashlib.sha256(os.fsencode(file.name)).hexdigest()[:16]}-"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(file.parent, prefix)
        stream, temporary = _locked_file(file.parent, prefix)
    except OSError as error:
        raise ValueError(bad_argument("path", "a place where files can be written", error)) from error
    try:
        yield stream
        stream.flush()
        os.fsync(stream.fileno())
        if not _POSIX:
            stream.close()
        os.replace(temporary, file)
    finally:
        stream.close()
        temporary.unlink(missing_ok=True)
    _flush_folder(file.parent)


def _locked_file(folder: Path, prefix: str) -> tuple[Any, Path]:
    while True:
        temporary = folder / f"{prefix}{secrets.token_hex(8)}.tmp"
        stream = temporary.open("xb")
        if not _POSIX:
            return stream, temporary
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(stream, fcntl.LOCK_EX)
        if os.fstat(stream.fileno()).st_nlink:
            return stream, temporary
        stream.close()  # another process took it for a leftover before it was locked


def _remove_leftovers(folder: Path, prefix: str) -> None:
    """Removes what killed saves of the same file left: a process that ends loses its locks."""
    for leftover in folder.glob(f"{prefix}*.tmp") if _POSIX else ():
        with suppress(OSError), leftover.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            leftover.unlink()


def _flush_folder(folder: Path) -> None:
    """Writes the names of its files to the disk."""
    if _POSIX:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_model(path: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Description and tensors, or a ValueError that says what is wrong with them."""
    file = checked_path(path)
    if is_folder(file):
        config, tensors = read_folder(file)
    elif file.is_file():
        config, tensors = _read_file(file)
    else:
        raise ValueError(bad_argument("path", "a model that kdmkit.save wrote", f"{file}, which is no file"))
    check_no_nan(str(file), tensors)
    return config, tensors


def _read_file(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    metadata, tensors, _ = read_tensors(file)
    config = described(file, metadata, sum(t.nbytes for t in tensors.values()))
    checksum = config.pop("sha256", None)
    if digest(metadata[_MODEL].replace(_digest_entry(checksum), "{", 1), tensors) != checksum:
        raise ValueError(bad_argument(str(file), "the file as it was saved", "a damaged one"))
    check_format(file, config)
    return config, tensors


def described(file: Path, metadata: dict[str, str], tensor_bytes: int) -> dict[str, Any]:
    """The description in the header of a file, of this format or an earlier one."""
    text = metadata.get(_MODEL)
    if text is None:
        raise ValueError(bad_argument(str(file), "a model that kdmkit.save wrote", "other tensors"))
    config = parse(str(file), text, tensor_bytes)
    number = config.get("format")
    if type(number) is int and number > FORMAT:
        got = f"format {number}, written by kdmkit {config.get('kdmkit')!r:.40}: update kdmkit"
        raise ValueError(bad_argument(str(file), f"format {FORMAT}, which kdmkit {_version()} reads", got))
    return config


def check_format(file: Path, config: dict[str, Any]) -> None:
    """Raises where a description is not of this format."""
    number = config.get("format")
    if type(number) is not int or number != FORMAT:
        raise ValueError(bad_argument(str(file), f"format {FORMAT}", f"format {number!r:.40}"))


def _version() -> str:
    from kdmkit import __version__

    return __version__
