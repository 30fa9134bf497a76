"""The file of a model: a safetensors file whose header holds the model's description as JSON.

Headers and descriptions are read within bounds: a file may ask for memory only in proportion to its tensors.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit._core.files import checked_path, replacing
from kdmkit.serialize.description import parse, shortened

FORMAT = 2
# The entry of the header's metadata. There is one, because safetensors writes several in random order.
_MODEL = "kdmkit"
# The longest header beside tiny tensors; large models may have longer ones.
_HEADER_BYTES = 8 << 20
_HEADER_BYTES_PER_BYTE = 8
# What a damaged file can raise.
_DAMAGE = (SafetensorError, OSError, MemoryError, RecursionError, json.JSONDecodeError, KeyError, TypeError)
_DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL")


def write_model(path: Any, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Writes a model to `path`, which holds the whole of it or what was there before."""
    file = checked_path(path).resolve()
    _check_replaceable(file)
    # Copies: safetensors takes neither views nor tensors that share memory.
    plain = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    _check_no_nan("model", plain)
    described = {"format": FORMAT, "kdmkit": _version(), **config}
    text = json.dumps(described, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    data = save(plain, {_MODEL: _digest_entry(digest(text, plain)) + text[1:]})
    header = int.from_bytes(data[:8], "little")
    tensor_bytes = len(data) - 8 - header
    _check_length("model", header, tensor_bytes)
    parse("model", text, tensor_bytes)
    with ExitStack() as stack:
        try:
            temporary = stack.enter_context(replacing(file))
        except OSError as error:
            raise ValueError(bad_argument("path", "a place where files can be written", error)) from error
        temporary.write_bytes(data)


def _check_replaceable(file: Path) -> None:
    if not file.exists():
        return
    is_model = False
    with suppress(ValueError), _clear_errors(file):
        if file.is_file():
            with file.open("rb") as stream:
                is_model = _MODEL in json.loads(_read_header(file, stream)[8:])["__metadata__"]
    if not is_model:
        raise ValueError(bad_argument("path", "a new file, or one that holds a saved model", file))


def read_model(path: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Description and tensors, or a ValueError that says what is wrong with them."""
    file = checked_path(path)
    if (file / "config.json").is_file():
        got = "a folder saved by kdmkit 0.1: load and save it with kdmkit 0.2 first"
        raise ValueError(bad_argument(str(file), f"format {FORMAT}", got))
    if not file.is_file():
        raise ValueError(bad_argument("path", "a model that kdmkit.save wrote", f"{file}, which is no file"))
    text, tensors = read_tensors(file)
    config = parse(str(file), text, sum(t.nbytes for t in tensors.values()))
    _check_format(file, config)
    checksum = config.pop("sha256", None)
    if digest(text.replace(_digest_entry(checksum), "{", 1), tensors) != checksum:
        raise ValueError(bad_argument(str(file), "the file as it was saved", "a damaged one"))
    _check_no_nan(str(file), tensors)
    return config, tensors


def read_tensors(file: Path) -> tuple[str, dict[str, Tensor]]:
    """The description of a model as text, and its tensors.

    The file is opened once and read as a whole: at any later time another one may be at its place.
    """
    with _clear_errors(file):
        with file.open("rb") as stream:
            start = _read_header(file, stream)
            data = start + stream.read()
        try:
            tensors = load(data)
        except ValueError as error:  # the oldest releases of safetensors: a tensor without elements
            raise SafetensorError(str(error)) from error
        header = json.loads(start[8:])
        metadata = header.pop("__metadata__", {})
        for name, entry in header.items():
            if entry["dtype"] not in _DTYPES:
                raise TypeError(f"{entry['dtype']} in {name}; supported are {', '.join(_DTYPES)}")
    if _MODEL not in metadata:
        raise ValueError(bad_argument(str(file), "a model that kdmkit.save wrote", "other tensors"))
    return metadata[_MODEL], tensors


@contextmanager
def _clear_errors(file: Path) -> Iterator[None]:
    """Turns errors of a damaged file into a ValueError about the file."""
    try:
        yield
    except _DAMAGE as error:
        got = shortened(f"{type(error).__name__}: {error}")
        raise ValueError(bad_argument(str(file), "a safetensors file", got)) from error


def _read_header(file: Path, stream: IO[bytes]) -> bytes:
    """The length of the header and the header itself, if it is not too long."""
    size = os.fstat(stream.fileno()).st_size
    start = stream.read(8)
    length = int.from_bytes(start, "little")
    if size < 8 or length > size - 8:
        raise ValueError(bad_argument(str(file), "a safetensors file", f"{size} bytes that are none"))
    _check_length(str(file), length, size - 8 - length)
    return start + stream.read(length)


def _check_length(what: str, length: int, tensor_bytes: int) -> None:
    limit = _HEADER_BYTES + _HEADER_BYTES_PER_BYTE * tensor_bytes
    if length > limit:
        raise ValueError(bad_argument(what, f"at most {limit:,} bytes of text", f"{length:,} bytes"))


def _check_format(file: Path, config: dict[str, Any]) -> None:
    number = config.get("format")
    if type(number) is int and number > FORMAT:
        got = f"format {number}, written by kdmkit {config.get('kdmkit')!r:.40}: update kdmkit"
        raise ValueError(bad_argument(str(file), f"format {FORMAT}, which kdmkit {_version()} reads", got))
    if type(number) is not int or number != FORMAT:
        raise ValueError(bad_argument(str(file), f"format {FORMAT}", f"format {number!r:.40}"))


def _check_no_nan(argument: str, tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and bool(tensor.isnan().any()):
            raise ValueError(bad_argument(argument, "numbers without NaN", f"NaN in {name}"))


def digest(text: str, tensors: dict[str, Tensor]) -> str:
    """SHA-256 of a description and of the names, dtypes, shapes and bytes of tensors."""
    total = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        total.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _digest_entry(checksum: object) -> str:
    """How a description starts: with the digest of the description without this entry."""
    return f'{{"sha256":"{checksum}",'


def _version() -> str:
    from kdmkit import __version__

    return __version__
