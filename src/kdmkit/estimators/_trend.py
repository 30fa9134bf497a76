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
FEWEST_ROWS = 8
# Rates and widths were chosen by held-out errors on training rows: docs/decisions.md.
_HIDDEN = (64, 64)
_DECAY = 1e-2
_MEMORY = 0.995
_EPOCHS, _STEPS = 300, 4000
# Where targets are mostly noise, one of many epochs is a little better by chance, and no smoother.
_LEAST_GAIN = 0.01
# Of the held-out residuals' variance: a few rows must not talk it away.
_LEAST_KEPT = 0.64
# Rows from which on half of it is taken off, and what choosing the epoch by n rows costs, over n.
_FEW_ROWS, _CHOSEN = 100, 4.0


class Trend(nn.Module):
    """The committee's mean and what rows remember, from rows to targets, both in the units of the data.

    Args:
        committee: fitted.
        memory: what rows remember, if anything.
        x, y: scalers of rows and targets.
        typical: the variance of members' answers on rows that they have not seen, in standardised units.
    """

    memory: Memory | None
    typical: Tensor

    def __init__(
        self,
        committee: Committee,
        memory: Memory | None,
        x: Scaler,
        y: Scaler,
        typical: Float[Tensor, " outputs"],
    ) -> None:
        super().__init__()
        self.committee, self.memory, self.x, self.y = committee, memory, x, y
        self.register_buffer("typical", typical)

    def forward(self, x: Tensor) -> tuple[Float[Tensor, "n outputs"], Float[Tensor, "n outputs"]]:
        """The centre of y, and the variance by which members disagree more than on rows like the first ones.

        Residuals tell how far off the committee is where rows are. Elsewhere members part. What rows remember
        makes up for a share of that.
        """
        z = self.x(x).float()
        answers = self.committee(z)
        centre, doubt = answers.mean(1), (answers.var(1) - self.typical).clamp_min(0)
        if self.memory is not None:
            remembered, known = self.memory.known(z)
            centre, doubt = centre + remembered, doubt * (1 - known).square()
        return self.y.inverse(centre), doubt.double() * self.y.scale.double().square()

    def config(self) -> dict[str, Any]:
        memory = None if self.memory is None else self.memory.config()
        return {"committee": self.committee.config(), "memory": memory}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Trend:
        committee = Committee(**config["committee"])
        memory = None if config["memory"] is None else Memory.from_config(config["memory"])
        ends = (committee.sizes[0], committee.sizes[-1])
        x, y = (Scaler(torch.zeros(size), torch.ones(size)) for size in ends)
        return cls(committee, memory, x, y, torch.zeros(ends[1]))


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
        typical: the variance of the answers of members that have not seen the row, mean over rows.
        doubt: by how much members would differ more than that at every row, had they not seen it.
        history: of the training.
    """

    committee: Committee
    residuals: Float[Tensor, "n outputs"]
    typical: Float[Tensor, " outputs"]
    doubt: Float[Tensor, "n outputs"]
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
    share = shares(len(x), weights)
    variance = _held_out_variance(answers, held, share)
    residuals = _on_the_scale_of_all(y - mean_over(answers, held), variance, n_members, share)
    doubt = _doubt(answers, variance, share)
    return CrossFit(committee, residuals, variance.float(), doubt, history)


def held_out(n: int, n_members: int, generator: torch.Generator) -> Bool[Tensor, "n k"]:
    """Which members hold a row out: rows fall into K parts, and each member leaves out two of them.

    >>> held_out(6, 3, torch.Generator().manual_seed(0)).sum(1)
    tensor([2, 2, 2, 2, 2, 2])
    """
    part = torch.randperm(n, generator=generator) % n_members
    return (part.unsqueeze(1) - torch.arange(n_members)) % n_members < HOLDERS


def _held_out_variance(
    answers: Float[Tensor, "n k outputs"], held: Bool[Tensor, "n k"], share: Float[Tensor, " n"]
) -> Float[Tensor, " outputs"]:
    """The variance between members that have not seen a row, mean over rows: two are enough for that."""
    mean = mean_over(answers, held)
    deviations = mean_over((answers - mean.unsqueeze(1)).square(), held)
    return share @ deviations.double() * HOLDERS / (HOLDERS - 1)


def _doubt(
    answers: Float[Tensor, "n k outputs"], typical: Float[Tensor, " outputs"], share: Float[Tensor, " n"]
) -> Float[Tensor, "n outputs"]:
    """The excess of the members' variance at every row, on the scale of rows that they have not seen."""
    variance = answers.var(1).double()
    mean = share @ variance
    unseen = variance * torch.where(mean > 0, typical / mean.clamp_min(1e-300), torch.ones_like(mean))
    return (unseen - typical).clamp_min(0).float()


def _on_the_scale_of_all(
    residuals: Float[Tensor, "n outputs"],
    variance: Float[Tensor, " outputs"],
    n_members: int,
    share: Float[Tensor, " n"],
) -> Float[Tensor, "n outputs"]:
    """Held-out residuals of two members' mean, scaled to what the mean of all K would leave.

    With v the variance of a member's answer, E[r²] of h members' mean is e + v/h; that of all K is e + v/K.
    Where rows are few, the epoch that was best on these very rows is better there than elsewhere, which about
    makes up for v: the fewer rows, the less is taken off.
    """
    n = len(residuals)
    kept = _kept(residuals, variance * (1 / HOLDERS - 1 / n_members), share)
    taken = (1 - kept) * n / (n + _FEW_ROWS)
    return residuals * ((1 - taken) * (1 + _CHOSEN / n)).sqrt().float()


def without_doubt(
    residuals: Float[Tensor, "n outputs"],
    doubt: Float[Tensor, "n outputs"],
    share: Float[Tensor, " n"],
) -> Float[Tensor, "n outputs"]:
    """Residuals as small as makes their variance and the mean doubt together what theirs was.

    Doubt widens some answers beyond what residuals say of all of them, so that much less is left to say.
    """
    return residuals * _kept(residuals, share @ doubt.double(), share).sqrt().float()


def _kept(
    residuals: Float[Tensor, "n outputs"], less: Float[Tensor, " outputs"], share: Float[Tensor, " n"]
) -> Float[Tensor, " outputs"]:
    """The share of the residuals' mean square that is left when so much is taken off, within bounds."""
    second = share @ residuals.double().square()
    kept = torch.where(second > 0, 1 - less / second.clamp_min(1e-300), torch.ones_like(second))
    return kept.clamp(_LEAST_KEPT, 1)


def trend_batch(n: int) -> int:
    """A thirty-second of the rows, between 64 and 512; of few rows a quarter, 16 at least.

    >>> [trend_batch(n) for n in (40, 100, 1000, 10_000)]
    [16, 25, 64, 312]
    """
    return max(16, min(64, n // 4), min(512, n // 32))


def trend_epochs(n: int, batch: int) -> int:
    """300 passes at most, and no more than four thousand steps."""
    return max(1, min(_EPOCHS, _STEPS // math.ceil(n / batch)))
