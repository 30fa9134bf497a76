"""Kernels of numbers, which have masses of intervals, and kernels around such a kernel."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import ClassVar, Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kdmkit._core.logspace import log_normalize, safe_logsumexp
from kdmkit.kernels.bandwidth import LearnedBandwidth
from kdmkit.kernels.base import Kernel
from kdmkit.kernels.calculus.transforms import exact_buffers
from kdmkit.kernels.region_forms import Bounds, float_ends, pack_intervals, unpack_intervals
from kdmkit.kernels.regions import NOTHING, WHOLE, Interval, Region
from kdmkit.ops import LogSum, Lookup, Term
from kdmkit.ops.terms import InDtype, common_dtype, whole

# More intervals of a region than this are measured together.
_FEW_PIECES = 8
# The logarithm of a share that counts as none.
_NOTHING = -1e4


class Measured(Kernel, ABC):
    """A kernel of numbers: regions are unions of intervals, perhaps with `Missing`.

    Regions go to kernels in float64, whatever the precision of the components.

    >>> import kdmkit as kdm
    >>> isinstance(kdm.RBF(1.0), Measured), isinstance(kdm.Levels(3), Measured)
    (True, False)
    """

    discrete: ClassVar[bool] = False

    def pack(
        self, argument: str, region: Region, event_shape: torch.Size, device: torch.device | None = None
    ) -> Float[Tensor, "*lead p"]:
        return pack_intervals(argument, region, event_shape, device)

    def region_term(self, packed: Float[Tensor, "*lead n p"], components: Tensor) -> Term:
        d = self.event_shape(components.shape[components.ndim - self.component_dim :]).numel()
        missing, bounds = unpack_intervals(packed, d)
        if len(bounds) > _FEW_PIECES and packed.ndim == components.ndim - self.component_dim + 1 == 2:
            terms = [self._pieces_term(bounds, components)]
        else:
            terms = [self.bounded_term(one, components) for one in bounds]
        missing_term = self.missing_term(missing, components)
        terms += [] if missing_term is None else [missing_term]
        return terms[0] if len(terms) == 1 else LogSum(tuple(terms))

    def _pieces_term(self, bounds: Sequence[Bounds], components: Tensor) -> Term:
        """The masses of unions of many intervals, computed at once."""
        every = Bounds(*[torch.cat(parts) for parts in zip(*bounds, strict=True)])
        term = self.bounded_term(every, components)
        masses = whole(term.prepared()).unflatten(0, (len(bounds), -1))
        table = safe_logsumexp(masses.movedim(0, -1)).to(term.dtype)
        return Lookup(torch.arange(len(table), device=table.device).unsqueeze(-1), table.mT)

    def bounded_term(self, bounds: Bounds, components: Tensor) -> Term:
        """The log mass of one interval for every row; under a density, strict ends change nothing."""
        term = self.interval_term(bounds.low, bounds.high, components)
        return InDtype.of(term, common_dtype((components,)))

    @abstractmethod
    def interval_term(self, low: Tensor, high: Tensor, components: Tensor) -> Term:
        """The log mass of closed intervals with ends `(*lead, n, d)`."""

    def missing_term(self, missing: Bool[Tensor, "*lead n 1"], components: Tensor) -> Term | None:
        """The log mass of `Missing` for rows that have it; None if it is no outcome."""
        return None

    def holds(self, bounds: Bounds, numbers: Float[Tensor, " a"]) -> Bool[Tensor, "*lead a"]:
        """Whether single numbers lie in intervals."""
        return bounds.hold(numbers)

    def wide_ends(self, region: Region) -> list[tuple[float, float]]:
        """The intervals of a region in which a density has a mass, with ends that belong to them."""
        ends = [_closed_ends(piece) for piece in region.pieces]
        return [(low, high) for low, high in ends if low < high]

    def between(self, low: float, high: float, components: Tensor) -> tuple[Kernel, Tensor] | None:
        """The kernel and the components of the densities between two ends; None if there is nothing."""
        self._cannot("one whose density can be restricted to an interval")

    def restricted(self, region: Region, components: Tensor) -> tuple[Kernel, Tensor]:
        from kdmkit.kernels.alternatives import Alternatives  # not above: that module imports this one

        every = [(ends, self.between(*ends, components)) for ends in self.wide_ends(region)]
        parts = [(ends, part) for ends, part in every if part is not None]
        if len(parts) < 2:
            return parts[0][1] if parts else (self, components)
        low, high = torch.tensor([ends for ends, _ in parts], dtype=torch.float64).unsqueeze(-1).unbind(1)
        masses = self.log_mass(Interval(low, high), components)
        return Alternatives.joined(masses.mT, [part for _, part in parts])

    def at_points(self, points: Sequence[float], components: Tensor) -> tuple[Kernel, Tensor]:
        """The kernel and the components of masses at points of a density, in proportion to it."""
        from kdmkit.kernels.inflated import Inflated  # not above: that module imports this one

        values = components.new_tensor(points).reshape(-1, *[1] * components.ndim)
        density = self.log_overlap(values, components) + self.log_norm(components).to(components)
        jacobian = self.log_jacobian(values)
        density = density if jacobian is None else density + jacobian.to(density)
        logits = log_normalize(density.movedim(0, -1)).clamp_min(_NOTHING)
        none = torch.full_like(logits[..., :1], _NOTHING)
        order = sorted(range(len(points)), key=points.__getitem__)
        shares = torch.cat([none, logits[..., order]], -1)
        return Inflated(self, points), torch.cat([shares.to(components), components], -1)

    def mixed(
        self, log_shares: Float[Tensor, "m k"], parts: Sequence[tuple[Kernel, Tensor]]
    ) -> tuple[Kernel, Tensor]:
        from kdmkit.kernels.alternatives import Alternatives  # not above: that module imports this one

        return Alternatives.joined(log_shares, parts)

    def trimmed(self, region: Region, event_shape: torch.Size) -> Region:
        if region.is_batch:
            return region
        missing = self.has_missing and region.has_missing
        if not region.spans and not missing:
            return NOTHING
        return WHOLE if region.spans == WHOLE.spans and missing == self.has_missing else region

    def null_points(self, region: Region) -> list[float]:
        return [] if self.only_atoms or region.is_batch else list(map(float, region.points))


def _closed_ends(piece: Interval) -> tuple[float, float]:
    low, high = float_ends(piece)
    low = math.nextafter(low, math.inf) if piece.above and low > -math.inf else low
    return low, math.nextafter(high, -math.inf) if piece.below and high < math.inf else high


class Around(Measured, ABC):
    """A density of numbers made of that of an inner kernel, which has the bandwidth.

    Components are those of the inner kernel, or hold them. Buffers keep their dtype if the kernel is
    converted: an atom of 0.1 that was rounded to float32 would differ from the 0.1 of a float64 column.
    """

    has_moments: ClassVar[bool] = True
    components_are_events: bool = False
    kernel: Kernel

    @abstractmethod
    def around(self, kernel: Kernel) -> Around:
        """The same around another kernel."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        with exact_buffers(self):
            return super()._apply(fn, recurse=recurse)

    # ---- parameters

    @cached_property
    def batch_shape(self) -> torch.Size:
        return self.kernel.batch_shape

    def arranged(self, place: Callable[[Tensor], Tensor]) -> Around:
        return self.around(self.kernel.arranged(place)) if self.batch_shape else self

    @property
    def learned_bandwidth(self) -> LearnedBandwidth:
        return self.kernel.learned_bandwidth

    def initialize_bandwidth(
        self, components: Tensor, sigma: str | float, *, distance: float | None = None
    ) -> None:
        """Sets the inner bandwidth, from the distances of components in its space."""
        self.kernel.initialize_bandwidth(components, sigma, distance=distance)

    def same_family(self, other: Kernel) -> bool:
        return type(self) is type(other) and self.kernel.same_family(other.kernel)

    # ---- masses and moments

    def pack(
        self, argument: str, region: Region, event_shape: torch.Size, device: torch.device | None = None
    ) -> Float[Tensor, "*lead p"]:
        inner = self.kernel
        while isinstance(inner, Around):
            inner = inner.kernel
        return inner.pack(argument, region, event_shape, device)

    def _mass_below(self, x: Tensor, components: Tensor) -> Float[Tensor, "*lead m"]:
        """F_j(x) by the masses of intervals, which are precise in both tails, for events of shape `(1,)`."""
        high = x[..., None, None]
        term = self.interval_term(torch.full_like(high, -torch.inf), high, components)
        return whole(term.prepared()).squeeze(-2).exp().to(common_dtype((x, components)))

    def moments(self, components: Tensor) -> tuple[Tensor, Tensor]:
        """The mean and the variance of each component. A subclass defines this, or both of them."""
        return self.mean(components), self.variance(components)

    def mean(self, components: Tensor) -> Float[Tensor, "*batch d"]:
        return self.moments(components)[0]

    def variance(self, components: Tensor) -> Float[Tensor, "*batch d"]:
        return self.moments(components)[1]
