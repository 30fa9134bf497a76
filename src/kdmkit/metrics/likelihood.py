"""The logarithmic score."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import bad_argument, check_instance
from kdmkit.distributions import KDM
from kdmkit.metrics.inputs import as_values


def mean_nll(rho: KDM, y: Any) -> Float[Tensor, ""]:
    """−(1/n)·Σ_i log f̂_i(y_i): the mean over all rows, in nats. Lower is better.

    `kdmkit.training.nll` gives one value per row.

    Args:
        rho: predictive distributions of batch shape `(n,)`, or one distribution for all rows.
        y: observations `(n, *event)`; labels `(n,)` under discrete kernels; `(n,)` is also accepted where
            rho is one-dimensional with batch shape `(n,)`.

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
