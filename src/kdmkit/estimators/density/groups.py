"""Groups of rows in place of rows, for densities that learn from more chunks than they can keep."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from tqdm import tqdm

from kdmkit._core.logspace import safe_logsumexp
from kdmkit._core.tensors import effective_rows
from kdmkit.estimators.common.arrays import Array, first_equal, merge_rows
from kdmkit.estimators.common.chunks import BLOCK_SIZE, KeptRows, partners, smallest
from kdmkit.estimators.density.adaptive import (
    EXPONENTS,
    LEAST,
    PAIRS,
    SAME,
    climb,
    layer_of_rows,
    neighbour_distance,
    rounding_step,
    scaler_without_outliers,
)
from kdmkit.nn import DensityLayer, Scaler
from kdmkit.ops.blocks import block_order

# The size of the uniform sample of rows that is kept beside the groups.
_SAMPLE = 4096
# The largest number of rows that are left out, and of scores of rows and groups that are computed at once.
_LEFT_OUT, _SCORES = 2048, 1 << 22


@dataclass(frozen=True)
class Groups:
    """Groups of rows: their means, standard deviations by column, and weights."""

    mean: Float[Tensor, "m d"]
    std: Float[Tensor, "m d"]
    weight: Float[Tensor, " m"]

    @classmethod
    def of_rows(cls, X: Array, weights: Array) -> Groups:
        """One group for every row."""
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
        """At most `most` groups, and the group that each of the former ones belongs to.

        Pairs of near groups become one with the weight, mean and variances of both, those first that add
        least to the variance inside of groups: w_i·w_j/(w_i + w_j)·‖c_i − c_j‖² (Ward). A round merges the
        better half of all pairs that are each other's best partners, among 128 groups that lie together.
        Before, equal rows become one group, however few groups there are. Such a group of weight w_i counts
        as w_i/2 at least in place of w_i·w_j/(w_i + w_j): it merges late, because leave-one-out needs it.

        Args:
            most: the number of groups, 1 at least.
            unit: the length of every column that counts as 1.
        """
        groups, place = self._distinct()
        while len(groups) > most:
            order = block_order(groups.mean / unit, BLOCK_SIZE)
            groups = groups.take(order)
            pairs = partners(groups.mean / unit, groups.weight, (groups.std == 0).all(1))
            groups, moved = groups._merge_pairs(*pairs.cheapest(len(groups) - most), unit)
            place = moved[order.argsort()[place]]
        return groups, place

    def _distinct(self) -> tuple[Groups, Int[Tensor, " n"]]:
        """Groups of equal rows as one, and the group that each of the former ones belongs to."""
        rows = (self.std == 0).all(1).nonzero().squeeze(1)
        first = torch.arange(len(self))
        first[rows] = rows[first_equal(self.mean[rows])]
        stays, place = first.unique(return_inverse=True)
        return replace(self.take(stays), weight=place.bincount(self.weight, len(stays))), place

    def _merge_pairs(self, i: Tensor, j: Tensor, unit: Tensor) -> tuple[Groups, Int[Tensor, " n"]]:
        """The groups after those of every pair i, j have become one, and the new group of each."""
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

    def without(
        self, group: Int[Tensor, " q"], x: Float[Tensor, "q d"], weight: Float[Tensor, " q"]
    ) -> Groups:
        """The groups of some rows as they would be without the row; the weight is 0 if nothing is left."""
        whole = self.take(group)
        rest = whole.weight - weight
        is_empty = rest <= 1e-9 * whole.weight
        pull = torch.where(is_empty, torch.zeros_like(rest), weight / rest).unsqueeze(1)
        apart = whole.mean - x
        total = (1 + pull) * whole.std.square() - pull * (1 + pull) * apart.square()
        left = torch.where(is_empty, torch.zeros_like(rest), rest)
        return Groups(whole.mean + pull * apart, total.clamp_min(0).sqrt(), left)


@dataclass(frozen=True)
class GroupedRows:
    """Groups of all rows of all chunks, and a uniform sample of the rows.

    Attributes:
        sample: some of the rows.
        groups: of all rows.
        group: the number of the group of every row of the sample.
    """

    sample: KeptRows
    groups: Groups
    group: Array

    @property
    def n_seen(self) -> int:
        """The number of rows of all chunks."""
        return self.sample.n_seen

    def join(self, other: KeptRows) -> GroupedRows:
        """The rows of both; every row of `other` is a group.

        The sample of both has all rows up to the largest key of the former sample.
        """
        joined = self.sample.join(other)
        group = np.concatenate([self.group, len(self.groups) + np.arange(len(other))])
        size = int((joined.keys <= self.sample.keys.max()).sum())
        index = smallest(joined.keys, size)
        groups = self.groups.join(Groups.of_rows(other.X, other.weights))
        return GroupedRows(joined.at_most(size), groups, group[index])

    def at_most(self, most: int | None) -> GroupedRows:
        """At most `most` groups of rows."""
        most = len(self.groups) if most is None else most
        index = smallest(self.sample.keys, min(most, _SAMPLE))
        sample = self.sample.at_most(len(index))
        unit = Scaler.from_data(torch.from_numpy(sample.X), torch.from_numpy(sample.weights)).scale
        groups, place = self.groups.merged(most, unit)
        return GroupedRows(sample, groups, place.numpy()[self.group[index]])

    @property
    def n_effective(self) -> float:
        """Kish's effective number of the rows of all groups."""
        return self.n_seen * effective_rows(torch.from_numpy(self.sample.weights)) / len(self.sample)

    @property
    def narrowing(self) -> float:
        """The bandwidth of all rows over that of the sample, by Scott's rule."""
        return (self.n_seen / len(self.sample)) ** (-1 / (self.sample.X.shape[1] + 4))


