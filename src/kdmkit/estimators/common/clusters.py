"""Clusters of rows, and scores of rows that leave the row itself out of its cluster."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kdmkit._core.logspace import exp_
from kdmkit.estimators.common.effort import effort_of
from kdmkit.kernels import RBF
from kdmkit.nn import JointLayer, Scaler
from kdmkit.nn.initialize import cluster
from kdmkit.nn.scaler import fences

# Bandwidths start wide and are learned on a logarithmic scale: a hundred large steps reach any value.
_BATCH = 256
# Half the precision of the prior of the logarithms of x's bandwidths, about their start.
PRIOR_X = 2.0
# k-means is fitted to at most this many rows.
_CLUSTER_SAMPLE = 20_000
# Weights below this share of a cluster's weight are lost in a difference.
_LOST = 1e-12
# EM of bandwidths: rows at most, steps at most, the gain in nats per row below which it ends.
_EM_ROWS, _EM_STEPS, _EM_GAIN = 4096, 50, 1e-3
_NEWTON_STEPS, _LEAST_SQUARE = 8, 1e-12
# How far bandwidths stay above their lower bound, relative to it.
_ABOVE = 1e-3
# Rows per block of sums on a GPU.
_BLOCK = 16384
# Targets that differ by less than this share of their size count as equal.
_ROUNDING = 1e-9
# The least standard deviation, relative to that of the targets.
_LEAST_STD = 0.01
# The scale of a constant target, relative to its value.
_CONSTANT = 1e-6


@dataclass(frozen=True)
class Clusters:
    """Centres of clusters of rows and residuals, of all their members and without each of them.

    Args:
        x, r: the means of every cluster.
        log_weight: the logarithm of its members' total weight.
        member_of: the number of the cluster of every row.
        x_without, r_without, log_weight_without: of the cluster of every row, as if the row were not there;
            the log-weight is −∞ if the row is its only member.
    """

    x: Float[Tensor, "m d"]
    r: Float[Tensor, "m outputs"]
    log_weight: Float[Tensor, " m"]
    member_of: Int[Tensor, " n"]
    x_without: Float[Tensor, "n d"]
    r_without: Float[Tensor, "n outputs"]
    log_weight_without: Float[Tensor, " n"]

    @classmethod
    def of(
        cls,
        x: Float[Tensor, "n d"],
        r: Float[Tensor, "n outputs"],
        weights: Float[Tensor, " n"] | None,
        m: int,
        seed: int,
    ) -> Clusters:
        """At most m clusters, fewer if rows coincide. Every residual counts as much as one feature."""
        spread = Scaler.from_data(r, weights).scale.float()
        vectors = torch.cat([x, r / spread], 1)
        w = torch.ones(len(x), dtype=torch.float64) if weights is None else weights.double().cpu()
        member_of = cluster(
            vectors.cpu(), m, seed=seed, weights=w if weights is not None else None, sample=_CLUSTER_SAMPLE
        )
        total, count = torch.bincount(member_of, w).to(x.device), torch.bincount(member_of).to(x.device)
        member_of, w = member_of.to(x.device), w.to(x.device)
        # The weight of the other members; if they weigh next to nothing, total − w would be rounding.
        alone = (count[member_of] == 1) | (total[member_of] - w <= _LOST * total[member_of])
        rest = torch.where(alone, torch.zeros_like(w), total[member_of] - w)
        pull = (w / torch.where(alone, torch.ones_like(w), rest)).unsqueeze(1)

        def centres(values: Tensor) -> tuple[Tensor, Tensor]:
            """The centres of all clusters, and of each row's cluster without the row."""
            centre = _sums(member_of, len(total), w.unsqueeze(1) * values.double()) / total.unsqueeze(1)
            return centre.float(), (centre[member_of] + pull * (centre[member_of] - values)).float()

        (x_centre, x_without), (r_centre, r_without) = centres(x), centres(r)
        log_weights = total.log().float(), rest.log().float()
        return cls(x_centre, r_centre, log_weights[0], member_of, x_without, r_without, log_weights[1])

    def scaled(self, scale: Float[Tensor, " d"]) -> Clusters:
        """The same clusters of scale·x."""
        return replace(self, x=scale * self.x, x_without=scale * self.x_without)

    def layer(self, in_kernel: RBF, out_kernel: RBF | None = None) -> JointLayer:
        """A layer whose components are the clusters; only its bandwidths are trained."""
        (m, d), outputs = self.x.shape, self.r.shape[1]
        layer = JointLayer(
            d,
            outputs,
            m,
            in_kernel=in_kernel,
            out_kernel=out_kernel,
            train_components=False,
            train_weights=False,
            dtype=torch.float32,
            generator=torch.Generator(),
        )
        return layer.assign({"x": self.x, "y": self.r}, self.log_weight)

    def without_row(self) -> tuple[Tensor, Tensor, Tensor]:
        """The tensors of every row that `scores_without_row` takes."""
        return self.member_of, self.x_without, self.log_weight_without


