"""Values of columns as the page reads and writes them."""

from __future__ import annotations

import datetime as dt
from typing import Any

from kdmkit.estimators.table.display import plain as plain
from kdmkit.estimators.table.display import shown as _shown


def shown(value: Any) -> str:
    """A number of an answer as the library prints it; dates without a time of zero.

    >>> shown(0.123456), shown(dt.datetime(2024, 1, 31))
    ('0.1235', '2024-01-31')
    """
    return as_text(value) if isinstance(value, dt.datetime) else _shown(value)


def as_text(value: Any) -> str:
    """A value as a person writes it: all digits of numbers, nothing for a missing one.

    >>> as_text(0.1), as_text(None), as_text(dt.datetime(2024, 1, 31, 23, 59, 59, 999999))
    ('0.1', '', '2024-01-31')
    """
    value = plain(value) if not isinstance(value, dt.datetime) else value
    if isinstance(value, dt.datetime):
        is_day = value.time() in (dt.time.min, dt.time.max)
        return str(value.date()) if is_day else value.isoformat(" ", "minutes")
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def share_text(p: float) -> str:
    """A probability in words that tell small ones apart.

    >>> share_text(0.254), share_text(0.0021), share_text(1e-12), share_text(0.0)
    ('25.4%', '1 in 476', '1 in 1e+12', '0')
    """
    if p >= 0.01:
        return f"{p:.1%}"
    if p <= 0:
        return "0"
    return f"1 in {1 / p:,.0f}" if p >= 1e-9 else f"1 in {1 / p:.0e}"
