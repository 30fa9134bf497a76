"""Kernels of compact support, zero beyond the distance h in any dimension: Epanechnikov and Tricube."""

from __future__ import annotations

import math
from abc import ABC
from functools import partial
from typing import Any, ClassVar, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kdmkit.kernels.bandwidth import Bandwidth, as_bandwidth, bandwidth_from_config
from kdmkit.kernels.calculus.integrals import NODES, Bump, in_pieces, integral, log_bump_mass
from kdmkit.kernels.location_scale import LocationScale


class Compact(LocationScale, ABC):
    """A kernel whose bump function is a polynomial of |u| on [−1, 1] and zero outside."""

    unit_radius: ClassVar[float] = 1.0
    values_per_distance: ClassVar[int] = NODES
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
        return gap.abs() + 2 * scale * integral(self.unit_cdf, -torch.ones_like(edge), edge)

    def distance_between(
        self, gap: Float[Tensor, "*shape"], scale: Tensor, other: Tensor
    ) -> Float[Tensor, "*shape"]:
        if self.per_component:
            self._cannot("one bandwidth for all components, or RBF")
        z = (gap / scale).abs().clamp_max(2)

        # E(u − u' − z)₊ = ∫ G(t)·G(−t − z) dt over [−1, 1 − z], symmetric about −z/2: twice the upper half,
        # cut at 0, because the polynomial changes there.
        def product(t: Tensor) -> Tensor:
            return self.unit_cdf(t) * self.unit_cdf(-t - z.unsqueeze(-1))

        cut = (1 - z).clamp_max(0)
        half = integral(product, -z / 2, cut) + integral(product, cut, 1 - z)
        return gap.abs() + 4 * scale * half

    def config(self) -> dict[str, Any]:
        return {"kernel": type(self).__name__, **self.bandwidth.config()}

    @classmethod
    def from_config(cls, config: dict[str, Any], *, encoder: nn.Module | None = None) -> Self:
        return cls(bandwidth_from_config("h", config))


class Epanechnikov(Compact):
    """k(x, c) = Π_i (1 − u_i²)₊ with u = (x − c)/h; its density is (15/16h)·(1 − u²)₊² in each dimension.

    Args:
        h: half the width of the support: a number; `(d,)` for one per dimension; `(m, 1)` or `(m, d)` for one
            per component; the same with batch dimensions in front (not trained); or a `Bandwidth`.
            Gradients flow to a tensor that requires them, unless `trainable` makes a parameter that starts at
            its value.
        h_min: lower bound of h while it is trained; None is a millionth of h.
        trainable: whether h is trained.

    >>> kernel = Epanechnikov(2.0)
    >>> kernel.log_overlap(torch.tensor([[0.0], [3.0]]), torch.zeros(1, 1)).exp()
    tensor([1., 0.])
    """

    unit_log_norm: ClassVar[float] = math.log(15 / 16)
    unit_variance: ClassVar[float] = 1 / 7
    # (1 − u²)² = s²(2 − s)² with s = 1 − u.
    unit_bump: ClassVar[Bump] = Bump(2, lambda s: (2 - s) ** 2, 15 / 16, nodes=3)

    def unit_log_overlap(self, u: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return 2 * _log_one_minus(u.abs().clamp_max(1).square())

    def unit_cdf(self, u: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        # (15/16)·∫(1 − t²)² dt, factored so that it is exactly 0 and 1 at the edges and precise near −1.
        u = u.clamp(-1, 1)
        return (1 + u) ** 3 * (8 - 9 * u + 3 * u.square()) / 16

    def unit_draw(self, like: Tensor, generator: torch.Generator | None) -> Tensor:
        # (u + 1)/2 ~ Beta(3, 3), which is the law of the median of five uniform numbers.
        uniform = torch.rand((*like.shape, 5), dtype=like.dtype, device=like.device, generator=generator)
        return 2 * uniform.median(-1).values - 1


_POWER = 6


def _beta(a: float, b: float) -> float:
    return math.exp(math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b))


_MASS = (2 / 3) * _beta(1 / 3, 7)  # ∫ (1 − |u|³)⁶ du


class Tricube(Compact):
    """k(x, c) = Π_i (1 − |u_i|³)₊³ with u = (x − c)/h.

    Args:
        h: half the width of the support: a number; `(d,)` for one per dimension; `(m, 1)` or `(m, d)` for one
            per component; the same with batch dimensions in front (not trained); or a `Bandwidth`.
            Gradients flow to a tensor that requires them, unless `trainable` makes a parameter that starts at
            its value.
        h_min: lower bound of h while it is trained; None is a millionth of h.
        trainable: whether h is trained.

    >>> Tricube(1.0).log_overlap(torch.tensor([[0.5]]), torch.zeros(1, 1)).exp()
    tensor([0.4488])
    """

    unit_log_norm: ClassVar[float] = -math.log(_MASS)
    unit_variance: ClassVar[float] = _beta(1, 7) / _beta(1 / 3, 7)
    # (1 − u³)⁶ = s⁶(3 − 3s + s²)⁶ with s = 1 − u.
    unit_bump: ClassVar[Bump] = Bump(_POWER, lambda s: (3 + s * (s - 3)) ** _POWER, 1 / _MASS, nodes=10)

    def unit_log_overlap(self, u: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return _POWER * _log_one_minus(u.abs().clamp_max(1) ** 3)

    def unit_cdf(self, u: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        # ∫₀ᵛ (1 − t³)⁶ dt, term by term of the binomial; odd in v.
        v = u.clamp(-1, 1)
        cube = v.abs() ** 3
        integral = sum((-1) ** k * math.comb(_POWER, k) / (3 * k + 1) * cube**k for k in range(_POWER + 1))
        return torch.where(cube < 1, 0.5 + v * integral / _MASS, (u > 0).to(u.dtype))

    def unit_draw(self, like: Tensor, generator: torch.Generator | None) -> Tensor:
        # |u|³ ~ Beta(1/3, 7), which is the law of Π_i U_i^(1/(1/3 + i)) over seven uniform numbers.
        def uniform(*extra: int) -> Tensor:
            shape = (*like.shape, *extra)
            return torch.rand(shape, dtype=like.dtype, device=like.device, generator=generator)

        exponents = 1 / (1 / 3 + torch.arange(7, dtype=like.dtype, device=like.device))
        cube = (uniform(7) ** exponents).prod(-1)
        sign = torch.where(uniform() < 0.5, -1.0, 1.0).to(like.dtype)
        return sign * cube ** (1 / 3)


def _log_one_minus(v: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """log(1 − v) for 0 ≤ v < 1, and −∞ with no gradient from 1 on."""
    inside = v < 1
    return torch.where(inside, torch.log1p(-torch.where(inside, v, torch.zeros_like(v))), -math.inf)
