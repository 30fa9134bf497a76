"""Squared distances by matrix products: scores, exponentials and explicit gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.logspace import exp_
from kdmkit.ops.products import narrow_product, narrow_product_transposed
from kdmkit.ops.terms import robust_centre

# (‖s x‖ + ‖s c‖)² times the rounding of float32 bounds the error of a score: up to here it is below 2e-5.
_FLOAT32_REACH = 256.0
# Beyond it squares of points in units of their own may underflow.
_LARGEST_FACTOR = 1e24
# Up to here it is below 2e-6 about the origin, and the points need not be moved.
_ORIGIN_REACH = 24.0


@dataclass(frozen=True)
class ScaledPoints:
    """Queries x and components c minus a common centre, whose squared distances are scores.

    The points are in units of the bandwidth. Where all dimensions share one, on a CPU, they stay in their own
    units, and `factor` is s²: −factor·‖x_i − c_j‖² = factor·(2 x_i·c_j − ‖x_i‖² − ‖c_j‖²).

    Args:
        x, c: of shape `(n, d)` and `(m, d)`.
        scale: s = 1/σ, of shape `(1, d)` or `(1, 1)`.
        x_squares, c_squares: ‖x_i‖² and ‖c_j‖².
        factor: s², None of points in units of the bandwidth.
    """

    x: Float[Tensor, "n d"]
    c: Float[Tensor, "m d"]
    scale: Float[Tensor, "1 s"]
    x_squares: Float[Tensor, " n"]
    c_squares: Float[Tensor, " m"]
    factor: float | None = field(default=None, kw_only=True)

    @classmethod
    def of(cls, query: Tensor, components: Tensor, scale: Tensor, dtype: torch.dtype) -> ScaledPoints:
        """In `dtype`; on a CPU in float64 where float32 products would lose too many digits."""
        if dtype == torch.float32 and query.device.type == "cpu":
            near = cls.near(query, components, scale)
            if near is not None:
                return near
            dtype = torch.float64
        return cls.about(robust_centre(components), query, components, scale, dtype)

    @classmethod
    def near(cls, query: Tensor, components: Tensor, scale: Tensor) -> ScaledPoints | None:
        """In float32, None where its products would lose too many digits."""
        points, limit = cls.about(None, query, components, scale, torch.float32), _FLOAT32_REACH
        if points.reach <= min(limit, _ORIGIN_REACH):
            return points
        centre = components.mean(0, dtype=torch.float32)
        points = cls.about(centre, query, components, scale, torch.float32)
        return points if points.reach <= limit else None

    @classmethod
    def about(
        cls, centre: Tensor | None, query: Tensor, components: Tensor, scale: Tensor, dtype: torch.dtype
    ) -> ScaledPoints:
        """In `dtype`, about a centre; None is the origin."""
        x, c, factor = query.to(dtype), components.to(dtype), None
        if centre is not None:
            centre = centre.to(dtype)
            x, c = x - centre, c - centre
        if scale.numel() == 1 and scale.device.type == "cpu":
            factor = scale.item() ** 2
        if factor is None or not 1 / _LARGEST_FACTOR < factor < _LARGEST_FACTOR:
            factor, scale = None, scale.to(dtype)
            x, c = x * scale, c * scale
        return cls(x, c, scale, torch.linalg.vecdot(x, x), torch.linalg.vecdot(c, c), factor=factor)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.x, self.c, self.scale, self.x_squares, self.c_squares

    @property
    def units(self) -> float:
        """The factor of squared distances."""
        return 1.0 if self.factor is None else self.factor

    @property
    def reach(self) -> float:
        """The largest (‖x‖ + ‖c‖)² in units of the bandwidth; NaN if a coordinate is NaN."""
        if not len(self.x_squares):
            return 0.0
        x, c = self.x_squares.amax().item(), self.c_squares.amax().item()
        return self.units * (math.sqrt(x) + math.sqrt(c)) ** 2

    @property
    def largest_product(self) -> float:
        """An upper bound of 2·x·c in units of the bandwidth; NaN if a coordinate is NaN."""
        if not len(self.x_squares):
            return 0.0
        x, c = self.x_squares.amax().item(), self.c_squares.amax().item()
        return 2 * self.units * math.sqrt(x) * math.sqrt(c)

    def block(self, rows: slice, columns: slice) -> ScaledPoints:
        """The points of some queries and some components."""
        of_x, of_c = (self.x[rows], self.x_squares[rows]), (self.c[columns], self.c_squares[columns])
        return ScaledPoints(of_x[0], of_c[0], self.scale, of_x[1], of_c[1], factor=self.factor)

    def row(self) -> Float[Tensor, " n"]:
        """−‖x_i‖² in units of the bandwidth: what `scores` leaves out."""
        return self.x_squares * -self.units

    def column(self, bias: Float[Tensor, "*n m"]) -> Float[Tensor, "*n m"]:
        """bias_j − ‖c_j‖² in units of the bandwidth."""
        return torch.sub(bias.to(self.x.dtype), self.c_squares, alpha=self.units)

    def scores(self, bias: Float[Tensor, "*n m"]) -> Float[Tensor, "n m"]:
        """2 x_i·c_j − ‖c_j‖² + bias_j (or bias_ij): the scores without the constants `row`."""
        twice = 2 * self.units
        if bias.ndim == 1:
            return torch.addmm(self.column(bias), self.x, self.c.mT, alpha=twice)
        product = torch.addmm(self.c_squares, self.x, self.c.mT, beta=-self.units, alpha=twice)
        fits = torch.promote_types(product.dtype, bias.dtype) == product.dtype
        return product.add_(bias) if fits else product + bias

    def gradients(
        self,
        slopes: Float[Tensor, "n m"],
        needs: Sequence[bool],
        by_column: Float[Tensor, " m"] | None = None,
        *,
        rows_cancel: bool = False,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Gradients by queries, components and scale, from those by the scores (`slopes`).

        Args:
            by_column: the sums of the slopes of every component, where they are known.
            rows_cancel: whether the slopes of every query add up to 0.
        """
        need_x, need_c, need_scale = needs
        if not any(needs):
            return None, None, None
        slopes = slopes.to(self.x.dtype)
        twice = 2 * self.scale if self.factor is None else 2 * self.factor
        by_row = slopes.sum(-1) if (need_x or need_scale) and not rows_cancel else None
        grad_x = None
        if need_x:
            grad_x = narrow_product(slopes, self.c)
            if by_row is not None:
                grad_x.addcmul_(by_row.unsqueeze(-1), self.x, value=-1)
            grad_x.mul_(twice)
        if not (need_c or need_scale):
            return grad_x, None, None
        by_column = slopes.sum(0) if by_column is None else by_column
        pulled = narrow_product_transposed(slopes, self.x)
        pulled.addcmul_(by_column.unsqueeze(-1), self.c, value=-1)
        grad_scale = None
        if need_scale:
            moments = self._moments(by_row, by_column, pulled)
            grad_scale = (moments.mul_(-2 * self.units) / self.scale).sum_to_size(self.scale.shape)
        return grad_x, pulled.mul_(twice) if need_c else None, grad_scale

    def _moments(
        self, by_row: Float[Tensor, " n"] | None, by_column: Float[Tensor, " m"], pulled: Float[Tensor, "m d"]
    ) -> Float[Tensor, "*d"]:
        """Σ_ij slopes_ij (x_i − c_j)² of every dimension, or of all together where they share one scale.

        With p_j = Σ_i slopes_ij (x_i − c_j), which is `pulled`, it is
        Σ_i by_row_i x_i² − Σ_j by_column_j c_j² − 2 Σ_j p_j c_j. All sums have the same rounded slopes.
        """
        if self.scale.numel() == 1:
            of_c = torch.linalg.vecdot(pulled, self.c).addcmul_(by_column, self.c_squares, value=0.5)
        else:
            of_c = torch.addcmul(pulled, by_column.unsqueeze(-1), self.c, value=0.5).mul_(self.c)
        moments = of_c.sum(0, dtype=torch.float64).mul_(-2)
        if by_row is None:
            return moments
        one = self.scale.numel() == 1
        of_x = by_row * self.x_squares if one else by_row.unsqueeze(-1) * self.x.square()
        return moments.add_(of_x.sum(0, dtype=torch.float64))


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
