"""Standardised data for training, and the way back to the data's own units."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kdmkit.kernels import RBF, Kernel
from kdmkit.nn import JointLayer, Variable


class Scaler(nn.Module):
    """z = (x − shift)/scale, in float64: offsets may be large beside what varies."""

    shift: Tensor
    scale: Tensor

    def __init__(self, shift: Float[Tensor, " d"], scale: Float[Tensor, " d"]) -> None:
        super().__init__()
        self.register_buffer("shift", shift.double())
        self.register_buffer("scale", scale.double())

    @classmethod
    def from_data(cls, x: Float[Tensor, "n d"], weights: Float[Tensor, " n"] | None = None) -> Scaler:
        """Mean and standard deviation; a column that does not vary keeps the scale 1."""
        x = x.double()
        share = shares(len(x), weights)
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


def shares(n: int, weights: Float[Tensor, " n"] | None) -> Float[Tensor, " n"]:
    """Weights that sum to 1, in float64."""
    w = torch.ones(n, dtype=torch.float64) if weights is None else weights.double()
    return w / w.sum()


def in_own_units(layer: JointLayer, scalers: dict[str, Scaler]) -> JointLayer:
    """The same joint in float64, over x rather than (x − shift)/scale for every variable with a scaler."""

    def kernel_of(name: str) -> Kernel:
        kernel = layer.kernels[name]
        assert isinstance(kernel, Kernel)
        if name not in scalers:
            return kernel
        assert isinstance(kernel, RBF)
        return RBF(kernel.sigma.double() * scalers[name].scale)

    variables = [Variable(name, kernel_of(name), v.shape) for name, v in layer.variables.items()]
    moved = JointLayer.from_variables(variables, layer.n_components, inputs=layer.inputs, dtype=torch.float64)
    with torch.no_grad():
        moved.logits.copy_(layer.logits)
        for name, values in layer.components.items():
            moved.components[name].copy_(scalers[name].inverse(values) if name in scalers else values)
    return moved
