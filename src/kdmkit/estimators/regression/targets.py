"""How narrow the distribution of a target may be."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit.nn import Scaler

# Targets closer than this part of their size are the same; components narrower than this part of the targets'
# standard deviation say nothing that data could.
_ROUNDING = 1e-9
_LEAST_STD = 0.01


def min_target_std(y: Float[Tensor, "n outputs"]) -> Float[Tensor, " outputs"]:
    """The smallest standard deviation of a component: half the smallest gap between distinct targets.

    Targets that repeat (integers, grades) would otherwise be met by spikes of any height, and the likelihood
    be as large as one likes. A hundredth of the targets' standard deviation is the least in any case.

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
