"""Numbers that were recorded to a resolution."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kdmkit._core.checks import bad_argument, check_event, check_number
from kdmkit._core.runtime import only_reverse_mode
from kdmkit.kernels.base import Kernel
from kdmkit.kernels.calculus.integrals import panel_sums
from kdmkit.kernels.location_scale import LocationScale
from kdmkit.kernels.measured import Around
from kdmkit.kernels.region_forms import Bounds, unpack_intervals
from kdmkit.kernels.regions import Region
from kdmkit.kernels.registry import kernel_from_config
from kdmkit.kernels.transformed import Transformed
from kdmkit.kernels.truncated import Truncated
from kdmkit.ops import Lookup, Term
from kdmkit.ops.terms import InDtype, common_dtype, whole

# With this many cells in a bandwidth, rounding adds δ²/12 to a component's variance and no more.
_MANY_CELLS = 64
# Moments are sums over cells, or over panels of them if there are more than this.
_CELLS, _PANELS = 256, 64
# How far bounds of restricted densities lie inside of cells, in cells.
_MARGIN = 1e-11


class Rounded(Around):
    """p(x | c) = P_c(x − δ/2 ≤ t ≤ x + δ/2): x is t, recorded to the nearest multiple of δ.

    Events are the points origin + k·δ of a grid, and their probabilities sum to 1. A number between two
    points stands for the nearer one. At a bound of the inner kernel's support a cell holds what lies inside
    of it.

    Args:
        kernel: a continuous kernel of one dimension: RBF, Epanechnikov, Tricube, `Transformed`, `Truncated`.
        step: δ.
        origin: a point of the grid.

    >>> import kdmkit as kdm
    >>> kernel = Rounded(kdm.RBF.from_std(1.0), step=1.0)
    >>> x, c = torch.tensor([[0.0], [1.0]], dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    >>> kernel.log_overlap(x, c).exp()
    tensor([0.3829, 0.2417], dtype=torch.float64)
    """

    is_continuous: ClassVar[bool] = True
    has_atoms: bool = True
    only_atoms: bool = True
    unit_norm: ClassVar[bool] = True
    kernel: LocationScale | Transformed | Truncated

    def __init__(self, kernel: Kernel, step: float = 1.0, *, origin: float = 0.0) -> None:
        super().__init__()
        if not isinstance(kernel, LocationScale | Transformed | Truncated):
            wanted = "a continuous kernel (RBF, Epanechnikov, Tricube, Transformed, Truncated)"
            raise TypeError(bad_argument("kernel", wanted, repr(kernel)))
        self.kernel = kernel
        self.step = check_number("step", step, "a finite number > 0", positive=True)
        self.origin = float(origin)
        if not math.isfinite(self.origin):
            raise ValueError(bad_argument("origin", "a finite number", origin))

    # ---- parameters

    @property
    def overlaps_everywhere(self) -> bool:
        return self.kernel.overlaps_everywhere

    def around(self, kernel: Kernel) -> Rounded:
        return Rounded(kernel, self.step, origin=self.origin)

    def between(self, low: float, high: float, components: Tensor) -> tuple[Kernel, Tensor] | None:
        inside = self.kernel.between(self._into(low, 1), self._into(high, -1), components)
        return None if inside is None else (self.around(inside[0]), inside[1])

    def _into(self, edge: float, sign: int) -> float:
        """An edge of a cell, moved so little that draws there fall into the cell beside it."""
        if math.isinf(edge):
            return edge
        return edge + sign * (_MARGIN * self.step + 8 * math.ulp(max(abs(edge), abs(self.origin))))

    # ---- the grid

    def position(self, x: Tensor) -> Float[Tensor, "*shape"]:
        """(x − origin)/δ in float64: whole numbers at points of the grid."""
        return (x.double() - self.origin) / self.step

    def at(self, position: Tensor) -> Float[Tensor, "*shape"]:
        """origin + δ·position; a whole 1/δ divides instead, which gives the nearest decimal fractions."""
        per_unit = round(1 / self.step)
        if abs(per_unit * self.step - 1) < 1e-12:
            return self.origin + position / per_unit
        return self.origin + self.step * position

    def nearest_atom(self, x: Float[Tensor, "*lead"]) -> Float[Tensor, "*lead"]:
        """The nearest point of the grid, in the precision of x."""
        return self.at(self.position(x).round()).to(x.dtype)

    def beside(self, x: Float[Tensor, "*lead"], up: bool) -> Float[Tensor, "*lead"]:
        return self.at(self.position(x).round() + (1 if up else -1)).to(x.dtype)

    def _edges(self, k: Tensor) -> tuple[Tensor, Tensor]:
        """The ends of cells in float64: rounded, they would lose the width of narrow cells."""
        return self.at(k - 0.5), self.at(k + 0.5)

    # ---- probabilities

    def term(self, x: Tensor, components: Tensor) -> Term:
        check_event("x", x, components.shape[-1:])
        cell = self.position(x.detach()).round()
        # On a CPU: the number of distinct cells depends on the events, for which other devices would wait.
        if components.ndim == 2 and x.device.type == "cpu" and only_reverse_mode():
            distinct, code = cell.unique(return_inverse=True)
            if 2 * len(distinct) <= x[..., 0].numel():
                term = self.kernel.interval_term(*self._edges(distinct.unsqueeze(-1)), components)
                return Lookup(code, whole(term.prepared()).mT.to(common_dtype((x, components))))
        return self._masses(*self._edges(cell), x, components)

    def _masses(self, low: Tensor, high: Tensor, x: Tensor, components: Tensor) -> Term:
        return InDtype.of(self.kernel.interval_term(low, high, components), common_dtype((x, components)))

    def log_overlap(self, x: Tensor, components: Tensor) -> Float[Tensor, "*lead"]:
        ends = self._edges(self.position(x.detach()).round())
        return self.kernel.pair_log_mass(*ends, components).to(common_dtype((x, components)))

    def log_norm(self, components: Tensor) -> Float[Tensor, ""]:
        return torch.zeros(())

    # ---- regions

    def bounded_term(self, bounds: Bounds, components: Tensor) -> Term:
        low, high = self._cells(bounds)
        return InDtype.of(self.kernel.interval_term(low, high, components), common_dtype((components,)))

    def interval_term(self, low: Tensor, high: Tensor, components: Tensor) -> Term:
        is_open = torch.zeros_like(low, dtype=torch.bool)
        return self.bounded_term(Bounds(low, high, is_open, is_open), components)

    def _cells(self, bounds: Bounds) -> tuple[Tensor, Tensor]:
        """The outer edges of the cells whose points lie in intervals; equal if there are none."""
        first, after_last = self._numbers(bounds)
        low, high = self.at(torch.stack([first, torch.maximum(first, after_last)]) - 0.5)
        return low, high

    def _numbers(self, bounds: Bounds) -> tuple[Tensor, Tensor]:
        """The number of the first point in every interval, and that of the first one behind it."""
        ends, after = torch.stack([bounds.low, bounds.high]), torch.stack([bounds.above, ~bounds.below])
        first, after_last = self._first(ends, after)
        return first, after_last

    def _first(self, end: Tensor, after: Tensor) -> Float[Tensor, "*shape"]:
        """The number of the first point at or after an end, or only after it."""
        position = self.position(end)
        near = position.round()
        return torch.where((position - near).abs() <= _slack(position, end), near + after, position.ceil())

    def holds(self, bounds: Bounds, numbers: Float[Tensor, " a"]) -> Bool[Tensor, "*lead a"]:
        first, after_last = self._numbers(bounds)
        position = self.position(numbers).round()
        return (position >= first) & (position < after_last)

    def wide_ends(self, region: Region) -> list[tuple[float, float]]:
        _, every = unpack_intervals(self.pack("region", region, torch.Size([1])), 1)
        ends = [[edge.item() for edge in self._cells(bounds)] for bounds in every]
        return [(low, high) for low, high in ends if low < high]

    def cdf(self, x: Tensor, components: Tensor) -> Float[Tensor, "*lead m"]:
        after_last = self._first(x, torch.ones_like(x, dtype=torch.bool))
        return self.kernel.cdf(self.at(after_last - 0.5), components).to(x.dtype)

    def quantile_bounds(self, q: Tensor, components: Tensor) -> tuple[Tensor, Tensor]:
        low, high = self.kernel.quantile_bounds(q, components)
        return low - self.step, high + self.step

    # ---- moments, modes and draws

    def mode(self, components: Tensor) -> Tensor:
        """The most probable point: that of the inner mode's cell, or one of its neighbours."""
        c = components.detach()
        middle = self.position(self.kernel.mode(c)).round()
        points = [self.at(middle + step) for step in (0.0, -1.0, 1.0)]
        masses = torch.stack([self.log_overlap(point, c) for point in points])
        best = masses.argmax(0).unsqueeze(-1)
        return torch.stack(points).gather(0, best.unsqueeze(0)).squeeze(0).to(components.dtype)

    def typical_event(self, components: Tensor) -> Tensor:
        return self.nearest_atom(self.kernel.typical_event(components))

    def moments(self, components: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance by sums over cells; if cells are narrow and there is no bound, the inner ones."""
        if self._is_fine(components):
            return self.kernel.mean(components), self.kernel.variance(components) + self.step**2 / 12
        c = components.double()
        edges = self._panels(c.detach())
        first, stop = edges[0], edges[-1]
        # E[X] = x₀ + δ·Σ_k P(X > x_k), E[(X − x₀)²] = δ²·Σ_k (2k + 1)·P(X > x_k), from the first cell on.
        many = float((stop - first).amax()) > _CELLS
        k, weights = panel_sums(edges) if many else _each_cell(first, stop)
        above = self.at(first + k + 0.5).unsqueeze(-1)
        probs = self.kernel.pair_log_mass(above, torch.full_like(above, math.inf), c).exp() * weights
        mean = probs.sum(0)
        variance = ((2 * k + 1) * probs).sum(0) - mean.square()
        mean, variance = self.at(first) + self.step * mean, self.step**2 * variance
        return mean.unsqueeze(-1).to(components), variance.unsqueeze(-1).to(components)

    def _is_fine(self, components: Tensor) -> bool:
        """Whether all cells are much narrower than components, whose densities are smooth everywhere."""
        kernel, unit = self.kernel, 1.0
        if isinstance(kernel, Transformed) and kernel.change.is_affine:
            unit = float(kernel.change.log_slope(torch.zeros((), dtype=torch.float64)).exp())
            kernel = kernel.kernel
        if not isinstance(kernel, LocationScale):
            return False
        return float(kernel.scale(components).amin()) > _MANY_CELLS * self.step * unit

    def _panels(self, c: Tensor) -> Float[Tensor, "panels *batch"]:
        """The numbers of cells between which components' distribution functions are smooth, ascending.

        The first and the last one hold the ends of the components.
        """
        inner = Truncated(self.kernel) if isinstance(self.kernel, LocationScale) else self.kernel
        ends = inner.panels(c, _PANELS).squeeze(-1)
        if isinstance(inner, Transformed):
            ends = inner.change.inverse(ends if inner.change.increasing else ends.flip(0))
        return self.position(ends).round()

    def sample(
        self, components: Tensor, index: Int[Tensor, "*lead"], generator: torch.Generator | None = None
    ) -> Tensor:
        # In float64: a draw between two edges stays between them.
        drawn = self.kernel.sample(components.double(), index, generator)
        return self.nearest_atom(drawn).to(components.dtype)

    # ---- events and components

    def check_component_values(self, argument: str, components: Tensor, event_shape: torch.Size) -> None:
        check_event(argument, components, torch.Size([1]))
        self.kernel.check_component_values(argument, components, event_shape)

    def components_from(self, events: Float[Tensor, "*batch m d"]) -> Float[Tensor, "*batch m d"]:
        """Components of the inner kernel; events at the end of a support move inside by a quarter of δ."""
        if isinstance(self.kernel, Transformed):
            low, high = [end.to(events) for end in self.kernel.change.ends(events.device)]
            events = torch.where(events <= low, low + 0.25 * self.step, events)
            events = torch.where(events >= high, high - 0.25 * self.step, events)
        return self.kernel.components_from(events)

    # ---- description

    def config(self) -> dict[str, Any]:
        inner = self.kernel.config()
        return {"kernel": "Rounded", "inner": inner, "step": self.step, "origin": self.origin}

    @classmethod
    def from_config(cls, config: dict[str, Any], *, encoder: nn.Module | None = None) -> Rounded:
        return cls(kernel_from_config(config["inner"]), config["step"], origin=config["origin"])

    def extra_repr(self) -> str:
        return f"{self.kernel!r}, step={self.step:g}"


def _slack(position: Tensor, x: Tensor) -> Tensor:
    """How far an end that means a point of the grid may lie from it by rounding, in cells.

    An end that single precision holds may come from there.
    """
    single = torch.where(x == x.float(), torch.finfo(torch.float32).eps, torch.finfo(torch.float64).eps)
    return (8 * single * position.abs().nan_to_num(posinf=0.0)).clamp(1e-9, 0.01)


def _each_cell(first: Tensor, stop: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers of cells, counted from the first one, and their weights in a sum."""
    n = int((stop - first).amax()) + 1
    return torch.arange(n, dtype=first.dtype, device=first.device).reshape(-1, *[1] * first.ndim), torch.ones(
        ()
    )
