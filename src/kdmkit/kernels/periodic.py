"""A kernel on a circle: hours, angles, months."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kdmkit._core.checks import bad_argument, check_finite, check_number, is_integer
from kdmkit._core.tensors import at_least_float32, broadcast, compute_dtype, pick
from kdmkit.kernels.bandwidth import (
    Bandwidth,
    as_bandwidth,
    bandwidth_from_config,
    positive_tensor,
    typical_distance,
)
from kdmkit.kernels.base import Kernel
from kdmkit.kernels.calculus.integrals import in_pieces, log_sum, sum_last
from kdmkit.kernels.calculus.von_mises import draw_von_mises, draw_whole, log_arc_mass, mean_length, turned
from kdmkit.kernels.continuous import WithBandwidth
from kdmkit.kernels.feature_map import FeatureMap, positive_inner_products
from kdmkit.kernels.measured import Measured
from kdmkit.kernels.region_forms import Bounds, codes_in, float_ends
from kdmkit.kernels.regions import NOTHING, WHOLE, Interval, Region, interval, union
from kdmkit.ops import Score, Term
from kdmkit.ops.terms import InDtype, score_dtype

# Normalisers over whole numbers are summed at once up to this many pairs of a number and a component.
_TABLE = 1 << 22


class Periodic(WithBandwidth, Measured, FeatureMap):
    """k²(x, c) = Π_i exp(κ_i(cos(2π(x_i − c_i)/period) − 1)): a von Mises density in each dimension.

    Values that differ by whole periods are the same event. Draws, means and modes lie in [0, period). An
    interval is the arc from `low` to `high`: [22, 26] are the hours from 22 to 2 o'clock, and an arc of a
    period or more is the whole circle. An open end is that of the turn [k·period, (k + 1)·period) in which
    the other end lies; the period itself, as an end, belongs to the first turn.

    The parameter that is trained is the width σ = period/(π√(2κ)): if it is much smaller than the period, the
    kernel is RBF(σ) on the circle.

    Args:
        kappa: κ > 0: a number; `(d,)` for one per dimension; `(m, 1)` or `(m, d)` for one per component; the
            same with batch dimensions in front (not trained); or a `Bandwidth` that holds σ. Gradients flow
            to a tensor that requires them, unless `trainable` makes a parameter that starts at its value.
        period: the length of one turn in the units of x.
        whole: whether events are whole numbers: probabilities then sum to 1 over 0 … period − 1.
        trainable: whether κ is trained.

    >>> kernel, c = Periodic(2.0, 24), torch.tensor([[23.0]])
    >>> kernel.log_overlap(torch.tensor([1.0]), c) == kernel.log_overlap(torch.tensor([21.0]), c)
    tensor([True])
    """

    has_moments: ClassVar[bool] = True
    overlaps_everywhere: bool = True
    parameter_name: str = "kappa"

    def __init__(
        self, kappa: Any = 1.0, period: float = 1.0, *, whole: bool = False, trainable: bool = False
    ) -> None:
        super().__init__()
        self.period = check_number("period", period, "a finite number > 0", positive=True)
        self.whole = bool(whole)
        self.has_atoms, self.components_are_events = self.whole, not self.whole
        if self.whole and self.period != round(self.period):
            raise ValueError(bad_argument("period", "a whole number if events are whole", period))
        if isinstance(kappa, Bandwidth):
            self.bandwidth = kappa
        else:
            sigma = self._sigma(positive_tensor("kappa", kappa))
            self.bandwidth = as_bandwidth("sigma", sigma, None, trainable=trainable)

    def _sigma(self, kappa: Tensor) -> Tensor:
        return self.period / (math.pi * (2 * kappa).sqrt())

    @property
    def sigma(self) -> Float[Tensor, "*shape"]:
        """The width, in the units of x."""
        return self.bandwidth.value

    @property
    def kappa(self) -> Float[Tensor, "*shape"]:
        """κ, in the shape of the bandwidth."""
        return self._kappa(self.bandwidth.value)

    @kappa.setter
    def kappa(self, value: Any) -> None:
        self.learned_bandwidth.value = self._sigma(positive_tensor("kappa", value))

    def _kappa(self, sigma: Tensor) -> Tensor:
        return 0.5 * (self.period / (math.pi * sigma)).square()

    @property
    def per_component(self) -> bool:
        return self.whole or self.bandwidth.per_component

    def with_bandwidth(self, bandwidth: Bandwidth) -> Periodic:
        return Periodic(bandwidth, self.period, whole=self.whole)

    def typical_width(self, components: Tensor, rule: str) -> float:
        """The typical distance of components on the circle."""
        radius = self.period / (2 * math.pi)
        return radius * typical_distance(self._points(components.detach().double()), rule)

    def _scale(self, like: Tensor) -> Tensor:
        """κ on the device of `like`, in float32 at least."""
        return self._kappa(self.bandwidth.value.to(like.device, compute_dtype(like.dtype)))

    # ---- densities

    def _angle(self, x: Tensor) -> Tensor:
        return turned(at_least_float32(x), self.period) * (2 * math.pi / self.period)

    def _points(self, x: Tensor) -> Float[Tensor, "*lead p"]:
        """Points of unit circles: κ(cos θ − 1) is −κ/2 times their squared distance."""
        angle = self._angle(x)
        return torch.cat([angle.cos(), angle.sin()], -1)

    def term(self, x: Tensor, components: Tensor) -> Term:
        self.check_dimensions(components.shape[-1], x)
        x, c = self._points(x.to(components.dtype) if is_integer(x) else x), self._points(components)
        scale = (0.5 * self._scale(components)).sqrt().to(score_dtype(x, c))
        if scale.ndim and scale.shape[-1] > 1:
            scale = torch.cat([scale, scale], -1)
        return self.distance_term(x, c, scale)

    def log_overlap(self, x: Tensor, components: Tensor) -> Float[Tensor, "*lead"]:
        return self.log_bump(x - components, self._scale(components)).sum(-1).to(components.dtype)

    inner_products = positive_inner_products

    def log_norm(self, components: Tensor) -> Float[Tensor, "*batch_m"]:
        d = self.check_dimensions(components.shape[-1])
        if self.whole:
            return -self._log_total(components).sum(-1)
        kappa = self._kappa(self.bandwidth.value.double())
        logs = (self.period * torch.special.i0e(kappa)).log()
        return -(logs if logs.ndim else logs.unsqueeze(-1)).expand(*logs.shape[:-1], d).sum(-1)

    def _log_total(self, components: Tensor) -> Float[Tensor, "*batch m d"]:
        """log Σ_i k²(i, c) over i = 0 … period − 1, in every dimension."""
        kappa, n = self._scale(components), round(self.period)
        if n * components.numel() > _TABLE:
            return log_sum(lambda i: self.log_bump(i - components, kappa), n)
        numbers = torch.arange(n, dtype=components.dtype, device=components.device)
        return torch.logsumexp(self.log_bump(numbers - components.unsqueeze(-1), kappa.unsqueeze(-1)), -1)

    def log_bump(self, gap: Tensor, kappa: Tensor) -> Tensor:
        """κ(cos(2π·gap/period) − 1)."""
        return -2 * kappa * (0.5 * self._angle(gap)).sin().square()

    # ---- regions

    def pack(
        self, argument: str, region: Region, event_shape: torch.Size, device: torch.device | None = None
    ) -> Float[Tensor, "*lead p"]:
        """Arcs with finite ends; those of one region are disjoint and lie in [0, period]."""
        once = region if region.is_batch or event_shape.numel() != 1 else self.in_one_turn(region)
        return super().pack(argument, once, event_shape, device)

    def in_one_turn(self, region: Region) -> Region:
        """The region in [0, period).

        An interval goes round: [22, 26] of 24 hours is [22, 24) and [0, 2]. Ends that are open on both sides
        of a region meet: (−∞, 2) and (22, ∞) are the arc from 22 to 2.
        """
        pieces = list(region.pieces)
        if len(pieces) > 1 and pieces[0].low is None and pieces[-1].high is None:
            last, first = pieces.pop(), pieces.pop(0)
            pieces.append(interval(last.low, first.high + self.period, above=last.above, below=first.below))
        return union([part for piece in pieces for part in self._in_one_turn(piece)])

    def _in_one_turn(self, piece: Interval) -> list[Region]:
        period = self.period
        low, high = [end.item() for end in self._closed(*Interval(*float_ends(piece)).tensors())]
        above, below = piece.above, piece.below or piece.high is None
        # (0, period) is the circle without 0.
        if high - low > period or (high - low == period and not (above and below)):
            return [Interval(0.0, period, "left")]
        turn = math.floor(low / period) * period
        low, high = low - turn, high - turn
        if high < period:
            return (
                [interval(low, high, above=above, below=below)] if low < high or not (above or below) else []
            )
        rest = interval(0.0, high - period, above=False, below=below)
        return [interval(low, period, above=above, below=True), rest]

    def trimmed(self, region: Region, event_shape: torch.Size) -> Region:
        if region.is_batch:
            return region
        once = self.in_one_turn(region)
        whole = Interval(0.0, self.period, "left")
        return NOTHING if not once.spans else WHOLE if once.spans == whole.spans else once

    def null_points(self, region: Region) -> list[float]:
        return [] if self.whole or region.is_batch else super().null_points(self.in_one_turn(region))

    def wide_ends(self, region: Region) -> list[tuple[float, float]]:
        """Arcs in [0, period]; of whole numbers, from half a step before the first to half a step further."""
        once = self.in_one_turn(region)
        if not self.whole:
            return super().wide_ends(once)
        runs = [codes_in("region", piece, round(self.period)) for piece in once.pieces]
        return [(run.start - 0.5, run.stop - 0.5) for run in runs if run]

    def between(self, low: float, high: float, components: Tensor) -> tuple[Kernel, Tensor]:
        from kdmkit.kernels.arcs import Arc  # not above: that module imports this one

        return Arc(self, low, high), components

    def bounded_term(self, bounds: Bounds, components: Tensor) -> Term:
        if not self.whole:
            return super().bounded_term(bounds, components)
        low, high, above, below = self.finite(bounds)
        first = torch.where(above, low.floor() + 1, low.ceil())
        last = torch.where(below, high.ceil() - 1, high.floor())
        runs = torch.cat([first, last - first + 1], -1)
        return InDtype(Score(self._run_block, runs, self._mass_columns(components)), components.dtype)

    def interval_term(self, low: Tensor, high: Tensor, components: Tensor) -> Term:
        self.check_dimensions(components.shape[-1], low)
        ends = torch.cat(self._closed(low, high), -1)
        return Score(self._arc_block, ends, self._mass_columns(components))

    def _mass_columns(self, components: Tensor) -> Float[Tensor, "*batch m k"]:
        return self._columns(components, *([self._log_total(components)] if self.whole else []))

    def finite(self, bounds: Bounds) -> Bounds:
        """Arcs with finite ends. A turn has its beginning and not its end, which begins the next one."""
        above, below = bounds.above & ~bounds.low.isinf(), bounds.below | bounds.high.isinf()
        return Bounds(*self._closed(bounds.low, bounds.high), above, below)

    def _closed(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Arcs with finite ends: an open end is that of the turn in which the other end lies."""
        first, last = self._turn(high), self._turn(low) + self.period
        last = torch.where(low == high, first, last)  # of the two open ends of nothing
        return torch.where(torch.isinf(low), first, low), torch.where(torch.isinf(high), last, high)

    def _turn(self, end: Tensor) -> Tensor:
        """The start of the turn that an end lies in; the period itself belongs to the first turn."""
        is_first = torch.isinf(end) | (end == self.period)
        return torch.where(
            is_first, 0.0, (torch.where(is_first, 0.0, end) / self.period).floor() * self.period
        )

    def _columns(self, components: Tensor, *more: Tensor) -> Float[Tensor, "*batch m k"]:
        """Components, κ and more side by side: blocks slice them together."""
        kappa = self._scale(components)
        shape = broadcast(kappa.shape, components.shape)
        return torch.cat([part.to(kappa.dtype).expand(shape) for part in (components, kappa, *more)], -1)

    def _arc_block(self, ends: Tensor, columns: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        low, high = ends.unsqueeze(-2).chunk(2, -1)
        c, kappa = columns.unsqueeze(-3).chunk(2, -1)
        return sum_last(self.arc_mass, low, high, c, kappa)

    def arc_mass(self, low: Tensor, high: Tensor, c: Tensor, kappa: Tensor) -> Tensor:
        """The log mass of arcs about c with concentration κ; all broadcast."""
        width = (high - low) * (2 * math.pi / self.period)
        # Rounding must not leave a gap in the circle.
        width = torch.where(high - low >= self.period, 7.0, width)
        return log_arc_mass(self._angle(low - c), self._angle(high - c), width, kappa)

    def _run_block(self, ends: Tensor, columns: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        first, count = ends.unsqueeze(-2).chunk(2, -1)
        c, kappa, total = columns.unsqueeze(-3).chunk(3, -1)
        return sum_last(partial(in_pieces, self._log_run), first, count, c, kappa, total)

    def _log_run(self, first: Tensor, count: Tensor, c: Tensor, kappa: Tensor, total: Tensor) -> Tensor:
        """The log mass of `count` whole numbers from `first` on."""
        n = round(self.period)

        def part(i: int) -> Tensor:
            return torch.where(i < count, self.log_bump(first + i - c, kappa) - total, -math.inf)

        return torch.where(count >= n, 0.0, log_sum(part, n))

    def cdf(self, x: Float[Tensor, "*x"], components: Tensor) -> Float[Tensor, "*lead m"]:
        """F_j(x) on [0, period): the mass of the arc from 0 to x."""
        x = x.to(components.dtype).clamp(-0.5 if self.whole else 0.0, self.period)
        ends = torch.stack([torch.zeros_like(x), x.floor() + 1 if self.whole else x], -1).unsqueeze(-2)
        block = self._run_block if self.whole else self._arc_block
        return block(ends, self._mass_columns(components), ()).squeeze(-2).exp().to(components.dtype)

    def quantile_bounds(self, q: Float[Tensor, "*x"], components: Tensor) -> tuple[Tensor, Tensor]:
        shape = broadcast((*q.shape, 1), components.shape[:-1])
        low = torch.full(shape, -1.0 if self.whole else 0.0, dtype=q.dtype, device=q.device)
        return low, torch.full_like(low, self.period - 1 if self.whole else self.period)

    def nearest_atom(self, x: Float[Tensor, "*lead"]) -> Float[Tensor, "*lead"]:
        return x.round() if self.whole else x

    def beside(self, x: Float[Tensor, "*lead"], up: bool) -> Float[Tensor, "*lead"]:
        return x + (1 if up else -1) if self.whole else super().beside(x, up)

    # ---- means, modes and draws

    def mean_features(self, components: Tensor) -> Float[Tensor, "*batch v"]:
        """E cos θ and E sin θ of every component."""
        if self.whole:
            return self._whole_means(components)
        length = mean_length(self._scale(components))
        points = self._points(components).unflatten(-1, (2, -1))
        return (length.unsqueeze(-2) * points if length.ndim else length * points).flatten(-2)

    def _whole_means(self, components: Tensor) -> Tensor:
        kappa, total = self._scale(components), self._log_total(components)
        mean: Tensor | float = 0.0
        for i in range(round(self.period)):
            probability = (self.log_bump(i - components, kappa) - total).exp()
            angle = 2 * math.pi * i / self.period
            mean = mean + torch.cat([probability * math.cos(angle), probability * math.sin(angle)], -1)
        return torch.as_tensor(mean)

    def mean_of(self, features: Float[Tensor, "*batch v"]) -> Float[Tensor, "*batch d"]:
        """The circular mean: the angle of the average point, in [0, period)."""
        cosine, sine = features.chunk(2, -1)
        return self._in_turn(torch.atan2(sine, cosine) * (self.period / (2 * math.pi)))

    def mean(self, components: Tensor) -> Float[Tensor, "*batch d"]:
        return self.mean_of(self.mean_features(components)).to(components.dtype)

    def mode(self, components: Tensor) -> Tensor:
        if self.whole:
            return components.detach().round().long().remainder(round(self.period))
        return self._in_turn(components)

    def _in_turn(self, x: Tensor) -> Tensor:
        """x in [0, period), without the period itself, which rounding may give."""
        turned = x.remainder(self.period)
        return torch.where(turned < self.period, turned, 0.0)

    def kappa_of(self, components: Tensor, index: Int[Tensor, "*lead"]) -> Float[Tensor, "*lead d"]:
        """κ of chosen components, in float64."""
        sigma = self.bandwidth.value.detach().to(components.device, torch.float64)
        kappa = self._kappa(pick(sigma, index, 1) if self.bandwidth.per_component else sigma)
        return kappa.expand(components.shape)

    def sample(
        self, components: Tensor, index: Int[Tensor, "*lead"], generator: torch.Generator | None = None
    ) -> Tensor:
        c, kappa = components.detach().double(), self.kappa_of(components, index)
        if self.whole:
            return draw_whole(c, kappa, round(self.period), generator)
        angle = draw_von_mises(kappa, generator) * (self.period / (2 * math.pi))
        return self._in_turn((c + angle).remainder(self.period).to(components.dtype))

    # ---- events and components

    def check_events(self, argument: str, value: Tensor, event_shape: torch.Size) -> None:
        if not self.whole:
            super().check_events(argument, value, event_shape)
            return
        if value.dtype == torch.bool:
            raise TypeError(bad_argument(argument, "whole numbers", value.dtype))
        check_finite(argument, value)
        if value.is_floating_point() and bool((value != value.round()).any()):
            got = value[value != value.round()][0].item()
            raise ValueError(bad_argument(argument, "whole numbers", got))

    def components_from(self, events: Tensor) -> Tensor:
        return events if events.is_floating_point() else events.to(torch.get_default_dtype())

    def evidence_points(
        self, components: Tensor, log_weights: Float[Tensor, "*batch m"]
    ) -> tuple[Tensor, Float[Tensor, "*batch m"]]:
        """The components themselves: the overlap of any two points of the circle is defined."""
        return components, log_weights

    def same_family(self, other: Kernel) -> bool:
        return isinstance(other, Periodic) and (other.period, other.whole) == (self.period, self.whole)

    # ---- description

    def config(self) -> dict[str, Any]:
        return {
            "kernel": "Periodic",
            **self.bandwidth.config(),
            "period": self.period,
            "whole": self.whole,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], *, encoder: nn.Module | None = None) -> Periodic:
        return cls(bandwidth_from_config("sigma", config), config["period"], whole=config["whole"])

    def extra_repr(self) -> str:
        shape = self.bandwidth.shape
        kappa = f"kappa of shape {tuple(shape)}" if shape else f"kappa={self.kappa.item():.4g}"
        return f"{kappa}, period={self.period:g}" + (", whole=True" if self.whole else "")
