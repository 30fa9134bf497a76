"""Proper scores of predictive distributions: the logarithmic score and the CRPS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit._core.checks import bad_argument, check_instance
from kdmkit._core.tensors import broadcast
from kdmkit.distributions import KDM
from kdmkit.kernels import LocationScale
from kdmkit.metrics.inputs import as_values, check_density

# Pairs whose distances are in memory at once.
_PAIRS = 1 << 22


def mean_nll(rho: KDM, y: Any) -> Float[Tensor, ""]:
    """−(1/n)·Σ_i log f̂_i(y_i): the mean over all rows, in nats. Lower is better.

    `kdmkit.training.nll` gives one value per row.

    Args:
        rho: predictive distributions of batch shape `(n,)`, or one distribution for all rows.
        y: observations `(n, *event)`; labels `(n,)` under discrete kernels; `(n,)` is also accepted if rho is
            one-dimensional with batch shape `(n,)`.

    Returns:
        One number.

    >>> import torch, kdmkit as kdm
    >>> from kdmkit.metrics import mean_nll
    >>> rho = kdm.KDM.from_probs(torch.tensor([[0.9, 0.1], [0.2, 0.8]]))
    >>> mean_nll(rho, torch.tensor([0, 1]))      # −(log 0.9 + log 0.8)/2
    tensor(0.1643)
    """
    check_instance("rho", rho, KDM, "a KDM")
    log_prob = rho.log_prob(as_values(rho, y))
    if log_prob.numel() == 0:
        raise ValueError(bad_argument("y", "at least one row", f"shape {tuple(log_prob.shape)}"))
    return -log_prob.mean()


def crps(rho: KDM, y: Any) -> Float[Tensor, "*lead"]:
    """CRPS(F, y) = ∫ (F(t) − 1{t ≥ y})² dt = E|X − y| − ½·E|X − X'|, in the units of y. Lower is better.

    For a mixture both expectations are sums over components: Σ_j w_j A(y − c_j), Σ_ij w_i w_j A(c_i − c_j).
    Under an RBF kernel they are closed (Grimit et al., 2006); under the compact kernels the A are integrals
    of polynomials, for which Gauss–Legendre quadrature is exact. Computed in float64, and in blocks: without
    gradients, nothing larger than the weights is ever in memory. The double sum takes m² time; if all rows
    share their components, distances are computed once for all of them. Differentiable.

    Args:
        rho: one-dimensional continuous distributions of batch shape `(*batch,)`.
        y: observations `(*lead, 1)`, or `(*batch,)`; `lead` broadcasts with the batch.

    Returns:
        A score for every row, of shape `(*lead,)`, which is `(*batch,)` for one observation per distribution.

    >>> import torch, kdmkit as kdm
    >>> from kdmkit.metrics import crps
    >>> rho = kdm.KDM(torch.zeros(1, 1), None, kdm.RBF.from_std(1.0))
    >>> crps(rho, torch.tensor([[0.0], [2.0]]))      # the standard normal's: (√2 − 1)/√π at its mean
    tensor([0.2337, 1.4528])
    """
    kernel = check_density(rho)
    value = as_values(rho, y).double().squeeze(-1)
    try:
        lead = broadcast(value.shape, rho.batch_shape)
    except RuntimeError as error:
        wanted = f"leading dimensions that broadcast with the batch {tuple(rho.batch_shape)}"
        raise ValueError(bad_argument("y", wanted, tuple(value.shape))) from error
    mixture = MixtureRows.of(rho, kernel)
    # The row of each value's mixture.
    row = torch.arange(len(mixture.weights), device=value.device).reshape(rho.batch_shape)
    to_value = mixture.mean_distance_to(value.expand(lead).reshape(-1), row.expand(lead).reshape(-1))
    spread = mixture.mean_distance_between().reshape(rho.batch_shape)
    return (to_value.reshape(lead) - 0.5 * spread).to(rho.components.dtype)


@dataclass(frozen=True)
class MixtureRows:
    """Mean absolute distances of one-dimensional mixtures in float64, one mixture in each row.

    Args:
        weights: of every mixture.
        components: one row for each mixture, or a single row that all mixtures share.
        scale: a bandwidth for each component, in rows like `components`.
        block: the number of pairs whose distances are in memory at once.
    """

    kernel: LocationScale
    weights: Float[Tensor, "b m"]
    components: Float[Tensor, "c m"]
    scale: Float[Tensor, "s m"]
    block: int

    @classmethod
    def of(cls, rho: KDM, kernel: LocationScale, *, pairs: int = _PAIRS) -> MixtureRows:
        m = rho.n_components
        shape = (*rho.batch_shape, m)
        # Rounded weights do not sum to exactly 1, and that error grows with the distance of the components.
        weights = rho.log_weights.double().log_softmax(-1).exp().expand(shape).reshape(-1, m)
        components = rho.components.double().squeeze(-1)
        scale = kernel.scale(rho.components.double())
        scale = scale.squeeze(-1) if scale.ndim else scale
        scale = _rows(scale.expand(*scale.shape[:-1], m), shape)
        return cls(kernel, weights, _rows(components, shape), scale, pairs // kernel.values_per_distance)

    def mean_distance_to(self, y: Float[Tensor, " n"], row: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Σ_j w_ij E|X_j − y_i| for the mixture in row_i."""
        step = max(1, self.block // self.weights.shape[-1])
        sums = []
        for values, rows in zip(y.split(step), row.split(step), strict=True):
            components, scale = (
                part[rows] if len(part) > 1 else part for part in (self.components, self.scale)
            )
            distance = self.kernel.distance_to_point(values.unsqueeze(-1) - components, scale)
            sums.append((self.weights[rows] * distance).sum(-1))
        return torch.cat(sums)

    def mean_distance_between(self) -> Float[Tensor, " b"]:
        """Σ_ij w_i w_j E|X_i − X_j'| for every row."""
        m = self.weights.shape[-1]
        # Mixtures that share their components are the rows of one matrix product.
        groups = max(len(self.components), len(self.scale))
        weights = self.weights.reshape(groups, -1, m)
        components, scale = (part.expand(groups, m) for part in (self.components, self.scale))
        step = max(1, self.block // m**2)
        parts = zip(weights.split(step), components.split(step), scale.split(step), strict=True)
        return torch.cat([self._between(*part) for part in parts]).reshape(-1)

    def _between(
        self,
        weights: Float[Tensor, "g r m"],
        components: Float[Tensor, "g m"],
        scale: Float[Tensor, "g m"],
    ) -> Tensor:
        g, r, m = weights.shape
        total = weights.new_zeros(g, r)
        for index in torch.arange(m, device=weights.device).split(max(1, self.block // (g * max(r, m)))):
            gap = components[:, index, None] - components[:, None, :]
            distance = self.kernel.distance_between(gap, scale[:, index, None], scale[:, None, :])
            total = total + (weights[..., index] * torch.matmul(weights, distance.mT)).sum(-1)
        return total


def _rows(values: Float[Tensor, "*lead m"], shape: tuple[int, ...]) -> Float[Tensor, "r m"]:
    """A row for every element of a batch, or a single row if all are the same."""
    m = shape[-1]
    return values.reshape(1, m) if values.shape[:-1].numel() == 1 else values.expand(shape).reshape(-1, m)
