"""Tensors in the safetensors format, with bounds on what a header may ask for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kdmkit._core.checks import bad_argument

# The longest header beside tiny tensors; large models may have longer ones.
_HEADER_BYTES = 8 << 20
_BYTES_PER_BYTE = 8
_DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL")


def check_length(what: str, length: int, tensor_bytes: int) -> None:
    """Text that describes tensors has to be in proportion to them."""
    limit = _HEADER_BYTES + _BYTES_PER_BYTE * tensor_bytes
    if length > limit:
        raise ValueError(bad_argument(what, f"at most {limit:,} bytes of text", f"{length:,} bytes"))


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """The file as safetensors reads it, after a look at the length of its header."""
    wanted = "a safetensors file"
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            header = int.from_bytes(stream.read(8), "little")
        if size < 8 or header > size - 8:
            raise ValueError(bad_argument(str(file), wanted, f"{size} bytes that are no such file"))
        check_length(str(file), header, size - 8 - header)
        with safe_open(file, "pt", device="cpu") as content:
            yield content
    except (SafetensorError, OSError) as error:
        raise ValueError(bad_argument(str(file), wanted, f"{type(error).__name__}: {error}")) from error


def read_metadata(file: Path) -> dict[str, str]:
    with _opened(file) as content:
        return dict(content.metadata() or {})


def read_tensors(file: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Metadata and tensors, on the CPU; the ValueError of a bad file says what is wrong with it."""
    with _opened(file) as content:
        names = list(content.keys())
        dtypes = {name: content.get_slice(name).get_dtype() for name in names}
        other = [name for name in names if dtypes[name] not in _DTYPES]
        if other:
            got = f"{dtypes[other[0]]} in {other[0]}"
            raise ValueError(bad_argument(str(file), f"tensors of {', '.join(_DTYPES)}", got))
        # Copies: the file may be replaced, or taken away, while the model is used.
        return dict(content.metadata() or {}), {name: content.get_tensor(name).clone() for name in names}


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
