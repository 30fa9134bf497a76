"""Distribution function and quantiles of mixtures over the real line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.shapes import broadcast
from kdmkit.kernels import Kernel

_PAIRS = 1 << 24
_STEPS = 100
# Knots of a table of distribution functions, and the tails of components at which they lie.
_KNOTS = 512
_TAILS = (1e-9, 1e-4, 0.02, 0.25)
# Numbers F_j(x) for which one call costs more than they do: so many points are compared in one step.
_FEW_PAIRS = 1 << 14
_MOST_POINTS, _FEWEST_POINTS = 33, 5


@dataclass(frozen=True)
class Knots:
    """F_j at points that cover all components: quantiles of any mixture of them start from this table.

    Args:
        points: ascending; the kernel's `steps` are among them.
        cdf: F_j of every component at every point.
        least: the width of the narrowest component.
    """

    points: Float[Tensor, " g"]
    cdf: Float[Tensor, "g m"]
    least: float

    @classmethod
    def of(cls, kernel: Kernel, components: Tensor) -> Knots:
        """Knots at quantiles of single components, in float64."""
        with torch.no_grad():
            tails = torch.tensor(_TAILS, dtype=torch.float64, device=components.device)
            low, high = (end.double() for end in kernel.quantile_bounds(tails, components))
            every = torch.cat([low.flatten(), high.flatten()])
            every = every[every.isfinite()].unique()
            if len(every) < _FEWEST_POINTS:  # all components reach everywhere
                every = torch.linspace(float(every[0]), float(every[-1]), _KNOTS).to(every)
            chosen = torch.linspace(0, len(every) - 1, min(_KNOTS, len(every))).round().long()
            points = every[chosen.to(every.device)]
            points = kernel.nearest_atom(points) if kernel.only_atoms else points
            points = torch.cat([points, kernel.steps().to(points)]).unique()
            return cls(points, kernel.cdf(points, components).double(), float((high - low)[-1].min()))


class Univariate:
    """A mixture over the real line.

    Args:
        kernel: one with a distribution function.
        components: of shape `(m, *component)` or `(*batch, m, *component)`.
        log_weights: of shape `(*batch, m)`.
        knots: those of the kernel and the components, where they are known already.
    """

    def __init__(
        self, kernel: Kernel, components: Tensor, log_weights: Tensor, knots: Knots | None = None
    ) -> None:
        self.kernel, self.components, self._knots = kernel, components, knots
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

    def _bracket(self, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The mixture's quantile lies between the extreme quantiles of its components.

        Returns:
            both ends, and the narrowest bracket of a component, a length on the scale of the kernel.
        """
        low, high = self.kernel.quantile_bounds(q, self.components)
        dead = torch.isneginf(self.log_weights)
        least = torch.where(dead, torch.inf, high - low).amin(-1)
        return torch.where(dead, torch.inf, low).amin(-1), torch.where(dead, -torch.inf, high).amax(-1), least

    # ---- events

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

    @torch.no_grad()
    def quantile(self, q: Float[Tensor, "*own"]) -> Float[Tensor, "*lead"]:
        """The smallest x with F(x) ≥ q, to the precision of the components; no gradients.

        The search runs in float64. It begins between neighbours of the knots, which share one table for all
        elements of a batch, and goes on among points that crowd where F, interpolated, has the value q.
        """
        lead = broadcast(q.shape, self.batch_shape)
        wide = q.expand(lead).double()
        start = self._between_knots(wide)
        if start is None:
            low, high, least = (end.double() for end in self._bracket(q.expand(lead)))
            start = low, high, torch.zeros_like(wide), torch.ones_like(wide), least
        x = self._search(wide, *start).to(q.dtype)
        return x if self._numbers is None else torch.where(self._numbers > 0, x, torch.nan)

    def _between_knots(self, q: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor] | None:
        """Neighbouring knots with F(low) < q ≤ F(high), F there, and the narrowest component.

        None where a quantile lies beyond all knots, or components differ within the batch.
        """
        knots = self._knots
        if knots is None:
            if self.components.ndim > 1 + self.kernel.component_dim or self.kernel.batch_shape:
                return None
            knots = Knots.of(self.kernel, self.components)
        below = self._weights @ knots.cdf.mT
        if self._numbers is not None:
            below = below / self._numbers.double().unsqueeze(-1)
        last = len(knots.points) - 1
        place = torch.searchsorted(
            below.expand(*q.shape, last + 1).contiguous(), q.unsqueeze(-1).contiguous()
        )
        if bool((place == 0).any()) or bool((place > last).any()):
            return None
        at = below.expand(*q.shape, last + 1)
        low, high = (at.gather(-1, place - step).squeeze(-1) for step in (1, 0))
        place = place.squeeze(-1)
        return knots.points[place - 1], knots.points[place], low, high, torch.full_like(q, knots.least)

    @property
    def _weights(self) -> Float[Tensor, "*batch m"]:
        weights = self.log_weights.double().exp()
        return weights / weights.sum(-1, keepdim=True)

    def _search(
        self, q: Tensor, low: Tensor, high: Tensor, below: Tensor, reached: Tensor, least: Tensor
    ) -> Tensor:
        """The smallest x with F(x) ≥ q, where F(low) = below < q ≤ reached = F(high)."""
        weights = self._weights
        eps = torch.finfo(self.components.dtype).eps if self.components.is_floating_point() else 1e-9

        def cdf(x: Tensor) -> Tensor:
            found = (weights * self.kernel.cdf(x, self.components)).sum(-1)
            return found if self._numbers is None else found / self._numbers.double()

        pairs = max(1, q.numel() * weights.shape[-1])
        count = min(_MOST_POINTS, max(_FEWEST_POINTS, _FEW_PAIRS * _MOST_POINTS // pairs)) // 2
        for _ in range(_STEPS):
            small = 2 * eps * (high.abs() + least)
            points = self._points(q, low, high, below, reached, count)
            inside = (points > low) & (points < high) & (high - low > small)
            if not bool(inside.any()):
                break
            found = torch.cat([below.unsqueeze(0), self._in_blocks(cdf, points), reached.unsqueeze(0)])
            ends = torch.cat([low.unsqueeze(0), points, high.unsqueeze(0)])
            # Rounding must not make F decrease: the first point that reaches q decides.
            first = (found[1:] >= q).int().argmax(0, keepdim=True) + 1
            first = torch.where((found[1:] >= q).any(0, keepdim=True), first, len(ends) - 1)
            low, high = (ends.gather(0, first - step).squeeze(0) for step in (1, 0))
            below, reached = (found.gather(0, first - step).squeeze(0) for step in (1, 0))
        return self._at_atoms(q, high, 2 * eps * (high.abs() + least), cdf)

    def _points(
        self, q: Tensor, low: Tensor, high: Tensor, below: Tensor, reached: Tensor, count: int
    ) -> Float[Tensor, "n *lead"]:
        """Points between the ends, ascending: the middle, and others that crowd about the interpolated x."""
        width = high - low
        share = ((q - below) / (reached - below).clamp_min(1e-300)).clamp(0, 1)
        step = min(6.0, 26 / count)
        near = torch.tensor([2.0 ** -(3 + step * i) for i in range(count)], dtype=q.dtype, device=q.device)
        offsets = torch.cat([-near, near.flip(0)]).reshape(-1, *([1] * q.ndim))
        guess = (low + width * (share + offsets).clamp(0, 1)).clamp_max(high)
        points = torch.cat([guess, (low + 0.5 * width).unsqueeze(0)]).sort(0).values
        if not self.kernel.only_atoms:
            return points
        # On a grid, the neighbours of both ends let the search end.
        return self.kernel.nearest_atom(points)

    def _at_atoms(self, q: Tensor, x: Tensor, small: Tensor, cdf: Callable[[Tensor], Tensor]) -> Tensor:
        """x; at a step of F, exactly the atom."""
        if not self.kernel.has_atoms:
            return x
        atom = self.kernel.nearest_atom(x)
        if self.kernel.only_atoms:
            return atom
        off = (atom != x) & ((atom - x).abs() <= 4 * small)
        if not bool(off.any()):
            return x
        before = torch.nextafter(atom, torch.full_like(atom, -torch.inf))
        steps_here = (self._in_blocks(cdf, atom) >= q) & (self._in_blocks(cdf, before) < q)
        return torch.where(off & steps_here, atom, x)
