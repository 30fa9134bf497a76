"""Offsets of a trend's logits: a joint KDM of cluster centres, each with an offset for every label."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kdmkit.estimators.common.clusters import Clusters, scores_without_row
from kdmkit.kernels import RBF
from kdmkit.nn import JointLayer
from kdmkit.nn.label_trend import tilted_log_probs

# Halves of the priors' precisions: of the logarithms of bandwidths about their start, of offsets about 0.
_PRIOR_X, _PRIOR_OFFSETS = 2.0, 2.0


class Offsets(nn.Module):
    """−log p(y|x) − α·log p(x) of every row, with p(y|x) = Σ_j w_j(x)·softmax_y(t(x) + c_j).

    The logits t(x) are those of members that have not seen the row, and the weights w_j(x) and p(x) are those
    of the clusters as they would be without it. Learned are the bandwidths, one per input, and the offsets
    c_j. Normal priors on both prevent overfitting.

    Args:
        layer: as `layer_of_clusters` makes it.
        n_rows: the number of rows in all: the priors count once for all of them.
        generative_weight: α.
    """

    first_raw: Tensor

    def __init__(self, layer: JointLayer, *, n_rows: int, generative_weight: float) -> None:
        super().__init__()
        self.layer, self.n_rows, self.generative_weight = layer, n_rows, generative_weight
        self.register_buffer("first_raw", self._raw().detach().clone())
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
        losses = losses - self.generative_weight * log_density
        return losses + self._prior() / self.n_rows

    def _prior(self) -> Float[Tensor, ""]:
        """−log of the priors, up to a constant."""
        apart = (self._raw() - self.first_raw).square().sum()
        return _PRIOR_X * apart + _PRIOR_OFFSETS * self.offsets.square().sum()

    def _raw(self) -> Tensor:
        """The logarithms of the bandwidths, above their bound."""
        return self.layer.kernel("x").learned_bandwidth.raw


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