def _sums(member_of: Int[Tensor, " n"], m: int, values: Float[Tensor, "n v"]) -> Float[Tensor, "m v"]:
    """The sum of values of every cluster. On a GPU by products: scattered sums differ from run to run."""
    sums = values.new_zeros(m, values.shape[1])
    if values.device.type == "cpu":
        return sums.index_add(0, member_of, values)
    for part, some in zip(member_of.split(_BLOCK), values.split(_BLOCK), strict=True):
        sums.addmm_(nn.functional.one_hot(part, m).to(values.dtype).mT, some)
    return sums


def log_bandwidths(layer: JointLayer, name: str) -> Tensor:
    """The logarithms of a variable's bandwidths, above their lower bound."""
    return layer.kernel(name).learned_bandwidth.raw


def with_priors(
    losses: Float[Tensor, " n"],
    layer: JointLayer,
    first: Float[Tensor, " d"],
    prior: Float[Tensor, ""],
    n_rows: int,
) -> Float[Tensor, " n"]:
    """Losses of rows and their share of −log of the priors of what is learned, up to a constant.

    Args:
        losses: of the rows.
        layer: of the clusters.
        first: the logarithms of the bandwidths of x at the start, the mean of their prior.
        prior: −log of the other priors.
        n_rows: the number of rows in all: the priors count once for all of them.
    """
    of_x = PRIOR_X * (log_bandwidths(layer, "x") - first).square().sum()
    return losses + (of_x + prior) / n_rows


def bandwidth_settings(estimator: Any, n: int) -> dict[str, Any]:
    """Settings of the training of a layer of clusters of n rows: about a hundred steps."""
    effort = effort_of(estimator)
    epochs = math.ceil(effort.bandwidth_steps / math.ceil(n / _BATCH))
    automatic = estimator.max_epochs == "auto"
    return {
        "batch_size": _BATCH,
        "learning_rate": effort.bandwidth_rate,
        "schedule": "cosine",
        "max_epochs": epochs if automatic else min(epochs, int(estimator.max_epochs)),
    }


def scores_without_row(
    log_sigma: Float[Tensor, " d"],
    components: Float[Tensor, "m d"],
    logits: Float[Tensor, " m"],
    x: Float[Tensor, "n d"],
    member_of: Int[Tensor, " n"],
    x_without: Float[Tensor, "n d"],
    log_weight_without: Float[Tensor, " n"],
) -> Float[Tensor, "n m"]:
    """log p_j·k²(x_i, x_j) up to a constant, under clusters as they would be without the row i.

    Squares of differences are expanded, in float64: rows are standardised, so that zero lies among them.

    Args:
        log_sigma: the logarithms of the bandwidths.
        components, logits: of the clusters.
        x, member_of, x_without, log_weight_without: of the rows, see `Clusters`.
    """
    scale = (-log_sigma).exp().double()
    rows, centres = scale * x, scale * components
    offsets = logits - centres.square().sum(1)
    scores = torch.addmm(offsets, rows, centres.mT, alpha=2) - rows.square().sum(1, keepdim=True)
    of_cluster = log_weight_without - (rows - scale * x_without).square().sum(1)
    return scores.scatter(1, member_of.unsqueeze(1), of_cluster.unsqueeze(1)).to(x.dtype)


def log_density_without_row(
    scores: Float[Tensor, "n m"],
    log_sigma: Float[Tensor, " d"],
    logits: Float[Tensor, " m"],
    member_of: Int[Tensor, " n"],
    log_weight_without: Float[Tensor, " n"],
) -> Float[Tensor, " n"]:
    """log p(x) from the scores, under clusters as they would be without the row."""
    # The weight of all rows but one: that of the other clusters, and that of the row's cluster without it.
    log_weights = logits.double()
    log_total = log_weights.logsumexp(0)
    others = 1 - (log_weights - log_total).exp()
    log_rest = log_total + (others[member_of] + (log_weight_without.double() - log_total).exp()).log()
    log_norm = -log_sigma.double().sum() - len(log_sigma) / 2 * math.log(math.pi)
    top = scores.detach().amax(1, keepdim=True)
    log_sum = exp_(scores - top).sum(1).log() + top.squeeze(1)
    return log_sum + (log_norm - log_rest).to(scores.dtype)


# ---- bandwidths of p(x) alone


