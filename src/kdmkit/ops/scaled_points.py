"""Squared distances by matrix products: scores, whole or in blocks, exponentials and explicit gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.logspace import exp_
from kdmkit.ops.blocks import Block, slices
from kdmkit.ops.terms import robust_centre

# (‖s x‖ + ‖s c‖)² times the rounding of float32 bounds the error of a score: up to here it is below 2e-5.
_FLOAT32_REACH = 256.0
# Beyond it, squares of points that are not scaled may underflow.
_LARGEST_FACTOR = 1e24
# Up to here it is below 2e-6 about the origin, and the points need not be moved.
_ORIGIN_REACH = 24.0
# With at least this many columns, a product with a narrow matrix is as fast as the transposed one.
_FEW, _FEW_TRANSPOSED = 16, 128


@dataclass(frozen=True)
class ScaledPoints:
    """Queries x and components c minus a common centre, whose squared distances are scores.

    Points are in units of the bandwidth. If all dimensions share one, on a CPU, points keep their units, and
    `factor` is s²: −factor·‖x_i − c_j‖² = factor·(2 x_i·c_j − ‖x_i‖² − ‖c_j‖²).

    Args:
        x, c: of shape `(n, d)` and `(m, d)`.
        scale: s = 1/σ, of shape `(1, d)` or `(1, 1)`.
        x_squares, c_squares: ‖x_i‖² and ‖c_j‖².
        factor: s², or 1 for points in units of the bandwidth.
        is_scaled: whether the points are in units of the bandwidth.
    """

    x: Float[Tensor, "n d"]
    c: Float[Tensor, "m d"]
    scale: Float[Tensor, "1 s"]
    x_squares: Float[Tensor, " n"]
    c_squares: Float[Tensor, " m"]
    factor: float = field(kw_only=True)
    is_scaled: bool = field(kw_only=True)

    @classmethod
    def of(cls, query: Tensor, components: Tensor, scale: Tensor, dtype: torch.dtype) -> ScaledPoints:
        """Points in `dtype`; on a CPU in float64 if float32 products would lose too many digits."""
        if dtype == torch.float32 and query.device.type == "cpu":
            near = cls.near(query, components, scale)
            if near is not None:
                return near
            dtype = torch.float64
        return cls.about(robust_centre(components), query, components, scale, dtype)

    @classmethod
    def near(cls, query: Tensor, components: Tensor, scale: Tensor) -> ScaledPoints | None:
        """Points in float32; None if its products would lose too many digits."""
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
        """Points in `dtype`, about a centre; None is the origin."""
        x, c, factor = query.to(dtype), components.to(dtype), 0.0
        if centre is not None:
            centre = centre.to(dtype)
            x, c = x - centre, c - centre
        if scale.numel() == 1 and scale.device.type == "cpu":
            factor = scale.item() ** 2
        is_scaled = not 1 / _LARGEST_FACTOR < factor < _LARGEST_FACTOR
        if is_scaled:
            factor, scale = 1.0, scale.to(dtype)
            x, c = x * scale, c * scale
        squares = torch.linalg.vecdot(x, x), torch.linalg.vecdot(c, c)
        return cls(x, c, scale, *squares, factor=factor, is_scaled=is_scaled)

    def save(self, ctx: Any, *others: Any) -> None:
        """Keeps the points and other tensors for the backward pass of a `torch.autograd.Function`."""
        ctx.points = {"factor": self.factor, "is_scaled": self.is_scaled}
        ctx.save_for_backward(self.x, self.c, self.scale, self.x_squares, self.c_squares, *others)

    @classmethod
    def saved(cls, ctx: Any) -> tuple[ScaledPoints, tuple[Any, ...]]:
        """The points and the other tensors of `save`."""
        tensors = ctx.saved_tensors
        return cls(*tensors[:5], **ctx.points), tensors[5:]

    @property
    def lengths(self) -> tuple[float, float]:
        """The largest ‖x‖ and ‖c‖, NaN if a coordinate is NaN; 0 without queries."""
        if not len(self.x_squares):
            return 0.0, 0.0
        return math.sqrt(self.x_squares.amax().item()), math.sqrt(self.c_squares.amax().item())

    @property
    def reach(self) -> float:
        """The largest (‖x‖ + ‖c‖)² in units of the bandwidth; NaN if a coordinate is NaN."""
        x, c = self.lengths
        return self.factor * (x + c) ** 2

    def block(self, rows: slice, columns: slice) -> ScaledPoints:
        """The points of some queries and some components."""
        of_x, of_c = (self.x[rows], self.x_squares[rows]), (self.c[columns], self.c_squares[columns])
        tensors = of_x[0], of_c[0], self.scale, of_x[1], of_c[1]
        return ScaledPoints(*tensors, factor=self.factor, is_scaled=self.is_scaled)

    def row(self) -> Float[Tensor, " n"]:
        """−‖x_i‖² in units of the bandwidth: what `scores` leaves out."""
        return self.x_squares * -self.factor

    def column(self, bias: Float[Tensor, "*n m"]) -> Float[Tensor, "*n m"]:
        """bias_j − ‖c_j‖² in units of the bandwidth."""
        return torch.sub(bias.to(self.x.dtype), self.c_squares, alpha=self.factor)

    def scores(self, bias: Float[Tensor, "*n m"]) -> Float[Tensor, "n m"]:
        """2 x_i·c_j − ‖c_j‖² + bias_j (or bias_ij): the scores without the constants `row`."""
        twice = 2 * self.factor
        if bias.ndim == 1:
            return torch.addmm(self.column(bias), self.x, self.c.mT, alpha=twice)
        product = torch.addmm(self.c_squares, self.x, self.c.mT, beta=-self.factor, alpha=twice)
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
            by_column: the sums of the slopes of every component, if the caller has them.
            rows_cancel: whether the slopes of every query add up to 0.
        """
        need_x, need_c, need_scale = needs
        if not any(needs):
            return None, None, None
        slopes = slopes.to(self.x.dtype)
        twice = 2 * self.scale if self.is_scaled else 2 * self.factor
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
            grad_scale = (moments.mul_(-2 * self.factor) / self.scale).sum_to_size(self.scale.shape)
        return grad_x, pulled.mul_(twice) if need_c else None, grad_scale

    def _moments(
        self, by_row: Float[Tensor, " n"] | None, by_column: Float[Tensor, " m"], pulled: Float[Tensor, "m d"]
    ) -> Float[Tensor, "*d"]:
        """Σ_ij slopes_ij (x_i − c_j)² of every dimension, or of all together if they share one scale.

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


class ScoreBlocks:
    """Blocks of left·rightᵀ·factor + column, each written over the last: they stay in the caches of a CPU.

    Scores are in units of log 2: their exponentials are powers of two, which a CPU computes faster.

    Args:
        left, right: of shape `(n, p)` and `(m, p)`; their products, times `factor`, are scores.
        column: numbers to add to the scores of every column, `(m,)`.
        block: rows and columns per block.
        dtype: of the exponentials.
    """

    def __init__(
        self,
        left: Float[Tensor, "n p"],
        right: Float[Tensor, "m p"],
        block: Block,
        *,
        column: Float[Tensor, " m"] | None = None,
        factor: float = 1.0,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.left, self.right, self.block = left, right, block
        self.column, self.factor = column, factor
        size = min(block[0], len(left)) * min(block[1], len(right))
        self._scores = left.new_empty(size)
        self._weights = self._scores if dtype in (None, left.dtype) else left.new_empty(size, dtype=dtype)

    def rows(self) -> Iterator[slice]:
        return slices(len(self.left), self.block[0])

    def columns(self) -> Iterator[slice]:
        return slices(len(self.right), self.block[1])

    def scores(self, rows: slice, columns: slice) -> Float[Tensor, "n m"]:
        column = None if self.column is None else self.column[columns]
        left, right = self.left[rows], self.right[columns].mT
        return product_into(self._scores, left, right, column, self.factor)

    def exponentials(self, scores: Float[Tensor, "n m"], offset: Float[Tensor, "n 1"]) -> Tensor:
        """2^(scores − offset), written over the scores if the dtype allows."""
        scores = scores.sub_(offset)
        if self._weights is not self._scores:
            # Two passes: subtracting and rounding at once is slower.
            scores = self._weights[: scores.numel()].view(scores.shape).copy_(scores)
        return scores.exp2_()


def product_into(
    buffer: Float[Tensor, " most"],
    left: Float[Tensor, "n p"],
    right: Float[Tensor, "p m"],
    column: Float[Tensor, " m"] | None = None,
    factor: float = 1.0,
) -> Float[Tensor, "n m"]:
    """left·right·factor + column, written into a buffer."""
    shape = len(left), right.shape[1]
    out = buffer[: shape[0] * shape[1]].view(shape)
    if column is None:
        return torch.mm(left, right, out=out)
    return torch.addmm(column, left, right, alpha=factor, out=out)


def finite_top(scores: Float[Tensor, "*lead n m"]) -> Float[Tensor, "*lead n 1"]:
    """The largest score of each query; the smallest finite number where all are −∞."""
    return scores.amax(-1, keepdim=True).clamp_min_(torch.finfo(scores.dtype).min)


def exponentials(
    scores: Float[Tensor, "*lead n m"], dtype: torch.dtype
) -> tuple[Float[Tensor, "*lead n m"], Float[Tensor, "*lead n"], Float[Tensor, "*lead n"]]:
    """exp(scores − top), their sums, and top. Writes over the scores if the dtype allows."""
    top = finite_top(scores)
    weights = exp_(scores.sub_(top).to(dtype))
    return weights, weights.sum(-1), top.squeeze(-1)


def divide_by_total(gradient: Tensor | float, total: Tensor) -> Float[Tensor, "n 1"]:
    """gradient / total; finite if a total is 0, since the weights that it multiplies are 0."""
    return (gradient / total.clamp_min(torch.finfo(total.dtype).tiny)).unsqueeze(-1)


def narrow_product(a: Float[Tensor, "n m"], b: Float[Tensor, "m v"]) -> Float[Tensor, "n v"]:
    """a·b; on a CPU, if b has few columns, by the product of the transposes: in a third of the time.

    >>> import torch
    >>> narrow_product(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [5.0, 6.0]]))
    tensor([[13., 16.]])
    """
    return (b.mT @ a.mT).mT.contiguous() if _is_faster(b, _FEW) else a @ b


def narrow_product_transposed(a: Float[Tensor, "n m"], b: Float[Tensor, "n v"]) -> Float[Tensor, "m v"]:
    """aᵀ·b, as `narrow_product`: in a tenth of the time.

    >>> import torch
    >>> narrow_product_transposed(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]))
    tensor([[3., 4.],
            [6., 8.]])
    """
    return (b.mT @ a).mT.contiguous() if _is_faster(b, _FEW_TRANSPOSED) else a.mT @ b


def _is_faster(b: Tensor, few: int) -> bool:
    return b.device.type == "cpu" and 1 < b.shape[1] < few
