"""The rows of a model that learns from chunks: all of them, or some that stand for the others."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kdmkit._core.checks import check_count
from kdmkit.estimators.common.arrays import Array, checked_weights
from kdmkit.nn import Scaler
from kdmkit.nn.scaler import LARGEST_INPUT
from kdmkit.ops.blocks import block_order

# Added to seeds: a user may have made the rows with the same seed.
_STREAM = 0x6B646D
# Added to the uncertainty of labels, so that distances count among rows of certain labels.
_LEAST_UNCERTAINTY = 0.02
# Points per block in which partners are searched for, and blocks that are searched at once.
BLOCK_SIZE, _BLOCKS = 128, 256
# The range of costs: every pair has a finite positive one. Ties are broken by a relative amount.
_COSTS, _TIE = (1e-300, 1e300), 1e-12


@dataclass(frozen=True)
class KeptRows:
    """Rows of all chunks so far, in their order: a uniform sample unless a caller takes others.

    Attributes:
        X, weights: rows and their sample weights.
        y: labels; None for a density.
        keys: independent random numbers; the rows with the smallest ones stay in the sample.
        factors: multiply the weights, so that rows stand for those that were dropped.
        n_seen: the number of rows of all chunks; rows of weight 0 do not count.
    """

    X: Array
    y: Array | None
    weights: Array
    keys: Array
    factors: Array
    n_seen: int

    @classmethod
    def of(cls, X: Array, y: Array | None, sample_weight: Any, rng: np.random.Generator) -> KeptRows:
        """The rows of a chunk."""
        weights = checked_weights(sample_weight, X)
        present = weights > 0
        X, y, weights = X[present], None if y is None else y[present], weights[present]
        n = len(X)
        return cls(X, y, weights, rng.random(n), np.ones(n), n)

    def __len__(self) -> int:
        return len(self.X)

    @property
    def sample_weight(self) -> Array | None:
        """The weights as `fit` takes them: None if they are all 1, as they are unless given."""
        weights = self.weights * self.factors
        return None if (weights == 1).all() else weights

    def join(self, other: KeptRows) -> KeptRows:
        """The rows of both."""
        names = ("X", "weights", "keys", "factors")
        joined = {name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in names}
        y = None if self.y is None or other.y is None else np.concatenate([self.y, other.y])
        return replace(self, **joined, y=y, n_seen=self.n_seen + other.n_seen)

    def at_most(self, most: int | None) -> KeptRows:
        """The rows with the smallest keys, `most` of them; they stand for all."""
        if most is None or len(self) <= most:
            return self
        return self.take(smallest(self.keys, most), np.full(most, self.n_seen / most))

    def take(self, index: Array, factors: Array) -> KeptRows:
        """Some of the rows, with factors of their weights."""
        names = ("X", "weights", "keys")
        y = None if self.y is None else self.y[index]
        return replace(self, **{name: getattr(self, name)[index] for name in names}, y=y, factors=factors)


def smallest(keys: Array, most: int) -> Array:
    """Numbers of the entries with the smallest keys, in ascending order: a uniform sample of the entries."""
    return np.arange(len(keys)) if len(keys) <= most else np.sort(np.argpartition(keys, most)[:most])


def add_chunk(estimator: Any, X: Array, y: Array | None, sample_weight: Any, *, kept: Any, most: Any) -> Any:
    """The rows at hand with one more chunk: `KeptRows`, or the class of `kept`.

    Args:
        estimator: its `random_state` seeds all draws.
        kept: the rows of earlier chunks; None if there were none, or if they were not kept.
        most: the number of rows to keep; None keeps all.
    """
    if most is not None:
        check_count("max_rows", most, "a whole number ≥ 1 or None")
    earlier = _stand_ins(estimator, most) if kept is None and hasattr(estimator, "module_") else kept
    rng = chunk_generator(estimator, 0 if earlier is None else earlier.n_seen)
    new = KeptRows.of(X, y, sample_weight, rng)
    return new if earlier is None else earlier.join(new)


def chunk_generator(estimator: Any, *numbers: int) -> np.random.Generator:
    """Random numbers of one step; they repeat if the estimator's `random_state` is a number."""
    state = estimator.random_state
    is_seed = isinstance(state, int | np.integer)
    return np.random.default_rng([int(state), *numbers, _STREAM] if is_seed else None)


def _stand_ins(estimator: Any, most: int | None) -> KeptRows:
    """Draws from a fitted model in place of the rows of its fit, which were not kept."""
    n_seen: int = estimator.n_samples_seen_
    n = n_seen if most is None else min(n_seen, most)
    rng = np.random.default_rng(estimator._seed)
    X, y = estimator._draw_rows(n)
    drawn = KeptRows.of(X, y, None, rng)
    # If fewer are kept than there were, their keys are the smallest of as many.
    keys = np.sort(rng.random(n_seen))[:n]
    return replace(drawn, keys=keys, factors=np.full(n, n_seen / n), n_seen=n_seen)


