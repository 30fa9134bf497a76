"""Cross-fitting: an ensemble of networks, and residuals of members that have not seen the row."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from kdmkit.nn import MLPEnsemble
from kdmkit.nn.predictor import BLOCK
from kdmkit.nn.scaler import normalized_weights
from kdmkit.training import Rows

# The number of members that hold out each row: two, so that their difference shows how much members vary.
HOLDERS = 2
# Below this many rows there is nothing to hold out.
FEWEST_ROWS = 8
# Rates and widths were chosen by held-out errors on training rows: docs/decisions.md.
_HIDDEN = (64, 64)
_DECAY = 1e-2
# The share that an average of weights keeps of itself at every step.
_AVERAGE_DECAY = 0.995
_EPOCHS, _STEPS = 300, 4000
# Where targets are mostly noise, the best of many epochs is a little better by chance only.
_MIN_IMPROVEMENT = 0.01
# The least share of the residuals' variance that is kept: with few rows, a larger cut is not justified.
_LEAST_KEPT = 0.64
# See `_scaled_to_ensemble`.
_FEW_ROWS, _CHOICE = 100, 4.0


class CrossFitting(nn.Module):
    """Every member learns from the rows that it does not hold out, and is validated on its held-out rows.

    In training, a row's loss is the mean squared error of the members that learn from it. In evaluation, it
    is the squared error of the mean of the members that hold it out, with exponentially averaged weights.
    """

    def __init__(self, ensemble: MLPEnsemble) -> None:
        super().__init__()
        self.ensemble = ensemble
        self.average = AveragedModel(ensemble, avg_fn=_running_mean).requires_grad_(False)

    @property
    def averaged(self) -> MLPEnsemble:
        ensemble = self.average.module
        assert isinstance(ensemble, MLPEnsemble)
        return ensemble

    def forward(
        self, x: Float[Tensor, "n d"], y: Float[Tensor, "n outputs"], held: Bool[Tensor, "n k"]
    ) -> Float[Tensor, " n"]:
        if not self.training:
            return (mean_over(self.averaged(x), held) - y).square().mean(-1)
        self.average.update_parameters(self.ensemble)
        errors = (self.ensemble(x) - y.unsqueeze(1)).square()
        return mean_over(errors, ~held).mean(-1)


def _running_mean(average: Tensor, value: Tensor, count: Tensor | int) -> Tensor:
    """An exponential mean whose decay starts lower, so that the first values count less."""
    decay = min(_AVERAGE_DECAY, int(count) / (int(count) + 10))
    return average.lerp(value, 1 - decay)


def mean_over(values: Float[Tensor, "n k outputs"], members: Bool[Tensor, "n k"]) -> Tensor:
    """The mean over the chosen members of every row."""
    share = members / members.sum(1, keepdim=True)
    return (share.unsqueeze(-1) * values).sum(1)


@dataclass(frozen=True)
class CrossFit:
    """A fitted ensemble and its residuals, in standardised units.

    Args:
        ensemble: fitted.
        residuals: y minus the mean of the members that hold out the row, scaled to those of the whole
            ensemble.
        typical_variance: of the answers of members that hold out the row, mean over rows.
        excess_variance: by how much the members' variance at every row exceeds the typical one.
        history: of the training.
    """

    ensemble: MLPEnsemble
    residuals: Float[Tensor, "n outputs"]
    typical_variance: Float[Tensor, " outputs"]
    excess_variance: Float[Tensor, "n outputs"]
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
    """Fits an ensemble whose members each hold out a part of the rows.

    Args:
        x, y, weights: rows, targets, sample weights.
        n_members: K; every row is held out by two members.
        generator: chooses the parts and the first weights.
        run: minimises an objective: takes it, rows to train on and rows to validate on.
    """
    held = held_out(len(x), n_members, generator)
    rows = Rows((x, y, held), None if weights is None else weights.float())
    sizes = [x.shape[1], *_HIDDEN, y.shape[1]]
    # From the seed again: the first weights do not depend on the number of rows.
    generator = torch.Generator().manual_seed(generator.initial_seed())
    objective = CrossFitting(MLPEnsemble(sizes, n_members=n_members, generator=generator))
    history = run(objective, rows, rows, weight_decay=_DECAY, min_improvement=_MIN_IMPROVEMENT)
    ensemble = objective.averaged.eval()
    with torch.no_grad():
        answers = torch.cat([ensemble(part) for part in x.split(BLOCK)])
    share = normalized_weights(len(x), weights)
    variance = _held_out_variance(answers, held, share)
    residuals = _scaled_to_ensemble(y - mean_over(answers, held), variance, n_members, share)
    excess = _excess_variance(answers, variance, share)
    return CrossFit(ensemble, residuals, variance.float(), excess, history)


def held_out(n: int, n_members: int, generator: torch.Generator) -> Bool[Tensor, "n k"]:
    """Which members hold out a row: rows fall into K parts, and each member holds out two of them.

    >>> held_out(6, 3, torch.Generator().manual_seed(0)).sum(1)
    tensor([2, 2, 2, 2, 2, 2])
    """
    part = torch.randperm(n, generator=generator) % n_members
    return (part.unsqueeze(1) - torch.arange(n_members)) % n_members < HOLDERS


def _held_out_variance(
    answers: Float[Tensor, "n k outputs"], held: Bool[Tensor, "n k"], share: Float[Tensor, " n"]
) -> Float[Tensor, " outputs"]:
    """The variance between the members that hold out a row, mean over rows."""
    mean = mean_over(answers, held)
    deviations = mean_over((answers - mean.unsqueeze(1)).square(), held)
    return share @ deviations.double() * HOLDERS / (HOLDERS - 1)


def _excess_variance(
    answers: Float[Tensor, "n k outputs"], typical: Float[Tensor, " outputs"], share: Float[Tensor, " n"]
) -> Float[Tensor, "n outputs"]:
    """max(0, a·var_k − typical) with the factor a that makes the mean of a·var_k the typical variance.

    Most members have seen the row and agree more than they would on a new one: a makes up for that.
    """
    variance = answers.var(1).double()
    mean = share @ variance
    unseen = variance * torch.where(mean > 0, typical / mean.clamp_min(1e-300), torch.ones_like(mean))
    return (unseen - typical).clamp_min(0).float()


def _scaled_to_ensemble(
    residuals: Float[Tensor, "n outputs"],
    variance: Float[Tensor, " outputs"],
    n_members: int,
    share: Float[Tensor, " n"],
) -> Float[Tensor, "n outputs"]:
    """Residuals of the mean of two held-out members, scaled to the size that all K members' mean would have.

    With v the variance of a member's answer, E[r²] is e + v/h for the mean of h members and e + v/K for all.
    Let q be the ratio of the two. The squares become (1 − (1 − q)·n/(n + 100))·(1 + 4/n) times themselves:
    the best epoch was chosen by these very rows, and its errors there are smaller than elsewhere (small
    samples: shrink less).
    """
    n = len(residuals)
    kept = _kept(residuals, variance * (1 / HOLDERS - 1 / n_members), share)
    removed = (1 - kept) * n / (n + _FEW_ROWS)
    return residuals * ((1 - removed) * (1 + _CHOICE / n)).sqrt().float()


def without_excess(
    residuals: Float[Tensor, "n outputs"],
    excess: Float[Tensor, "n outputs"],
    share: Float[Tensor, " n"],
) -> Float[Tensor, "n outputs"]:
    """Residuals scaled so that their variance plus the mean excess variance is what their variance was.

    The excess variance is added to answers: the total must stay what the residuals say.
    """
    return residuals * _kept(residuals, share @ excess.double(), share).sqrt().float()


def _kept(
    residuals: Float[Tensor, "n outputs"], removed: Float[Tensor, " outputs"], share: Float[Tensor, " n"]
) -> Float[Tensor, " outputs"]:
    """1 − removed/E[r²]: the share of the mean square that remains, within bounds."""
    second = share @ residuals.double().square()
    kept = torch.where(second > 0, 1 - removed / second.clamp_min(1e-300), torch.ones_like(second))
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