@torch.no_grad()
def maximize_density(
    layer: JointLayer,
    x: Float[Tensor, "n d"],
    clusters: Clusters,
    weights: Float[Tensor, " n"] | None,
    generator: torch.Generator,
) -> list[dict[str, float]]:
    """Sets the bandwidths of x to those that maximise Σ_i w_i·log p(x_i) by clusters without the row.

    By EM: with r_ij ∝ p_j·k²(x_i, x_j), the variance σ²/2 of a column is the mean of r_ij·(x_i − x_j)²,
    drawn to its start by the prior of `with_priors`. Many rows are represented by a sample, and rows far from
    all others are left out.

    The layer is on the CPU, before and after.

    Returns:
        One entry per step: its number, and the loss −Σ_i w_i·log p(x_i) / Σ_i w_i before it.
    """
    n = len(x)
    layer.to(x.device)
    rows = torch.randperm(n, generator=generator)[:_EM_ROWS].to(x.device)
    x, (member_of, x_without, log_weight_without) = x[rows], [t[rows] for t in clusters.without_row()]
    w = torch.ones_like(x[:, 0]) if weights is None else weights[rows].to(x)
    share = w / w.sum()
    components, logits, bandwidth = layer.components["x"], layer.logits, layer.kernel("x").learned_bandwidth
    least = math.log((1 + _ABOVE) * float(bandwidth.minimum))
    log_sigma = first = bandwidth.value.double().log()
    history: list[dict[str, float]] = []
    for step in range(_EM_STEPS):
        scores = scores_without_row(
            log_sigma, components, logits, x, member_of, x_without, log_weight_without
        )
        log_density = log_density_without_row(scores, log_sigma, logits, member_of, log_weight_without)
        if step == 0:
            # A row far from all others must not widen the bandwidths of all.
            low, _ = fences(log_density.double().unsqueeze(1), share.double())
            share = torch.where(log_density < low, 0, share)
            share /= share.sum()
        history.append({"epoch": float(step), "loss": -float(share.double() @ log_density.double())})
        if step and history[-2]["loss"] - history[-1]["loss"] < _EM_GAIN:
            break
        weights_of_pairs = share.unsqueeze(1) * scores.softmax(-1)
        squares = weighted_squares(weights_of_pairs, x, components, member_of, x_without)
        log_sigma = _posterior_log_sigma(squares.double(), first, n).clamp_min(least)
    bandwidth.value = log_sigma.exp()
    layer.cpu()
    return history


def weighted_squares(
    weights: Float[Tensor, "n m"],
    x: Float[Tensor, "n d"],
    components: Float[Tensor, "m d"],
    member_of: Int[Tensor, " n"],
    x_without: Float[Tensor, "n d"],
) -> Float[Tensor, " d"]:
    """Σ_ij w_ij·(x_i − x_j)² of every column, with each row's cluster as it would be without the row."""
    place = member_of.unsqueeze(1)
    of_cluster, weights = weights.gather(1, place), weights.scatter(1, place, 0.0)
    squares = weights.sum(1) @ x.square() + weights.sum(0) @ components.square()
    squares -= 2 * ((weights.mT @ x) * components).sum(0)
    return squares + (of_cluster * (x - x_without).square()).sum(0)


def _posterior_log_sigma(
    squares: Float[Tensor, " d"], first: Float[Tensor, " d"], n: int
) -> Float[Tensor, " d"]:
    """The t = log σ that minimises n·(t + squares/σ²) + p·(t − first)², by Newton's method.

    It starts from the minimum for p = 0, which is near if rows are many.
    """
    t = (2 * squares.clamp_min(_LEAST_SQUARE)).log() / 2
    for _ in range(_NEWTON_STEPS):
        ratio = squares * (-2 * t).exp()
        slope = n * (1 - 2 * ratio) + 2 * PRIOR_X * (t - first)
        t = t - (slope / (4 * n * ratio + 2 * PRIOR_X)).clamp(-1, 1)
    return t


# ---- least widths


def target_scaler(y: Float[Tensor, "n outputs"], weights: Float[Tensor, " n"] | None) -> Scaler:
    """Mean and standard deviation; a constant target gets a millionth of its value, 1e-6 about zero.

    >>> target_scaler(torch.full((3, 1), 5.0), None).scale
    tensor([5.0000e-06], dtype=torch.float64)
    """
    scaler = Scaler.from_data(y, weights)
    size = scaler.shift.abs()
    constant = y.amax(0) - y.amin(0) <= 1e-12 * y.abs().amax(0)
    scale = torch.where(constant, _CONSTANT * torch.where(size > 0, size, 1.0), scaler.scale)
    return Scaler(scaler.shift, scale)


def min_target_std(y: Float[Tensor, "n outputs"]) -> Float[Tensor, " outputs"]:
    """max(g/2, .01·s) of every output: s is its scale, g the smallest gap between distinct targets.

    Without a bound, components narrow down to spikes on targets that repeat (integers, grades), and the
    likelihood is unbounded.

    >>> min_target_std(torch.tensor([[3.0], [4.0], [4.0], [6.0]]))
    tensor([0.5000], dtype=torch.float64)
    """
    y = y.double()
    bounds = _LEAST_STD * target_scaler(y, None).scale
    for output, column in enumerate(y.mT):
        values = torch.unique(column)
        gaps = values.diff()
        # Relative to the two values, not to the column: one wild value says nothing about rounding.
        size = values.abs()[:-1].maximum(values.abs()[1:]).clamp_min(float(bounds[output]))
        gaps = gaps[gaps > _ROUNDING * size]
        if len(gaps):
            bounds[output] = max(float(bounds[output]), float(gaps.min()) / 2)
    return bounds
