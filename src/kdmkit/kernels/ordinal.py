"""A kernel on whole numbers in order: counts, grades, ages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.distributions import constraints
from torch.distributions.constraints import Constraint

from kdmkit._core.checks import as_tensor, bad_argument, check_finite, check_floating, is_integer
from kdmkit._core.precision import compute_dtype
from kdmkit._core.shapes import broadcast, pick
from kdmkit.kernels.bandwidth import Bandwidth, LearnedBandwidth, as_bandwidth, bandwidth_from_config
from kdmkit.kernels.base import Kernel
from kdmkit.kernels.distances import BOUND, typical_distance
from kdmkit.kernels.geometric import draw, log_share, log_total, moments
from kdmkit.kernels.masses import first_occurrences, log_sum
from kdmkit.kernels.parameters import WithBandwidth
from kdmkit.kernels.pieces import in_pieces
from kdmkit.kernels.regions import Interval, OneOf, Region
from kdmkit.ops import Score, Term


class Ordinal(WithBandwidth):
    """k²(i, c) = s^|i − c| for whole numbers i and a real c, divided by its sum over all i.

    The parameter that is trained is the width w = −1/log s: weights fall by a factor e over w numbers.

    Args:
        s: a number in (0, 1), `(m,)` for one per component, or a `Bandwidth` that holds widths.
        low, high: the least and the largest number; None for no bound.
        trainable: whether s is trained.

    >>> kernel = Ordinal(0.5, low=0, high=2)
    >>> c = torch.tensor([0.0])
    >>> (kernel.log_overlap(torch.arange(3), c) + kernel.log_norm(c)).exp()   # odds 4 : 2 : 1
    tensor([0.5714, 0.2857, 0.1429])
    """

    discrete: ClassVar[bool] = False
    has_moments: ClassVar[bool] = True
    has_atoms: bool = True
    components_are_events: bool = False
    event_dim: int = 0

    def __init__(
        self, s: Any = 0.5, *, low: int | None = 0, high: int | None = None, trainable: bool = False
    ) -> None:
        super().__init__()
        self.bandwidth = s if isinstance(s, Bandwidth) else _width_of(s, trainable=trainable)
        self.low, self.high = _whole("low", low), _whole("high", high)
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(bad_argument("low, high", "low ≤ high", f"{low} > {high}"))

    @property
    def s(self) -> Float[Tensor, "*shape"]:
        """The weight of a number relative to its neighbour nearer to the component."""
        return (-self.bandwidth.value.reciprocal()).exp()

    @s.setter
    def s(self, value: Any) -> None:
        self.learned_bandwidth.value = -_shares(value).log().reciprocal()

    # ---- parameters

    @property
    def support(self) -> Constraint:
        return constraints.integer_interval(*self._limits())

    @property
    def overlaps_everywhere(self) -> bool:
        return True

    @property
    def per_component(self) -> bool:
        return True

    def with_bandwidth(self, bandwidth: Bandwidth) -> Ordinal:
        return Ordinal(bandwidth, low=self.low, high=self.high)

    def initialize_bandwidth(
        self, components: Tensor, sigma: str | float, *, distance: float | None = None
    ) -> None:
        """The width is the typical distance of components, or the number."""
        if not isinstance(self.bandwidth, LearnedBandwidth):
            return
        if not isinstance(sigma, str):
            width = float(sigma)
        else:
            points = components.unsqueeze(-1)
            width = typical_distance(points, sigma) if distance is None else distance
        self.bandwidth.restart(width, BOUND * width)

    def _rate(self, like: Tensor) -> Float[Tensor, "*batch_m"]:
        """−log s for every component, or one for all, in float32 at least."""
        rate = self.bandwidth.value.to(like.device, compute_dtype(like.dtype)).reciprocal()
        return rate.squeeze(-1) if rate.ndim else rate

    def _limits(self) -> tuple[float, float]:
        return -math.inf if self.low is None else self.low, math.inf if self.high is None else self.high

    def _range(self, like: Tensor) -> tuple[Tensor, Tensor]:
        low, high = (torch.full((), end, dtype=like.dtype, device=like.device) for end in self._limits())
        return low, high

    # ---- densities

    def term(self, x: Tensor, components: Tensor) -> Term:
        return Score(_block, x.unsqueeze(-1), self._columns(components))

    def _columns(self, components: Tensor) -> Float[Tensor, "*batch m 2"]:
        """Components beside their rates: blocks slice both."""
        rate = self._rate(components)
        shape = broadcast(rate.shape, components.shape)
        return torch.stack([components.to(rate.dtype).expand(shape), rate.expand(shape)], -1)

    def log_overlap(self, x: Tensor, components: Tensor) -> Float[Tensor, "*lead"]:
        return (-self._rate(components) * (x - components).abs()).to(components.dtype)

    def log_norm(self, components: Tensor) -> Float[Tensor, "*batch_m"]:
        c = components.to(compute_dtype(components.dtype))
        return -log_total(*self._range(c), c, self._rate(components))

    # ---- regions

    def check_region(self, argument: str, region: Region, event_shape: torch.Size) -> None:
        self._accept(argument, region, Interval, OneOf)
        if isinstance(region, OneOf):
            self.check_events(argument, region.values, event_shape)

    def region_term(self, region: Region, components: Tensor) -> Term:
        self._accept("region", region, Interval, OneOf)
        if isinstance(region, Interval):
            ends = torch.stack([region.low.ceil(), region.high.floor()], -1)
            return Score(self._interval_block, ends, self._columns(components))
        assert isinstance(region, OneOf)
        columns = torch.cat([self._columns(components), self.log_norm(components).unsqueeze(-1)], -1)
        return Score(_set_block, region.values, columns)

    def _interval_block(self, ends: Tensor, columns: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        c, rate = columns[..., None, :, :].unbind(-1)
        low, high = ends.unsqueeze(-2).unbind(-1)
        return in_pieces(self._log_share, low, high, c, rate)

    def _log_share(self, low: Tensor, high: Tensor, c: Tensor, rate: Tensor) -> Tensor:
        return log_share((low, high), self._range(c), c, rate)

    def cdf(self, x: Float[Tensor, "*own"], components: Tensor) -> Float[Tensor, "*lead m"]:
        c, x = components, x.to(components.dtype).unsqueeze(-1).floor()
        ends = (torch.full_like(x, -math.inf), x)
        return log_share(ends, self._range(c), c, self._rate(c)).exp().to(components.dtype)

    def quantile_bounds(self, q: Float[Tensor, "*own"], components: Tensor) -> tuple[Tensor, Tensor]:
        """Beyond a distance t of the centre is less than 2s^(t − d)/(1 − s), d that of the nearest number."""
        low, high = self._range(components)
        rate = self._rate(components).to(components.dtype)
        nearest = (torch.clamp(components, low, high) - components).abs() + 1
        tail = torch.minimum(q, 1 - q).unsqueeze(-1)
        reach = nearest + 1 + (math.log(2) - torch.log(-torch.expm1(-rate)) - tail.log()) / rate
        reach = reach.clamp_min(1)
        return torch.maximum(components - reach, low - 1), torch.minimum(components + reach, high)

    def nearest_atom(self, x: Float[Tensor, "*lead"]) -> Float[Tensor, "*lead"]:
        return x.round()

    def beside(self, x: Float[Tensor, "*lead"], up: bool) -> Float[Tensor, "*lead"]:
        return x + (1 if up else -1)

    # ---- moments, modes and draws

    def mean(self, components: Tensor) -> Float[Tensor, "*batch m"]:
        return self._moments(components)[0]

    def mean_features(self, components: Tensor) -> Float[Tensor, "*batch m 1"]:
        return self.mean(components).unsqueeze(-1)

    def mean_of(self, features: Float[Tensor, "*batch 1"]) -> Float[Tensor, "*batch"]:
        return features.squeeze(-1)

    def variance(self, components: Tensor) -> Float[Tensor, "*batch m"]:
        return self._moments(components)[1]

    def _moments(self, components: Tensor) -> tuple[Tensor, Tensor]:
        c = components.double()
        mean, variance = moments(*self._range(c), c, self._rate(components).double())
        return mean.to(components.dtype), variance.to(components.dtype)

    def mode(self, components: Tensor) -> Int[Tensor, "*batch m"]:
        low, high = self._range(components)
        return torch.clamp(components.detach().round(), low, high).long()

    def sample(
        self, components: Tensor, index: Int[Tensor, "*lead"], generator: torch.Generator | None = None
    ) -> Int[Tensor, "*lead"]:
        value = self.bandwidth.value.to(components.device, torch.float64)
        width = pick(value, index, 1).squeeze(-1) if self.bandwidth.per_component else value.squeeze()
        c = components.detach().double()
        return draw(*self._range(c), c, width.detach().reciprocal(), generator).long()

    # ---- events and components

    def as_events(self, argument: str, value: Any, event_shape: torch.Size, like: Tensor) -> Tensor:
        value = as_tensor(argument, value, like=like)
        return value.long() if is_integer(value) else value

    def check_events(self, argument: str, value: Tensor, event_shape: torch.Size) -> None:
        if value.dtype == torch.bool:
            raise TypeError(bad_argument(argument, "whole numbers", value.dtype))
        check_finite(argument, value)
        low, high = self._limits()
        wrong = (value < low) | (value > high)
        if value.is_floating_point():
            wrong = wrong | (value != value.round())
        if bool(wrong.any()):
            ends = f"{'…' if self.low is None else low} … {'' if self.high is None else high}".strip(" ")
            wanted = "whole numbers" if self.low is None and self.high is None else f"whole numbers in {ends}"
            raise ValueError(bad_argument(argument, wanted, value[wrong][0].item()))

    def check_component_values(self, argument: str, components: Tensor, event_shape: torch.Size) -> None:
        check_floating(argument, components)
        check_finite(argument, components)

    def fill_missing(self, value: Tensor, keep: Tensor, components: Tensor) -> Tensor:
        low, high = self._limits()
        return torch.where(keep, value, torch.full_like(value, min(max(low, 0), high)))

    def components_from(self, events: Tensor) -> Tensor:
        return events if events.is_floating_point() else events.to(torch.get_default_dtype())

    def initial_components(self, values: Tensor, event_shape: torch.Size) -> Tensor:
        return self.components_from(values)

    def evidence_points(
        self, components: Tensor, log_weights: Float[Tensor, "*batch m"]
    ) -> tuple[Tensor, Float[Tensor, "*batch m"]]:
        """The components themselves: the overlap of two real numbers is defined."""
        return components, log_weights

    def same_family(self, other: Kernel) -> bool:
        return isinstance(other, Ordinal)

    # ---- description

    def config(self) -> dict[str, Any]:
        return {"kernel": "Ordinal", **self.bandwidth.config(), "low": self.low, "high": self.high}

    @classmethod
    def from_config(cls, config: dict[str, Any], *, encoder: nn.Module | None = None) -> Ordinal:
        return cls(bandwidth_from_config("width", config), low=config["low"], high=config["high"])

    def extra_repr(self) -> str:
        shape = self.bandwidth.shape
        s = f"s of shape {tuple(shape[:-1])}" if shape else f"s={self.s.item():.4g}"
        return f"{s}, low={self.low}, high={self.high}"


def _shares(s: Any) -> Tensor:
    """Numbers strictly between 0 and 1 in float64, `(m,)` as `(m, 1)`."""
    tensor = as_tensor("s", s, like=torch.empty((), dtype=torch.float64))
    if tensor.dtype == torch.bool or not bool(((tensor > 0) & (tensor < 1)).all()):
        raise ValueError(bad_argument("s", "numbers strictly between 0 and 1", repr(s)))
    return tensor.double().unsqueeze(-1) if tensor.ndim == 1 else tensor.double()


def _width_of(s: Any, *, trainable: bool) -> Bandwidth:
    """w = −1/log s."""
    return as_bandwidth("width", -_shares(s).log().reciprocal(), None, trainable=trainable)


def _whole(argument: str, value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ValueError(bad_argument(argument, "a whole number or None", repr(value)))
    return int(value.__index__())


def _block(x: Tensor, columns: Tensor, parameters: object) -> Tensor:
    c, rate = columns[..., None, :, :].unbind(-1)
    return -rate * (x - c).abs()


def _set_block(values: Tensor, columns: Tensor, parameters: object) -> Tensor:
    ordered, new = first_occurrences(values)
    c, rate, log_norm = columns[..., None, :, :].unbind(-1)

    def part(i: int) -> Tensor:
        score = log_norm - rate * (ordered[..., i, None] - c).abs()
        return torch.where(new[..., i, None], score, -math.inf)

    return log_sum(part, ordered.shape[-1])
