"""The distribution of residuals: a joint KDM of cluster centres whose bandwidths leave-one-out chooses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kdmkit.distributions import KDM
from kdmkit.kernels import RBF
from kdmkit.kernels.distances import BOUND
from kdmkit.nn import JointLayer
from kdmkit.nn.clustering import cluster
from kdmkit.ops import score_matrix
from kdmkit.training import squared_error

# Bandwidths start wide and are learned on a logarithmic scale: a few hundred large steps reach any value.
RATE, STEPS, BATCH = 0.05, 200, 256
# The standard deviation that output bandwidths start from, relative to that of the residuals.
_FIRST_STD = 0.7
# Halves of the priors' precisions, on the logarithms of bandwidths.
_PRIOR_X, _PRIOR_Y = 2.0, 1.0
# The logit of the contraction's start.
_FIRST_LOGIT = 2.0
# k-means is fitted to at most this many rows.
_CLUSTER_SAMPLE = 50_000


@dataclass(frozen=True)
class Clusters:
    """Centres of clusters of rows and residuals, and what they would be without one of their members.

    Args:
        x, r: the means of every cluster.
        log_weight: the logarithm of its members' total weight.
        own: the cluster of every row.
        x_without, r_without, log_weight_without: of every row, its cluster as if the row were not there; the
            log-weight is −∞ where the row is its only member.
    """

    x: Float[Tensor, "m d"]
    r: Float[Tensor, "m outputs"]
    log_weight: Float[Tensor, " m"]
    own: Int[Tensor, " n"]
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
        """At most m clusters: fewer where rows coincide. Every residual counts as much as one feature."""
        spread = r.std(0, unbiased=False)
        vectors = torch.cat([x, r / torch.where(spread > 0, spread, torch.ones_like(spread))], 1)
        own = cluster(vectors, m, seed=seed, weights=weights, sample=_CLUSTER_SAMPLE)
        w = torch.ones(len(x), dtype=torch.float64) if weights is None else weights.double()
        total = torch.bincount(own, w)
        # The weight of the other members; for a row alone, total − w would be rounding instead of 0.
        alone = torch.bincount(own)[own] == 1
        rest = torch.where(alone, torch.zeros_like(w), total[own] - w)
        pull = (w / torch.where(alone, torch.ones_like(w), rest)).unsqueeze(1)

        def centres(values: Tensor) -> tuple[Tensor, Tensor]:
            """Of all clusters, and of each row's cluster without the row."""
            sums = torch.zeros(len(total), values.shape[1], dtype=torch.float64)
            centre = sums.index_add(0, own, w.unsqueeze(1) * values.double()) / total.unsqueeze(1)
            return centre.float(), (centre[own] + pull * (centre[own] - values)).float()

        (x_centre, x_without), (r_centre, r_without) = centres(x), centres(r)
        log_weights = total.log().float(), rest.log().float()
        return cls(x_centre, r_centre, log_weights[0], own, x_without, r_without, log_weights[1])


class LeaveOneOut(nn.Module):
    """−log p(r|x) − α·log p(x) of every row, under the joint KDM as it would be without the row.

    Components and weights are those of the clusters. Learned are the bandwidths, one per input and one per
    component and output, and a contraction λ in (0, 1): the components of y are λ times the clusters'
    residuals, since the kernels' own variance comes on top of that between the components. Normal priors on
    the logarithms of bandwidths, for x about their start and for y about their mean, prevent overfitting
    where rows are few and inputs many.

    Args:
        layer: as `layer_of` makes it; `finish` contracts its components.
        n_rows: the number of rows in all: the priors count once for all of them.
        generative_weight: α.
        loss: `"mse"` puts the squared error of the mean in place of the first term.
    """

    first_raw: Tensor

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
        self.register_buffer("first_raw", self._raw("x").detach().clone())
        self.logit = nn.Parameter(torch.full_like(layer.components["y"][0], _FIRST_LOGIT))

    def forward(
        self,
        x: Float[Tensor, "n d"],
        r: Float[Tensor, "n outputs"],
        own: Int[Tensor, " n"],
        x_without: Float[Tensor, "n d"],
        r_without: Float[Tensor, "n outputs"],
        log_weight_without: Float[Tensor, " n"],
    ) -> Float[Tensor, " n"]:
        kernel, components = self.layer.kernel("x"), self.layer.components["x"]
        its_own = nn.functional.one_hot(own, self.layer.n_components).bool()
        log_weights = torch.where(its_own, log_weight_without.unsqueeze(-1), self.layer.logits)
        scores = torch.where(
            its_own,
            (log_weight_without + kernel.log_overlap(x, x_without)).unsqueeze(-1),
            score_matrix([kernel.term(x, components)], self.layer.logits),
        )
        residuals = torch.where(its_own.unsqueeze(-1), r_without.unsqueeze(1), self.layer.components["y"])
        rho = KDM(
            self.logit.sigmoid() * residuals,
            None,
            self.layer.kernel("y"),
            log_weights=torch.log_softmax(scores, -1),
            validate_args=False,
        )
        losses = -rho.log_prob(r) if self.loss == "nll" else squared_error(rho, r)
        if self.generative_weight:
            log_density = scores.logsumexp(-1) - log_weights.logsumexp(-1) + kernel.log_norm(components)
            losses = losses - self.generative_weight * log_density
        return losses + self._prior() / self.n_rows

    def _prior(self) -> Float[Tensor, ""]:
        """−log of the priors, up to a constant."""
        of_x, of_y = self._raw("x"), self._raw("y")
        apart = (of_y - of_y.mean(0)).square().sum()
        return _PRIOR_X * (of_x - self.first_raw).square().sum() + _PRIOR_Y * apart

    def _raw(self, name: str) -> Tensor:
        """The logarithms of a variable's bandwidths, above their bound."""
        return self.layer.kernel(name).learned_bandwidth.raw

    @torch.no_grad()
    def finish(self) -> JointLayer:
        """The layer with its contracted components."""
        self.layer.components["y"].mul_(self.logit.sigmoid())
        return self.layer


def layer_of(
    clusters: Clusters, spread: Float[Tensor, " outputs"], *, sigma: float, min_sigma: float
) -> JointLayer:
    """A layer whose components are the clusters.

    Args:
        spread: the residuals' standard deviations.
        sigma: where the bandwidths of x start.
        min_sigma: the lower bound of the bandwidths of y.
    """
    m, d, outputs = len(clusters.x), clusters.x.shape[1], clusters.r.shape[1]
    first = (math.sqrt(2) * _FIRST_STD * spread).clamp_min(1.05 * min_sigma)
    layer = JointLayer(
        d,
        outputs,
        m,
        in_kernel=RBF(torch.full((d,), sigma), sigma_min=BOUND * sigma),
        out_kernel=RBF(first.expand(m, outputs), sigma_min=min_sigma),
        train_components=False,
        train_weights=False,
        dtype=torch.float32,
        generator=torch.Generator(),
    )
    return layer.assign({"x": clusters.x, "y": clusters.r}, clusters.log_weight)
