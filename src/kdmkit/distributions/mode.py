"""A maximum of a Gaussian mixture's density, by mean shift."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from kdmkit.distributions.mixing import Entry, log_posterior_weights

if TYPE_CHECKING:
    from kdmkit.distributions.summaries import Summaries

# Components that are compared as starting points.
_STARTS = 64
# Steps at most, and the step in standard deviations of a component at which the search ends.
_STEPS, _ACCURACY = 1000, 1e-5


def nearest_mode(rho: Summaries) -> Float[Tensor, "*batch d"]:
    """Uphill from the best of the heaviest components: x ← Σ_j w_j(x)·c_j/s_j² / Σ_j w_j(x)/s_j²."""
    components, kernel = rho.components, rho.kernel
    variance = kernel.noise_variance.to(components)
    log_weights = rho.log_weights
    d, m = components.shape[-1], components.shape[-2]
    every = components.expand(*rho.batch_shape, m, d)
    heaviest = log_weights.topk(min(_STARTS, m)).indices
    starts = every.gather(-2, heaviest.unsqueeze(-1).expand(*heaviest.shape, d)).movedim(-2, 0)
    best = rho.log_prob(starts).argmax(0)
    x = starts.gather(0, best[None, ..., None].expand(1, *best.shape, d)).squeeze(0)
    precision = (1 / variance).expand(m, d) if variance.ndim < 2 else (1 / variance).expand_as(components)
    for _ in range(_STEPS):
        weights = log_posterior_weights([Entry(kernel, x, components)], log_weights).exp().unsqueeze(-2)
        moved = (weights @ (precision * components) / (weights @ precision)).squeeze(-2)
        step = ((moved - x).square() * precision.amax(-2)).amax()
        x = moved
        if not bool(step > _ACCURACY**2):
            break
    return x
