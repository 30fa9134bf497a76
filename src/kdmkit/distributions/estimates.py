"""Estimates from draws, with their errors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

if TYPE_CHECKING:
    from kdmkit.distributions.base import Composite


class Estimate(NamedTuple):
    """A mean over draws.

    Args:
        value: the mean, `(*batch,)`.
        standard_error: of the mean.

    >>> import kdmkit as kdm
    >>> entropy = kdm.KDM(torch.zeros(1, 1), None, kdm.RBF.from_std(1.0)).estimate_entropy(10_000)
    >>> bool(abs(entropy.value - 1.4189) < 5 * entropy.standard_error)
    True
    """

    value: Float[Tensor, "*batch"]
    standard_error: Float[Tensor, "*batch"]

    @classmethod
    def of_draws(cls, values: Float[Tensor, "n *batch"]) -> Estimate:
        """The mean over the first dimension."""
        return cls(values.mean(0), values.std(0) / math.sqrt(len(values)))


@torch.no_grad()
def entropy_of_draws(rho: Composite, n: int, generator: torch.Generator | None) -> Estimate:
    """−E log p(x)."""
    any_rho: Any = rho
    drawn = rho.sample((n,), generator=generator)
    log_prob = any_rho.log_prob(**drawn) if isinstance(drawn, dict) else any_rho.log_prob(drawn)
    return Estimate.of_draws(-log_prob)
