"""Offsets of a trend's logits: a joint KDM of cluster centres, each with an offset for every label."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kdmkit.estimators.common.clusters import ClusterObjective, Clusters, scores_without_row
from kdmkit.kernels import RBF
from kdmkit.nn import JointLayer
from kdmkit.nn.trend import tilted_log_probs

# Half the precision of the offsets' prior, about 0.
_PRIOR_OFFSETS = 2.0


class Offsets(ClusterObjective):
    """−log p(y|x) − α·log p(x) of every row, with p(y|x) = Σ_j w_j(x)·softmax_y(t(x) + c_j).

    The logits t(x) are those of members that have not seen the row, and the weights w_j(x) and p(x) are those
    of the clusters as they would be without it. Learned are the bandwidths, one per input, and the offsets
    c_j. Normal priors on both prevent overfitting.

    Args:
        layer: as `layer_of_clusters` makes it.
        options: `n_rows` and `generative_weight` α, see `ClusterObjective`.
    """

    def __init__(self, layer: JointLayer, **options: Any) -> None:
        super().__init__(layer, **options)
        self.offsets = nn.Parameter(torch.zeros_like(layer.components["y"]))

    def forward(
        self,
        x: Float[Tensor, "rows d"],
        logits: Float[Tensor, "rows n"],
        labels: Int[Tensor, " rows"],
        own: Int[Tensor, " rows"],
        x_without: Float[Tensor, "rows d"],
        log_weight_without: Float[Tensor, " rows"],
    ) -> Float[Tensor, " rows"]:
        scores, log_density = scores_without_row(self.layer, x, own, x_without, log_weight_without)
        log_probs = tilted_log_probs(scores.softmax(-1), logits, self.offsets)
        losses = -log_probs.gather(1, labels.unsqueeze(1)).squeeze(1)
        return self._total(losses, log_density)

    def _prior(self) -> Float[Tensor, ""]:
        return _PRIOR_OFFSETS * self.offsets.square().sum()


def layer_of_clusters(clusters: Clusters, sigma: Float[Tensor, " d"], *, min_sigma: float) -> JointLayer:
    """A layer whose components are the clusters.

    Args:
        sigma: where the bandwidths of x start.
        min_sigma: their lower bound.
    """
    layer = JointLayer(
        clusters.x.shape[1],
        clusters.r.shape[1],
        len(clusters.x),
        in_kernel=RBF(sigma.clamp_min(1.05 * min_sigma), sigma_min=min_sigma),
        train_components=False,
        train_weights=False,
        dtype=torch.float32,
        generator=torch.Generator(),
    )
    return layer.assign({"x": clusters.x, "y": clusters.r}, clusters.log_weight)
