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

# Newton steps for the temperature: the loss is convex in its inverse.
_NEWTON_STEPS, _NEWTON_ACCURACY = 50, 1e-6
# Half the precision of the normal prior of the inverse temperature, about 1.
_PRIOR = 1.0
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
        held_out_y=labels if earlier is None else one_hot,
        start=(counts / counts.sum()).log().float() if earlier is None else earlier.ensemble,
        n_members=n_members,
        loss=cross_entropy if earlier is None else soft_cross_entropy,
        labels=labels,
        generator=generator,
        run=run,
    )
    logits = fitted.held_out_mean
    factor = fit_inverse_temperature(logits.double(), labels, share)
    return FittedLogits(fitted.ensemble, factor.cpu(), factor.float() * logits, fitted.parts, fitted.history)


def cross_entropy(logits: Float[Tensor, "*lead n"], labels: Tensor) -> Float[Tensor, "*lead"]:
    """−log softmax of the label, for every answer; labels broadcast."""
    chosen = torch.take_along_dim(logits, labels.unsqueeze(-1), -1).squeeze(-1)
    return logits.logsumexp(-1) - chosen


def soft_cross_entropy(logits: Float[Tensor, "*lead n"], probs: Tensor) -> Float[Tensor, "*lead"]:
    """The same for label distributions; they broadcast."""
    return logits.logsumexp(-1) - (probs * logits).sum(-1)


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
