"""Densities of groups of rows: a component for every group, as wide as the rows of the group are spread."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor
from tqdm import tqdm

from kdmkit._core.logspace import safe_logsumexp
from kdmkit._core.tensors import effective_rows
from kdmkit.estimators.common.arrays import merge_rows
from kdmkit.estimators.density.adaptive import (
    EXPONENTS,
    LEAST,
    PAIRS,
    SAME,
    climb,
    layer_of,
    neighbour_distance,
    rounding_step,
    scaler_without_outliers,
)
from kdmkit.estimators.density.groups import Groups
from kdmkit.nn import DensityLayer

# Rows that are left out at most, and scores of rows and groups that are computed at once.
_LEFT_OUT, _SCORES = 2048, 1 << 22


@dataclass(frozen=True)
class Sample:
    """A uniform sample of the rows that groups consist of.

    Attributes:
        x, weight: rows and their weights.
        own: the group of every row.
        n_rows: the number of rows of all groups.
    """

    x: Float[Tensor, "n d"]
    weight: Float[Tensor, " n"]
    own: Int[Tensor, " n"]
    n_rows: int

    @property
    def n_effective(self) -> float:
        """The number of rows of all groups that have equal weights and tell as much."""
        return self.n_rows * effective_rows(self.weight) / len(self.weight)

    @property
    def narrowing(self) -> float:
        """The bandwidth of all rows over that of the sample, by Scott's rule."""
        return (self.n_rows / len(self.weight)) ** (-1 / (self.x.shape[1] + 4))


def density_of_groups(groups: Groups, sigma: float) -> DensityLayer:
    """Components of the variance σ²/2 plus that of the rows in the group."""
    return layer_of(groups.mean, groups.weight, (sigma**2 + 2 * groups.std.square()).sqrt())


