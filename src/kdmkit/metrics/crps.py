"""The continuous ranked probability score."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit._core.tensors import broadcast
from kdmkit.distributions import KDM
from kdmkit.metrics._mixture import Mixture
from kdmkit.metrics.inputs import as_values, check_density


def crps(rho: KDM, y: Any) -> Float[Tensor, "*lead"]:
    """CRPS(F, y) = ∫ (F(t) − 1{t ≥ y})² dt = E|X − y| − ½·E|X − X'|, in the units of y. Lower is better.

    For a mixture both expectations are sums over components: Σ_j w_j A(y − c_j), Σ_ij w_i w_j A(c_i − c_j).
    Under an RBF kernel they are closed (Grimit et al., 2006); under the compact kernels the A are integrals
    of polynomials, for which Gauss–Legendre quadrature is exact. Computed in float64, and in blocks: without
    gradients, nothing larger than the weights is ever in memory. The double sum takes m² time; where all rows
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
    mixture = Mixture.of(rho, kernel)
    # Which row of the mixture each value meets.
    row = torch.arange(len(mixture.weights), device=value.device).reshape(rho.batch_shape)
    to_value = mixture.mean_distance_to(value.expand(lead).reshape(-1), row.expand(lead).reshape(-1))
    spread = mixture.mean_distance_between().reshape(rho.batch_shape)
    return (to_value.reshape(lead) - 0.5 * spread).to(rho.components.dtype)
