"""Sums of overlaps over pairs that are near each other, for narrow kernels on a CPU.

Consecutive components form blocks with bounding boxes. A block is compared with the queries near its box.
Distances are expanded about the centre of the box, so that little cancels in ‖x‖² − 2 x·c + ‖c‖². Any order
of components gives the same sums; in the order of `block_order` boxes are small and most pairs are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kdmkit._core.logspace import LOG2_E
from kdmkit.ops.blocks import Block, slices
from kdmkit.ops.scaled_points import product_into
from kdmkit.ops.terms import SquaredDistance

#: Components per block, a multiple of `_GROUP`.
BLOCK = 512
# The number of components whose largest scores torch finds fastest.
_GROUP = 32
#: The largest (‖s x‖ + ‖s c‖)² for which float32 products give averages that are exact to 1e-5.
FLOAT32_REACH = 512.0
# The rounding of a float32 score relative to that.
_ROUNDING = 1e-6
# Up to this share of a block's pairs, single pairs by differences are faster than a float64 product.
_FEW = 0.03
# If more than this share of groups have such a pair, pairs are not counted.
_FEW_GROUPS = 0.5
# Single pairs at a time.
_PAIRS = 8192
# Smaller powers of two count as 0.
_LEAST_POWER = -100.0
# All components together, each with a score this far below the background, change averages by less than 1e-9.
_NEGLIGIBLE = 1e-9

#: Numbers of queries, and sums over some components for them.
_Part = tuple[Int[Tensor, " k"], Float[Tensor, "v k"]]


def sums_of_near_pairs(
    term: SquaredDistance, log_weights: Float[Tensor, " m"], kept: Float[Tensor, "v m"], block: Block
) -> Float[Tensor, "v n"]:
    """Σ_j kept_j·e^{s_ij} with s_ij = log_weights_j + score_ij, in float64.

    Pairs that contribute less than 1e-9 all together are left out if a block's box shows it. Sums of queries
    with a coordinate that is not finite are NaN.

    Args:
        block: queries and components per block; the components are a multiple of 32.
    """
    query, components, scale = (tensor.to(kept.dtype) for tensor in term.tensors)
    blocks = _BoxedBlocks.of(components, scale, log_weights.to(kept.dtype), kept, block[1])
    least = math.log(_NEGLIGIBLE / len(components))
    sums = torch.zeros(len(kept), len(query), dtype=torch.float64)
    for some in slices(len(query), block[0]):
        _add(sums[:, some], blocks, query[some], least)
    return sums


def _add(sums: Float[Tensor, "v n"], blocks: _BoxedBlocks, x: Float[Tensor, "n d"], least: float) -> None:
    """Adds the sums of some queries."""
    finite = x.isfinite().all(1)
    # Not ≥, which is false for NaN.
    near = (blocks.bounds(x) < least).logical_not_().logical_and_(finite)
    for queries, partial_sums in _NearPairs(blocks, x, near, least).parts():
        # Row by row: `index_add_` of a matrix is many times slower.
        for row, of_row in zip(sums, partial_sums.double(), strict=True):
            row.index_add_(0, queries, of_row)
    sums.masked_fill_(~finite, math.nan)


@dataclass(frozen=True)
class _BoxedBlocks:
    """Blocks of consecutive components. The last one is filled up with components of weight 0.

    Args:
        components: c.
        log_weights, kept: of the components, and of those that fill up the last block.
        scale: of shape `(1, d)` or `(1, 1)`.
        low, high, centre: opposite corners of the boxes, and their middles.
        right: the components' side of the products that give scores.
        radii: the largest ‖s c‖ about the centre.
    """

    components: Float[Tensor, "m d"]
    log_weights: Float[Tensor, " filled"]
    kept: Float[Tensor, "v filled"]
    scale: Float[Tensor, "1 s"]
    low: Float[Tensor, "b d 1"]
    high: Float[Tensor, "b d 1"]
    centre: Float[Tensor, "b d 1"]
    right: Float[Tensor, "b p size"]
    radii: Float[Tensor, " b"]

    @classmethod
    def of(
        cls, components: Tensor, scale: Tensor, log_weights: Tensor, kept: Tensor, size: int
    ) -> _BoxedBlocks:
        m, d = components.shape
        size = min(size, m + -m % _GROUP)
        if missing := -m % size:
            log_weights = torch.cat([log_weights, log_weights.new_full((missing,), -math.inf)])
            kept = torch.cat([kept, kept.new_zeros(len(kept), missing)], 1)
        right = _columns(components, size)
        low, high = right[:, :d].amin(2, keepdim=True), right[:, :d].amax(2, keepdim=True)
        centre = low.lerp(high, 0.5)
        radii = _scale_columns(right, centre, scale, log_weights.view(-1, size)).amax(1).sqrt_().double()
        return cls(components, log_weights, kept, scale, low, high, centre, right, radii)

    @property
    def size(self) -> int:
        return self.right.shape[2]

    def bounds(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "b n"]:
        """The largest score that a query may have with a component of a block.

        Corners of boxes are coordinates of components: rounding errors of gaps are relative to the gaps.
        """
        bounds = self.log_weights.view(-1, self.size).amax(1, keepdim=True).repeat(1, len(x))
        gap, above = torch.empty_like(bounds), torch.empty_like(bounds)
        scales = self.scale.expand(1, x.shape[1]).squeeze(0).tolist()
        boxes = zip(x.mT.contiguous(), self.low.unbind(1), self.high.unbind(1), scales, strict=True)
        for of_x, low, high, scale in boxes:
            torch.sub(low, of_x, out=gap)
            torch.maximum(gap, torch.sub(of_x, high, out=above), out=gap).clamp_min_(0)
            gap.mul_(scale)
            bounds.addcmul_(gap, gap, value=-1)
        return bounds


class _NearPairs:
    """Sums of one block at a time, for the queries that are near it.

    Args:
        blocks: of components.
        x: queries.
        near: the queries that are near a block.
        least: pairs with smaller scores do not count.
    """

    def __init__(
        self, blocks: _BoxedBlocks, x: Float[Tensor, "n d"], near: Bool[Tensor, "b n"], least: float
    ) -> None:
        self._blocks, self._x, self._least = blocks, x, least
        numbers, queries = near.nonzero().unbind(1)
        counts = near.sum(1).tolist()
        centres = blocks.centre.squeeze(2).index_select(0, numbers)
        left, squares = _left(x.index_select(0, queries), centres, blocks.scale)
        self._queries, self._left = queries.split(counts), left.split(counts)
        farthest = squares.new_zeros(len(near)).scatter_reduce_(0, numbers, squares, "amax")
        # (‖s x‖ + ‖s c‖)² about the centres.
        self._reaches = farthest.sqrt_().double().add_(blocks.radii).square_().tolist()
        # Written over by every block. Memory that is not written costs nothing.
        self._scores = x.new_empty(max(counts) * blocks.size)
        self._exact = x.new_empty(max(counts) * blocks.size, dtype=torch.float64)

    def parts(self) -> Iterator[_Part]:
        """The sums of all blocks, in several parts."""
        whole, single = [], []
        for block, queries in enumerate(self._queries):
            if not len(queries):
                continue
            scores = product_into(self._scores, self._left[block], self._blocks.right[block])
            if not self._is_precise(block):
                pairs = _few(scores, LOG2_E * (self._least - _ROUNDING * self._reaches[block]))
                if pairs is not None:
                    single.append((queries[pairs[0]], pairs[1] + block * self._blocks.size))
                    continue
                scores.copy_(self._exact_scores(block))
            whole.append((queries, self._weighted(block, scores)))
        if whole:
            yield torch.cat([queries for queries, _ in whole]), torch.cat([part for _, part in whole], 1)
        if single:
            yield from self._of_pairs(*(torch.cat(numbers) for numbers in zip(*single, strict=True)))

    def _is_precise(self, block: int) -> bool:
        """Whether products give scores with enough digits."""
        return self._scores.dtype == torch.float64 or self._reaches[block] <= FLOAT32_REACH

    def _weighted(self, block: int, scores: Float[Tensor, "k size"]) -> Float[Tensor, "v k"]:
        size = self._blocks.size
        # Exponentials that underflow, and products with them, are many times slower.
        overlaps = scores.clamp_min_(_LEAST_POWER).exp2_()
        return self._blocks.kept[:, block * size : (block + 1) * size] @ overlaps.mT

    def _of_pairs(self, queries: Int[Tensor, " k"], components: Int[Tensor, " k"]) -> Iterator[_Part]:
        """Single pairs, by the differences of their points."""
        blocks = self._blocks
        for rows, columns in zip(queries.split(_PAIRS), components.split(_PAIRS), strict=True):
            gap = self._x.index_select(0, rows).sub_(blocks.components.index_select(0, columns))
            squares = gap.mul_(blocks.scale).square_().sum(1)
            overlaps = (blocks.log_weights.index_select(0, columns) - squares).exp_()
            yield rows, blocks.kept.index_select(1, columns).mul_(overlaps)

    def _exact_scores(self, block: int) -> Float[Tensor, "k size"]:
        """The scores of one block, in float64."""
        blocks, some = self._blocks, slice(block, block + 1)
        centre, scale = blocks.centre[some].double(), blocks.scale.double()
        log_weights = blocks.log_weights.view(-1, blocks.size)[some].double()
        components = blocks.components[block * blocks.size : (block + 1) * blocks.size]
        right = _columns(components.double(), blocks.size)
        _scale_columns(right, centre, scale, log_weights)
        left, _ = _left(self._x.index_select(0, self._queries[block]).double(), centre.squeeze(2), scale)
        return product_into(self._exact, left, right[0])


def _left(
    x: Float[Tensor, "k d"], centre: Float[Tensor, "#k d"], scale: Float[Tensor, "1 s"]
) -> tuple[Float[Tensor, "k p"], Float[Tensor, " k"]]:
    """The queries' side of products that give scores, and ‖s x‖² about the centre. Writes over `x`."""
    x = x.sub_(centre).mul_(scale)
    squares = torch.linalg.vecdot(x, x)
    return torch.cat([x, squares.unsqueeze(1), x.new_ones(len(x), 1)], 1), squares


