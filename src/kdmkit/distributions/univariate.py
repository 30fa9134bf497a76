"""Distribution function and quantiles of mixtures over the real line."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.shapes import broadcast
from kdmkit.kernels import Kernel

_PAIRS = 1 << 24
_STEPS = 100


class Univariate:
    """A mixture over the real line.

    Args:
        kernel: one with a distribution function.
        components: of shape `(m, *component)` or `(*batch, m, *component)`.
        log_weights: of shape `(*batch, m)`.
    """

    def __init__(self, kernel: Kernel, components: Tensor, log_weights: Tensor) -> None:
        self.kernel, self.components = kernel, components
        self.log_weights = log_weights.to(components.dtype)
        probs = kernel.number_probs(components)
        self._numbers = None if probs is None else (self.log_weights.exp() * probs).sum(-1)

    @property
    def batch_shape(self) -> torch.Size:
        own = self.components.shape[: self.components.ndim - 1 - self.kernel.component_dim]
        return broadcast(self.log_weights.shape[:-1], own, self.kernel.batch_shape)

    def cdf(self, x: Float[Tensor, "*own"]) -> Float[Tensor, "*lead"]:
        """F(x) = Σ_j w_j F_j(x), over the probability of a number where NaN is an event."""
        return self._in_blocks(self._cdf, x)

    def _in_blocks(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """`function` of all rows, in blocks that bound memory."""
        lead = broadcast(x.shape, self.batch_shape)
        rows = x.expand(lead).reshape(-1, *lead[len(lead) - len(self.batch_shape) :])
        per_row = max(1, rows.shape[1:].numel() * self.log_weights.shape[-1])
        return torch.cat([function(part) for part in rows.split(max(1, _PAIRS // per_row))]).reshape(lead)

    def _cdf(self, x: Tensor) -> Tensor:
        below = (self.log_weights.exp() * self.kernel.cdf(x, self.components)).sum(-1)
        return below if self._numbers is None else below / self._numbers

    def _density(self, x: Tensor) -> Tensor:
        events = x.reshape(*x.shape, *[1] * self.kernel.event_dim)
        log_density = self.kernel.log_overlap(events.unsqueeze(x.ndim), self.components)
        log_density = log_density + self.kernel.log_norm(self.components).to(log_density)
        jacobian = self.kernel.log_jacobian(events)
        if jacobian is not None:
            log_density = log_density + jacobian.unsqueeze(-1)
        return (self.log_weights + log_density).exp().sum(-1)

    def icdf(self, q: Float[Tensor, "*own"]) -> Float[Tensor, "*lead"]:
        """The x with F(x) = q, with the gradients of the implicit function theorem.

        Where the kernel has atoms it is the smallest x with F(x) ≥ q, and has no gradient.
        """
        lead = broadcast(q.shape, self.batch_shape)
        q = q.expand(lead)
        with torch.no_grad():
            low, high, least = self._bracket(q)
            if self.kernel.has_atoms:
                x = self._invert_steps(q, low, high, least)
                return x if self._numbers is None else torch.where(self._numbers > 0, x, torch.nan)
            x = self._solve(q, low, high, least)
            density = self._in_blocks(self._density, x)
            # A plateau between compact components has no density: any point of it is a quantile.
            slope = torch.where(density > 0, density, torch.full_like(density, torch.inf)).reciprocal()
        error = self.cdf(x) - q
        return x - (error - error.detach()) * slope

    def _solve(self, q: Tensor, low: Tensor, high: Tensor, least: Tensor) -> Tensor:
        """Newton's steps where they stay inside a bracket of the quantile, bisection elsewhere."""
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
            small = 2 * eps * (x.abs() + least)
            done = (error.abs() <= 4 * eps * q) | ((density > 0) & ((newton - x).abs() <= small))
            x_next = torch.where(done, x, torch.where(inside, newton, 0.5 * (low + high)))
            if bool(((x_next - x).abs() <= small).all()):
                return x_next
            x = x_next
        return x

    def _invert_steps(self, q: Tensor, low: Tensor, high: Tensor, least: Tensor) -> Tensor:
        """The smallest x with F(x) ≥ q, by bisection; at a step, exactly the atom."""
        for _ in range(_STEPS):
            small = 2 * torch.finfo(q.dtype).eps * (high.abs() + least)
            if bool((high - low <= small).all()):
                break
            middle = 0.5 * (low + high)
            reached = self.cdf(middle) >= q
            low, high = torch.where(reached, low, middle), torch.where(reached, middle, high)
        atom = self.kernel.nearest_atom(high)
        if self.kernel.only_atoms:
            return atom
        before = torch.nextafter(atom, torch.full_like(atom, -torch.inf))
        steps_here = (self.cdf(atom) >= q) & (self.cdf(before) < q)
        return torch.where(steps_here, atom, high)

    def _bracket(self, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The mixture's quantile lies between the extreme quantiles of its components.

        Returns:
            both ends, and the narrowest bracket of a component, a length on the scale of the kernel.
        """
        low, high = self.kernel.quantile_bounds(q, self.components)
        dead = torch.isneginf(self.log_weights)
        least = torch.where(dead, torch.inf, high - low).amin(-1)
        return torch.where(dead, torch.inf, low).amin(-1), torch.where(dead, -torch.inf, high).amax(-1), least
