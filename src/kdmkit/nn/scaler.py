"""Standardisation of data, and limits of values that are far away.

Three kinds of limits: `fences` for outliers in statistics; the limit of a `Scaler` for networks that learned
from unlimited inputs; `soft_clip` for networks that learn from clipped inputs.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kdmkit._core.runtime import is_exporting

# No limit: a finite number, as saved tensors must be.
_NO_LIMIT = 1e300
#: A limit for networks that learned from unlimited inputs: in float32 their answers to it are finite.
LARGEST_INPUT = 1e6
# Fences: the tail probability of the two quantiles, and the distance from them in units of their difference
# (together 11 standard deviations of a normal column).
_TAIL, _FENCE = 0.05, 3.0


class Scaler(nn.Module):
    """z = (x − shift)/scale, in float64: a column's offset may be large compared with its spread.

    Beyond a limit L, z becomes ±(2L − L²/|z|), which grows up to 2L: a network behind the scaler gets
    moderate numbers, however far away a row is.

    Args:
        shift, scale: of every column.
        limit: L; None is no limit.

    >>> Scaler.from_data(torch.tensor([[1.0], [3.0]]))(torch.tensor([[2.0], [4.0]]))
    tensor([[0.],
            [2.]], dtype=torch.float64)
    """

    shift: Tensor
    scale: Tensor
    limit: Tensor

    def __init__(
        self, shift: Float[Tensor, " d"], scale: Float[Tensor, " d"], limit: float | None = None
    ) -> None:
        super().__init__()
        self.register_buffer("shift", shift.double())
        self.register_buffer("scale", scale.double())
        limit = _NO_LIMIT if limit is None else limit
        self.register_buffer("limit", torch.tensor(limit, dtype=torch.float64, device=shift.device))

    @classmethod
    def identity(cls, d: int, limit: float | None = None) -> Scaler:
        """The scaler that changes nothing, also for `load_state_dict`."""
        return cls(torch.zeros(d), torch.ones(d), limit)

    @classmethod
    def from_data(
        cls,
        x: Float[Tensor, "n d"],
        weights: Float[Tensor, " n"] | None = None,
        limit: float | None = None,
    ) -> Scaler:
        """Mean and standard deviation of every column; a constant column keeps the scale 1.

        Values beyond the `fences` are moved to them: one wrong number must not set the scale of all.
        """
        x = x.double()
        share = normalized_weights(len(x), weights).to(x.device)
        x = x.clamp(*fences(x, share))
        shift = share @ x
        # Scaled to at most 1: the square of 1e200 would be infinite.
        reach = (x - shift).abs().amax(0)
        varies = reach > 1e-12 * x.abs().amax(0)
        unit = torch.where(varies, reach, torch.ones_like(reach))
        scale = unit * (share @ ((x - shift) / unit).square()).sqrt()
        return cls(shift, torch.where(varies, scale, torch.ones_like(scale)), limit)

    def forward(self, x: Tensor) -> Tensor:
        z = (x.double() - self.shift) / self.scale
        if not is_exporting():
            # The exporter to ONNX takes no numbers beyond float32.
            z = z.clamp(-_NO_LIMIT, _NO_LIMIT)
        size = z.abs().clamp_min(self.limit)
        bounded = z.sign() * self.limit * (2 - self.limit / size)
        return torch.where(z.abs() > self.limit, bounded, z)

    def inverse(self, z: Tensor) -> Tensor:
        """z·scale + shift: the inverse within the limit."""
        return z.double() * self.scale + self.shift


def fences(x: Float[Tensor, "n d"], share: Float[Tensor, " n"]) -> tuple[Tensor, Tensor]:
    """Bounds of plausible values of every column: three times q95 − q05 beyond these quantiles.

    A column whose quartiles are equal has no bounds: among zeros and a few other numbers no number is an
    outlier.

    Args:
        x: rows.
        share: the rows' weights; their sum is 1.
    """
    values, order = x.sort(0)
    below = share[order].cumsum(0)
    # A little less than the level: a sum of n weights is rounded.
    levels = below.new_tensor([_TAIL, 0.25, 0.75, 1 - _TAIL]).view(-1, 1, 1)
    ranks = (below < levels - 1e-9).sum(1).clamp_max(len(x) - 1)
    low, first, third, high = values.gather(0, ranks)
    reach = torch.where(third > first, _FENCE * (high - low), torch.inf)
    return low - reach, high + reach


def soft_clip(z: Tensor, bound: float = 5.0) -> Tensor:
    """z/√(1 + (z/bound)²): almost z near zero, and never beyond ± bound.

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
