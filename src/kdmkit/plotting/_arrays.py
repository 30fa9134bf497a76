"""NumPy arrays from what users pass to a figure, and the range of its axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from kdmkit._core.checks import bad_argument, check_count
from kdmkit.distributions import KDM
from kdmkit.metrics.inputs import as_floats

Array = np.ndarray[Any, np.dtype[Any]]


def as_array(argument: str, value: Any, shape: Sequence[int | None] | None = None) -> Array:
    """Finite numbers in float64; `shape` fixes the number of dimensions and those sizes that are not None."""
    array: Array = as_floats(argument, value).double().cpu().numpy()
    if shape is not None and not _fits(array, shape):
        inside = ", ".join("n" if size is None else str(size) for size in shape)
        wanted = f"({inside},)" if len(shape) == 1 else f"({inside})"
        raise ValueError(bad_argument(argument, f"shape {wanted}", array.shape))
    return array


def _fits(array: Array, shape: Sequence[int | None]) -> bool:
    return array.ndim == len(shape) and all(
        want in (None, got) for want, got in zip(shape, array.shape, strict=True)
    )


def as_column(argument: str, value: Any, n: int | None = None) -> Array:
    """`(n,)` numbers, from `(n,)` or `(n, 1)`."""
    array = as_array(argument, value)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    return as_array(argument, array, (n,))


def parts(rho: KDM) -> tuple[Array, Array, Array]:
    """Components `(m, d)`, weights `(m,)` and standard deviations `(m, d)` of an unbatched KDM."""
    with torch.no_grad():
        components = rho.components.reshape(-1, *rho.event_shape)
        std = rho.kernel.variance(components).sqrt()
        weights = rho.weights.reshape(-1)
    return as_array("components", components), as_array("weights", weights), as_array("std", std)


def extent(rho: KDM, samples: Array | None = None, *, reach: float = 4.0) -> list[tuple[float, float]]:
    """The range of every dimension: all samples, and components to `reach` standard deviations.

    Components in the last thousandth of the weight at either end do not stretch the axes.
    """
    components, weights, std = parts(rho)
    ranges = []
    for i in range(components.shape[1]):
        order = np.argsort(components[:, i])
        below = np.cumsum(weights[order])
        seen = order[(below > 1e-3) & (below - weights[order] < below[-1] - 1e-3)]
        low = (components[seen, i] - reach * std[seen, i]).min()
        high = (components[seen, i] + reach * std[seen, i]).max()
        if samples is not None:
            low, high = min(low, samples[:, i].min()), max(high, samples[:, i].max())
        ranges.append((float(low), float(high)))
    return ranges


def log_density(rho: KDM, points: Array) -> Array:
    """log f̂ at points `(n, d)`; −∞ outside a compact support."""
    with torch.no_grad():
        values = rho.log_prob(torch.as_tensor(points).to(rho.components))
    result: Array = values.double().cpu().numpy()
    return result


def mesh(ranges: Sequence[tuple[float, float]], n: int) -> tuple[Array, Array, Array]:
    """A grid of n × n points over a rectangle: both axes, and the points `(n², 2)`."""
    n = check_count("n_grid", n, least=2)
    first, second = (np.linspace(low, high, n) for low, high in ranges)
    points = np.stack(np.meshgrid(first, second), -1).reshape(-1, 2)
    return first, second, points
