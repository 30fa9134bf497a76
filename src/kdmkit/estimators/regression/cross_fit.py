"""Residuals of cross-fitted members, and the variance between members."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kdmkit.estimators.common.cross_fit import HOLDERS, fit_ensemble, mean_over
from kdmkit.nn import MLPEnsemble
from kdmkit.nn.scaler import fences, normalized_weights

# The least share of the residuals' variance that is kept: with few rows, a larger cut is not justified.
_LEAST_KEPT = 0.64
# In standard deviations of the targets: larger errors count linearly instead of by their squares.
_DELTA = 3.0
# See `_scaled_to_ensemble`.
_FEW_ROWS, _CHOICE = 100, 4.0


@dataclass(frozen=True)
class CrossFit:
    """A fitted ensemble and its residuals, in standardised units.

    Args:
        ensemble: fitted.
        residuals: y minus the mean of the members that hold out the row, scaled to those of the whole
            ensemble.
        typical_variance: of the answers of members that hold out the row, mean over rows.
        excess_variance: by how much the members' variance at every row exceeds the typical one.
        share: the rows' weights in such means over rows; 0 for wild residuals.
        history: of the training.
    """

    ensemble: MLPEnsemble
    residuals: Float[Tensor, "n outputs"]
    typical_variance: Float[Tensor, " outputs"]
    excess_variance: Float[Tensor, "n outputs"]
    share: Float[Tensor, " n"]
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
    fitted = fit_ensemble(
        x,
        y,
        weights,
        start=torch.zeros(y.shape[1]),
        n_members=n_members,
        loss=member_errors,
        generator=generator,
        run=run,
    )
    answers, residuals = fitted.answers, y - fitted.held_out_mean
    share = _typical_share(residuals, normalized_weights(len(x), weights).to(x.device))
    variance = _held_out_variance(answers, fitted.held, share)
    residuals = _scaled_to_ensemble(residuals, variance, n_members, share)
    excess = _excess_variance(answers, variance, share)
    return CrossFit(fitted.ensemble, residuals, variance.float(), excess, share, fitted.history)


def member_errors(answers: Tensor, y: Tensor) -> Tensor:
    """Huber's loss: e², and 2δ|e| − δ² where |e| > δ, so that a few wild targets do not bend the trend."""
    error = (answers - y).abs()
    inner = error.clamp_max(_DELTA)
    return (inner * (2 * error - inner)).mean(-1)


def _typical_share(residuals: Float[Tensor, "n outputs"], share: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """The rows' weights, with 0 for wild residuals: these say nothing about the others' variance."""
    low, high = fences(residuals.double(), share)
    typical = share * ((residuals >= low) & (residuals <= high)).all(1)
    return typical / typical.sum()


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
