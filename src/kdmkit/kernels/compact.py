"""Kernels of compact support: zero beyond the distance h in any dimension."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from kdmkit.kernels.bandwidth import Bandwidth, as_bandwidth, bandwidth_from_config
from kdmkit.kernels.location_scale import LocationScale
from kdmkit.kernels.masses import Bump, log_bump_mass
from kdmkit.kernels.pieces import in_pieces

# Exact for polynomials of degree 39; the product of two Tricube distribution functions has degree 38.
_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(20)


class Compact(LocationScale, ABC):
    """A kernel whose bump function is a polynomial of |u| on [−1, 1] and zero outside."""

    unit_radius: ClassVar[float] = 1.0
    values_per_distance: ClassVar[int] = len(_POINTS)
    #: The density of u by the distance to the end of the support.
    unit_bump: ClassVar[Bump]

    def __init__(self, h: Any = 1.0, *, h_min: float | None = None, trainable: bool = False) -> None:
        super().__init__()
        self.bandwidth = as_bandwidth("h", h, h_min, trainable=trainable)

    @property
    def h(self) -> Float[Tensor, "*shape"]:
        """The bandwidth h, half the width of the support."""
        return self.bandwidth.value

    @h.setter
    def h(self, value: Any) -> None:
        self.learned_bandwidth.value = value

    def with_bandwidth(self, bandwidth: Bandwidth) -> Self:
        return type(self)(bandwidth)

    def interval_log_mass(self, low: Tensor, high: Tensor, centre: Tensor, scale: Tensor) -> Tensor:
        return in_pieces(partial(log_bump_mass, bump=self.unit_bump), low, high, centre, scale)

    def distance_to_point(self, gap: Float[Tensor, "*shape"], scale: Tensor) -> Float[Tensor, "*shape"]:
        z = (gap / scale).abs()
        # E|u − z| = z + 2·E(u − z)₊, and by symmetry E(u − z)₊ = ∫_{−1}^{−z} G(t) dt.
        edge = -z.clamp_max(1)
        return gap.abs() + 2 * scale * _integral(self.unit_cdf, -torch.ones_like(edge), edge)

    def distance_between(
        self, gap: Float[Tensor, "*shape"], scale: Tensor, other: Tensor
    ) -> Float[Tensor, "*shape"]:
        if self.per_component:
            self._cannot("one bandwidth for all components, or RBF")
        z = (gap / scale).abs().clamp_max(2)

        # E(u − u' − z)₊ = ∫ G(t)·G(−t − z) dt over [−1, 1 − z], symmetric about −z/2: twice the upper half,
        # cut at 0 where the polynomial changes.
        def product(t: Tensor) -> Tensor:
            return self.unit_cdf(t) * self.unit_cdf(-t - z.unsqueeze(-1))

        cut = (1 - z).clamp_max(0)
        half = _integral(product, -z / 2, cut) + _integral(product, cut, 1 - z)
        return gap.abs() + 4 * scale * half

    def config(self) -> dict[str, Any]:
        return {"kernel": type(self).__name__, **self.bandwidth.config()}

    @classmethod
    def from_config(cls, config: dict[str, Any], *, encoder: nn.Module | None = None) -> Self:
        return cls(bandwidth_from_config("h", config))


def _integral(
    function: Callable[[Tensor], Tensor], low: Float[Tensor, "*shape"], high: Float[Tensor, "*shape"]
) -> Float[Tensor, "*shape"]:
    """∫ function from `low` to `high`, both of the same shape."""
    points = torch.as_tensor(_POINTS, dtype=low.dtype, device=low.device)
    weights = torch.as_tensor(_WEIGHTS, dtype=low.dtype, device=low.device)
    half = 0.5 * (high - low)
    t = low.unsqueeze(-1) + half.unsqueeze(-1) * (1 + points)
    return half * (function(t) * weights).sum(-1)


def log_one_minus(v: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """log(1 − v) for 0 ≤ v < 1, and −∞ with no gradient from 1 on."""
    inside = v < 1
    return torch.where(inside, torch.log1p(-torch.where(inside, v, torch.zeros_like(v))), -math.inf)
