"""Moments and modes of one-dimensional densities, by Gauss–Legendre quadrature and by search."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

# Panels between the ends of a density, and nodes in each: kinks of a piecewise linear function cost the
# square of a panel's width, a smooth function costs nothing.
_PANELS = 32
_NODES = 12
# Points of a grid in which a maximum is searched, and how often a finer grid follows.
_POINTS = 129
_ROUNDS = 6

Function = Callable[[Tensor], Tensor]


def moments(
    log_density: Function, value: Function, low: Float[Tensor, "*shape"], high: Float[Tensor, "*shape"]
) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
    """Mean and variance of value(z), where z has a density on [low, high] that is known up to a factor.

    Args:
        log_density: of z, of shape `(k, *shape)`.
        value: of z.
        low, high: beyond them the density is negligible.
    """
    nodes, weights = _rule(low)
    low, high = low.detach(), high.detach()
    nodes = nodes.reshape(-1, *([1] * low.ndim))
    z = low + (high - low) * nodes
    logs = log_density(z)
    top = logs.detach().amax(0)
    mass = weights.reshape(nodes.shape) * (logs - torch.where(torch.isneginf(top), 0.0, top)).exp()
    total = mass.sum(0)
    mass = mass / torch.where(total > 0, total, 1.0)
    x = value(z)
    # Relative to a value in the middle, so that a small variance far from 0 keeps its digits.
    centre = x.detach()[len(x) // 2]
    mean = (mass * (x - centre)).sum(0)
    variance = (mass * (x - centre - mean).square()).sum(0)
    return centre + mean, variance


def argmax(
    objective: Function, low: Float[Tensor, "*shape"], high: Float[Tensor, "*shape"]
) -> Float[Tensor, "*shape"]:
    """Where a function of z has its maximum on [low, high], by finer and finer grids."""
    steps = torch.linspace(0, 1, _POINTS, dtype=low.dtype, device=low.device)
    steps = steps.reshape(-1, *([1] * low.ndim))
    best = low
    start, stop = low, high
    for _ in range(_ROUNDS):
        z = start + (stop - start) * steps
        best = z.gather(0, objective(z).argmax(0, keepdim=True)).squeeze(0)
        reach = (stop - start) / (_POINTS - 1)
        start, stop = torch.maximum(best - reach, low), torch.minimum(best + reach, high)
    return best


def _rule(like: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights on [0, 1]."""
    points, weights = np.polynomial.legendre.leggauss(_NODES)
    left = np.arange(_PANELS)[:, None] / _PANELS
    nodes = (left + 0.5 * (1 + points) / _PANELS).ravel()
    return torch.from_numpy(nodes).to(like), torch.from_numpy(np.tile(weights, _PANELS)).to(like)
