"""How sure a mean over runs is."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

CONFIDENCE = 0.99


def half_width(values: Sequence[float]) -> float:
    """Half the width of the mean's 99 % t-interval; NaN for a single value.

    >>> round(half_width([0.88, 0.90, 0.89]), 4)
    0.0573
    """
    n = len(values)
    if n < 2:
        return math.nan
    quantile = float(stats.t.ppf(0.5 + CONFIDENCE / 2, n - 1))
    return quantile * float(np.std(values, ddof=1)) / math.sqrt(n)
