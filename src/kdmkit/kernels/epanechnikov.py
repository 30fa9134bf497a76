"""The Epanechnikov kernel: compact support."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit.kernels.compact import Compact, log_one_minus
from kdmkit.kernels.masses import Bump


class Epanechnikov(Compact):
    """k(x, c) = Π_i (1 − u_i²)₊ with u = (x − c)/h; its density is (15/16h)·(1 − u²)₊² in each dimension.

    Args:
        h: half the width of the support: a number; `(d,)` for one per dimension; `(m, 1)` or `(m, d)` for one
            per component; the same with batch dimensions in front (not trained); or a `Bandwidth`.
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
        return 2 * log_one_minus(u.abs().clamp_max(1).square())

    def unit_cdf(self, u: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        # (15/16)·∫(1 − t²)² dt, factored so that it is exactly 0 and 1 at the edges and precise near −1.
        u = u.clamp(-1, 1)
        return (1 + u) ** 3 * (8 - 9 * u + 3 * u.square()) / 16

    def unit_draw(self, like: Tensor, generator: torch.Generator | None) -> Tensor:
        # (u + 1)/2 ~ Beta(3, 3), which is the law of the median of five uniform numbers.
        uniform = torch.rand((*like.shape, 5), dtype=like.dtype, device=like.device, generator=generator)
        return 2 * uniform.median(-1).values - 1