def automatic_density_of_groups(groups: Groups, sample: Sample, *, verbose: bool = False) -> DensityLayer:
    """p(x) = Σ_j p_j·N(x; c_j, diag(s_ji² + v_ji)) with the variances v_j of the rows of group j.

    s_ji = max(h·r_j^b·s_i, g_i/2) is the bandwidth of `automatic_density`. Leave-one-out likelihood of rows
    of the sample chooses h and b, each row judged by groups as they would be without it.
    """
    n, d = sample.x.shape
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    x, weight = sample.x[order], sample.weight[order]
    distinct, _ = merge_rows(x, None)
    if len(distinct) < 2:
        return _density_by_scott(groups, sample)
    share = weight / weight.sum()
    scaler = scaler_without_outliers(x, share, torch.arange(n))
    z, total = scaler(x), groups.weight.sum()
    floor = torch.stack([rounding_step(column, share) for column in z.mT]) / 2
    scaled = Groups(scaler(groups.mean), groups.std / scaler.scale, groups.weight / total)
    # Distances of groups to distinct rows of the sample, which have no part in the mean of distances.
    near = z[distinct]
    both = torch.cat([scaled.mean, near]), torch.cat([scaled.weight, torch.zeros_like(near[:, 0])])
    relative = neighbour_distance(*both, len(groups) + torch.arange(len(near)))[: len(groups)]
    q = min(n, _LEFT_OUT, max(64, PAIRS // len(groups)))
    left_out = LeftOut(scaled, z[:q], weight[:q] / total, sample.own[order[:q]])

    def widths(log_width: float, exponent: float) -> Float[Tensor, "m d"]:
        return torch.maximum((2.0**log_width * relative**exponent).unsqueeze(1), floor)

    best = (-math.inf, 0.0, 0.0)
    with tqdm(desc="leave-one-out", unit="bandwidth", disable=not verbose) as bar:
        for exponent in EXPONENTS:

            def likelihood(log_width: float, exponent: float = exponent) -> float:
                bar.update()
                return left_out.likelihood(widths(log_width, exponent))

            log_width, found = climb(likelihood, math.log2(sample.n_effective) / -(d + 4))
            best = max(best, (found, log_width, exponent))
    std = scaled.stds(widths(*best[1:]))
    return layer_of(groups.mean, groups.weight, math.sqrt(2) * std * scaler.scale)


def _density_by_scott(groups: Groups, sample: Sample) -> DensityLayer:
    """Bandwidths in proportion to the standard deviation of every column, 1 where it is constant."""
    share = groups.weight / groups.weight.sum()
    apart = groups.mean - share @ groups.mean
    std = (share @ (groups.std.square() + apart.square())).sqrt()
    varies = std > 1e-12 * groups.mean.abs().amax(0)
    width = torch.where(varies, sample.n_effective ** (-1 / (len(std) + 4)) * std, torch.ones_like(std))
    return layer_of(groups.mean, groups.weight, math.sqrt(2) * groups.stds(width.expand_as(groups.std)))


class LeftOut:
    """The likelihood of some rows, each under the density of groups without it.

    Args:
        groups: in units of the columns; their weights sum to 1.
        z, weight: rows in the same units.
        own: the group of every row.
    """

    def __init__(self, groups: Groups, z: Tensor, weight: Tensor, own: Int[Tensor, " q"]) -> None:
        self.groups, self.z, self.own, self.share = groups, z, own, weight / weight.sum()
        rest = groups.without(own, z, weight)
        # Rows that are nearly equal would make components as narrow as their differences.
        is_same = ((rest.mean - z).abs() < SAME).all(1) & (rest.std < SAME).all(1)
        self.rest = replace(rest, weight=rest.weight.masked_fill(is_same, 0))
        self.same = _equal_groups(groups, z, own)
        row, group = self.same
        same = torch.bincount(row, groups.weight[group], len(z))
        self.total = (1 - groups.weight[own] + self.rest.weight - same).clamp_min(1e-9)

    def likelihood(self, width: Float[Tensor, "m d"]) -> float:
        """The mean log-likelihood with these bandwidths."""
        variance = self.groups.stds(width).square()
        precision = variance.reciprocal()
        scaled = precision * self.groups.mean
        constant = self.groups.weight.log() - 0.5 * (variance.log() + scaled * self.groups.mean).sum(1)
        std = self.rest.stds(width[self.own])
        apart = ((self.z - self.rest.mean) / std).square().sum(1)
        of_rest = self.rest.weight.log() - std.log().sum(1) - 0.5 * apart
        found = []
        for rows in torch.arange(len(self.z)).split(max(1, _SCORES // len(constant))):
            z = self.z[rows]
            scores = torch.addmm(constant, z, scaled.mT).addmm_(z.square(), precision.mT, alpha=-0.5)
            inside = (self.same[0] >= rows[0]) & (self.same[0] <= rows[-1])
            scores[self.same[0][inside] - rows[0], self.same[1][inside]] = -math.inf
            scores.scatter_(1, self.own[rows].unsqueeze(1), of_rest[rows].unsqueeze(1))
            found.append(safe_logsumexp(scores))
        d = self.z.shape[1]
        log_prob = torch.cat(found) - self.total.log() - 0.5 * d * math.log(2 * math.pi)
        least = LEAST * d
        return float(self.share @ log_prob.nan_to_num(nan=least, posinf=least).clamp_min(least))


def _equal_groups(groups: Groups, z: Tensor, own: Tensor) -> tuple[Int[Tensor, " k"], Int[Tensor, " k"]]:
    """Pairs of a row and a group, not its own, whose rows are nearly equal to it."""
    generator = torch.Generator().manual_seed(0)
    direction = torch.rand(z.shape[1], generator=generator, dtype=z.dtype) + 0.5
    direction /= direction.sum()
    # On a line, where groups are sorted, nearly equal ones are no farther apart.
    narrow = (groups.std < SAME).all(1).nonzero().squeeze(1)
    line, order = (groups.mean[narrow] @ direction).sort()
    low = torch.searchsorted(line, z @ direction - 2 * SAME)
    count = torch.searchsorted(line, z @ direction + 2 * SAME, right=True) - low
    row = torch.arange(len(z)).repeat_interleave(count)
    place = torch.arange(len(row)) + (low - count.cumsum(0) + count).repeat_interleave(count)
    group = narrow[order[place]]
    is_same = ((groups.mean[group] - z[row]).abs() < SAME).all(1) & (group != own[row])
    return row[is_same], group[is_same]
