"""Regressors about a trend: an ensemble's mean, and a joint KDM of rows and residuals."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kdmkit._core.logspace import exp_, finite_max, safe_log
from kdmkit.distributions import KDM
from kdmkit.estimators.common.clusters import (
    PRIOR_X,
    Clusters,
    bandwidth_settings,
    log_bandwidths,
    log_density_without_row,
    scores_without_row,
    weighted_squares,
    with_priors,
)
from kdmkit.estimators.common.cross_fit import HOLDERS, fit_ensemble, mean_over, trend_options
from kdmkit.estimators.common.effort import count_members
from kdmkit.estimators.common.leave_one_out import answers_without_row, search_memory
from kdmkit.estimators.common.member_losses import target_errors
from kdmkit.kernels import RBF
from kdmkit.kernels.bandwidth import BOUND
from kdmkit.nn import JointLayer, Predictor, ResidualMemory, Scaler, Trend
from kdmkit.nn.scaler import fences, normalized_weights
from kdmkit.nn.trend import with_background
from kdmkit.training import Rows
from kdmkit.training.objectives import squared_error

# The least share of the residuals' variance that is kept: with few rows, a larger cut is not justified.
_LEAST_KEPT = 0.64
# See `_scaled_to_ensemble`.
_FEW_ROWS, _CHOICE = 100, 4.0
# The first input bandwidths, in units of √d, the typical distance between standardised rows.
_FIRST_SIGMA = 0.7
# The first standard deviation of components of y, relative to that of the residuals.
_FIRST_STD = 0.7
# Half the precision of the prior of the logarithms of y's bandwidths, about their mean.
_PRIOR_Y = 1.0
_TINY = 1e-30
# The logit of the first contraction.
_FIRST_LOGIT = 2.0


def fit_about_trend(
    estimator: Any,
    x: Float[Tensor, "n d"],
    y: Float[Tensor, "n outputs"],
    weights: Float[Tensor, " n"] | None,
    scalers: dict[str, Scaler],
    bound: Float[Tensor, " outputs"],
) -> tuple[Predictor, dict[str, list[dict[str, float]]]]:
    """Fits an ensemble, a memory of its residuals, then the joint KDM of rows and remaining residuals.

    Args:
        x: standardised rows.
        y: targets.
        scalers: of rows and of targets.
        bound: the least standard deviation of components, in units of standardised targets.

    Returns:
        The fitted model, and the histories of the phases `"pretraining"` (the ensemble) and `"joint"`.
    """
    targets, start = scalers["y"](y).float(), torch.zeros(y.shape[1])
    options = trend_options(estimator, len(x))
    fitted = fit_ensemble(x, targets, weights, start=start, loss=target_errors, **options)
    # Residuals of members that have not seen the row.
    residuals = targets - fitted.held_out_mean
    share = _typical_share(residuals, normalized_weights(len(x), weights).to(x.device))
    variance = _held_out_variance(fitted.answers, fitted.holds_out, share)
    residuals = _scaled_to_ensemble(residuals, variance, count_members(estimator), share)
    memory, excess = None, _excess_variance(fitted.answers, variance, share)
    if estimator.memory:
        memory, residuals, coverage = fit_memory(x, residuals, weights, estimator._torch_generator())
        excess = excess * (1 - coverage).square()
    residuals = without_excess(residuals, excess, share)
    # Residuals are learned in units of their least standard deviation: then all outputs have one bound.
    layer, history = _fit_residuals(estimator, x, residuals / bound.float(), weights)
    unit = Scaler(torch.zeros_like(bound), bound * scalers["y"].scale)
    trend = Trend(fitted.ensemble, memory, scalers["x"], scalers["y"], variance.float())
    scalers = {"x": scalers["x"].cpu(), "y": unit.cpu()}
    module = Predictor.from_standardized(layer, scalers, trend=trend.cpu())
    return module, {"joint": history, "pretraining": fitted.history}


# ---- the trend


def _typical_share(residuals: Float[Tensor, "n outputs"], share: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """The rows' weights, with 0 for wild residuals: these say nothing about the others' variance."""
    low, high = fences(residuals.double(), share)
    typical = share * ((residuals >= low) & (residuals <= high)).all(1)
    return typical / typical.sum()


def _held_out_variance(
    answers: Float[Tensor, "n k outputs"], holds_out: Bool[Tensor, "n k"], share: Float[Tensor, " n"]
) -> Float[Tensor, " outputs"]:
    """The variance between the members that hold out a row, mean over rows."""
    mean = mean_over(answers, holds_out)
    deviations = mean_over((answers - mean.unsqueeze(1)).square(), holds_out)
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
    """Residuals scaled so that their variance plus the mean excess variance is their variance before.

    The excess variance is added to answers: the total must stay that of the residuals.
    """
    return residuals * _kept(residuals, share @ excess.double(), share).sqrt().float()


def _kept(
    residuals: Float[Tensor, "n outputs"], removed: Float[Tensor, " outputs"], share: Float[Tensor, " n"]
) -> Float[Tensor, " outputs"]:
    """1 − removed/E[r²]: the share of the mean square that remains, within bounds."""
    second = share @ residuals.double().square()
    kept = torch.where(second > 0, 1 - removed / second.clamp_min(1e-300), torch.ones_like(second))
    return kept.clamp(_LEAST_KEPT, 1)


@torch.no_grad()
def fit_memory(
    x: Float[Tensor, "n d"],
    r: Float[Tensor, "n outputs"],
    weights: Float[Tensor, " n"] | None,
    generator: torch.Generator,
    *,
    most_rows: int = 20_000,
    block: int = 2000,
) -> tuple[ResidualMemory | None, Float[Tensor, "n outputs"], Float[Tensor, "n 1"]]:
    """The memory with the smallest leave-one-out squared error, or None if none lowers it significantly.

    Args:
        x, r, weights: rows, residuals, sample weights.
        generator: of a CPU; chooses the rows of the memory if there are many.
        most_rows: of the memory.
        block: rows per block of the final answers.

    Returns:
        The memory; the residuals minus its answers, and its coverage, both computed without the row itself.
    """

    def losses(rows: Tensor, answers: Tensor, _: Tensor) -> Tensor:
        return (r[rows] - answers).double().square().mean(-1)

    memory, kept = search_memory(x, r, weights, generator, losses, most_rows=most_rows)
    if memory is None:
        return None, r, r.new_zeros(len(x), 1)
    answers, coverage = torch.empty_like(r), r.new_empty(len(x), 1)
    outside = torch.ones(len(x), dtype=torch.bool, device=x.device)
    outside[kept] = False
    answers[outside], coverage[outside] = memory(x[outside])
    for part in torch.arange(len(kept), device=x.device).split(block):
        means, log_overlaps = answers_without_row(memory, [float(memory.sigma)], part)
        without = with_background(means[0], log_overlaps[0], memory.background)
        answers[kept[part]], coverage[kept[part]] = without
    return memory, r - answers, coverage


# ---- residuals


def _fit_residuals(
    estimator: Any, x: Tensor, r: Tensor, weights: Tensor | None
) -> tuple[JointLayer, list[dict[str, float]]]:
    """The joint KDM of rows and residuals, and the history of its training."""
    n, d = x.shape
    m = estimator._count_components(n, automatic_count(n))
    clusters = Clusters.of(x, r, weights, m, estimator._seed)
    sigma = float(estimator._first_sigma(_FIRST_SIGMA * math.sqrt(d)))
    spread = Scaler.from_data(r, weights).scale.float().cpu()
    layer = layer_of_residuals(clusters, spread, sigma=sigma, min_sigma=math.sqrt(2))
    alpha = float(estimator.generative_weight)
    objective = LeaveOneOut(layer, n_rows=n, generative_weight=alpha, loss=estimator.loss)
    without = (clusters.x_without, clusters.r_without, clusters.log_weight_without)
    rows = Rows((x, r, clusters.member_of, *without), None if weights is None else weights.float())
    history = estimator._run(objective, rows, None, "regressor", **bandwidth_settings(estimator, n))
    return objective.finish(), history


def automatic_count(n: int) -> int:
    """A sixteenth of the rows, between 4 and 256; an eighth of fewer than 32.

    >>> [automatic_count(n) for n in (8, 20, 60, 500, 10_000)]
    [1, 2, 4, 31, 256]
    """
    return max(1, min(4, n // 8), min(256, n // 16))


class LeaveOneOut(nn.Module):
    """−log p(r|x) − α·log p(x) of every row, under the joint KDM as it would be without the row.

    Components and weights are those of the clusters. The bandwidths, one per input and one per component and
    output, are learned, and a contraction λ in (0, 1): the components of y are λ times the clusters'
    residuals, since the variance of the kernels comes on top of that between the components. Normal priors on
    the logarithms of bandwidths, for x about their start and for y about their mean, prevent overfitting
    if rows are few and inputs many.

    Args:
        layer: as `layer_of_residuals` makes it; `finish` contracts its components.
        n_rows: the number of rows in all.
        generative_weight: α.
        loss: `"mse"` puts the squared error of the mean in place of the first term.
    """

    first: Tensor

    def __init__(
        self,
        layer: JointLayer,
        *,
        n_rows: int,
        generative_weight: float,
        loss: Literal["nll", "mse"] = "nll",
    ) -> None:
        super().__init__()
        self.layer, self.n_rows, self.generative_weight, self.loss = layer, n_rows, generative_weight, loss
        self.register_buffer("first", log_bandwidths(layer, "x").detach().clone())
        self.logit = nn.Parameter(torch.full_like(layer.components["y"][0], _FIRST_LOGIT))

    def forward(
        self,
        x: Float[Tensor, "n d"],
        r: Float[Tensor, "n outputs"],
        member_of: Int[Tensor, " n"],
        x_without: Float[Tensor, "n d"],
        r_without: Float[Tensor, "n outputs"],
        log_weight_without: Float[Tensor, " n"],
    ) -> Float[Tensor, " n"]:
        layer, log_sigma = self.layer, self.layer.kernel("x").learned_bandwidth.value.log()
        columns = x, member_of, x_without, log_weight_without
        scores = scores_without_row(log_sigma, layer.components["x"], layer.logits, *columns)
        is_member = nn.functional.one_hot(member_of, layer.n_components).bool()
        residuals = torch.where(is_member.unsqueeze(-1), r_without.unsqueeze(1), layer.components["y"])
        rho = KDM(
            self.logit.sigmoid() * residuals,
            None,
            layer.kernel("y"),
            log_weights=torch.log_softmax(scores, -1),
            validate_args=False,
        )
        losses = -rho.log_prob(r) if self.loss == "nll" else squared_error(rho, r)
        if self.generative_weight:
            log_p = log_density_without_row(scores, log_sigma, layer.logits, member_of, log_weight_without)
            losses = losses - self.generative_weight * log_p
        of_y = log_bandwidths(layer, "y")
        prior = _PRIOR_Y * (of_y - of_y.mean(0)).square().sum()
        return with_priors(losses, layer, self.first, prior, self.n_rows)

    @property
    def writes_gradients(self) -> bool:
        """Whether `with_gradients` is this loss."""
        return self.loss == "nll"

    def with_gradients(
        self,
        x: Float[Tensor, "n d"],
        r: Float[Tensor, "n outputs"],
        member_of: Int[Tensor, " n"],
        x_without: Float[Tensor, "n d"],
        r_without: Float[Tensor, "n outputs"],
        log_weight_without: Float[Tensor, " n"],
        share: Float[Tensor, " n"],
    ) -> tuple[Float[Tensor, " n"], tuple[Tensor, ...]]:
        """`forward`, and the gradients of Σ_i share_i·loss_i by contraction, bandwidths of x, those of y."""
        layer, alpha, centres = self.layer, self.generative_weight, self.layer.components["x"]
        sigma_x, sigma_y = layer.kernel("x").learned_bandwidth, layer.kernel("y").learned_bandwidth
        value_x, value_y = sigma_x.value, sigma_y.value
        log_sigma = value_x.log()
        rows = x, member_of, x_without, log_weight_without
        scores = scores_without_row(log_sigma, centres, layer.logits, *rows)
        place = member_of.view(-1, 1, 1).expand(-1, 1, r.shape[1])
        residuals = layer.components["y"].expand(len(r), -1, -1).scatter(1, place, r_without.unsqueeze(1))
        factor, variance = self.logit.sigmoid(), value_y.square() / 2
        error = r.unsqueeze(1) - factor * residuals
        ratio = error.square() / variance
        log_joint = scores.log_softmax(1) - (ratio + (2 * math.pi * variance).log()).sum(-1) / 2
        top = finite_max(log_joint)
        joint = exp_(log_joint - top)
        total = joint.sum(1, keepdim=True)
        losses = -safe_log(total).add(top).squeeze(1)
        posterior = (share.unsqueeze(1) / total.clamp_min(_TINY)) * joint
        by_scores = (share * (1 - alpha)).unsqueeze(1) * scores.softmax(1) - posterior
        squares = weighted_squares(by_scores, x, centres, member_of, x_without)
        by_sigma_x = 2 * squares / value_x**3
        if alpha:
            log_p = log_density_without_row(scores, log_sigma, layer.logits, member_of, log_weight_without)
            losses = losses - alpha * log_p
            by_sigma_x += alpha * share.sum() / value_x
        posterior = posterior.unsqueeze(-1)
        by_sigma_y = (posterior * (1 - ratio)).sum(0) / value_y
        by_factor = -(posterior * error * residuals / variance).sum((0, 1))
        # The priors.
        of_x, of_y, scale = (
            sigma_x.raw - self.first,
            sigma_y.raw - sigma_y.raw.mean(0),
            share.sum() / self.n_rows,
        )
        by_x = by_sigma_x * (value_x - sigma_x.minimum) + 2 * PRIOR_X * scale * of_x
        by_y = by_sigma_y * (value_y - sigma_y.minimum) + 2 * _PRIOR_Y * scale * of_y
        prior = PRIOR_X * of_x.square().sum() + _PRIOR_Y * of_y.square().sum()
        return losses + prior / self.n_rows, (by_factor * factor * (1 - factor), by_x, by_y)

    @torch.no_grad()
    def finish(self) -> JointLayer:
        """The layer with its contracted components."""
        self.layer.components["y"].mul_(self.logit.sigmoid())
        return self.layer


def layer_of_residuals(
    clusters: Clusters, spread: Float[Tensor, " outputs"], *, sigma: float, min_sigma: float
) -> JointLayer:
    """A layer whose components are the clusters.

    Args:
        spread: the residuals' standard deviations.
        sigma: the first bandwidth of x.
        min_sigma: the lower bound of the bandwidths of y.
    """
    first = (math.sqrt(2) * _FIRST_STD * spread).clamp_min(1.05 * min_sigma)
    of_x = RBF(torch.full((clusters.x.shape[1],), sigma), sigma_min=BOUND * sigma)
    return clusters.layer(of_x, RBF(first.expand_as(clusters.r), sigma_min=min_sigma))
