"""Distribution function and quantiles of one-dimensional continuous mixtures."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.shapes import broadcast
from kdmkit.kernels import LocationScale

_PAIRS = 1 << 24
_STEPS = 100


class Univariate:
    """A mixture over the real line: components `(*batch, m)` or `(m,)`, log-weights `(*batch, m)`."""

    def __init__(self, kernel: LocationScale, components: Tensor, log_weights: Tensor) -> None:
        self.kernel, self.components = kernel, components.squeeze(-1)
        self.log_weights = log_weights.to(components.dtype)
        scale = kernel.scale(components)
        self.scale = scale.squeeze(-1) if scale.ndim else scale

    @property
    def batch_shape(self) -> torch.Size:
        return broadcast(self.log_weights.shape[:-1], self.components.shape[:-1], self.scale.shape[:-1])

    def cdf(self, x: Float[Tensor, "*own"]) -> Float[Tensor, "*lead"]:
        """F(x) = Σ_j w_j Φ((x − c_j)/s_j)."""
        return self._in_blocks(self._cdf, x)

    def _in_blocks(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """`function` of all rows, in blocks that bound memory."""
        lead = broadcast(x.shape, self.batch_shape)
        rows = x.expand(lead).reshape(-1, *lead[len(lead) - len(self.batch_shape) :])
        per_row = max(1, rows.shape[1:].numel() * self.components.shape[-1])
        return torch.cat([function(part) for part in rows.split(max(1, _PAIRS // per_row))]).reshape(lead)

    def _unit(self, x: Tensor) -> Tensor:
        return (x.unsqueeze(-1) - self.components) / self.scale

    def _cdf(self, x: Tensor) -> Tensor:
        return (self.log_weights.exp() * self.kernel.unit_cdf(self._unit(x))).sum(-1)

    def _density(self, x: Tensor) -> Tensor:
        log_density = (
            self.kernel.unit_log_overlap(self._unit(x)) + self.kernel.unit_log_norm - self.scale.log()
        )
        return (self.log_weights + log_density).exp().sum(-1)

    def icdf(self, q: Float[Tensor, "*own"]) -> Float[Tensor, "*lead"]:
        """The x with F(x) = q, with the gradients of the implicit function theorem."""
        lead = broadcast(q.shape, self.batch_shape)
        q = q.expand(lead)
        with torch.no_grad():
            x = self._solve(q)
            density = self._in_blocks(self._density, x)
            # A plateau between compact components has no density: any point of it is a quantile.
            slope = torch.where(density > 0, density, torch.full_like(density, torch.inf)).reciprocal()
        error = self.cdf(x) - q
        return x - (error - error.detach()) * slope

    def _solve(self, q: Tensor) -> Tensor:
        """Newton's steps where they stay inside a bracket of the quantile, bisection elsewhere."""
        low, high = self._bracket(q)
        x = 0.5 * (low + high)
        for _ in range(_STEPS):
            error = self.cdf(x) - q
            low = torch.where(error <= 0, x, low)
            high = torch.where(error >= 0, x, high)
            density = self._in_blocks(self._density, x)
            newton = x - error / torch.where(density > 0, density, torch.ones_like(density))
            inside = (newton > low) & (newton < high) & (density > 0)
            # A converged row stays: its next step rounds to the bracket's end, and bisection would move it.
            eps = torch.finfo(x.dtype).eps
            small = 2 * eps * (x.abs() + self.scale.min())
            done = (error.abs() <= 4 * eps * q) | ((density > 0) & ((newton - x).abs() <= small))
            x_next = torch.where(done, x, torch.where(inside, newton, 0.5 * (low + high)))
            if bool(((x_next - x).abs() <= small).all()):
                return x_next
            x = x_next
        return x

    def _bracket(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """The mixture's quantile lies between the extreme quantiles of its components."""
        reach = self.scale * self.kernel.unit_quantile_bound(q).unsqueeze(-1)
        dead = torch.isneginf(self.log_weights)
        low = torch.where(dead, torch.inf, self.components - reach).amin(-1)
        high = torch.where(dead, -torch.inf, self.components + reach).amax(-1)
        return low, high
