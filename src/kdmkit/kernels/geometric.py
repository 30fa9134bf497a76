"""Weights s^|i − c| of whole numbers i about a real centre c: sums, moments and draws in closed form.

With r = −log s, the numbers from `low` to `high` are two geometric sequences, at or below c and above it:
each has a first number, the nearest to c, at a distance d, and n members with the weights e^(−r(d + j)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.logspace import log_add
from kdmkit.kernels.masses import log1mexp


@dataclass(frozen=True)
class Run:
    """The whole numbers on one side of the centre.

    Args:
        first: the number nearest to the centre.
        distance: of the first number to the centre.
        n: how many numbers there are, +∞ for all of them; not positive where there are none.
        step: from one number to the next, −1 or 1.
    """

    first: Tensor
    distance: Tensor
    n: Tensor
    step: int

    def log_weight(self, rate: Tensor) -> Tensor:
        """log Σ_j e^(−r(d + j)); −∞ where there is no number."""
        present = self.n > 0
        endless = torch.isinf(self.n)
        n = torch.where(present & ~endless, self.n, 1.0)
        last = torch.where(endless, 0.0, log1mexp(-rate * n))
        value = last - log1mexp(-rate) - rate * torch.where(present, self.distance, 0.0)
        return torch.where(present, value, -math.inf)

    def moments(self, rate: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the numbers under their weights; finite where there is none."""
        counted = (self.n > 0) & torch.isfinite(self.n)
        n = torch.where(counted, self.n, 1.0)
        mean = 1 / torch.expm1(rate) - torch.where(counted, n / torch.expm1(rate * n), 0.0)
        half = torch.where(counted, n / torch.sinh(0.5 * rate * n), 0.0)
        variance = 0.25 * (torch.sinh(0.5 * rate).reciprocal().square() - half.square())
        first = torch.where(self.n > 0, self.first, 0.0)
        return first + self.step * mean, variance

    def draw(self, rate: Tensor, uniform: Tensor) -> Tensor:
        """Numbers by inversion of their cumulated weights."""
        inside = -torch.expm1(-rate * self.n.clamp_min(1))
        j = (-torch.log1p(-uniform * inside) / rate).floor()
        return self.first + self.step * torch.minimum(j.clamp_min(0), self.n - 1)


def runs(
    low: Float[Tensor, "*#shape"], high: Float[Tensor, "*#shape"], centre: Float[Tensor, "*#shape"]
) -> tuple[Run, Run]:
    """The whole numbers from `low` to `high` (they may be infinite) on both sides of the centre."""
    floor = centre.detach().floor()
    top, bottom = torch.minimum(high, floor), torch.maximum(low, floor + 1)
    return Run(top, centre - top, top - low + 1, -1), Run(bottom, bottom - centre, high - bottom + 1, 1)


def log_total(low: Tensor, high: Tensor, centre: Tensor, rate: Tensor) -> Tensor:
    """log Σ e^(−r|i − c|) over whole numbers i from `low` to `high`; −∞ where there is none.

    >>> ends = torch.tensor([0.0, -torch.inf]), torch.tensor([1.0, torch.inf])
    >>> log_total(*ends, torch.tensor(0.0), torch.tensor(2.0).log()).exp()
    tensor([1.5000, 3.0000])
    """
    return log_add([run.log_weight(rate) for run in runs(low, high, centre)])


def log_share(
    part: tuple[Tensor, Tensor], whole: tuple[Tensor, Tensor], centre: Tensor, rate: Tensor
) -> Tensor:
    """The log of the share that the numbers of `part` have in those of `whole`, both `(low, high)`.

    Large shares are computed by what is outside the part: a share next to 1 keeps its digits.
    """
    low, high = torch.maximum(part[0], whole[0]), torch.minimum(part[1], whole[1])
    total = log_total(*whole, centre, rate)
    inside = log_total(low, high, centre, rate)
    inside = torch.where(torch.isneginf(inside), inside, inside - total)
    below = log_total(whole[0], torch.minimum(low - 1, whole[1]), centre, rate)
    above = log_total(torch.maximum(high + 1, whole[0]), whole[1], centre, rate)
    outside = log_add([below, above])
    large = (inside > -math.log(2)) & (low <= high)
    by_outside = torch.log1p(-torch.where(large, outside - total, -1.0).exp())
    return torch.where(large, by_outside, inside)


def moments(low: Tensor, high: Tensor, centre: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of the numbers from `low` to `high`."""
    both = runs(low, high, centre)
    weights = torch.softmax(torch.stack([run.log_weight(rate) for run in both]), 0)
    means, variances = (
        torch.stack(parts) for parts in zip(*(run.moments(rate) for run in both), strict=True)
    )
    mean = (weights * means).sum(0)
    return mean, (weights * (variances + (means - mean).square())).sum(0)


def draw(
    low: Tensor, high: Tensor, centre: Tensor, rate: Tensor, generator: torch.Generator | None
) -> Tensor:
    """One number for every centre: the side by its weight, then the number by inversion."""
    both = runs(low, high, centre)
    log_weights = [run.log_weight(rate) for run in both]
    share = torch.sigmoid(log_weights[0] - log_weights[1])
    uniform = torch.rand((2, *share.shape), dtype=share.dtype, device=share.device, generator=generator)
    below = uniform[0] < share
    return torch.where(below, both[0].draw(rate, uniform[1]), both[1].draw(rate, uniform[1]))
