"""The least standard deviation of a target's components."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit.nn import Scaler

# Targets that differ by less than this share of their size count as equal.
_ROUNDING = 1e-9
# The least standard deviation, relative to that of the targets.
_LEAST_STD = 0.01

# The scale of a constant target, relative to its value.
_CONSTANT = 1e-6


def target_scaler(y: Float[Tensor, "n outputs"], weights: Float[Tensor, " n"] | None) -> Scaler:
    """Mean and standard deviation; a constant target gets a millionth of its value, 1e-6 about zero.

    >>> target_scaler(torch.full((3, 1), 5.0), None).scale
    tensor([5.0000e-06], dtype=torch.float64)
    """
    scaler = Scaler.from_data(y, weights)
    size = scaler.shift.abs()
    constant = y.amax(0) - y.amin(0) <= 1e-12 * y.abs().amax(0)
    scale = torch.where(constant, _CONSTANT * torch.where(size > 0, size, 1.0), scaler.scale)
    return Scaler(scaler.shift, scale)


def min_target_std(y: Float[Tensor, "n outputs"]) -> Float[Tensor, " outputs"]:
    """max(g/2, .01·s) of every output: s is its scale, g the smallest gap between distinct targets.

    Without a bound, components narrow down to spikes on targets that repeat (integers, grades), and the
    likelihood is unbounded.

    >>> min_target_std(torch.tensor([[3.0], [4.0], [4.0], [6.0]]))
    tensor([0.5000], dtype=torch.float64)
    """
    y = y.double()
    bounds = _LEAST_STD * target_scaler(y, None).scale
    for output, column in enumerate(y.mT):
        values = torch.unique(column)
        gaps = values.diff()
        # Their own size, or the column's scale: one wild value says nothing about the others' rounding.
        size = values.abs()[:-1].maximum(values.abs()[1:]).clamp_min(float(bounds[output]))
        gaps = gaps[gaps > _ROUNDING * size]
        if len(gaps):
            bounds[output] = max(float(bounds[output]), float(gaps.min()) / 2)
    return bounds