# ---- pairs of near points, which become one


@dataclass(frozen=True)
class Pairs:
    """Numbers of two points each, and the cost of a merger; the cheapest pair comes first."""

    first: Int[Tensor, " p"]
    second: Int[Tensor, " p"]
    cost: Float[Tensor, " p"]

    def cheapest(self, count: int) -> tuple[Int[Tensor, " k"], Int[Tensor, " k"]]:
        """The points of the cheapest pairs: `count` of them, but no more than half of all."""
        chosen = slice(min(count, math.ceil(len(self.cost) / 2)))
        return self.first[chosen], self.second[chosen]


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
    full = len(points) - len(points) % BLOCK_SIZE
    ends = [*range(0, full, BLOCK_SIZE * _BLOCKS), full, len(points)]
    costs, best = [], []
    for low, high in pairwise(sorted(set(ends))):
        size = min(BLOCK_SIZE, high - low)
        blocks = (x[low:high].unflatten(0, (-1, size)) for x in (points, weights, least))
        cost, partner = _best_partners(*blocks)
        costs.append(cost.flatten())
        best.append((partner + torch.arange(low, high, size).unsqueeze(1)).flatten())
    cost, partner = torch.cat(costs), torch.cat(best)
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
    nearest = cost.min(2)
    return nearest.values, nearest.indices


# ---- rows that stand for near rows of their class


def thinned(
    rows: KeptRows,
    most: int,
    points: Float[Tensor, "n d"],
    uncertainty: Float[Tensor, " n"],
    rng: np.random.Generator,
) -> KeptRows:
    """At most `most` of the rows, but one of every class at least.

    Near rows of a class form pairs. One row of a pair stays and takes the weight of both; chance decides
    which, in proportion to their weights. So every weighted sum over rows keeps its expected value. Pairs
    are taken in the order of their Ward distance times the uncertainty of the label there: rows are dropped
    first where they are close to others and all of one class.

    Args:
        rows: with labels.
        most: the number of rows.
        points: the position of each row.
        uncertainty: of its label, 0 … 1.
        rng: decides which row of a pair stays.
    """
    assert rows.y is not None
    classes, labels = np.unique(rows.y, return_inverse=True)
    most = max(most, len(classes))
    # Relative to the largest possible sum, which would overflow for weights near the largest number.
    unit = rows.weights.max() * rows.factors.max()
    weight = torch.from_numpy(rows.weights / unit * rows.factors)
    # Without a limit, all other rows would seem equal beside one that is very far away.
    points = Scaler.from_data(points, weight, LARGEST_INPUT)(points)
    label, stays = torch.from_numpy(labels), torch.ones(len(rows), dtype=torch.bool)
    alive = torch.arange(len(rows))
    while len(alive) > most:
        i, j = _pairs_of_classes(alive, points, label, weight, uncertainty).cheapest(len(alive) - most)
        total = weight[i] + weight[j]
        second_stays = torch.from_numpy(rng.random(len(i))) * total < weight[j]
        weight[torch.where(second_stays, j, i)] = total
        stays[torch.where(second_stays, i, j)] = False
        alive = alive[stays[alive]]
    index = alive.numpy()
    return rows.take(index, weight[alive].numpy() * (unit / rows.weights[index]))


def _pairs_of_classes(
    alive: Int[Tensor, " k"],
    points: Float[Tensor, "n d"],
    label: Int[Tensor, " n"],
    weight: Float[Tensor, " n"],
    uncertainty: Float[Tensor, " n"],
) -> Pairs:
    """Pairs of rows of one class; the pair whose merger costs least comes first."""
    labels, order = label[alive].sort(stable=True)
    parts = []
    for members in alive[order].split(labels.unique_consecutive(return_counts=True)[1].tolist()):
        ordered = members[block_order(points[members], BLOCK_SIZE)]
        pairs = partners(points[ordered], weight[ordered], torch.zeros(len(members), dtype=torch.bool))
        # Costs are relative to the largest weight of the class.
        parts.append((ordered[pairs.first], ordered[pairs.second], pairs.cost * weight[members].max()))
    first, second, cost = (torch.cat(part) for part in zip(*parts, strict=True))
    cost = cost * (_LEAST_UNCERTAINTY + (uncertainty[first] + uncertainty[second]) / 2)
    order = cost.argsort(stable=True)
    return Pairs(first[order], second[order], cost[order])
