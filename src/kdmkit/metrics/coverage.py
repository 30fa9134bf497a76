"""Prediction intervals: how often they contain the observation, and how wide they are."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.metrics.inputs import as_floats


def interval_coverage(lower: Any, upper: Any, y: Any) -> Float[Tensor, ""]:
    """(1/n)·Σ_i 1{lower_i ≤ y_i ≤ upper_i}: the fraction of observations inside their interval.

    Args:
        lower, upper: the ends of the intervals, both of the shape of `y`.
        y: observations, of any shape, `(n,)` for one.

    Returns:
        One number between 0 and 1.

    >>> from kdmkit.metrics import interval_coverage
    >>> interval_coverage([0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 2.0, 2.0], [0.5, 1.5, 1.5, 1.0])
    tensor(0.7500, dtype=torch.float64)
    """
    low, high = _ends(lower, upper)
    values = as_floats("y", y).to(low.device)
    if values.shape != low.shape:
        raise ValueError(
            bad_argument("y", f"the shape of lower and upper, {tuple(low.shape)}", tuple(values.shape))
        )
    return ((low <= values) & (values <= high)).double().mean()


def interval_width(lower: Any, upper: Any) -> Float[Tensor, ""]:
    """(1/n)·Σ_i (upper_i − lower_i): the mean width. At equal coverage narrower is better.

    Args:
        lower, upper: the ends of the intervals, of one shape.

    Returns:
        One number, in the units of y.

    >>> from kdmkit.metrics import interval_width
    >>> interval_width([0.0, 1.0], [1.0, 4.0])
    tensor(2., dtype=torch.float64)
    """
    low, high = _ends(lower, upper)
    return (high.double() - low.double()).mean()


def _ends(lower: Any, upper: Any) -> tuple[Tensor, Tensor]:
    low, high = as_floats("lower", lower), as_floats("upper", upper)
    high = high.to(low.device)
    if low.shape != high.shape:
        raise ValueError(bad_argument("upper", f"the shape of lower, {tuple(low.shape)}", tuple(high.shape)))
    crossed = int((low > high).sum())
    if crossed:
        raise ValueError(bad_argument("upper", "values not below lower", f"{crossed} that are"))
    return low, high
