"""The tricube kernel: compact support, smooth at its edge."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit.kernels.compact import Compact, log_one_minus
from kdmkit.kernels.masses import Bump

_POWER = 6


def _beta(a: float, b: float) -> float:
    return math.exp(math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b))


_MASS = (2 / 3) * _beta(1 / 3, 7)  # ∫ (1 − |u|³)⁶ du


class Tricube(Compact):
    """k(x, c) = Π_i (1 − |u_i|³)₊³ with u = (x − c)/h.

    Args:
        h: half the width of the support: a number; `(d,)` for one per dimension; `(m, 1)` or `(m, d)` for one
            per component; the same with batch dimensions in front (not trained); or a `Bandwidth`.
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
        return _POWER * log_one_minus(u.abs().clamp_max(1) ** 3)

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