def group_rows(rows: KeptRows | GroupedRows, most: int | None) -> KeptRows | GroupedRows:
    """The rows themselves while they are at most `most`, then groups of them."""
    if isinstance(rows, GroupedRows):
        return rows.at_most(most)
    if most is None or len(rows) <= most:
        return rows
    groups = Groups.of_rows(rows.X, rows.weights * rows.factors)
    return GroupedRows(rows, groups, np.arange(len(rows))).at_most(most)


# ---- densities of groups


def merged_density(
    layer: DensityLayer, x: Float[Tensor, "n d"], w: Float[Tensor, " n"], most: int
) -> DensityLayer:
    """A density of rows with at most `most` components: near rows become one, with the variance of its rows.

    Args:
        layer: whose components are the rows; the variance of a new kernel is the mean of theirs and the
            variance of the group's rows.
        x, w: the rows and their weights.
        most: the number of components.
    """
    groups, place = Groups.of_rows(x.numpy(), w.numpy()).merged(most, Scaler.from_data(x, w).scale)
    variances = w.unsqueeze(1) * layer.kernel("x").learned_bandwidth.value.detach().cpu().square().expand_as(
        x
    )
    total = torch.zeros_like(groups.mean).index_add_(0, place, variances)
    variance = total / groups.weight.unsqueeze(1) + 2 * groups.std.square()
    return layer_of_rows(groups.mean, groups.weight, variance.sqrt())


def density_of_groups(groups: Groups, sigma: float) -> DensityLayer:
    """Components of the variance σ²/2 plus that of the rows in the group."""
    return layer_of_rows(groups.mean, groups.weight, (sigma**2 + 2 * groups.std.square()).sqrt())


