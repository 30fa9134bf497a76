"""Means over runs, with their uncertainty."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

#: The confidence of t-intervals.
CONFIDENCE = 0.99


@dataclass(frozen=True)
class Mean:
    """The mean of n values, their standard deviation (NaN for a single value), and the least of them.

    >>> Mean.of([0.9, 0.92, 0.91]).text
    '0.9100 ± 0.0573'
    >>> Mean.of([0.9]).text
    '0.9000'
    """

    mean: float
    std: float
    n: int
    least: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        std = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
        return cls(float(np.mean(values)), std, len(values), min(values))

    @property
    def half_width(self) -> float:
        """Half the width of the mean's 99 % t-interval."""
        return float(stats.t.ppf(0.5 + CONFIDENCE / 2, self.n - 1)) * self.std / math.sqrt(self.n)

    @property
    def standard_error(self) -> float:
        return self.std / math.sqrt(self.n)

    @property
    def text(self) -> str:
        """Mean ± half the width of its t-interval."""
        return self.plus_minus(self.half_width)

    def plus_minus(self, error: float, digits: int = 4) -> str:
        """Mean ± error; the mean alone where there is a single value."""
        mean = f"{self.mean:.{digits}f}"
        return mean if math.isnan(error) else f"{mean} ± {error:.{digits}f}"
