"""How finely columns of numbers are recorded."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kdmkit.estimators.table.codecs.numbers import NumberCodec, from_numbers
from kdmkit.estimators.table.frames.storage import shortest

#: Half a step of whole numbers.
WHOLE_STEP = 0.5
# Finer numbers have no resolution.
_MOST_DECIMALS = 9
# What numbers with fewer than 15 digits may lose, and others, which may have been float32 once.
_SINGLE, _DOUBLE = 1e-5, 1e-6
_DOUBLE_DIGITS = 15


def decimals_of(column: Any) -> int | None:
    """How many decimals the numbers of a column have; None if they are not rounded."""
    codec = column.codec.inner if column.source else column.codec
    if codec.base in ("integer", "boolean"):
        return 0
    part = codec.part
    if part.values is not None:
        return _decimals(part.values)
    return _decimals((part.step, part.origin)) if part.step else None


def _decimals(numbers: Any) -> int | None:
    values = np.asarray(numbers, dtype=float)
    for decimals in range(_MOST_DECIMALS + 1):
        if bool(np.allclose(values, np.round(values, decimals), rtol=1e-12, atol=0)):
            return decimals
    return None


def half_step(column: Any) -> float:
    """Half a unit of the last decimal of a column; 0 if its numbers are not rounded, or it is constant."""
    if column.kind == "constant":
        return 0.0
    decimals = decimals_of(column)
    return 0.0 if decimals is None else 0.5 * 10.0**-decimals


def relative_error(column: Any) -> float:
    """What arithmetic in the dtype of a column may lose."""
    return _DOUBLE if column.storage.digits >= _DOUBLE_DIGITS else _SINGLE


def as_cells(column: Any, numbers: np.ndarray) -> np.ndarray:
    """Numbers as cells of a column: rounded as its numbers are, in its dtype."""
    codec: NumberCodec = column.codec
    decimals = decimals_of(column)
    rounded = numbers if decimals is None else np.round(numbers, decimals) + 0.0
    return from_numbers(shortest(rounded, codec.digits), codec.base)


def is_in_range(column: Any, numbers: np.ndarray) -> np.ndarray:
    """Whether numbers are not below the least one that the column may have, such as 0 of counts."""
    part = column.codec.number_part
    return np.asarray(numbers >= (-math.inf if part is None else part.low))
