"""Pairs of near points, to be replaced by one point each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

#: Partners are looked for in blocks of so many points.
SIZE = 128
# So many blocks at once.
_BLOCKS = 256
# The range of costs: every pair has a finite positive one. Ties are broken by a relative amount.
_COSTS, _TIE = (1e-300, 1e300), 1e-12


@dataclass(frozen=True)
class Pairs:
    """Numbers of two points each, and the cost of a merger; the cheapest pair comes first."""

    first: Int[Tensor, " p"]
    second: Int[Tensor, " p"]
    cost: Float[Tensor, " p"]

    def cheapest(self, count: int) -> Pairs:
        """The better half of the pairs, or so many of them if those are fewer."""
        chosen = slice(min(count, math.ceil(len(self.cost) / 2)))
        return Pairs(self.first[chosen], self.second[chosen], self.cost[chosen])


def partners(
    points: Float[Tensor, "n d"], weights: Float[Tensor, " n"], repeated: Bool[Tensor, " n"]
) -> Pairs:
    """Pairs of points that are each other's best partners among 128 points that lie together.

    The cost is what a merger adds to the variance inside of groups, w_i·w_j/(w_i + w_j)·‖c_i − c_j‖² (Ward),
    with w relative to the largest weight.

    Args:
        points: in block order.
        weights: of the points.
        repeated: points of weight w_i that count as w_i/2 at least in place of w_i·w_j/(w_i + w_j).
    """
    weights = weights / weights.max()
    least = torch.where(repeated, weights, torch.zeros_like(weights))
    full = len(points) - len(points) % SIZE
    ends = [*range(0, full, SIZE * _BLOCKS), full, len(points)]
    costs, found = [], []
    for low, high in pairwise(sorted(set(ends))):
        size = min(SIZE, high - low)
        blocks = (x[low:high].unflatten(0, (-1, size)) for x in (points, weights, least))
        cost, partner = _best_partners(*blocks)
        costs.append(cost.flatten())
        found.append((partner + torch.arange(low, high, size).unsqueeze(1)).flatten())
    cost, partner = torch.cat(costs), torch.cat(found)
    number = torch.arange(len(cost))
    first = number[(partner[partner] == number) & (number < partner)]
    first = first[cost[first].argsort()]
    return Pairs(first, partner[first], cost[first])


def _best_partners(
    mean: Float[Tensor, "b s d"], weight: Float[Tensor, "b s"], least: Float[Tensor, "b s"]
) -> tuple[Float[Tensor, "b s"], Int[Tensor, "b s"]]:
    """The least increase of the variance by a merger with another point of the block, and that point."""
    mean = mean - mean.mean(1, keepdim=True)
    wi, wj = weight.unsqueeze(2), weight.unsqueeze(1)
    cost = wi * wj / (wi + wj)
    cost.clamp_(min=least.unsqueeze(2) / 2).clamp_(min=least.unsqueeze(1) / 2)
    cost *= torch.cdist(mean, mean).square_()
    cost = ((cost + cost.mT) / 2).nan_to_num_(nan=math.inf, posinf=math.inf).clamp_(*_COSTS)
    # Equal points in pairs 0–1, 2–3, …: otherwise all of them would have the first one for a partner.
    number = torch.arange(mean.shape[1])
    cost *= 1 + _TIE * (number ^ number.unsqueeze(1)).double()
    cost.diagonal(dim1=1, dim2=2).fill_(math.inf)
    found = cost.min(2)
    return found.values, found.indices
