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
from kdmkit.training import fit_temperature

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
    """Fits an ensemble by cross-entropy; it starts from the proportions of classes. See `fit_ensemble`."""
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
    factor = 1 / fit_temperature(logits, labels, share)
    return FittedLogits(fitted.ensemble, factor.cpu(), factor.float() * logits, fitted.history)


def cross_entropy(logits: Float[Tensor, "*lead n"], labels: Tensor) -> Float[Tensor, "*lead"]:
    """−log softmax of the label, for every answer; labels broadcast."""
    chosen = torch.take_along_dim(logits, labels.unsqueeze(-1), -1).squeeze(-1)
    return logits.logsumexp(-1) - chosen
