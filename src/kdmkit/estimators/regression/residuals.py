"""The distribution of residuals: a joint KDM of cluster centres whose bandwidths leave-one-out chooses."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kdmkit.distributions import KDM
from kdmkit.estimators.common.clusters import ClusterObjective, Clusters, scores_without_row
from kdmkit.kernels import RBF
from kdmkit.kernels.bandwidth import BOUND
from kdmkit.nn import JointLayer
from kdmkit.training.objectives import squared_error

# The standard deviation that output bandwidths start from, relative to that of the residuals.
_FIRST_STD = 0.7
# Half the precision of the prior of the logarithms of y's bandwidths, about their mean.
_PRIOR_Y = 1.0
# The logit of the contraction's start.
_FIRST_LOGIT = 2.0


class LeaveOneOut(ClusterObjective):
    """−log p(r|x) − α·log p(x) of every row, under the joint KDM as it would be without the row.

    Components and weights are those of the clusters. Learned are the bandwidths, one per input and one per
    component and output, and a contraction λ in (0, 1): the components of y are λ times the clusters'
    residuals, since the kernels' own variance comes on top of that between the components. Normal priors on
    the logarithms of bandwidths, for x about their start and for y about their mean, prevent overfitting
    where rows are few and inputs many.

    Args:
        layer: as `layer_of` makes it; `finish` contracts its components.
        loss: `"mse"` puts the squared error of the mean in place of the first term.
        options: `n_rows` and `generative_weight` α, see `ClusterObjective`.
    """

    def __init__(self, layer: JointLayer, *, loss: Literal["nll", "mse"] = "nll", **options: Any) -> None:
        super().__init__(layer, **options)
        self.loss = loss
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
        scores, log_density = scores_without_row(self.layer, x, own, x_without, log_weight_without)
        its_own = nn.functional.one_hot(own, self.layer.n_components).bool()
        residuals = torch.where(its_own.unsqueeze(-1), r_without.unsqueeze(1), self.layer.components["y"])
        rho = KDM(
            self.logit.sigmoid() * residuals,
            None,
            self.layer.kernel("y"),
            log_weights=torch.log_softmax(scores, -1),
            validate_args=False,
        )
        losses = -rho.log_prob(r) if self.loss == "nll" else squared_error(rho, r)
        return self._total(losses, log_density)

    def _prior(self) -> Float[Tensor, ""]:
        of_y = self._raw("y")
        return _PRIOR_Y * (of_y - of_y.mean(0)).square().sum()

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
