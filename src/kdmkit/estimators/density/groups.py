"""Groups of rows in place of rows: a budget for densities that learn from chunks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit.estimators.common.arrays import Array
from kdmkit.estimators.common.chunks import KeptRows, smallest
from kdmkit.estimators.common.partners import SIZE, partners
from kdmkit.nn import Scaler
from kdmkit.ops.blocks import block_order

#: Rows of which a uniform sample is kept beside the groups.
SAMPLE = 4096


@dataclass(frozen=True)
class Groups:
    """Groups of rows: their means, standard deviations by column, and weights."""

    mean: Float[Tensor, "m d"]
    std: Float[Tensor, "m d"]
    weight: Float[Tensor, " m"]

    @classmethod
    def of_rows(cls, X: Array, weights: Array) -> Groups:
        """Every row as a group of its own."""
        x = torch.from_numpy(X).double()
        return cls(x, torch.zeros_like(x), torch.from_numpy(weights))

    def __len__(self) -> int:
        return len(self.weight)

    def join(self, other: Groups) -> Groups:
        """The groups of both."""
        pairs = (self.mean, other.mean), (self.std, other.std), (self.weight, other.weight)
        return Groups(*map(torch.cat, pairs))

    def take(self, index: Tensor) -> Groups:
        """Some of the groups."""
        return Groups(self.mean[index], self.std[index], self.weight[index])

    def stds(self, width: Float[Tensor, "m d"]) -> Float[Tensor, "m d"]:
        """Standard deviations of the groups with a kernel of this standard deviation about every row."""
        return (width.square() + self.std.square()).sqrt()

    def merged(self, most: int, unit: Float[Tensor, " d"]) -> tuple[Groups, Int[Tensor, " n"]]:
        """At most so many groups, and where each of the former ones is among them.

        Pairs of near groups become one with the weight, mean and variances of both, those first that add
        least to the variance inside of groups: w_i·w_j/(w_i + w_j)·‖c_i − c_j‖² (Ward). A round merges the
        better half of all pairs that are each other's best partners, among 128 groups that lie together.
        Before, equal rows become one group, however few groups there are. Such a group of weight w_i counts
        as w_i/2 at least in place of w_i·w_j/(w_i + w_j): it merges late, as leave-one-out has to know it.

        Args:
            most: the number of groups, 1 at least.
            unit: the length of every column that counts as 1.
        """
        groups, place = self._distinct()
        while len(groups) > most:
            order = block_order(groups.mean / unit, SIZE)
            groups = groups.take(order)
            pairs = partners(groups.mean / unit, groups.weight, (groups.std == 0).all(1))
            chosen = pairs.cheapest(len(groups) - most)
            groups, moved = groups._merge_pairs(chosen.first, chosen.second, unit)
            place = moved[order.argsort()[place]]
        return groups, place

    def _distinct(self) -> tuple[Groups, Int[Tensor, " n"]]:
        """Groups of equal rows as one, and where each of the former groups is among them."""
        rows = (self.std == 0).all(1).nonzero().squeeze(1)
        rows = rows[torch.from_numpy(np.lexsort(self.mean[rows].numpy().T))]
        is_new = torch.ones(len(rows), dtype=torch.bool)
        is_new[1:] = (self.mean[rows[1:]] != self.mean[rows[:-1]]).any(1)
        first = torch.arange(len(self))
        first[rows] = rows[is_new][is_new.cumsum(0) - 1]
        stays, place = first.unique(return_inverse=True)
        return replace(self.take(stays), weight=place.bincount(self.weight, len(stays))), place

    def _merge_pairs(self, i: Tensor, j: Tensor, unit: Tensor) -> tuple[Groups, Int[Tensor, " n"]]:
        """The groups after i and j have become one."""
        weight = self.weight[i] + self.weight[j]
        share = (self.weight[j] / weight).unsqueeze(1)
        apart = self.mean[j] - self.mean[i]
        inside = (1 - share) * (self.std[i] / unit).square() + share * (self.std[j] / unit).square()
        between = share * (1 - share) * (apart / unit).square()
        mean = self.mean.index_copy(0, i, self.mean[i] + share * apart)
        std = self.std.index_copy(0, i, unit * (inside + between).sqrt())
        stays = torch.ones(len(self), dtype=torch.bool).index_fill(0, j, value=False)
        number = stays.cumsum(0) - 1
        number[j] = number[i]
        groups = Groups(mean, std, self.weight.index_copy(0, i, weight))
        return groups.take(stays), number

    def without(self, own: Int[Tensor, " q"], x: Float[Tensor, "q d"], weight: Float[Tensor, " q"]) -> Groups:
        """The groups of some rows as they would be without the row; the weight is 0 where nothing is left."""
        group = self.take(own)
        rest = group.weight - weight
        is_empty = rest <= 1e-9 * group.weight
        pull = torch.where(is_empty, torch.zeros_like(rest), weight / rest).unsqueeze(1)
        apart = group.mean - x
        total = (1 + pull) * group.std.square() - pull * (1 + pull) * apart.square()
        left = torch.where(is_empty, torch.zeros_like(rest), rest)
        return Groups(group.mean + pull * apart, total.clamp_min(0).sqrt(), left)


@dataclass(frozen=True)
class GroupedRows(KeptRows):
    """All rows of all chunks; or, where they are too many, groups of them and a uniform sample.

    Attributes:
        groups: of all rows; None while every row is kept.
        own: the group of every row of the sample.
    """

    groups: Groups | None = None
    own: Array | None = None

    def join(self, other: Self) -> Self:
        """The rows of both; those of `other` are groups of their own.

        The sample of both has all rows up to the largest key of the former sample.
        """
        joined = super().join(other)
        if self.groups is None or self.own is None:
            return joined
        own = np.concatenate([self.own, len(self.groups) + np.arange(len(other))])
        new = Groups.of_rows(other.X, other.weights)
        size = int((joined.keys <= self.keys.max()).sum())
        index = smallest(joined.keys, size)
        return replace(KeptRows.at_most(joined, size), groups=self.groups.join(new), own=own[index])

    def at_most(self, most: int | None) -> Self:
        """So many rows, or groups of rows, at most."""
        if self.groups is None and (most is None or len(self) <= most):
            return self
        groups = self.groups or Groups.of_rows(self.X, self.weights * self.factors)
        own = np.arange(len(self)) if self.own is None else self.own
        most = len(groups) if most is None else most
        index = smallest(self.keys, min(most, SAMPLE))
        sample = KeptRows.at_most(self, len(index))
        unit = Scaler.from_data(torch.from_numpy(sample.X), torch.from_numpy(sample.weights)).scale
        groups, place = groups.merged(most, unit)
        return replace(sample, groups=groups, own=place.numpy()[own[index]])
