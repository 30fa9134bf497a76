"""The distribution of residuals: a joint KDM of cluster centres whose bandwidths leave-one-out chooses."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kdmkit.distributions import KDM
from kdmkit.estimators.common.clusters import Clusters, scores_without_row
from kdmkit.kernels import RBF
from kdmkit.kernels.distances import BOUND
from kdmkit.nn import JointLayer
from kdmkit.training import squared_error

# The standard deviation that output bandwidths start from, relative to that of the residuals.
_FIRST_STD = 0.7
# Halves of the priors' precisions, on the logarithms of bandwidths.
_PRIOR_X, _PRIOR_Y = 2.0, 1.0
# The logit of the contraction's start.
_FIRST_LOGIT = 2.0


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
        if self.generative_weight:
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
