"""Cross-fitting: an ensemble of networks of which each row has members that have not seen it.

`KDMRegressor` fits its committee in this way. Here a dense head is fitted likewise, to the residuals of that
committee.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from sklearn.utils import check_random_state
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from kdmkit import KDMRegressor
from kdmkit.nn import MLPEnsemble, Trend
from kdmkit.training import Rows

#: The number of members that hold out each row.
HOLDERS = 2
_HIDDEN = (64, 64)
_WEIGHT_DECAY = 1e-2
# EMA decay of weights.
_AVERAGE_DECAY = 0.995
_EPOCHS, _STEPS = 300, 4000
# Bounds of plausible residuals: distance from the 5 % and 95 % quantiles, in units of their distance.
_TAIL, _FENCE = 0.05, 3.0
# The least share of the residuals' variance that is kept.
_LEAST_KEPT = 0.64
_FEW_ROWS, _CHOICE = 100, 4.0
# The least standard deviation of a target, relative to that of all targets.
_LEAST_STD, _ROUNDING = 0.01, 1e-9

Tensors = tuple[Tensor, ...] | list[Tensor]
MemberLoss = Callable[[Tensor, Tensor], Tensor]


class CrossFitting(nn.Module):
    """Every member learns from the rows that it does not hold out, and is validated on its held-out rows.

    In training, a row's loss is the mean loss of the members that learn from it. In evaluation, it is the
    loss of the mean answer of the members that hold it out, with exponentially averaged weights.
    """

    def __init__(self, ensemble: MLPEnsemble, loss: MemberLoss) -> None:
        super().__init__()
        self.ensemble, self.loss = ensemble, loss
        self.average = AveragedModel(ensemble, multi_avg_fn=_move_averages).requires_grad_(False)

    @property
    def averaged(self) -> MLPEnsemble:
        ensemble = self.average.module
        assert isinstance(ensemble, MLPEnsemble)
        return ensemble

    def forward(
        self, x: Float[Tensor, "n d"], y: Tensor, held_out: Bool[Tensor, "n k"]
    ) -> Float[Tensor, " n"]:
        if not self.training:
            return self.loss(mean_over(self.averaged(x), held_out), y)
        self.average.update_parameters(self.ensemble)
        losses = self.loss(self.ensemble(x), y.unsqueeze(1))
        return mean_over(losses.unsqueeze(-1), ~held_out).squeeze(-1)


def _move_averages(averages: Tensors, values: Tensors, count: Tensor | int) -> None:
    """Exponential means whose decay starts lower, so that the first values count less."""
    decay = min(_AVERAGE_DECAY, int(count) / (int(count) + 10))
    torch._foreach_lerp_(averages, values, 1 - decay)


def fit_ensemble(
    x: Float[Tensor, "n d"],
    y: Float[Tensor, "n 1"],
    *,
    start: Float[Tensor, " outputs"],
    n_members: int,
    loss: MemberLoss,
    seed: int,
    run: Callable[..., object],
) -> MLPEnsemble:
    """Fits an ensemble whose members each hold out a part of the rows.

    Args:
        x, y: rows and targets.
        start: the answer of every member before training.
        n_members: every row is held out by two of them.
        loss: from answers and targets to one loss per answer.
        seed: chooses the parts and the first weights.
        run: minimises an objective: takes it, rows to train on and rows to validate on.
    """
    sizes = [x.shape[1], *_HIDDEN, len(start)]
    first = MLPEnsemble(sizes, n_members=n_members, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        first.biases[-1].copy_(start)
    rows = Rows((x, y, held_out(len(x), n_members, seed)))
    objective = CrossFitting(first, loss)
    run(objective, rows, rows, weight_decay=_WEIGHT_DECAY)
    return objective.averaged.eval()


def held_out(n: int, n_members: int, seed: int) -> Bool[Tensor, "n k"]:
    """Which members hold out a row: rows fall into K parts, and each member holds out two of them.

    >>> held_out(6, 3, 0).sum(1)
    tensor([2, 2, 2, 2, 2, 2])
    """
    place = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return (place.unsqueeze(1) - torch.arange(n_members)) % n_members < HOLDERS


def mean_over(values: Float[Tensor, "n k outputs"], members: Bool[Tensor, "n k"]) -> Tensor:
    """The mean over the chosen members of every row."""
    chosen = members.to(values.dtype)
    return ((chosen / chosen.sum(1, keepdim=True)).unsqueeze(-1) * values).sum(1)


def trend_batch(n: int) -> int:
    """A thirty-second of the rows, between 64 and 512; of few rows a quarter, 16 at least."""
    return max(16, min(64, n // 4), min(512, n // 32))


def trend_epochs(n: int, batch: int) -> int:
    """300 passes at most, and no more than four thousand steps."""
    return max(1, min(_EPOCHS, _STEPS // math.ceil(n / batch)))


# ---- the residuals that a regressor learns from


def fit_seed(random_state: int) -> int:
    """The seed of a fit that `random_state` leads to."""
    return int(check_random_state(random_state).randint(2**31 - 1))


@torch.no_grad()
def committee_residuals(
    model: KDMRegressor, X: Float[Tensor, "n d"], y: Float[Tensor, "n 1"]
) -> Float[Tensor, "n 1"]:
    """The residuals that the joint KDM of a regressor without a memory learned from, in standardised units.

    They are y minus the mean of the members that hold out the row, scaled to those of the whole committee,
    less the excess variance that the committee adds to its answers.

    Raises:
        RuntimeError: if the committee was not fitted as in this module.
    """
    trend = model.module_.trend
    assert isinstance(trend, Trend)
    answers = trend.ensemble(trend.x(X).float())
    n, n_members = answers.shape[:2]
    is_held_out = held_out(n, n_members, fit_seed(model.random_state))
    residuals = trend.y(y).float() - mean_over(answers, is_held_out)
    share = _typical_share(residuals)
    variance = _held_out_variance(answers, is_held_out, share)
    if not torch.allclose(variance.float(), trend.typical_variance, rtol=1e-4):
        raise RuntimeError("KDMRegressor holds out other rows than kdmlab.regression.cross_fit")
    kept = _kept(residuals, variance * (1 / HOLDERS - 1 / n_members), share)
    removed = (1 - kept) * n / (n + _FEW_ROWS)
    residuals = residuals * ((1 - removed) * (1 + _CHOICE / n)).sqrt().float()
    excess = _excess_variance(answers, variance, share)
    return residuals * _kept(residuals, share @ excess.double(), share).sqrt().float()


def _typical_share(residuals: Float[Tensor, "n 1"]) -> Float[Tensor, " n"]:
    """Equal weights of the rows, with 0 for wild residuals."""
    r = residuals.double()
    share = torch.full((len(r),), 1 / len(r), dtype=torch.float64)
    values, order = r.sort(0)
    below = share[order].cumsum(0)
    ranks = [(below < level - 1e-9).sum(0, keepdim=True) for level in (_TAIL, 0.25, 0.75, 1 - _TAIL)]
    low, first, third, high = (values.gather(0, rank.clamp_max(len(r) - 1)).squeeze(0) for rank in ranks)
    reach = torch.where(third > first, _FENCE * (high - low), torch.inf)
    typical = share * ((residuals >= low - reach) & (residuals <= high + reach)).all(1)
    return typical / typical.sum()


def _held_out_variance(
    answers: Float[Tensor, "n k 1"], is_held_out: Bool[Tensor, "n k"], share: Float[Tensor, " n"]
) -> Float[Tensor, " 1"]:
    """The variance between the members that hold out a row, mean over rows."""
    deviations = mean_over((answers - mean_over(answers, is_held_out).unsqueeze(1)).square(), is_held_out)
    return share @ deviations.double() * HOLDERS / (HOLDERS - 1)


def _excess_variance(
    answers: Float[Tensor, "n k 1"], typical: Float[Tensor, " 1"], share: Float[Tensor, " n"]
) -> Float[Tensor, "n 1"]:
    """max(0, a·var_k − typical) with the factor a that makes the mean of a·var_k the typical variance."""
    variance = answers.var(1).double()
    mean = share @ variance
    unseen = variance * torch.where(mean > 0, typical / mean.clamp_min(1e-300), torch.ones_like(mean))
    return (unseen - typical).clamp_min(0).float()


def _kept(residuals: Tensor, removed: Tensor, share: Tensor) -> Tensor:
    """1 − removed/E[r²]: the share of the mean square that remains, within bounds."""
    second = share @ residuals.double().square()
    kept = torch.where(second > 0, 1 - removed / second.clamp_min(1e-300), torch.ones_like(second))
    return kept.clamp(_LEAST_KEPT, 1)


def min_target_std(y: Float[Tensor, " n"], scale: float) -> float:
    """max(g/2, .01·scale), where g is the smallest gap between distinct targets.

    >>> min_target_std(torch.tensor([3.0, 4.0, 4.0, 6.0]), 1.0)
    0.5
    """
    least = _LEAST_STD * scale
    values = torch.unique(y.double())
    gaps = values.diff()
    size = values.abs()[:-1].maximum(values.abs()[1:]).clamp_min(least)
    gaps = gaps[gaps > _ROUNDING * size]
    return max(least, float(gaps.min()) / 2) if len(gaps) else least
