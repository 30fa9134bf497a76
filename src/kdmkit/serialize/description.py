"""The JSON that describes a model: read within bounds, and compared with the model that was built from it.

A model is built before it gets its tensors, from sizes that its description declares. `Budget` bounds what
this construction may allocate. `encode` and `decode` turn constructor parameters and fitted attributes into
JSON and back.
"""

from __future__ import annotations

import json
import math
from types import UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

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
    if isinstance(value, dict) and all(isinstance(key, int | float | str | np.generic) for key in value):
        return {"$pairs": [[encode(name, key), encode(name, item)] for key, item in value.items()]}
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
    if "$pairs" in value:
        return {decode(key): decode(item) for key, item in value["$pairs"]}
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


_DEPTH = 32
_OBJECTS = 1 << 18
_CHARACTERS = 1 << 16
# The largest size in the description of a module, unless a tensor has a longer dimension.
_LARGEST_SIZE = 1 << 20
# The budget of a model without tensors: numbers in new tensors, and calls of torch.
_NUMBERS = 1 << 20
_CALLS = 5000
# Functions that make tensors of a size that is given by numbers.
_FACTORIES = {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn}
# Entries that may have changed since: names of classes that the caller wrote, and the version of kdmkit.
_FREE = ("own", "$module", "kdmkit")


def parse(file: str, text: str, tensor_bytes: int) -> dict[str, Any]:
    """The object that `text` holds. Its length is bounded in proportion to the bytes of the tensors."""
    try:
        if text.count("[") + text.count("{") > _OBJECTS + tensor_bytes:
            raise ValueError(f"more than {_OBJECTS + tensor_bytes:,} lists and objects")
        value = json.loads(text, parse_constant=_no_constant)
        _check_bounds(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(bad_argument(file, "JSON within bounds", shortened(str(error)))) from error
    if not isinstance(value, dict):
        raise ValueError(bad_argument(file, "an object that describes a model", type(value).__name__))
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name}, which is no JSON")


def _check_bounds(value: Any) -> None:
    level = [value]
    for _ in range(_DEPTH):
        below: list[Any] = []
        for item in level:
            if isinstance(item, list):
                below += item
            elif isinstance(item, dict):
                below += item
                below += item.values()
            elif isinstance(item, str) and len(item) > _CHARACTERS:
                raise ValueError(f"a string of {len(item):,} characters, more than {_CHARACTERS:,}")
            elif isinstance(item, float) and not math.isfinite(item):
                raise ValueError("a number that no float holds")
        level = below
    if level:
        raise ValueError(f"more than {_DEPTH} levels of nesting")


def check_sizes(description: Any, longest: int) -> None:
    """Raises if a size in the description of a module is too large. Every whole number there is a size.

    Args:
        longest: the longest dimension of the tensors.
    """
    if isinstance(description, int) and abs(description) > max(_LARGEST_SIZE, longest):
        raise ValueError(f"a size of {description:.3g}")
    if isinstance(description, dict):
        description = list(description.values())
    if isinstance(description, list):
        for item in description:
            check_sizes(item, longest)


def check_agrees(saved: Any, built: Any, place: str = "") -> None:
    """Raises if a description says something that is not true of the model that was built from it.

    A description may lack entries: earlier versions did not write them, and they have default values.
    """
    if isinstance(saved, dict) and isinstance(built, dict):
        for key, value in saved.items():
            if key not in built:
                raise ValueError(f"an unknown entry {key!r}{place}")
            if key not in _FREE or not isinstance(value, str):
                check_agrees(value, built[key], f" of {key}{place}")
    elif isinstance(saved, list) and isinstance(built, list) and len(saved) == len(built):
        for item, other in zip(saved, built, strict=True):
            check_agrees(item, other, place)
    elif not _equal(saved, built):
        raise ValueError(f"{shortened(json.dumps(saved))} in place of {shortened(json.dumps(built))}{place}")


def _equal(saved: Any, built: Any) -> bool:
    if isinstance(built, float) and isinstance(saved, float | int) and not isinstance(saved, bool):
        # Bandwidths are exponentials of what the tensors hold; machines round them differently.
        return math.isclose(saved, built, rel_tol=1e-4, abs_tol=1e-300)
    return type(saved) is type(built) and bool(saved == built)


def shortened(text: str) -> str:
    """Text of a file as part of an error message: on one line, at most 300 characters."""
    text = " ".join(text.split())
    return text if len(text) <= 300 else f"{text[:300]} …"


class Budget(TorchFunctionMode):
    """Raises before tensors are made that are out of proportion to the given ones.

    >>> with Budget({"x": torch.zeros(3)}):
    ...     torch.zeros(10**12)
    Traceback (most recent call last):
    ...
    ValueError: sizes of more numbers than its tensors hold
    """

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__()
        self.numbers = _NUMBERS + 8 * sum(tensor.numel() for tensor in tensors.values())
        self.calls = _CALLS + 200 * len(tensors)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.calls -= 1
        self.numbers -= _allocated(func, args, kwargs)
        if self.numbers < 0 or self.calls < 0:
            raise ValueError("sizes of more numbers than its tensors hold")
        return func(*args, **kwargs)


def _allocated(func: Any, args: Any, kwargs: dict[str, Any]) -> int:
    """The number of elements that a call allocates."""
    if func is torch.nn.functional.one_hot:
        return args[0].numel() * max(0, *args[1:])
    if func not in _FACTORIES:
        return 0
    size = kwargs["size"] if "size" in kwargs else args if isinstance(args[0], int) else args[0]
    return max(0, math.prod(size))
