"""Standardisation of data, as a module."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Scaler(nn.Module):
    """z = (x − shift)/scale, in float64: a column's offset may be large compared with its spread.

    >>> Scaler.from_data(torch.tensor([[1.0], [3.0]]))(torch.tensor([[2.0], [4.0]]))
    tensor([[0.],
            [2.]], dtype=torch.float64)
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, shift: Float[Tensor, " d"], scale: Float[Tensor, " d"]) -> None:
        super().__init__()
        self.register_buffer("shift", shift.double())
        self.register_buffer("scale", scale.double())

    @classmethod
    def identity(cls, d: int) -> Scaler:
        """The scaler that changes nothing, or a place for `load_state_dict` to put a saved one."""
        return cls(torch.zeros(d), torch.ones(d))

    @classmethod
    def from_data(cls, x: Float[Tensor, "n d"], weights: Float[Tensor, " n"] | None = None) -> Scaler:
        """Mean and standard deviation of every column; a constant column keeps the scale 1."""
        x = x.double()
        share = normalized_weights(len(x), weights)
        shift = share @ x
        # Squares are taken of numbers up to 1: those of 1e200 would be infinite.
        reach = (x - shift).abs().amax(0)
        varies = reach > 1e-12 * x.abs().amax(0)
        unit = torch.where(varies, reach, torch.ones_like(reach))
        scale = unit * (share @ ((x - shift) / unit).square()).sqrt()
        return cls(shift, torch.where(varies, scale, torch.ones_like(scale)))

    def forward(self, x: Tensor) -> Tensor:
        return (x.double() - self.shift) / self.scale

    def inverse(self, z: Tensor) -> Tensor:
        return z.double() * self.scale + self.shift


def soft_clip(z: Tensor, bound: float = 5.0) -> Tensor:
    """z/√(1 + (z/bound)²): almost z about zero, and never beyond ± bound.

    A network that learns from clipped inputs has bounded answers, and outliers do not dominate its fit.

    >>> soft_clip(torch.tensor([0.1, 1e30]))
    tensor([0.1000, 5.0000])
    """
    # The division first: squares of large numbers would be infinite.
    inverse = 1 / z.abs().clamp_min(bound)
    return z * inverse / (inverse.square() + (z * inverse / bound).square()).sqrt()


def normalized_weights(n: int, weights: Float[Tensor, " n"] | None) -> Float[Tensor, " n"]:
    """Sample weights divided by their sum, in float64; None means equal weights."""
    w = torch.ones(n, dtype=torch.float64) if weights is None else weights.double()
    return w / w.sum()
