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


def min_target_std(y: Float[Tensor, "n outputs"]) -> Float[Tensor, " outputs"]:
    """max(g/2, .01·std(y)) of every output, where g is the smallest gap between distinct targets.

    Without a bound, components narrow down to spikes on targets that repeat (integers, grades), and the
    likelihood is unbounded.

    >>> min_target_std(torch.tensor([[3.0], [4.0], [4.0], [6.0]]))
    tensor([0.5000], dtype=torch.float64)
    """
    y = y.double()
    bounds = _LEAST_STD * Scaler.from_data(y).scale
    for output, column in enumerate(y.mT):
        values = torch.unique(column)
        gaps = values.diff()
        gaps = gaps[gaps > _ROUNDING * values.abs().max()]
        if len(gaps):
            bounds[output] = max(float(bounds[output]), float(gaps.min()) / 2)
    return bounds
