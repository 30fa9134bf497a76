"""The fit of a `LabelTrend`: the ensemble and its temperature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit.estimators.common.cross_fit import fit_ensemble
from kdmkit.nn import MLPEnsemble
from kdmkit.nn.scaler import normalized_weights

# Newton steps for the temperature: the loss is convex in its inverse.
_NEWTON_STEPS, _NEWTON_ACCURACY = 50, 1e-6
# Half the precision of the normal prior of the inverse temperature, about 1.
_PRIOR = 1.0
# What a class counts in addition to its rows, where the logits start.
_EXTRA_ROWS = 0.5


@dataclass(frozen=True)
class FittedLogits:
    """A fitted ensemble, and the logits of members that have not seen the row, at the fitted temperature."""

    ensemble: MLPEnsemble
    inverse_temperature: Float[Tensor, ""]
    logits: Float[Tensor, "rows n"]
    history: list[dict[str, float]]


def fit_logits(
    x: Float[Tensor, "rows d"],
    labels: Int[Tensor, " rows"],
    weights: Float[Tensor, " rows"] | None,
    n_classes: int,
    *,
    n_members: int,
    generator: torch.Generator,
    run: Callable[..., list[dict[str, float]]],
) -> FittedLogits:
    """Fits an ensemble by cross-entropy; see `fit_ensemble` for the arguments."""
    share = normalized_weights(len(x), weights).to(x.device)
    # On the CPU: on a GPU scattered sums differ from run to run.
    counts = len(x) * torch.bincount(labels.cpu(), share.cpu(), minlength=n_classes) + _EXTRA_ROWS
    fitted = fit_ensemble(
        x,
        labels,
        weights,
        start=(counts / counts.sum()).log().float(),
        n_members=n_members,
        loss=cross_entropy,
        labels=labels,
        generator=generator,
        run=run,
    )
    logits = fitted.held_out_mean
    factor = fit_inverse_temperature(logits.double(), labels, share)
    return FittedLogits(fitted.ensemble, factor.cpu(), factor.float() * logits, fitted.history)


def cross_entropy(logits: Float[Tensor, "*lead n"], labels: Tensor) -> Float[Tensor, "*lead"]:
    """−log softmax of the label, for every answer; labels broadcast."""
    chosen = torch.take_along_dim(logits, labels.unsqueeze(-1), -1).squeeze(-1)
    return logits.logsumexp(-1) - chosen


def fit_inverse_temperature(
    logits: Float[Tensor, "rows n"], labels: Int[Tensor, " rows"], share: Float[Tensor, " rows"]
) -> Float[Tensor, ""]:
    """The a > 0 for which softmax(a·t) has the smallest mean cross-entropy, with a weak prior about 1."""
    right = logits.gather(1, labels.unsqueeze(1)).squeeze(1)
    prior = 2 * _PRIOR / len(logits)
    a = logits.new_ones((), dtype=torch.float64)
    for _ in range(_NEWTON_STEPS):
        probs = (a * logits).softmax(-1)
        mean = (probs * logits).sum(-1)
        variance = (probs * (logits - mean.unsqueeze(1)).square()).sum(-1)
        slope, curvature = share @ (mean - right) + prior * (a - 1), share @ variance + prior
        # A step that is too long is shortened: a stays positive.
        new = torch.clamp(a - slope / curvature, a / 2, 2 * a)
        if abs(float(new - a)) < _NEWTON_ACCURACY:
            return new
        a = new
    return a
