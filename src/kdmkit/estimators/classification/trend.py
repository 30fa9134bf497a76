"""The fit of a `LabelTrend`: the ensemble and its temperature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kdmkit.estimators.common.cross_fit import EarlierEnsemble, fit_ensemble
from kdmkit.nn import MLPEnsemble, Scaler
from kdmkit.nn.predictor import BLOCK
from kdmkit.nn.scaler import normalized_weights
from kdmkit.training import fit_temperature

# What a class counts in addition to its rows, where the logits start.
_EXTRA_ROWS = 0.5


@dataclass(frozen=True)
class Earlier:
    """An ensemble that has seen rows which were not kept, to be trained further.

    Attributes:
        scaler: of its rows.
        ensemble: its networks.
        inverse_temperature: of its logits.
        known: the share of each row's weight that stands for rows which were not kept.
    """

    scaler: Scaler
    ensemble: EarlierEnsemble
    inverse_temperature: Float[Tensor, ""]
    known: Float[Tensor, " rows"]

    @torch.no_grad()
    def targets(
        self, x: Float[Tensor, "rows d"], one_hot: Float[Tensor, "rows n"]
    ) -> Float[Tensor, "rows n"]:
        """Label distributions to learn: the label of the row, and p(y|x) for those that it stands for.

        The cross-entropy with p(y|x) is smallest at the ensemble's own answers, and curved like that of the
        labels of as many rows: it keeps what the ensemble has learned from them.
        """
        ensemble = self.ensemble.ensemble.to(x.device)
        logits = torch.cat([ensemble(part.double()).mean(1) for part in x.split(BLOCK)])
        probs = (self.inverse_temperature.to(x.device) * logits).softmax(-1)
        known = self.known.to(x.device).unsqueeze(1)
        return ((1 - known) * one_hot + known * probs).float()


@dataclass(frozen=True)
class FittedLogits:
    """A fitted ensemble, and the logits of members that have not seen the row, at the fitted temperature."""

    ensemble: MLPEnsemble
    inverse_temperature: Float[Tensor, ""]
    logits: Float[Tensor, "rows n"]
    parts: Int[Tensor, " rows"]
    history: list[dict[str, float]]


def fit_logits(
    x: Float[Tensor, "rows d"],
    labels: Int[Tensor, " rows"],
    weights: Float[Tensor, " rows"] | None,
    n_classes: int,
    *,
    earlier: Earlier | None,
    n_members: int,
    generator: torch.Generator,
    run: Callable[..., list[dict[str, float]]],
) -> FittedLogits:
    """Fits an ensemble by cross-entropy; see `fit_ensemble` for the other arguments.

    Args:
        earlier: an ensemble to train further; None starts from the proportions of classes.
    """
    share = normalized_weights(len(x), weights).to(x.device)
    # On the CPU: on a GPU scattered sums differ from run to run.
    counts = len(x) * torch.bincount(labels.cpu(), share.cpu(), minlength=n_classes) + _EXTRA_ROWS
    one_hot = nn.functional.one_hot(labels, n_classes).float()
    fitted = fit_ensemble(
        x,
        labels if earlier is None else earlier.targets(x, one_hot),
        weights,
        held_out_y=None if earlier is None else one_hot,
        start=(counts / counts.sum()).log().float() if earlier is None else earlier.ensemble,
        n_members=n_members,
        loss=cross_entropy if earlier is None else soft_cross_entropy,
        labels=labels,
        generator=generator,
        run=run,
    )
    logits = fitted.held_out_mean
    factor = 1 / fit_temperature(logits, labels, share)
    return FittedLogits(fitted.ensemble, factor.cpu(), factor.float() * logits, fitted.parts, fitted.history)


def cross_entropy(logits: Float[Tensor, "*lead n"], labels: Tensor) -> Float[Tensor, "*lead"]:
    """−log softmax of the label, for every answer; labels broadcast."""
    chosen = torch.take_along_dim(logits, labels.unsqueeze(-1), -1).squeeze(-1)
    return logits.logsumexp(-1) - chosen


def soft_cross_entropy(logits: Float[Tensor, "*lead n"], probs: Tensor) -> Float[Tensor, "*lead"]:
    """The same for label distributions; they broadcast."""
    return logits.logsumexp(-1) - (probs * logits).sum(-1)
