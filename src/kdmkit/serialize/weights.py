"""Tensors in the safetensors format, with bounds on what a header may ask for."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.serialize.description import shortened

# The longest header beside tiny tensors; large models may have longer ones.
_HEADER_BYTES = 8 << 20
_BYTES_PER_BYTE = 8
_DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL")


def check_length(what: str, length: int, tensor_bytes: int) -> None:
    """Text that describes tensors has to be in proportion to them."""
    limit = _HEADER_BYTES + _BYTES_PER_BYTE * tensor_bytes
    if length > limit:
        raise ValueError(bad_argument(what, f"at most {limit:,} bytes of text", f"{length:,} bytes"))


def read_metadata(file: Path) -> dict[str, str]:
    """The metadata in the header of a safetensors file."""
    with clear_errors(file), file.open("rb") as stream:
        header = json.loads(read_header(file, stream)[8:])
        return dict(header["__metadata__"])


def read_tensors(file: Path) -> tuple[dict[str, str], dict[str, Tensor], str]:
    """Metadata, tensors and the digest of a safetensors file.

    The file is opened once and read as a whole: at any later time another one may be at its place.
    """
    with clear_errors(file):
        with file.open("rb") as stream:
            start = read_header(file, stream)
            data = start + stream.read()
        try:
            tensors = load(data)
        except ValueError as error:  # the oldest releases: of a tensor without elements
            raise SafetensorError(str(error)) from error
        header = json.loads(start[8:])
        metadata = header.pop("__metadata__", {})
        for name, entry in header.items():
            if entry["dtype"] not in _DTYPES:
                raise TypeError(f"{entry['dtype']} in {name}, where {', '.join(_DTYPES)} are supported")
        return metadata, tensors, hashlib.sha256(data).hexdigest()


@contextmanager
def clear_errors(file: Path) -> Iterator[None]:
    errors = (
        SafetensorError,
        OSError,
        MemoryError,
        RecursionError,
        json.JSONDecodeError,
        KeyError,
        TypeError,
    )
    try:
        yield
    except errors as error:
        got = shortened(f"{type(error).__name__}: {error}")
        raise ValueError(bad_argument(str(file), "a safetensors file", got)) from error


def read_header(file: Path, stream: IO[bytes]) -> bytes:
    """The length of the header and the header itself, if it is not too long."""
    size = os.fstat(stream.fileno()).st_size
    start = stream.read(8)
    length = int.from_bytes(start, "little")
    if size < 8 or length > size - 8:
        raise ValueError(bad_argument(str(file), "a safetensors file", f"{size} bytes that are none"))
    check_length(str(file), length, size - 8 - length)
    return start + stream.read(length)


def check_no_nan(argument: str, tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and bool(tensor.isnan().any()):
            raise ValueError(bad_argument(argument, "numbers without NaN", f"NaN in {name}"))


def digest(text: str, tensors: dict[str, Tensor]) -> str:
    """SHA-256 of a description, and of names, dtypes, shapes and bytes of tensors."""
    total = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        total.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
