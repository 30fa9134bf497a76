"""Strict ends of ranges: the next value that a column can have."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import numpy as np

from kdmkit.estimators.table.codecs.base import Codec
from kdmkit.estimators.table.codecs.calendar import parse_span

# Numbers that differ by less, relative to the units of the model, may be one in single precision.
_TINY = 2.0**-21
_MICROSECOND = np.timedelta64(1, "us")


def beside(codec: Codec, value: Any, up: bool) -> Any:
    """The end of a closed range that begins just above a value (`up`), or ends just below it.

    For numbers on a grid that is half a step away. Other numbers move by so little that no probability
    changes, but by enough that a frequent value there is left out.
    """
    sign = 1 if up else -1
    if isinstance(value, int | float) and math.isfinite(value):
        part = getattr(codec, "part", None)
        step = getattr(part, "step", 0.0)
        if step:
            return value + sign * step / 2
        shift, scale = getattr(part, "shift", 0.0), getattr(part, "scale", 1.0)
        return value + sign * _TINY * (abs(value - shift) + scale)
    clock = getattr(codec, "clock", None)
    if clock is not None:
        return _time_beside(value, sign * clock)
    if isinstance(value, str | np.datetime64 | dt.date):
        first, last = parse_span(value)
        return last + _MICROSECOND if up else first - _MICROSECOND
    return value


def _time_beside(value: Any, microseconds: int) -> Any:
    """A time of day, later or earlier; the ends of the day are as far as it goes."""
    time = dt.time.fromisoformat(value.strip()) if isinstance(value, str) else value
    moved = dt.datetime.combine(dt.date(2000, 1, 2), time) + dt.timedelta(microseconds=microseconds)
    return moved.time() if moved.day == 2 else time
