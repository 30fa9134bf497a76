"""The JSON that describes a model: read within bounds, and compared with the model that was built from it."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from kdmkit._core.checks import bad_argument

_DEPTH = 32
_OBJECTS = 1 << 18
_CHARACTERS = 1 << 16
# The largest whole number in the description of a module where no tensor has a longer dimension.
_WHOLE = 1 << 20
# Entries that may have changed since: names of classes that the caller wrote, and the version of kdmkit.
_FREE = ("own", "$module", "kdmkit")


def parse(file: str, text: str, tensor_bytes: int) -> dict[str, Any]:
    """The object that `text` holds; how long it may be is in proportion to the tensors beside it."""
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
    """Whole numbers in the description of a module are sizes: of tensors, or of the categories of codes.

    Args:
        longest: the longest dimension of the tensors.
    """
    if isinstance(description, int) and abs(description) > max(_WHOLE, longest):
        raise ValueError(f"a size of {description:.3g}")
    if isinstance(description, dict):
        description = list(description.values())
    if isinstance(description, list):
        for item in description:
            check_sizes(item, longest)


def check_agrees(saved: Any, built: Any, place: str = "") -> None:
    """Everything that a description says has to be true of the model that was built from it.

    Entries that the description lacks have default values: earlier versions did not write them.
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
    """An error message that a person can read, whatever a file holds."""
    text = " ".join(text.split())
    return text if len(text) <= 300 else f"{text[:300]} …"
