"""Numbers that were recorded to a resolution."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kdmkit._core.checks import bad_argument, check_event, check_finite, check_number
from kdmkit._core.runtime import only_reverse_mode
from kdmkit.kernels.around import Around
from kdmkit.kernels.base import Kernel
from kdmkit.kernels.location_scale import LocationScale
from kdmkit.kernels.regions import Interval, OneOf, Region, first_occurrences
from kdmkit.kernels.registry import kernel_from_config
from kdmkit.kernels.transformed import Transformed
from kdmkit.kernels.truncated import Truncated, cut
from kdmkit.ops import LogSum, Lookup, Restricted, Term
from kdmkit.ops.terms import InDtype, common_dtype, whole

# Moments are sums over the cells of a component if it has at most `_CELLS`, and its middle half at most
# `_CENTRAL_CELLS`. Otherwise rounding hardly changes the moments.
_CELLS, _CENTRAL_CELLS = 1 << 13, 1 << 6


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
    region_kinds: tuple[type[Region], ...] = (Interval, OneOf)
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

    def cut(self, low: Tensor, high: Tensor, components: Tensor) -> tuple[Kernel, Tensor]:
        inner, _ = cut(self.kernel, Interval(*self._cells(low, high)), components)
        return self.around(inner), components

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
        return InDtype(self.kernel.interval_term(low, high, components), common_dtype((x, components)))

    def log_overlap(self, x: Tensor, components: Tensor) -> Float[Tensor, "*lead"]:
        ends = self._edges(self.position(x.detach()).round())
        return self.kernel.pair_log_mass(*ends, components).to(common_dtype((x, components)))

    def log_norm(self, components: Tensor) -> Float[Tensor, ""]:
        return torch.zeros(())

    # ---- regions

    def interval_term(self, low: Tensor, high: Tensor, components: Tensor) -> Term:
        return self._masses(*self._cells(low, high), low, components)

    def _cells(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """The outer edges of the cells whose points lie in [low, high]; equal if there are none."""
        first, last = self.position(low), self.position(high)
        first = (first - _slack(first, low)).ceil() - 0.5
        last = (last + _slack(last, high)).floor() + 0.5
        return self.at(first), self.at(torch.maximum(first, last))

    def set_term(self, values: Tensor, components: Tensor) -> Term:
        """A sum of cells; NaN in a set has no mass."""
        values = values.to(components.dtype) if not values.is_floating_point() else values
        position, new = first_occurrences(self.position(values).round())
        keep = new & ~position.isnan()
        position = torch.where(keep, position, 0.0)
        parts = []
        for k, kept in zip(position.split(1, -1), keep.split(1, -1), strict=True):
            parts.append(Restricted(self._masses(*self._edges(k), values, components), kept))
        return LogSum(tuple(parts))

    def check_set(self, argument: str, values: Tensor, event_shape: torch.Size) -> None:
        check_finite(argument, values)

    def cdf(self, x: Tensor, components: Tensor) -> Float[Tensor, "*lead m"]:
        position = self.position(x)
        last = (position + _slack(position, x)).floor() + 0.5
        return self.kernel.cdf(self.at(last), components).to(x.dtype)

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
        """Mean and variance as sums over cells; if there are many, from those of the inner kernel."""
        q = torch.tensor([1e-15, 0.25, 0.75, 1 - 1e-15], dtype=torch.float64, device=components.device)
        q = q.reshape(4, *([1] * (components.ndim - 2)))
        bounds = [bound.detach() for bound in self.kernel.quantile_bounds(q, components.double())]
        first, last = (self.position(end).round() for end in (bounds[0][0], bounds[1][3]))
        central = (bounds[1][2] - bounds[0][1]) / self.step
        is_wide = ~(last - first < _CELLS) | (central >= _CENTRAL_CELLS)
        if bool(is_wide.all()):
            return self._inner_moments(components)
        count = int((last - first)[~is_wide].amax()) + 1
        if not bool(is_wide.any()):
            return self._sums(components, first, count)
        middle = self.position(self.kernel.typical_event(components.detach())).squeeze(-1).round()
        some = self._sums(components, torch.where(is_wide, middle - count // 2, first), count)
        mean, variance = (
            torch.where(is_wide.unsqueeze(-1), inner, summed)
            for inner, summed in zip(self._inner_moments(components), some, strict=True)
        )
        return mean, variance

    def _inner_moments(self, components: Tensor) -> tuple[Tensor, Tensor]:
        return self.kernel.mean(components), self.kernel.variance(components) + self.step**2 / 12

    def _sums(self, components: Tensor, first: Tensor, count: int) -> tuple[Tensor, Tensor]:
        k = torch.arange(count, dtype=torch.float64, device=first.device)
        points = self.at(first + k.reshape(-1, *([1] * first.ndim)))
        probs = self.log_overlap(points.unsqueeze(-1), components.double()).exp()
        centre = points[count // 2]
        mean = (probs * (points - centre)).sum(0) / probs.sum(0)
        variance = (probs * (points - centre - mean).square()).sum(0) / probs.sum(0)
        return ((centre + mean).unsqueeze(-1).to(components), variance.unsqueeze(-1).to(components))

    def sample(
        self, components: Tensor, index: Int[Tensor, "*lead"], generator: torch.Generator | None = None
    ) -> Tensor:
        return self.nearest_atom(self.kernel.sample(components, index, generator))

    # ---- events and components

    def check_component_values(self, argument: str, components: Tensor, event_shape: torch.Size) -> None:
        check_event(argument, components, torch.Size([1]))
        self.kernel.check_component_values(argument, components, event_shape)

    def components_from(self, events: Float[Tensor, "*batch m d"]) -> Float[Tensor, "*batch m d"]:
        """Components of the inner kernel; events at the end of a support move inside by a quarter of δ."""
        if isinstance(self.kernel, Transformed):
            low, high = (end.to(events) for end in self.kernel.change.ends(events.device))
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
    """The largest rounding error of a bound that is meant to be a point of the grid, in cells."""
    eps = torch.finfo(x.dtype).eps if x.is_floating_point() else torch.finfo(torch.float64).eps
    return (16 * eps * position.abs().nan_to_num(posinf=0.0)).clamp(1e-9, 0.25)
