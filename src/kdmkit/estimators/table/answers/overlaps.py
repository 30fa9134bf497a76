"""What two conditions on one column have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from kdmkit.estimators.table.codecs.base import Codec
from kdmkit.estimators.table.codecs.dates import DateCodec
from kdmkit.estimators.table.queries.conditions import Among, Condition, Range, both
from kdmkit.kernels import OneOf


def in_common(codec: Codec, a: Any, b: Any) -> list[Any]:
    """Disjoint values, ranges or sets that make up all that satisfies both conditions; none: an empty list.

    Args:
        a, b: values, ranges or sets of the column, as in `given`.
    """
    if codec.levels is not None:
        codes = sorted(codes_of(codec, a) & codes_of(codec, b))
        return [[codec.levels[code] for code in codes]] if codes else []
    if isinstance(codec, DateCodec):
        ranges = [
            Range(*one).intersected(Range(*other)) for one in codec.spans(a) for other in codec.spans(b)
        ]
        return [(one.low, one.high) for one in ranges if not one.is_empty]
    found = both(_condition(a), _condition(b))
    if found is None:
        return []
    return [(found.low, found.high) if isinstance(found, Range) else list(found.values)]


def codes_of(codec: Codec, value: Any) -> set[int]:
    """The codes of the levels that a condition allows."""
    assert codec.levels is not None
    found: set[int] = set()
    for (known,) in codec.region(value):
        if known is None:
            return set(range(len(codec.levels)))
        codes = known.values if isinstance(known, OneOf) else known
        assert isinstance(codes, Tensor)
        found |= {int(code) for code in codes.reshape(-1)}
    return found


def _condition(value: Any) -> Condition:
    if isinstance(value, tuple):
        return Range(*value)
    several = isinstance(value, list | set | frozenset | np.ndarray)
    return Among(tuple(value) if several else (value,))
