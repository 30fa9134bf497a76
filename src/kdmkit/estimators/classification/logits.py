"""Classifiers about a trend: an ensemble's logits, and a joint KDM of clusters with offsets of the logits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kdmkit.distributions import KDM, JointKDM
from kdmkit.estimators.common.clusters import (
    Clusters,
    bandwidth_settings,
    log_bandwidths,
    log_density_without_row,
    maximize_density,
    min_target_std,
    scores_without_row,
    with_priors,
)
from kdmkit.estimators.common.cross_fit import FittedEnsemble, fit_ensemble, trend_options
from kdmkit.estimators.common.effort import effort_of
from kdmkit.estimators.common.leave_one_out import search_memory
from kdmkit.estimators.common.member_losses import label_losses
from kdmkit.kernels import RBF
from kdmkit.nn import JointLayer, LabelTrend, Predictor, ResidualMemory, Scaler
from kdmkit.nn.scaler import LARGEST_INPUT, normalized_weights, soft_clip
from kdmkit.nn.trend import tilted_log_probs
from kdmkit.training import Rows, fit_temperature

# Rows that every class has in addition to its own, for the first logits.
_EXTRA_ROWS = 0.5
# The first bandwidths, in units of √d, the typical distance between standardised rows.
_FIRST_SIGMA = 0.7
# The least standard deviation of a component, in standard deviations of a column.
_LEAST_STD = 0.01
# Half the precision of the offsets' prior, about 0.
_PRIOR_OFFSETS = 2.0
_TINY = torch.finfo(torch.float64).tiny
# Weighted proposals per draw.
_CANDIDATES = 8


def fit_about_trend(
    estimator: Any,
    x: Float[Tensor, "rows d"],
    labels: Int[Tensor, " rows"],
    weights: Float[Tensor, " rows"] | None,
    n_classes: int,
) -> tuple[Predictor, dict[str, list[dict[str, float]]]]:
    """Fits an ensemble, a memory of rows, then the joint KDM of rows and offsets of the logits.

    Returns:
        The fitted model, and the histories of the phases `"pretraining"` (the ensemble) and `"joint"`.
    """
    device = estimator._fit_device()
    x, labels = x.to(device), labels.to(device)
    weights = None if weights is None else weights.to(device)
    scaler = Scaler.from_data(x, weights)
    z = soft_clip(scaler(x)).float()
    fitted, logits, inverse_temperature = _fit_logits(estimator, z, labels, weights, n_classes)
    memory = None
    if estimator.memory:
        probs = logits.softmax(-1)
        memory = _fit_label_memory(z, labels, probs, weights, estimator._torch_generator())
    # Rows are learned in units of their least standard deviation: then all columns have one bound.
    unit = Scaler(scaler.shift, min_target_std(x).maximum(_LEAST_STD * scaler.scale))
    rows = Scaler(scaler.shift, scaler.scale, LARGEST_INPUT)(x).float()
    layer, offsets, history = _fit_offsets(
        estimator, rows, unit.scale / scaler.scale, labels, logits, weights
    )
    trend = LabelTrend(fitted.ensemble, memory, scaler, offsets, inverse_temperature)
    module = Predictor.from_standardized(layer, {"x": unit.cpu()}, trend=trend.cpu()).to(device)
    with torch.no_grad():
        components = module.layer.components
        components["y"].copy_(trend.probs_at_components(components["x"]).sqrt())
    return module, {"joint": history, "pretraining": fitted.history}


def _fit_logits(
    estimator: Any, x: Tensor, labels: Tensor, weights: Tensor | None, n_classes: int
) -> tuple[FittedEnsemble, Float[Tensor, "rows n"], Float[Tensor, ""]]:
    """Fits an ensemble by cross-entropy; it starts from the proportions of classes.

    Returns:
        The ensemble; the logits of members that have not seen the row, at the fitted temperature; the inverse
        of that temperature.
    """
    share = normalized_weights(len(x), weights).to(x.device)
    # On the CPU: on a GPU scattered sums differ from run to run.
    counts = len(x) * torch.bincount(labels.cpu(), share.cpu(), minlength=n_classes) + _EXTRA_ROWS
    rate = {"learning_rate": effort_of(estimator).label_rate} if estimator.learning_rate == "auto" else {}
    fitted = fit_ensemble(
        x,
        labels,
        weights,
        start=(counts / counts.sum()).log().float(),
        loss=label_losses,
        labels=labels,
        **trend_options(estimator, len(x), averaging=None, **rate),
    )
    logits = fitted.held_out_mean
    factor = 1 / fit_temperature(logits, labels, share)
    return fitted, factor.float() * logits, factor.cpu()


@torch.no_grad()
def _fit_label_memory(
    x: Float[Tensor, "rows d"],
    labels: Int[Tensor, " rows"],
    probs: Float[Tensor, "rows n"],
    weights: Float[Tensor, " rows"] | None,
    generator: torch.Generator,
) -> ResidualMemory | None:
    """The memory with the smallest leave-one-out log-loss, or None if no memory lowers it significantly.

    Args:
        x, labels, weights: of the rows.
        probs: p(y|x) of a model that has not seen the row.
        generator: of a CPU; chooses the rows if there are many.
    """
    one_hot = nn.functional.one_hot(labels, probs.shape[1]).to(x.dtype)

    def losses(rows: Tensor, remembered: Tensor, coverage: Tensor) -> Tensor:
        answers = ((1 - coverage) * probs[rows] + remembered).double()
        true = answers[..., torch.arange(len(rows), device=rows.device), labels[rows]]
        # A label that was impossible counts 708 nats: means stay finite.
        return -true.clamp_min(_TINY).log()

    return search_memory(x, one_hot, weights, generator, losses)[0]


# ---- offsets


def _fit_offsets(
    estimator: Any, z: Tensor, unit: Tensor, labels: Tensor, logits: Tensor, weights: Tensor | None
) -> tuple[JointLayer, Tensor, list[dict[str, float]]]:
    """The joint KDM, in the given units, the offsets of its components, and the history of the training."""
    n, d = z.shape
    m = estimator._count_components(n, max(2 * logits.shape[1], min(256, n // 5)))
    one_hot = nn.functional.one_hot(labels, logits.shape[1]).float()
    clusters = Clusters.of(z, one_hot, weights, m, estimator._seed).scaled(1 / unit.float())
    sigma = float(estimator._first_sigma(_FIRST_SIGMA * math.sqrt(d))) / unit.float().cpu()
    layer = clusters.layer(RBF(sigma.clamp_min(1.05 * math.sqrt(2)), sigma_min=math.sqrt(2)))
    if not _learns_offsets(estimator):
        history = maximize_density(layer, z / unit.float(), clusters, weights, estimator._torch_generator())
        return layer, torch.zeros_like(layer.components["y"]), history
    objective = Offsets(layer, n_rows=n, generative_weight=estimator._alpha(has_trend=True))
    tensors = (z / unit.float(), logits, labels, *clusters.without_row())
    rows = Rows(tensors, None if weights is None else weights.float())
    settings = {**bandwidth_settings(estimator, n), "averaging": None}
    history = estimator._run(objective, rows, None, "classifier", **settings)
    return layer, objective.offsets.detach(), history


def _learns_offsets(estimator: Any) -> bool:
    """Whether offsets are learned: with effort `"best"`, or if the weight of log p(x) is given."""
    return effort_of(estimator).has_offsets or not isinstance(estimator.generative_weight, str)


class Offsets(nn.Module):
    """−log p(y|x) − α·log p(x) of every row, with p(y|x) = Σ_j w_j(x)·softmax_y(t(x) + c_j).

    The logits t(x) are those of members that have not seen the row, and the weights w_j(x) and p(x) are those
    of the clusters as they would be without it. The bandwidths, one per input, and the offsets c_j are
    learned. Normal priors on both prevent overfitting.

    Args:
        layer: of the clusters.
        n_rows: the number of rows in all.
        generative_weight: α.
    """

    first: Tensor

    def __init__(self, layer: JointLayer, *, n_rows: int, generative_weight: float) -> None:
        super().__init__()
        self.layer, self.n_rows, self.generative_weight = layer, n_rows, generative_weight
        self.register_buffer("first", log_bandwidths(layer, "x").detach().clone())
        self.offsets = nn.Parameter(torch.zeros_like(layer.components["y"]))

    def forward(
        self,
        x: Float[Tensor, "rows d"],
        logits: Float[Tensor, "rows n"],
        labels: Int[Tensor, " rows"],
        member_of: Int[Tensor, " rows"],
        x_without: Float[Tensor, "rows d"],
        log_weight_without: Float[Tensor, " rows"],
    ) -> Float[Tensor, " rows"]:
        layer, log_sigma = self.layer, self.layer.kernel("x").learned_bandwidth.value.log()
        columns = x, member_of, x_without, log_weight_without
        scores = scores_without_row(log_sigma, layer.components["x"], layer.logits, *columns)
        log_probs = tilted_log_probs(scores.softmax(-1), logits, self.offsets)
        losses = -log_probs.gather(1, labels.unsqueeze(1)).squeeze(1)
        if self.generative_weight:
            log_p = log_density_without_row(scores, log_sigma, layer.logits, member_of, log_weight_without)
            losses = losses - self.generative_weight * log_p
        prior = _PRIOR_OFFSETS * self.offsets.square().sum()
        return with_priors(losses, layer, self.first, prior, self.n_rows)


# ---- draws


def draw_given_label(
    model: Predictor,
    probs: Float[Tensor, " labels"],
    n: int,
    spread: float,
    generator: torch.Generator,
    *,
    proposals: int = 4096,
    rounds: int = 64,
    fewest: int = 16,
) -> Float[Tensor, "n d"]:
    """Draws of x: a label from `probs`, then x from p(x|y) ∝ p(x)·p(y|x).

    A proposal from p(x) is accepted with probability p(y|x): accepted ones have exactly this distribution.
    If too few proposals have a label, the rest is chosen by importance: proposals from the joint KDM's
    q(x|y), in proportion to p(y|x)/q(y|x).

    Args:
        spread: factor of the bandwidth of p(x).
        proposals: per round.
        rounds, fewest: rejection stops after this number of rounds if a round accepts fewer proposals than
            `fewest` on average.
    """
    joint = model.joint()
    marginal = joint.marginal("x")
    labels = torch.multinomial(probs, n, replacement=True, generator=generator)
    drawn = torch.empty(n, *marginal.event_shape, dtype=probs.dtype, device=probs.device)
    for label in labels.unique():
        places = torch.nonzero(labels == label).squeeze(1)
        rejection = _rejection(model, _spread(marginal, spread), label, generator, proposals)
        accepted = _accepted(rejection, len(places), rounds, fewest)
        rest = len(places) - len(accepted)
        if rest:
            accepted = torch.cat(
                [accepted, _weighted(model, joint, label, rest, spread, generator, proposals)]
            )
        drawn[places] = accepted
    return drawn


def _spread(rho: KDM, spread: float) -> KDM:
    return rho.with_kernel(rho.kernel.scaled(spread))


def _rejection(
    model: Predictor, marginal: KDM, label: Tensor, generator: torch.Generator, proposals: int
) -> Iterator[Tensor]:
    """Rounds of proposals, of each the accepted ones."""
    while True:
        x = marginal.sample((proposals,), generator=generator)
        share = model(x).probs[:, label]
        chance = torch.rand(share.shape, dtype=share.dtype, device=share.device, generator=generator)
        yield x[chance < share]


def _accepted(rejection: Iterator[Tensor], n: int, rounds: int, fewest: int) -> Tensor:
    """At most n draws, fewer if the label is rare."""
    draws: list[Tensor] = []
    missing = n
    while missing and not (len(draws) >= rounds and n - missing < fewest * len(draws)):
        draws.append(next(rejection)[:missing])
        missing -= len(draws[-1])
    return torch.cat(draws)


def _weighted(
    model: Predictor,
    joint: JointKDM,
    label: Tensor,
    n: int,
    spread: float,
    generator: torch.Generator,
    block: int,
) -> Tensor:
    """n of eight times as many proposals, by their importance."""
    proposals = _spread(joint.infer(y=label, target="x"), spread)
    x = proposals.sample((_CANDIDATES * n,), generator=generator)
    log_share = torch.cat([model(part).log_weights[:, label] for part in x.split(block)])
    log_share = log_share - joint.infer(x=x, target="y").log_prob(label)
    chosen = torch.multinomial(log_share.softmax(0), n, replacement=True, generator=generator)
    return x[chosen]
