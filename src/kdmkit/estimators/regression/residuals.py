"""The distribution of residuals: centres of clusters as components, each row judged by the others."""

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
from kdmkit.training import squared_error

# Bandwidths start broad and live on a logarithmic scale: a few hundred bold steps take them anywhere.
RATE, STEPS, BATCH = 0.05, 200, 256
# Of the residuals' standard deviation, where the output bandwidths start.
_FIRST_STD = 0.7
# Halves of the priors' precisions, on the logarithms of bandwidths.
_PRIOR_X, _PRIOR_Y = 2.0, 1.0
# The logit of the contraction's start.
_FIRST_LOGIT = 2.0
# k-means sees at most this many rows, for a few rounds: it only has to spread the components.
_CLUSTER_SAMPLE, _CLUSTER_ROUNDS = 50_000, 20


@dataclass(frozen=True)
class Clusters:
    """Centres of clusters of rows and residuals, and what they would be without one of their members.

    Args:
        x, r: the means of every cluster.
        log_weight: log of the weights of its members together.
        own: the cluster of every row.
        x_without, r_without, log_weight_without: its row's cluster as if the row were not there; where it is
            the only member the log-weight is −∞.
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
        """At most m clusters: fewer where rows coincide."""
        own = _cluster(x, r, weights, m, seed)
        w = torch.ones(len(x), dtype=torch.float64) if weights is None else weights.double()
        total = torch.bincount(own, w)
        # Members beside the row; what is left of a sum after its only term is no weight but rounding.
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


def _cluster(x: Tensor, r: Tensor, weights: Tensor | None, m: int, seed: int) -> Int[Tensor, " n"]:
    """The cluster of every row; residuals count as much as one feature each."""
    spread = r.std(0, unbiased=False)
    vectors = torch.cat([x, r / torch.where(spread > 0, spread, torch.ones_like(spread))], 1).double().numpy()
    some = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:_CLUSTER_SAMPLE].numpy()
    m = min(m, len(torch.unique(torch.from_numpy(vectors[some]), dim=0)))
    from sklearn.cluster import KMeans

    means = KMeans(m, n_init=1, max_iter=_CLUSTER_ROUNDS, random_state=seed)
    means.fit(vectors[some], sample_weight=None if weights is None else weights.double().numpy()[some])
    return torch.unique(torch.from_numpy(means.predict(vectors)).long(), return_inverse=True)[1]


class LeaveOneOut(nn.Module):
    """−log p(r|x) − α·log p(x) of every row, under a joint KDM as it would be without the row.

    Components and weights are those of the clusters; bandwidths are learned: one per input, one per component
    and output. So is a contraction λ in (0, 1) of the components' residuals: kernels of a bounded width about
    the residuals themselves would add their variance to that of the residuals. Normal priors hold the
    logarithms of bandwidths together, those of x about their start, those of y about their mean: where rows
    are few and inputs many, bandwidths would learn the rows by heart.

    Args:
        layer: as `layer_of` makes it; `finish` contracts its components.
        n_rows: of the data: the priors count once for all of them.
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
        self.register_buffer("first_raw", self._kernel("x").learned_bandwidth.raw.detach().clone())
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
        of_x, of_r = self._kernel("x"), self._kernel("y")
        its_own = nn.functional.one_hot(own, self.layer.n_components).bool()
        log_weights = torch.where(its_own, log_weight_without.unsqueeze(-1), self.layer.logits)
        overlaps = torch.where(
            its_own,
            of_x.log_overlap(x, x_without).unsqueeze(-1),
            of_x.log_overlap_matrix(x, self.layer.components["x"]),
        )
        scores = log_weights + overlaps
        residuals = torch.where(its_own.unsqueeze(-1), r_without.unsqueeze(1), self.layer.components["y"])
        rho = KDM(
            self.logit.sigmoid() * residuals,
            None,
            of_r,
            log_weights=torch.log_softmax(scores, -1),
            validate_args=False,
        )
        losses = -rho.log_prob(r) if self.loss == "nll" else squared_error(rho, r)
        if self.generative_weight:
            log_density = (
                scores.logsumexp(-1) - log_weights.logsumexp(-1) + of_x.log_norm(self.layer.components["x"])
            )
            losses = losses - self.generative_weight * log_density
        return losses + self._prior() / self.n_rows

    def _prior(self) -> Float[Tensor, ""]:
        """−log of the priors, up to a constant."""
        of_x, of_r = (self._kernel(name).learned_bandwidth.raw for name in ("x", "y"))
        apart = (of_r - of_r.mean(0)).square().sum()
        return _PRIOR_X * (of_x - self.first_raw).square().sum() + _PRIOR_Y * apart

    def _kernel(self, name: str) -> RBF:
        kernel = self.layer.kernels[name]
        assert isinstance(kernel, RBF)
        return kernel

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
        min_sigma: what σ of the outputs stays above.
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
    )
    with torch.no_grad():
        layer.components["x"].copy_(clusters.x)
        layer.components["y"].copy_(clusters.r)
        layer.logits.copy_(clusters.log_weight)
    return layer
