"""Distributions over labels that were computed from an inferred one."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit.distributions.kdm import KDM
from kdmkit.distributions.weights import Given


def with_label_probs(rho: KDM, log_probs: Float[Tensor, "*batch n"]) -> KDM:
    """The distribution over labels with these log-probabilities, and with the evidence of `rho`."""
    basis = torch.eye(log_probs.shape[-1], dtype=log_probs.dtype, device=log_probs.device)
    return KDM._made(basis, Given(log_probs, rho._weights), rho.kernel, rho._validate_args)
