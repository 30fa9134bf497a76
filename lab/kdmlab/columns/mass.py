"""The mass that a Gaussian mixture gives to the cells of rounded columns."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

Array = NDArray[Any]

# Nodes of the quadrature over the first of two columns, and cells per block.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(6)
_BLOCK = 50
# The width of a cell where a column is not rounded, in standard deviations.
_NARROW = 1e-4


class Mixture(NamedTuple):
    """Means `(m, d)`, covariances `(m, d, d)` or `(d, d)`, and weights `(m,)`, for one or two columns."""

    means: Array
    covariances: Array
    weights: Array


def cell_width(column: Array) -> float:
    """The step of a column whose values lie on a grid, or a width so small that masses are densities."""
    values = np.unique(column)
    step = np.diff(values).min()
    places = (values - values[0]) / step
    narrow = _NARROW * float(column.std())
    return float(step) if step > narrow and np.abs(places - places.round()).max() < 1e-3 else narrow


def log_mass(mixture: Mixture, x: Array, widths: Array) -> Array:
    """The log-mass of the cells about rows x, per unit of volume."""
    blocks = [x[i : i + _BLOCK] for i in range(0, len(x), _BLOCK)]
    masses = np.concatenate([_masses(mixture, block, widths) for block in blocks])
    return np.asarray(np.log(np.maximum(masses, np.finfo(float).tiny)) - np.log(widths).sum())


def _masses(mixture: Mixture, x: Array, widths: Array) -> Array:
    means, weights = mixture.means, mixture.weights
    covariances = np.broadcast_to(mixture.covariances, (len(means), x.shape[1], x.shape[1]))
    std = np.sqrt(covariances[:, 0, 0])
    low, high = _ends(x[:, 0], widths[0], means[:, 0], std)
    first, last, is_upper = _tails(low, high)
    mass = last - first
    if x.shape[1] == 2:
        slope = covariances[:, 0, 1] / covariances[:, 0, 0]
        rest = np.sqrt(covariances[:, 1, 1] - slope * covariances[:, 0, 1])
        inner = np.zeros_like(mass)
        # Nodes are uniform in probability: exact for components narrower than a cell, too.
        for node, weight in zip((_NODES + 1) / 2, _WEIGHTS / 2, strict=True):
            u = ndtri(np.maximum(first + node * mass, np.finfo(float).tiny))
            u = np.clip(np.where(is_upper, -u, u), low, high)
            begin, end, _ = _tails(*_ends(x[:, 1], widths[1], means[:, 1] + slope * std * u, rest))
            inner += weight * (end - begin)
        mass = mass * inner
    return np.asarray(mass @ weights)


def _ends(x: Array, width: float, means: Array, std: Array) -> tuple[Array, Array]:
    """The ends of cells in units of each component."""
    return (x[:, None] - width / 2 - means) / std, (x[:, None] + width / 2 - means) / std


def _tails(low: Array, high: Array) -> tuple[Array, Array, Array]:
    """Φ of both ends, mirrored where the cell is above the mean: differences near 1 would lose digits."""
    is_upper = low + high > 0
    return ndtr(np.where(is_upper, -high, low)), ndtr(np.where(is_upper, -low, high)), is_upper
