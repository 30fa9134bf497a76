"""Constructor parameters and fitted attributes as JSON, and back."""

from __future__ import annotations

import math
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np
from torch import nn

from kdmkit._core.checks import bad_argument

# Kinds of NumPy arrays: booleans, whole numbers, floats, strings, and objects made of those.
_KINDS = "biufUO"
# An array of strings takes the space of its dtype for each, however short they are.
_ARRAY_BYTES = 1 << 26


def encode(name: str, value: Any) -> Any:
    """`value` in JSON's types; arrays keep their dtype, infinities their name."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": str(value)}
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
    n = np.array(values, dtype=object).size
    if n * dtype.itemsize > _ARRAY_BYTES:
        raise ValueError(bad_argument("dtype", f"at most {_ARRAY_BYTES:,} bytes", f"{n} × {dtype}"))
    return np.array(values, dtype=dtype)


def check_types(values: dict[str, Any], types: dict[str, Any]) -> None:
    """Raises if a value does not have the type that `types` has for its name."""
    for name, value in values.items():
        if name in types and not has_type(value, types[name]):
            wanted = types[name].__name__ if isinstance(types[name], type) else str(types[name])
            raise TypeError(bad_argument(name, wanted.replace("typing.", ""), repr(value)))


def has_type(value: Any, wanted: Any) -> bool:
    """Whether a decoded value is what an annotation says; a whole number may have any type.

    >>> has_type(3, float | Literal["auto"]), has_type([1], float | Literal["auto"])
    (True, False)
    """
    if wanted is Any:
        return not isinstance(value, dict)
    if get_origin(wanted) in (Union, UnionType):
        return any(has_type(value, option) for option in get_args(wanted))
    if get_origin(wanted) is Literal:
        return any(type(value) is type(option) and value == option for option in get_args(wanted))
    if get_origin(wanted) is list:
        return isinstance(value, list) and all(has_type(item, *get_args(wanted)) for item in value)
    if get_origin(wanted) is dict:
        key, item = get_args(wanted)
        return isinstance(value, dict) and all(
            has_type(k, key) and has_type(v, item) for k, v in value.items()
        )
    if wanted in (None, type(None)):
        return value is None
    if wanted in (bool, int):
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return isinstance(value, int | float if wanted is float else wanted)
