"""Clusters of rows, and scores of rows that leave the row itself out of its cluster."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kdmkit.nn import JointLayer, Scaler
from kdmkit.nn.initialize import cluster
from kdmkit.ops import score_matrix

# Bandwidths start wide and are learned on a logarithmic scale: a few hundred large steps reach any value.
RATE, STEPS, BATCH = 0.05, 200, 256
# Half the precision of the prior of the logarithms of x's bandwidths, about their start.
_PRIOR_X = 2.0
# k-means is fitted to at most this many rows.
_CLUSTER_SAMPLE = 50_000
# A share of a cluster's weight that is lost in a difference.
_ROUNDING = 1e-12
# Rows per product of sums.
_BLOCK = 16384


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
        spread = Scaler.from_data(r, weights).scale.float()
        vectors = torch.cat([x, r / spread], 1)
        w = torch.ones(len(x), dtype=torch.float64) if weights is None else weights.double().cpu()
        own = cluster(
            vectors.cpu(), m, seed=seed, weights=w if weights is not None else None, sample=_CLUSTER_SAMPLE
        )
        total, count = torch.bincount(own, w).to(x.device), torch.bincount(own).to(x.device)
        own, w = own.to(x.device), w.to(x.device)
        # The weight of the other members; where they weigh next to nothing, total − w would be rounding.
        alone = (count[own] == 1) | (total[own] - w <= _ROUNDING * total[own])
        rest = torch.where(alone, torch.zeros_like(w), total[own] - w)
        pull = (w / torch.where(alone, torch.ones_like(w), rest)).unsqueeze(1)

        def centres(values: Tensor) -> tuple[Tensor, Tensor]:
            """Of all clusters, and of each row's cluster without the row."""
            centre = _sums(own, len(total), w.unsqueeze(1) * values.double()) / total.unsqueeze(1)
            return centre.float(), (centre[own] + pull * (centre[own] - values)).float()

        (x_centre, x_without), (r_centre, r_without) = centres(x), centres(r)
        log_weights = total.log().float(), rest.log().float()
        return cls(x_centre, r_centre, log_weights[0], own, x_without, r_without, log_weights[1])

    def scaled(self, scale: Float[Tensor, " d"]) -> Clusters:
        """The same clusters of scale·x."""
        return replace(self, x=scale * self.x, x_without=scale * self.x_without)

    def left_out(self) -> tuple[Tensor, Tensor, Tensor]:
        """What `scores_without_row` needs of every row."""
        return self.own, self.x_without, self.log_weight_without


def _sums(own: Int[Tensor, " n"], m: int, values: Float[Tensor, "n v"]) -> Float[Tensor, "m v"]:
    """The sum of values of every cluster. On a GPU by products: scattered sums differ from run to run."""
    sums = values.new_zeros(m, values.shape[1])
    if values.device.type == "cpu":
        return sums.index_add(0, own, values)
    for part, some in zip(own.split(_BLOCK), values.split(_BLOCK), strict=True):
        sums.addmm_(nn.functional.one_hot(part, m).to(values.dtype).mT, some)
    return sums


class ClusterObjective(nn.Module, ABC):
    """A loss of every row under a joint KDM of clusters, less α·log p(x), with priors on what is learned.

    Args:
        layer: its components are the clusters.
        n_rows: the number of rows in all: the priors count once for all of them.
        generative_weight: α.
    """

    first_raw: Tensor

    def __init__(self, layer: JointLayer, *, n_rows: int, generative_weight: float) -> None:
        super().__init__()
        self.layer, self.n_rows, self.generative_weight = layer, n_rows, generative_weight
        self.register_buffer("first_raw", self._raw("x").detach().clone())

    @abstractmethod
    def _prior(self) -> Float[Tensor, ""]:
        """−log of the priors of what is learned beside the bandwidths of x, up to a constant."""

    def _total(self, losses: Float[Tensor, " n"], log_density: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        if self.generative_weight:
            losses = losses - self.generative_weight * log_density
        of_x = _PRIOR_X * (self._raw("x") - self.first_raw).square().sum()
        return losses + (of_x + self._prior()) / self.n_rows

    def _raw(self, name: str) -> Tensor:
        """The logarithms of a variable's bandwidths, above their bound."""
        return self.layer.kernel(name).learned_bandwidth.raw


def scores_without_row(
    layer: JointLayer,
    x: Float[Tensor, "n d"],
    own: Int[Tensor, " n"],
    x_without: Float[Tensor, "n d"],
    log_weight_without: Float[Tensor, " n"],
) -> tuple[Float[Tensor, "n m"], Float[Tensor, " n"]]:
    """log p_j·k²(x, x_j) up to a constant, and log p(x), under clusters as they would be without the row."""
    kernel, components = layer.kernel("x"), layer.components["x"]
    its_own = nn.functional.one_hot(own, layer.n_components).bool()
    log_weights = torch.where(its_own, log_weight_without.unsqueeze(-1), layer.logits)
    scores = torch.where(
        its_own,
        (log_weight_without + kernel.log_overlap(x, x_without)).unsqueeze(-1),
        score_matrix([kernel.term(x, components)], layer.logits),
    )
    return scores, scores.logsumexp(-1) - log_weights.logsumexp(-1) + kernel.log_norm(components)
