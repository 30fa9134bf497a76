"""A continuous kernel between two bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.distributions import constraints
from torch.distributions.constraints import Constraint

from kdmkit._core.checks import as_tensor, bad_argument
from kdmkit.kernels.bandwidth import FixedBandwidth, LearnedBandwidth
from kdmkit.kernels.base import Kernel
from kdmkit.kernels.exact import ExactBuffers
from kdmkit.kernels.location_scale import LocationScale
from kdmkit.kernels.quadrature import moments
from kdmkit.kernels.rbf import RBF
from kdmkit.kernels.regions import Interval, Region
from kdmkit.kernels.registry import kernel_from_config
from kdmkit.ops import Lookup, Restricted, Sum, Term, whole

# Halvings of a bracket: float64 has 52 bits.
_STEPS = 64
# Beyond the ends of quadrature lies less than this share of a component.
_NEGLIGIBLE = 1e-16


class Truncated(ExactBuffers, Kernel):
    """The density M·k²(x, c)/P_c(low ≤ x ≤ high) between `low` and `high`, and 0 outside.

    Every component is divided by its own mass between the bounds, so that no mass is lost. Centres may lie
    outside: the density of data that piles up at an edge. A component of compact support that has no mass
    between the bounds is 0 everywhere.

    Args:
        kernel: RBF (without a metric), Epanechnikov or Tricube.
        low, high: numbers, or `(d,)` for every dimension; None and ±∞ are open.

    >>> kernel = Truncated(RBF.from_std(1.0), low=0.0)   # a half-normal density
    >>> kernel.mean(torch.zeros(1, 1, dtype=torch.float64))
    tensor([[0.7979]], dtype=torch.float64)
    """

    discrete: ClassVar[bool] = False
    is_continuous: ClassVar[bool] = True
    has_moments: ClassVar[bool] = True
    components_are_events: ClassVar[bool] = False
    low: Tensor
    high: Tensor

    def __init__(self, kernel: Kernel, low: Any = None, high: Any = None) -> None:
        super().__init__()
        if not isinstance(kernel, LocationScale) or (isinstance(kernel, RBF) and kernel.shear is not None):
            wanted = "a continuous kernel (RBF without a metric, Epanechnikov, Tricube)"
            raise TypeError(bad_argument("kernel", wanted, repr(kernel)))
        self.kernel = kernel
        for name, end, open_end in (("low", low, -math.inf), ("high", high, math.inf)):
            # Not in `state_dict`, which holds finite numbers: the configuration has them.
            self.register_buffer(name, _bound(name, open_end if end is None else end), persistent=False)
        if not bool((self.low < self.high).all()):
            got = f"{self.low.tolist()} and {self.high.tolist()}"
            raise ValueError(bad_argument("low, high", "low < high", got))

    def _with(self, kernel: LocationScale) -> Truncated:
        return Truncated(kernel, self.low, self.high)

    # ---- parameters

    @property
    def support(self) -> Constraint:  # type: ignore[override]
        return constraints.independent(constraints.interval(self.low, self.high), 1)

    @property
    def per_component(self) -> bool:
        return True

    @property
    def batch_shape(self) -> torch.Size:
        return self.kernel.batch_shape

    def arranged(self, place: Callable[[Tensor], Tensor]) -> Truncated:
        return self._with(self.kernel.arranged(place)) if self.batch_shape else self

    @property
    def learned_bandwidth(self) -> LearnedBandwidth:
        return self.kernel.learned_bandwidth

    def initialize_bandwidth(
        self, components: Tensor, sigma: str | float, *, distance: float | None = None
    ) -> None:
        self.kernel.initialize_bandwidth(components, sigma, distance=distance)

    # ---- densities

    def inside(self, x: Float[Tensor, "*lead d"]) -> Bool[Tensor, "*lead"]:
        return ((x >= self.low.to(x)) & (x <= self.high.to(x))).all(-1)

    def _clamp(self, x: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(x, self.low.to(x)), self.high.to(x))

    def term(self, x: Tensor, components: Tensor) -> Term:
        return Restricted(self.kernel.term(self._clamp(x), components), self.inside(x).unsqueeze(-1))

    def log_overlap(self, x: Tensor, components: Tensor) -> Float[Tensor, "*lead"]:
        overlap = self.kernel.log_overlap(self._clamp(x), components)
        return torch.where(self.inside(x), overlap, -math.inf)

    def log_norm(self, components: Tensor) -> Float[Tensor, "*batch m"]:
        norm = self.kernel.log_norm(components)
        return norm - self._log_total(components).to(norm)

    def _log_total(self, components: Float[Tensor, "*batch m d"]) -> Float[Tensor, "*batch m"]:
        """The log mass of every component between the bounds; 0 where there is none."""
        mass = self._inner_mass(self.low, self.high, components)
        return torch.where(torch.isneginf(mass), 0.0, mass).sum(-1)

    def _inner_mass(self, low: Tensor, high: Tensor, components: Tensor) -> Tensor:
        """The inner kernel's log mass of [low, high] in every dimension, beside the components."""
        scale = self.kernel.score_scale(components)
        low, high = (end.to(components.device, scale.dtype) for end in (low, high))
        return self.kernel.interval_log_mass(low, high, components, scale)

    def interval_log_mass(self, low: Tensor, high: Tensor, components: Tensor) -> Float[Tensor, "*lead"]:
        """The log mass of [low, high] under the component beside it; leading dimensions broadcast."""
        mass = self._inner_mass(self._clamp(low), self._clamp(high), components).sum(-1)
        return mass - self._log_total(components)

    # ---- regions

    def region_term(self, region: Region, components: Tensor) -> Term:
        """The mass of what an interval shares with [low, high], relative to the whole."""
        self._accept("region", region, Interval)
        assert isinstance(region, Interval)
        low, high = self._clamp(region.low), self._clamp(region.high)
        term = self.kernel.region_term(Interval.unchecked(low, high), components)
        codes = torch.zeros(low.shape[-2], 1, dtype=torch.long, device=low.device)
        return Sum((term, Lookup(codes, -self._log_total(components).unsqueeze(-1))))

    def check_region(self, argument: str, region: Region, event_shape: torch.Size) -> None:
        self.kernel.check_region(argument, region, event_shape)

    def cdf(self, x: Tensor, components: Tensor) -> Float[Tensor, "*lead m"]:
        high = x[..., None, None]
        region = Interval.unchecked(torch.full_like(high, -math.inf), high)
        return whole(self.region_term(region, components).prepared()).squeeze(-2).exp()

    def quantile_bounds(self, q: Tensor, components: Tensor) -> tuple[Tensor, Tensor]:
        low, high = self.reach(components, torch.minimum(q, 1 - q)[..., None, None])
        return low.squeeze(-1), high.squeeze(-1)

    # ---- moments, modes and draws

    def mode(self, components: Tensor) -> Tensor:
        return self._clamp(components)

    def mean(self, components: Tensor) -> Float[Tensor, "*batch d"]:
        """By quadrature; the relative error is below 1e-8."""
        return self._moments(components)[0]

    def variance(self, components: Tensor) -> Float[Tensor, "*batch d"]:
        """As `mean`."""
        return self._moments(components)[1]

    def _moments(self, components: Tensor) -> tuple[Tensor, Tensor]:
        return moments(lambda x: self.log_bump(x, components), lambda x: x, *self.reach(components))

    def log_bump(self, x: Tensor, components: Tensor) -> Tensor:
        """The log-density in every dimension up to a constant, for x between the bounds."""
        return self.kernel.unit_log_overlap((x - components) / self.kernel.scale(components))

    def reach(self, components: Tensor, q: Tensor | float = _NEGLIGIBLE) -> tuple[Tensor, Tensor]:
        """Ends in every dimension beyond which less than a share q of a component lies.

        With a bump exp(−u²), the mass above √(a² + r²) is at most exp(−r²) of that above a > 0.
        """
        components = components.detach()
        scale = self.kernel.scale(components).detach()
        a, b = ((end.to(components) - components) / scale for end in (self.low, self.high))
        share = torch.as_tensor(q, dtype=a.dtype, device=a.device) / 4
        radius = self.kernel.unit_quantile_bound(share.clamp_min(torch.finfo(a.dtype).tiny))
        above, below = (end.clamp_min(0).square() for end in (a, -b))
        upper, lower = (above + radius.square()).sqrt(), -(below + radius.square()).sqrt()
        if math.isfinite(self.kernel.unit_radius):
            upper, lower = torch.ones_like(upper), -torch.ones_like(lower)
        # Without mass between the bounds both ends are the bound that is nearer.
        upper, lower = torch.maximum(torch.minimum(upper, b), a), torch.minimum(torch.maximum(lower, a), b)
        return self._clamp(components + scale * lower), self._clamp(components + scale * upper)

    def sample(
        self, components: Tensor, index: Int[Tensor, "*lead"], generator: torch.Generator | None = None
    ) -> Tensor:
        """Draws of the inner kernel; those beyond a bound once more, by inverting the distribution function.

        Dimensions are independent: each is drawn again by itself.
        """
        drawn = self.kernel.sample(components, index, generator)
        inside = (drawn >= self.low.to(drawn)) & (drawn <= self.high.to(drawn))
        again = ~inside.all(-1)
        if bool(again.any()):
            between = self._sample_by_inversion(components[again], index[again], generator)
            drawn[again] = torch.where(inside[again], drawn[again], between)
        return drawn

    def _sample_by_inversion(
        self, components: Float[Tensor, "n d"], index: Int[Tensor, " n"], generator: torch.Generator | None
    ) -> Float[Tensor, "n d"]:
        wide = components.detach().double()
        uniform = torch.rand(wide.shape, dtype=wide.dtype, device=wide.device, generator=generator)
        width = FixedBandwidth(self.kernel.bandwidth.name, self.kernel.scale_of(index, wide), validate=False)
        chosen = self._with(self.kernel.with_bandwidth(width))
        return self._clamp(chosen._invert(uniform, wide).to(components.dtype))

    @torch.no_grad()
    def _invert(self, q: Float[Tensor, "*lead d"], components: Float[Tensor, "*lead d"]) -> Tensor:
        """The x with F(x) = q in every dimension, by halving brackets.

        By log masses, which do not vanish where the centre lies far outside.
        """
        low, high = self.reach(components)
        wanted = q.log() + self._inner_mass(self.low, self.high, components)
        for _ in range(_STEPS):
            middle = 0.5 * (low + high)
            below = self._inner_mass(self.low, middle, components) < wanted
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return 0.5 * (low + high)

    # ---- events and components

    def evidence_points(
        self, components: Tensor, log_weights: Float[Tensor, "*batch m"]
    ) -> tuple[Tensor, Float[Tensor, "*batch m"]]:
        """The components, those outside moved to the nearer bound."""
        return self._clamp(components), log_weights

    def same_family(self, other: Kernel) -> bool:
        return isinstance(other, Truncated) and self.kernel.same_family(other.kernel)

    # ---- description

    def config(self) -> dict[str, Any]:
        ends = {name: _finite(end) for name, end in (("low", self.low), ("high", self.high))}
        return {"kernel": "Truncated", "inner": self.kernel.config(), **ends}

    @classmethod
    def from_config(cls, config: dict[str, Any], *, encoder: nn.Module | None = None) -> Truncated:
        ends = []
        for name, open_end in (("low", -math.inf), ("high", math.inf)):
            value = config[name]
            if isinstance(value, list):
                value = [open_end if end is None else end for end in value]
            ends.append(value)
        return cls(kernel_from_config(config["inner"]), *ends)

    def extra_repr(self) -> str:
        return f"{self.kernel!r}, {self.low.tolist()} … {self.high.tolist()}"


def _bound(name: str, value: Any) -> Float[Tensor, "*d"]:
    bound = as_tensor(name, value, like=torch.empty((), dtype=torch.float64)).detach().double()
    if bound.ndim > 1 or bool(bound.isnan().any()):
        raise ValueError(bad_argument(name, "a number or one for every dimension", bound.tolist()))
    return bound.clone()


def _finite(end: Tensor) -> Any:
    """Numbers for JSON: None for those that are infinite."""
    values = [None if math.isinf(value) else value for value in end.reshape(-1).tolist()]
    return values if end.ndim else values[0]