def automatic_density_of_groups(rows: GroupedRows, *, verbose: bool = False) -> DensityLayer:
    """p(x) = Σ_j p_j·N(x; c_j, diag(s_ji² + v_ji)) with the variances v_j of the rows of group j.

    s_ji = max(h·r_j^b·s_i, g_i/2) is the bandwidth of `automatic_density`. Leave-one-out likelihood of rows
    of the sample chooses h and b, each row judged by groups as they would be without it.
    """
    n, d = rows.sample.X.shape
    groups, order = rows.groups, torch.randperm(n, generator=torch.Generator().manual_seed(0))
    x, weight = torch.from_numpy(rows.sample.X).double()[order], torch.from_numpy(rows.sample.weights)[order]
    distinct, _ = merge_rows(x, None)
    if len(distinct) < 2:
        return _density_by_scott(groups, rows.n_effective)
    share = weight / weight.sum()
    scaler = scaler_without_outliers(x, share, torch.arange(n))
    z, total = scaler(x), groups.weight.sum()
    floor = torch.stack([rounding_step(column, share) for column in z.mT]) / 2
    scaled = Groups(scaler(groups.mean), groups.std / scaler.scale, groups.weight / total)
    # Distances of groups to distinct rows of the sample; the latter have no weight in the mean of distances.
    near = z[distinct]
    both = torch.cat([scaled.mean, near]), torch.cat([scaled.weight, torch.zeros_like(near[:, 0])])
    relative = neighbour_distance(*both, len(groups) + torch.arange(len(near)))[: len(groups)]
    q = min(n, _LEFT_OUT, max(64, PAIRS // len(groups)))
    left_out = LeftOut(scaled, z[:q], weight[:q] / total, torch.from_numpy(rows.group)[order[:q]])

    def widths(log_width: float, exponent: float) -> Float[Tensor, "m d"]:
        return torch.maximum((2.0**log_width * relative**exponent).unsqueeze(1), floor)

    best = (-math.inf, 0.0, 0.0)
    with tqdm(desc="leave-one-out", unit="bandwidth", disable=not verbose) as bar:
        for exponent in EXPONENTS:

            def likelihood(log_width: float, exponent: float = exponent) -> float:
                bar.update()
                return left_out.likelihood(widths(log_width, exponent))

            log_width, largest = climb(likelihood, math.log2(rows.n_effective) / -(d + 4))
            best = max(best, (largest, log_width, exponent))
    std = scaled.stds(widths(*best[1:]))
    return layer_of_rows(groups.mean, groups.weight, math.sqrt(2) * std * scaler.scale)


def _density_by_scott(groups: Groups, n_effective: float) -> DensityLayer:
    """Bandwidths in proportion to the standard deviation of every column, 1 if it is constant."""
    share = groups.weight / groups.weight.sum()
    apart = groups.mean - share @ groups.mean
    std = (share @ (groups.std.square() + apart.square())).sqrt()
    varies = std > 1e-12 * groups.mean.abs().amax(0)
    width = torch.where(varies, n_effective ** (-1 / (len(std) + 4)) * std, torch.ones_like(std))
    stds = groups.stds(width.expand_as(groups.std))
    return layer_of_rows(groups.mean, groups.weight, math.sqrt(2) * stds)


class LeftOut:
    """The likelihood of some rows, each under the density of groups without it.

    Args:
        groups: in units of the columns; their weights sum to 1.
        z, weight: rows in the same units.
        group: the number of the group of every row.
    """

    def __init__(self, groups: Groups, z: Tensor, weight: Tensor, group: Int[Tensor, " q"]) -> None:
        self.groups, self.z, self.group, self.share = groups, z, group, weight / weight.sum()
        rest = groups.without(group, z, weight)
        # Rows that are nearly equal would make components as narrow as their differences.
        is_same = ((rest.mean - z).abs() < SAME).all(1) & (rest.std < SAME).all(1)
        self.rest = replace(rest, weight=rest.weight.masked_fill(is_same, 0))
        self.same = _equal_groups(groups, z, group)
        same = torch.bincount(self.same[0], groups.weight[self.same[1]], len(z))
        self.total = (1 - groups.weight[group] + self.rest.weight - same).clamp_min(1e-9)

    def likelihood(self, width: Float[Tensor, "m d"]) -> float:
        """The mean log-likelihood with these bandwidths."""
        variance = self.groups.stds(width).square()
        precision = variance.reciprocal()
        scaled = precision * self.groups.mean
        constant = self.groups.weight.log() - 0.5 * (variance.log() + scaled * self.groups.mean).sum(1)
        std = self.rest.stds(width[self.group])
        apart = ((self.z - self.rest.mean) / std).square().sum(1)
        of_rest = self.rest.weight.log() - std.log().sum(1) - 0.5 * apart
        log_densities = []
        for rows in torch.arange(len(self.z)).split(max(1, _SCORES // len(constant))):
            z = self.z[rows]
            scores = torch.addmm(constant, z, scaled.mT).addmm_(z.square(), precision.mT, alpha=-0.5)
            inside = (self.same[0] >= rows[0]) & (self.same[0] <= rows[-1])
            scores[self.same[0][inside] - rows[0], self.same[1][inside]] = -math.inf
            scores.scatter_(1, self.group[rows].unsqueeze(1), of_rest[rows].unsqueeze(1))
            log_densities.append(safe_logsumexp(scores))
        d = self.z.shape[1]
        log_prob = torch.cat(log_densities) - self.total.log() - 0.5 * d * math.log(2 * math.pi)
        least = LEAST * d
        return float(self.share @ log_prob.nan_to_num(nan=least, posinf=least).clamp_min(least))


def _equal_groups(groups: Groups, z: Tensor, group: Tensor) -> tuple[Int[Tensor, " k"], Int[Tensor, " k"]]:
    """Pairs of a row and a group that it does not belong to, whose rows are nearly equal to it."""
    generator = torch.Generator().manual_seed(0)
    direction = torch.rand(z.shape[1], generator=generator, dtype=z.dtype) + 0.5
    direction /= direction.sum()
    # Nearly equal groups are neighbours among the sorted projections onto a line.
    narrow = (groups.std < SAME).all(1).nonzero().squeeze(1)
    line, order = (groups.mean[narrow] @ direction).sort()
    low = torch.searchsorted(line, z @ direction - 2 * SAME)
    count = torch.searchsorted(line, z @ direction + 2 * SAME, right=True) - low
    row = torch.arange(len(z)).repeat_interleave(count)
    place = torch.arange(len(row)) + (low - count.cumsum(0) + count).repeat_interleave(count)
    other = narrow[order[place]]
    is_same = ((groups.mean[other] - z[row]).abs() < SAME).all(1) & (other != group[row])
    return row[is_same], other[is_same]
