"""The smooth part of a regression: a committee of networks, and residuals that none of them has seen."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from kdmkit.estimators._committee import Committee
from kdmkit.estimators._memory import Memory
from kdmkit.estimators._scaling import Scaler, shares
from kdmkit.training import Rows

# How many members hold a row out: two, so that their difference tells how much members vary.
HOLDERS = 2
# Below this many rows there is nothing to hold out.
FEWEST_ROWS = 20
# Rates and widths were chosen by held-out errors on training rows: docs/decisions.md.
_HIDDEN = (64, 64)
_DECAY = 1e-2
_MEMORY = 0.995
_EPOCHS, _STEPS = 300, 4000
# Where targets are mostly noise, one of many epochs is a little better by chance, and no smoother.
_LEAST_GAIN = 0.01
# Of the held-out residuals' variance: a few rows must not talk it away.
_LEAST_KEPT = 0.64


class Trend(nn.Module):
    """The committee's mean and what rows remember, from rows to targets, both in the units of the data."""

    memory: Memory | None

    def __init__(self, committee: Committee, memory: Memory | None, x: Scaler, y: Scaler) -> None:
        super().__init__()
        self.committee, self.memory, self.x, self.y = committee, memory, x, y

    def forward(self, x: Tensor) -> Float[Tensor, "n outputs"]:
        z = self.x(x).float()
        answers = self.committee(z).mean(1)
        return self.y.inverse(answers if self.memory is None else answers + self.memory(z))

    def config(self) -> dict[str, Any]:
        memory = None if self.memory is None else self.memory.config()
        return {"committee": self.committee.config(), "memory": memory}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Trend:
        committee = Committee(**config["committee"])
        memory = None if config["memory"] is None else Memory.from_config(config["memory"])
        ends = (committee.sizes[0], committee.sizes[-1])
        return cls(committee, memory, *(Scaler(torch.zeros(size), torch.ones(size)) for size in ends))


class CrossFitting(nn.Module):
    """Every member learns from the rows that it does not hold out; what counts is its error on the others.

    While it trains, a row's loss is the mean squared error of the members that learn from it. Otherwise it is
    the squared error of the mean of those that do not, under weights averaged over the last steps.
    """

    def __init__(self, committee: Committee) -> None:
        super().__init__()
        self.committee = committee
        self.average = AveragedModel(committee, avg_fn=_running_mean).requires_grad_(False)

    @property
    def averaged(self) -> Committee:
        committee = self.average.module
        assert isinstance(committee, Committee)
        return committee

    def forward(
        self, x: Float[Tensor, "n d"], y: Float[Tensor, "n outputs"], held: Bool[Tensor, "n k"]
    ) -> Float[Tensor, " n"]:
        if not self.training:
            return (mean_over(self.averaged(x), held) - y).square().mean(-1)
        self.average.update_parameters(self.committee)
        errors = (self.committee(x) - y.unsqueeze(1)).square()
        return mean_over(errors, ~held).mean(-1)

    def exempt_from_decay(self, name: str) -> bool:
        return ".biases." in name


def _running_mean(average: Tensor, value: Tensor, count: Tensor | int) -> Tensor:
    """An exponential mean that forgets its first values sooner."""
    memory = min(_MEMORY, int(count) / (int(count) + 10))
    return average.lerp(value, 1 - memory)


def mean_over(values: Float[Tensor, "n k outputs"], members: Bool[Tensor, "n k"]) -> Tensor:
    """Of every row, the mean over some members."""
    share = members / members.sum(1, keepdim=True)
    return (share.unsqueeze(-1) * values).sum(1)


@dataclass(frozen=True)
class CrossFit:
    """A committee and its residuals, in standardised units.

    Args:
        committee: fitted.
        residuals: y minus the mean of the members that have not seen the row, on the scale of those of the
            whole committee.
        history: of the training.
    """

    committee: Committee
    residuals: Float[Tensor, "n outputs"]
    history: list[dict[str, float]]


def cross_fit(
    x: Float[Tensor, "n d"],
    y: Float[Tensor, "n outputs"],
    weights: Float[Tensor, " n"] | None,
    *,
    n_members: int,
    generator: torch.Generator,
    run: Callable[..., list[dict[str, float]]],
) -> CrossFit:
    """Fits a committee whose members each hold out a part of the rows.

    Args:
        x, y, weights: rows, targets, sample weights.
        n_members: K; every row is held out by two members.
        generator: of the parts.
        run: minimises an objective: takes it, rows to train on and rows to validate on.
    """
    held = held_out(len(x), n_members, generator)
    rows = Rows((x, y, held), None if weights is None else weights.float())
    objective = CrossFitting(Committee([x.shape[1], *_HIDDEN, y.shape[1]], n_members=n_members))
    history = run(objective, rows, rows, weight_decay=_DECAY, least_gain=_LEAST_GAIN)
    committee = objective.averaged.eval()
    with torch.no_grad():
        answers = torch.cat([committee(part) for part in x.split(8192)])
    residuals = _on_the_scale_of_all(answers, y, held, shares(len(x), weights))
    return CrossFit(committee, residuals, history)


def held_out(n: int, n_members: int, generator: torch.Generator) -> Bool[Tensor, "n k"]:
    """Which members hold a row out: rows fall into K parts, and each member leaves out two of them.

    >>> held_out(6, 3, torch.Generator().manual_seed(0)).sum(1)
    tensor([2, 2, 2, 2, 2, 2])
    """
    part = torch.randperm(n, generator=generator) % n_members
    return (part.unsqueeze(1) - torch.arange(n_members)) % n_members < HOLDERS


def _on_the_scale_of_all(
    answers: Float[Tensor, "n k outputs"], y: Tensor, held: Tensor, share: Float[Tensor, " n"]
) -> Float[Tensor, "n outputs"]:
    """Held-out residuals of two members' mean, scaled to what the mean of all K would leave.

    With v the variance of a member's answer, E[r²] of h members' mean is e + v/h; that of all K is e + v/K.
    The h held-out answers estimate v.
    """
    mean = mean_over(answers, held)
    residuals = y - mean
    deviations = mean_over((answers - mean.unsqueeze(1)).square(), held)
    variance = share @ deviations.double() * HOLDERS / (HOLDERS - 1)
    second = share @ residuals.double().square()
    fewer = variance * (1 / HOLDERS - 1 / held.shape[1])
    kept = torch.where(second > 0, 1 - fewer / second.clamp_min(1e-300), torch.ones_like(second))
    return residuals * kept.clamp(_LEAST_KEPT, 1).sqrt().float()


def trend_batch(n: int) -> int:
    """A thirty-second of the rows, between 64 and 512."""
    return max(64, min(512, n // 32))


def trend_epochs(n: int, batch: int) -> int:
    """300 passes at most, and no more than four thousand steps."""
    return max(1, min(_EPOCHS, _STEPS // math.ceil(n / batch)))
