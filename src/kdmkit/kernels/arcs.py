"""A density on a circle inside a region of arcs."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kdmkit.kernels.around import Around
from kdmkit.kernels.base import Kernel
from kdmkit.kernels.calculus.transforms import as_float64, ends_inside
from kdmkit.kernels.periodic import Periodic
from kdmkit.kernels.region_tensors import Bounds, unpack_intervals
from kdmkit.kernels.regions import Interval, Region, Union
from kdmkit.kernels.registry import kernel_from_config
from kdmkit.kernels.windowed import highest
from kdmkit.ops import LogSum, Lookup, Sum, Term
from kdmkit.ops.terms import restricted, whole

# Halvings of a bracket: float64 has 52 bits.
_STEPS = 54


class Arcs(Around):
    """The density of `Periodic` inside some arcs, relative to its mass there, and 0 outside of them.

    Args:
        kernel: a Periodic kernel of one dimension.
        region: the arcs, in [0, period).

    >>> import kdmkit as kdm
    >>> kernel = Arcs(Periodic(2.0, 24), kdm.Interval(6.0, 12.0))
    >>> kernel.log_mass(kdm.Interval(6.0, 9.0), torch.tensor([[9.0]])).exp()
    tensor([0.5000])
    """

    has_moments: ClassVar[bool] = False
    per_component: bool = True
    kernel: Periodic

    def __init__(self, kernel: Kernel, region: Region) -> None:
        super().__init__()
        assert isinstance(kernel, Periodic)
        self.kernel, self.region = kernel, region
        self.has_atoms = self.only_atoms = kernel.whole

    @property
    def period(self) -> float:
        """The length of one turn."""
        return self.kernel.period

    def around(self, kernel: Kernel) -> Arcs:
        return Arcs(kernel, self.region)

    def restricted(self, region: Region, components: Tensor) -> tuple[Kernel, Tensor]:
        return Arcs(self.kernel, self.region & self.kernel.in_one_turn(region)), components

    # ---- densities

    def _log_total(self, components: Tensor) -> Float[Tensor, "*batch m"]:
        """The log mass in the arcs; 0 if there is none."""
        mass = self.kernel.log_mass(self.region, components)
        return torch.where(torch.isneginf(mass), 0.0, mass)

    def _inside(self, x: Tensor) -> Bool[Tensor, "*lead"]:
        turned = x.detach().double().remainder(self.period).squeeze(-1)
        inside = torch.zeros_like(turned, dtype=torch.bool)
        for piece in self.region.pieces:
            low, high = piece.tensors(x.device)
            over = (turned > low) if piece.above else (turned >= low)
            inside |= over & ((turned < high) if piece.below else (turned <= high))
        return inside

    def term(self, x: Tensor, components: Tensor) -> Term:
        return restricted(self.kernel.term(x, components), self._inside(x).unsqueeze(-1))

    def log_overlap(self, x: Tensor, components: Tensor) -> Float[Tensor, "*lead"]:
        return torch.where(self._inside(x), self.kernel.log_overlap(x, components), -math.inf)

    def log_norm(self, components: Tensor) -> Float[Tensor, "*batch m"]:
        return self.kernel.log_norm(components) - self._log_total(components)

    # ---- masses

    def bounded_term(self, bounds: Bounds, components: Tensor) -> Term:
        """The masses of what intervals share with the arcs, relative to the mass of the arcs."""
        shared = [part for arc in self._arcs for part in self._shared(bounds, arc)]
        masses = LogSum(tuple([self.kernel.bounded_term(part, components) for part in shared]))
        rows = torch.zeros(bounds.low.shape[-2], 1, dtype=torch.long, device=components.device)
        return Sum((masses, Lookup(rows, -self._log_total(components).unsqueeze(-1))))

    def interval_term(self, low: Tensor, high: Tensor, components: Tensor) -> Term:
        is_open = torch.zeros_like(low, dtype=torch.bool)
        return self.bounded_term(Bounds(low, high, is_open, is_open), components)

    @property
    def _arcs(self) -> list[Bounds]:
        packed = self.pack("region", self.region, torch.Size([1])).unsqueeze(0)
        return unpack_intervals(packed, 1)[1]

    def _shared(self, bounds: Bounds, arc: Bounds) -> list[Bounds]:
        """What intervals share with an arc in [0, period], on their turn and on the next one."""
        low, high, above, below = self.kernel.finite(bounds)
        turn = (low.detach() / self.period).floor() * self.period
        around = (high - low > self.period) | ((high - low == self.period) & ~(above & below))
        low, high = torch.where(around, 0.0, low - turn), torch.where(around, self.period, high - turn)
        above, below = above & ~around, below | around
        start, stop, after, before = (part.to(low.device) for part in arc)
        parts = []
        for shift in (0.0, self.period):
            first, last = low - shift, high - shift
            parts.append(
                Bounds(
                    torch.maximum(first, start),
                    torch.minimum(last, stop),
                    torch.where(first > start, above, torch.where(first < start, after, above | after)),
                    torch.where(last < stop, below, torch.where(last > stop, before, below | before)),
                )
            )
        return parts

    def cdf(self, x: Float[Tensor, "*x"], components: Tensor) -> Float[Tensor, "*lead m"]:
        """F_j(x) on [0, period)."""
        high = as_float64(x)[..., None, None].clamp_max(self.period)
        term = self.interval_term(torch.zeros_like(high), high, components)
        return whole(term.prepared()).squeeze(-2).exp().clamp_max(1.0).to(components.dtype)

    def quantile_bounds(self, q: Float[Tensor, "*x"], components: Tensor) -> tuple[Tensor, Tensor]:
        return self.kernel.quantile_bounds(q, components)

    # ---- draws

    def mode(self, components: Tensor) -> Tensor:
        """The nearest point of the arcs: densities fall with the distance."""
        one = components.new_ones(())
        if self.kernel.whole:
            return self._scores(components, one).argmax(-1, keepdim=True)
        middle = self.kernel.mode(components)
        points = [middle, *(end.expand_as(middle) for ends in self._closed_arcs(middle) for end in ends)]
        heights = [self.kernel.log_bump(point - components, one).squeeze(-1) for point in points]
        heights[0] = torch.where(self._inside(middle), heights[0], -math.inf)
        return highest(points, heights)

    def _scores(self, c: Float[Tensor, "*lead 1"], kappa: Tensor) -> Float[Tensor, "*lead n"]:
        """Logarithms of probabilities of whole numbers, up to a constant."""
        numbers = torch.arange(round(self.period), dtype=c.dtype, device=c.device)
        scores = self.kernel.log_bump(numbers - c, kappa)
        return torch.where(self._inside(numbers.unsqueeze(-1)), scores, -math.inf)

    def _closed_arcs(self, like: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The ends of arcs, rounded into them."""
        pairs = (torch.tensor(ends, dtype=torch.float64) for ends in self.wide_ends(self.region))
        return [ends_inside(low, high, like) for low, high in pairs]

    def typical_event(self, components: Tensor) -> Tensor:
        return self.mode(components)

    def sample(
        self, components: Tensor, index: Int[Tensor, "*lead"], generator: torch.Generator | None = None
    ) -> Tensor:
        """Draws by inversion of the mass of the arc that was chosen."""
        c, kappa = components.detach().double(), self.kernel.kappa_of(components, index)
        if self.kernel.whole:
            probs = torch.softmax(self._scores(c, kappa), -1).reshape(-1, round(self.period))
            return torch.multinomial(probs, 1, generator=generator).reshape(components.shape)
        c, kappa = c.reshape(-1), kappa.reshape(-1)
        bounds = c.new_tensor(self.wide_ends(self.region))
        masses = torch.stack([self.kernel.arc_mass(low, high, c, kappa) for low, high in bounds], -1)
        arc = torch.multinomial(torch.softmax(masses, -1), 1, generator=generator)
        uniform = torch.rand(len(c), dtype=torch.float64, device=c.device, generator=generator)
        wanted = uniform.log() + masses.gather(-1, arc).squeeze(-1)
        start, high = bounds[arc.squeeze(-1)].unbind(-1)
        low = start
        for _ in range(_STEPS):
            middle = 0.5 * (low + high)
            below = self.kernel.arc_mass(start, middle, c, kappa) < wanted
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        drawn = (0.5 * (low + high)).to(components.dtype)
        rounded = torch.stack([torch.stack(ends) for ends in self._closed_arcs(drawn)])[arc.squeeze(-1)]
        return drawn.clamp(rounded[:, 0], rounded[:, 1]).reshape(components.shape)

    # ---- description

    def config(self) -> dict[str, Any]:
        arcs = [[piece.low, piece.high, piece.closed] for piece in self.region.pieces]
        return {"kernel": "Arcs", "inner": self.kernel.config(), "arcs": arcs}

    @classmethod
    def from_config(cls, config: dict[str, Any], *, encoder: nn.Module | None = None) -> Arcs:
        return cls(kernel_from_config(config["inner"]), Union([Interval(*arc) for arc in config["arcs"]]))

    def extra_repr(self) -> str:
        return f"{self.kernel!r}, {self.region!r}"