def _columns(components: Float[Tensor, "m d"], size: int) -> Float[Tensor, "b p size"]:
    """Blocks with a column per component and two more rows; the last component fills up the last block.

    Minima and sums along rows are many times faster than those along columns.
    """
    m, d = components.shape
    whole = m // size
    columns = components.new_empty(math.ceil(m / size), d + 2, size)
    columns[:whole, :d] = components[: whole * size].reshape(whole, size, d).mT
    if rest := m % size:
        columns[whole, :d, :rest] = components[-rest:].mT
        columns[whole, :d, rest:] = components[-1:].mT
    return columns


def _scale_columns(
    columns: Float[Tensor, "b p size"],
    centre: Float[Tensor, "b d 1"],
    scale: Float[Tensor, "1 s"],
    log_weights: Float[Tensor, "b size"],
) -> Float[Tensor, "b size"]:
    """Turns `_columns` into the components' side of products that give scores, in units of log 2.

    Products with the rows of `_left` are 2 x·c − ‖x‖² + (log-weight − ‖c‖²).

    Returns:
        ‖s c‖² about the centre.
    """
    d = centre.shape[1]
    c = columns[:, :d].sub_(centre).mul_(scale.mT)
    squares = torch.zeros_like(log_weights)
    # Without a tensor of all squares: new memory takes longer than the sums.
    for row in c.unbind(1):
        squares.addcmul_(row, row)
    c.mul_(2 * LOG2_E)
    columns[:, d] = -LOG2_E
    torch.sub(log_weights, squares, out=columns[:, d + 1]).mul_(LOG2_E)
    return squares


def _few(scores: Float[Tensor, "k size"], least: float) -> tuple[Tensor, Tensor] | None:
    """Rows and columns of the scores that are not below `least`, None if they are many.

    Comparing all of them is slow: groups first. Not ≥, which is false for NaN.
    """
    groups = scores.view(-1, _GROUP)
    some = (groups.amax(1) < least).logical_not_().nonzero().squeeze(1)
    if len(some) > _FEW_GROUPS * len(groups):
        return None
    of_some, places = (groups.index_select(0, some) < least).logical_not_().nonzero().unbind(1)
    if len(places) > _FEW * scores.numel():
        return None
    numbers = some[of_some].mul_(_GROUP).add_(places)
    rows = numbers.div(scores.shape[1], rounding_mode="floor")
    return rows, numbers.sub_(rows, alpha=scores.shape[1])
