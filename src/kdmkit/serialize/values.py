"""Constructor parameters and fitted attributes as JSON, and back."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from kdmkit._core.checks import bad_argument

# Kinds of NumPy arrays: booleans, whole numbers, floats, strings, and objects made of those.
_KINDS = "biufUO"


def encode(name: str, value: Any) -> Any:
    """`value` in JSON's types; arrays keep their dtype, infinities their name."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": str(value)}
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple):
        return [encode(name, item) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: encode(name, item) for key, item in value.items()}
    if isinstance(value, np.ndarray) and value.dtype.kind in _KINDS:
        return {"$array": encode(name, value.tolist()), "dtype": value.dtype.str}
    if isinstance(value, nn.Module):
        return {"$module": type(value).__name__}
    got = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
    raise ValueError(bad_argument(name, "numbers, strings, or arrays and lists of them, to be saved", got))


def decode(value: Any) -> Any:
    """The inverse of `encode`, except that modules stay descriptions."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict) or "$module" in value:
        return value
    if "$float" in value:
        return float(value["$float"])
    if "$array" in value:
        return _decode_array(decode(value["$array"]), np.dtype(value["dtype"]))
    return {key: decode(item) for key, item in value.items()}


def _decode_array(values: list[Any], dtype: np.dtype[Any]) -> Any:
    if dtype.kind not in _KINDS:
        raise ValueError(bad_argument("dtype", f"one of the kinds {_KINDS}", dtype))
    return np.array(values, dtype=dtype)
