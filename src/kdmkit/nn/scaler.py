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


def normalized_weights(n: int, weights: Float[Tensor, " n"] | None) -> Float[Tensor, " n"]:
    """Sample weights divided by their sum, in float64; None means equal weights."""
    w = torch.ones(n, dtype=torch.float64) if weights is None else weights.double()
    return w / w.sum()
