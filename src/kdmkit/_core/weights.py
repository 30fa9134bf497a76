"""Weights of rows."""

import torch
from jaxtyping import Float
from torch import Tensor


def effective_rows(weights: Float[Tensor, " n"]) -> float:
    """Kish's number of rows with equal weights that tell as much: (Σw)²/Σw²; 0 where all weights are 0.

    >>> effective_rows(torch.tensor([1.0, 1.0, 1.0, 0.0])), effective_rows(torch.zeros(2))
    (3.0, 0.0)
    """
    weights = weights.double()
    return float(weights.sum().square() / weights.square().sum().clamp_min(torch.finfo(torch.float64).tiny))
