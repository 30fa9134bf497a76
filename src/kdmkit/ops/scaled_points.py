"""Squared distances by matrix products: scores, exponentials and explicit gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.logspace import exp_
from kdmkit.ops.products import narrow_product, narrow_product_transposed
from kdmkit.ops.terms import robust_centre

# (‖s x‖ + ‖s c‖)² times the rounding of float32 bounds the error of a score: up to here it is below 2e-5.
_FLOAT32_REACH = 256.0


@dataclass(frozen=True)
class ScaledPoints:
    """Queries x and components c minus a common centre, in units of the bandwidth.

    `row` is −‖x‖² and `column` is −‖c‖²: −‖x_i − c_j‖² = row_i + 2 x_i·c_j + column_j.
    """

    x: Float[Tensor, "n d"]
    c: Float[Tensor, "m d"]
    scale: Float[Tensor, "1 s"]
    row: Float[Tensor, " n"]
    column: Float[Tensor, " m"]

    @classmethod
    def of(cls, query: Tensor, components: Tensor, scale: Tensor, dtype: torch.dtype) -> ScaledPoints:
        """In `dtype`; on a CPU in float64 where float32 products would lose too many digits."""
        if dtype == torch.float32 and query.device.type == "cpu":
            near = cls.about(components.mean(0, dtype=dtype), query, components, scale, dtype)
            if near.reach <= _FLOAT32_REACH:
                return near
            dtype = torch.float64
        return cls.about(robust_centre(components), query, components, scale, dtype)

    @classmethod
    def about(
        cls, centre: Tensor, query: Tensor, components: Tensor, scale: Tensor, dtype: torch.dtype
    ) -> ScaledPoints:
        centre, scale = centre.to(dtype), scale.to(dtype)
        x, c = (query.to(dtype) - centre).mul_(scale), (components.to(dtype) - centre).mul_(scale)
        return cls(x, c, scale, torch.linalg.vecdot(x, x).neg_(), torch.linalg.vecdot(c, c).neg_())

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.x, self.c, self.scale, self.row, self.column

    @property
    def reach(self) -> float:
        """The largest (‖x‖ + ‖c‖)²; NaN if a coordinate is NaN."""
        if not len(self.row):
            return 0.0
        return (math.sqrt(-self.row.amin().item()) + math.sqrt(-self.column.amin().item())) ** 2

    def block(self, rows: slice, columns: slice) -> ScaledPoints:
        """The points of some queries and some components."""
        return ScaledPoints(self.x[rows], self.c[columns], self.scale, self.row[rows], self.column[columns])

    def scores(self, bias: Float[Tensor, "*n m"]) -> Float[Tensor, "n m"]:
        """2 x_i·c_j + column_j + bias_j (or bias_ij): the scores without the constants `row`."""
        if bias.ndim == 1:
            return torch.addmm(bias.to(self.x.dtype) + self.column, self.x, self.c.mT, alpha=2)
        product = torch.addmm(self.column, self.x, self.c.mT, alpha=2)
        fits = torch.promote_types(product.dtype, bias.dtype) == product.dtype
        return product.add_(bias) if fits else product + bias

    def gradients(
        self,
        slopes: Float[Tensor, "n m"],
        needs: Sequence[bool],
        by_column: Float[Tensor, " m"] | None = None,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Gradients by queries, components and scale, from those by the scores (`slopes`).

        Args:
            by_column: the sums of the slopes of every component, where they are known.
        """
        need_x, need_c, need_scale = needs
        if not any(needs):
            return None, None, None
        slopes, twice = slopes.to(self.x.dtype), 2 * self.scale
        by_row = slopes.sum(-1).unsqueeze(-1) if need_x or need_scale else None
        grad_x = None
        if need_x and by_row is not None:
            grad_x = narrow_product(slopes, self.c).sub_(by_row * self.x).mul_(twice)
        if not (need_c or need_scale):
            return grad_x, None, None
        by_column = slopes.sum(0) if by_column is None else by_column
        pulled = narrow_product_transposed(slopes, self.x)
        weighted = by_column.unsqueeze(-1) * self.c
        grad_scale = None
        if by_row is not None and need_scale:
            grad_scale = (-2 * self._moments(by_row, pulled, weighted) / self.scale).sum_to_size(
                self.scale.shape
            )
        return grad_x, pulled.sub_(weighted).mul_(twice) if need_c else None, grad_scale

    def _moments(
        self, by_row: Float[Tensor, "n 1"], pulled: Float[Tensor, "m d"], weighted: Float[Tensor, "m d"]
    ) -> Float[Tensor, "*d"]:
        """Σ_ij slopes_ij (x_i − c_j)² of every dimension, or of all together where they share one scale.

        All sums have the same rounded slopes.
        """
        between = torch.sub(weighted, pulled, alpha=2).mul_(self.c)
        if self.scale.numel() == 1:
            return between.sum(dtype=torch.float64) - by_row.squeeze(-1).double() @ self.row.double()
        return between.sum(0, dtype=torch.float64) + (by_row * self.x.square()).sum(0, dtype=torch.float64)


def finite_top(scores: Float[Tensor, "*lead n m"]) -> Float[Tensor, "*lead n 1"]:
    """The largest score of each query; the smallest finite number where all are −∞."""
    return scores.amax(-1, keepdim=True).clamp_min_(torch.finfo(scores.dtype).min)


def exponentials(
    scores: Float[Tensor, "*lead n m"], dtype: torch.dtype
) -> tuple[Float[Tensor, "*lead n m"], Float[Tensor, "*lead n"], Float[Tensor, "*lead n"]]:
    """exp(scores − top), their sums, and top. Writes over the scores where the dtype allows."""
    top = finite_top(scores)
    weights = exp_(scores.sub_(top).to(dtype))
    return weights, weights.sum(-1), top.squeeze(-1)


def divide_by_total(gradient: Tensor | float, total: Tensor) -> Float[Tensor, "n 1"]:
    """gradient / total; where a total is 0 the result is finite, since the weights it multiplies are 0."""
    return (gradient / total.clamp_min(torch.finfo(total.dtype).tiny)).unsqueeze(-1)
