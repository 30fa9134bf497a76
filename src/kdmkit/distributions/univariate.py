"""Distribution function and quantiles of mixtures over the real line."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.tensors import broadcast
from kdmkit.distributions.quantiles import Bracket, Knots, Reached, precision, search
from kdmkit.kernels import Kernel

# Pairs of a value and a component that are computed together, to bound memory.
PAIRS = 1 << 24
# Numbers F_j(x) that are computed together in a search: they stay in the processor's cache.
_BLOCK = 1 << 18
_STEPS = 100


class Univariate:
    """A mixture over the real line.

    Args:
        kernel: one with a distribution function.
        components: of shape `(m, *component)` or `(*batch, m, *component)`.
        log_weights: of shape `(*batch, m)`.
        knots: those of the kernel and the components, if they have been computed already.
        pairs: values times components that are computed together.
    """

    def __init__(
        self,
        kernel: Kernel,
        components: Tensor,
        log_weights: Tensor,
        knots: Knots | None = None,
        *,
        pairs: int = PAIRS,
    ) -> None:
        self.kernel, self.components, self._given_knots, self._pairs = kernel, components, knots, pairs
        self.log_weights = log_weights.to(components.dtype)
        probs = kernel.number_probs(components)
        self._numbers = None if probs is None else (self.log_weights.exp() * probs).sum(-1)

    @property
    def batch_shape(self) -> torch.Size:
        batch = self.components.shape[: self.components.ndim - 1 - self.kernel.component_dim]
        return broadcast(self.log_weights.shape[:-1], batch, self.kernel.batch_shape)

    def cdf(self, x: Float[Tensor, "*points"]) -> Float[Tensor, "*lead"]:
        """F(x) = Σ_j w_j F_j(x), divided by the probability of a number if NaN is an event."""
        return self._in_blocks(self._cdf, x)

    def _in_blocks(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """`function` of all rows, in blocks that bound memory."""
        lead = broadcast(x.shape, self.batch_shape)
        rows = x.expand(lead).reshape(-1, *lead[len(lead) - len(self.batch_shape) :])
        per_row = max(1, rows.shape[1:].numel() * self.log_weights.shape[-1])
        return torch.cat([function(part) for part in rows.split(max(1, self._pairs // per_row))]).reshape(
            lead
        )

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

    def icdf(self, q: Float[Tensor, "*points"]) -> Float[Tensor, "*lead"]:
        """The x with F(x) = q, with the gradients of the implicit function theorem.

        If the kernel has atoms, it is the smallest x with F(x) ≥ q, and has no gradient.
        """
        lead = broadcast(q.shape, self.batch_shape)
        q = q.expand(lead)
        if self.kernel.has_atoms:
            return self.quantile(q)
        with torch.no_grad():
            x = self._solve(q, *self._bracket(q))
            density = self._in_blocks(self._density, x)
            # A plateau between compact components has no density: any point of it is a quantile.
            slope = torch.where(density > 0, density, torch.full_like(density, torch.inf)).reciprocal()
        error = self.cdf(x) - q
        return x - (error - error.detach()) * slope

    def _solve(self, q: Tensor, low: Tensor, high: Tensor, least: Tensor) -> Tensor:
        """Newton's steps as long as they stay inside a bracket of the quantile, otherwise bisection."""
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

    def _bracket(self, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The mixture's quantile lies between the extreme quantiles of its components.

        Returns:
            both ends, and the narrowest bracket of a component, a length on the scale of the kernel.
        """
        low, high = self.kernel.quantile_bounds(q, self.components)
        dead = torch.isneginf(self.log_weights)
        least = torch.where(dead, torch.inf, high - low).amin(-1)
        return torch.where(dead, torch.inf, low).amin(-1), torch.where(dead, -torch.inf, high).amax(-1), least

    @property
    def has_atoms(self) -> bool:
        return self.kernel.has_atoms

    @property
    def only_atoms(self) -> bool:
        return self.kernel.only_atoms

    def beside(self, x: Float[Tensor, "*lead"], up: bool) -> Float[Tensor, "*lead"]:
        """The next event after x (`up`) or before it."""
        return self.kernel.beside(x, up)

    # ---- generalised inverses

    def quantile(self, q: Float[Tensor, "*points"]) -> Float[Tensor, "*lead"]:
        """The smallest x with F(x) ≥ q, to the precision of the components; no gradients."""
        return self.reach(q).x

    @torch.no_grad()
    def reach(self, q: Float[Tensor, "*points"]) -> Reached:
        """The smallest x with F(x) ≥ q, with F below x and at x.

        The search runs in float64. It begins between neighbours of the knots, which share one table for all
        elements of a batch, and goes on among points about the x where F, interpolated, has the value q.
        """
        lead = broadcast(q.shape, self.batch_shape)
        wide = q.expand(lead).double()
        knots = self._knots
        start = None if knots is None else knots.bracket(self._at_knots(knots, lead), wide)
        if start is None:
            low, high, least = [end.double() for end in self._bracket(q.expand(lead))]
            zero = torch.zeros_like(wide)
            reached = self._search(wide, Bracket(low, high, zero, zero + 1, zero + 0.5, least))
        elif knots is not None and knots.complete:
            reached = Reached(start.high, start.below, start.reached)
        else:
            reached = self._search(wide, start)
        x = reached.x.to(q.dtype)
        return reached._replace(
            x=x if self._numbers is None else torch.where(self._numbers > 0, x, torch.nan)
        )

    @property
    def _is_shared(self) -> bool:
        """Whether all elements of the batch have the same components."""
        return self.components.ndim == 1 + self.kernel.component_dim and not self.kernel.batch_shape

    @cached_property
    def _knots(self) -> Knots | None:
        if self._given_knots is None and self._is_shared:
            return Knots.of(self.kernel, self.components)
        return self._given_knots

    def _at_knots(self, knots: Knots, lead: torch.Size) -> Float[Tensor, "*lead g"]:
        """F at the knots."""
        mixed = self._weights @ knots.cdf.mT
        if self._numbers is not None:
            mixed = mixed / self._numbers.double().unsqueeze(-1)
        return mixed.expand(*lead, mixed.shape[-1])

    @property
    def _weights(self) -> Float[Tensor, "*batch m"]:
        weights = self.log_weights.double().exp()
        return weights / weights.sum(-1, keepdim=True)

    def _search(self, q: Tensor, start: Bracket) -> Reached:
        """The smallest x with F(x) ≥ q, inside of brackets."""
        eps = torch.finfo(self.components.dtype).eps if self.components.is_floating_point() else 1e-9
        weights = self._weights
        lead, m, is_shared = q.shape, weights.shape[-1], self._is_shared
        numbers = None if self._numbers is None else self._numbers.double()
        if is_shared:
            # All quantiles of a row share its weights.
            weights = weights.expand(*lead[len(lead) - weights.ndim + 1 :], m).reshape(-1, m)

        def values(points: Tensor, active: Tensor) -> Tensor:
            size = max(1, _BLOCK // (m * len(points)))
            heights = []
            for x, index in zip(points.split(size, 1), active.split(size), strict=True):
                height = (weights[index % len(weights)] * self.kernel.cdf(x, self.components)).sum(-1)
                heights.append(
                    height if numbers is None else height / numbers.expand(lead).reshape(-1)[index]
                )
            return torch.cat(heights, 1)

        def everywhere(points: Tensor, active: Tensor) -> Tensor:
            full = start.high.reshape(1, -1).repeat(len(points), 1)
            full[:, active] = points
            return self._in_blocks(cdf, full.reshape(-1, *lead)).reshape(len(points), -1)[:, active]

        def cdf(x: Tensor) -> Tensor:
            height = (self._weights * self.kernel.cdf(x, self.components)).sum(-1)
            return height if numbers is None else height / numbers

        flat = Bracket(*torch.stack(torch.broadcast_tensors(*start)).reshape(len(start), -1))
        function = values if is_shared else everywhere
        flat_reached = search(function, self.kernel, q.reshape(-1), flat, q.numel() * m, eps)
        reached = Reached(*torch.stack(flat_reached).reshape(3, *lead))
        return self._at_atoms(q, reached, precision(reached.x, start.least, eps), cdf)

    def _at_atoms(
        self, q: Tensor, reached: Reached, small: Tensor, cdf: Callable[[Tensor], Tensor]
    ) -> Reached:
        """The result of the search; at a step of F, exactly the atom."""
        x = reached.x
        if not self.kernel.has_atoms:
            return reached
        atom = self.kernel.nearest_atom(x)
        if self.kernel.only_atoms:
            return reached._replace(x=atom)
        off = (atom != x) & ((atom - x).abs() <= 4 * small)
        if not bool(off.any()):
            return reached
        before = torch.nextafter(atom, torch.full_like(atom, -torch.inf))
        below, upto = [self._in_blocks(cdf, at) for at in (before, atom)]
        here = off & (upto >= q) & (below < q)
        pairs = zip((atom, below, upto), reached, strict=True)
        return Reached(*[torch.where(here, new, old) for new, old in pairs])
