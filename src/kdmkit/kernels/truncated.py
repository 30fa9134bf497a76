"""A continuous kernel between two bounds, and densities that are cut off outside of an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.distributions import constraints
from torch.distributions.constraints import Constraint

from kdmkit._core.checks import as_tensor, bad_argument, check_event
from kdmkit._core.runtime import only_reverse_mode
from kdmkit.kernels.bandwidth import FixedBandwidth
from kdmkit.kernels.base import Kernel
from kdmkit.kernels.calculus.integrals import PANELS, density_moments, even_panels, panels_with, sum_last
from kdmkit.kernels.calculus.transforms import as_float64, ends_inside
from kdmkit.kernels.location_scale import LocationScale
from kdmkit.kernels.measured import Around
from kdmkit.kernels.rbf import RBF
from kdmkit.kernels.registry import kernel_from_config
from kdmkit.ops import Term
from kdmkit.ops.terms import InDtype, Masked, common_dtype, restricted

# Halvings of a bracket: float64 has 52 bits.
_STEPS = 64
# Ends of parts that a bracket is divided into, if all brackets have at most so many together.
_MOST_ENDS, _NUMBERS = 31, 1 << 12
# Beyond the ends of quadrature lies less than this share of a component.
_NEGLIGIBLE = 1e-16
# The same for values that grow like an exponential function.
_IN_LONG_TAILS = 1e-36
# Farther than this from a centre, and from the bound nearest to it, lies no mass, in bandwidths.
_FAR = 40.0
# The largest ‖(bound − c)/s‖² of a centre outside that scores may hold as a summand.
_LARGEST_OFFSET = 1e3
# If the mass between the bounds is a smaller share of that below, a difference loses half of its digits.
_DIGITS = 1e-7


class Truncated(Around):
    """The density M·k²(x, c)/P_c(low ≤ x ≤ high) between `low` and `high`, and 0 outside.

    Every component is divided by its mass between the bounds, so no mass is lost. Centres may lie
    outside, which suits data that piles up at an edge. A component of compact support that has no mass
    between the bounds is 0 everywhere. With an RBF kernel, overlaps and log-normalisers are relative to the
    highest point between the bounds, so that centres far outside cost no digits.

    Args:
        kernel: RBF (without a metric), Epanechnikov or Tricube.
        low, high: numbers, or `(d,)` for every dimension; None and ±∞ are open.

    >>> kernel = Truncated(RBF.from_std(1.0), low=0.0)   # a half-normal density
    >>> kernel.mean(torch.zeros(1, 1, dtype=torch.float64))
    tensor([[0.7979]], dtype=torch.float64)
    """

    is_continuous: ClassVar[bool] = True
    per_component: bool = True
    kernel: LocationScale
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
            self.register_buffer(name, _bound(name, end, open_end), persistent=False)
        if not bool((self.low < self.high).all()):
            got = f"{self.low.tolist()} and {self.high.tolist()}"
            raise ValueError(bad_argument("low, high", "low < high", got))

    def around(self, kernel: Kernel) -> Truncated:
        return Truncated(kernel, self.low, self.high)

    def between(self, low: float, high: float, components: Tensor) -> tuple[Kernel, Tensor] | None:
        low, high = max(low, float(self.low)), min(high, float(self.high))
        return self.kernel.between(low, high, components) if low < high else None

    @property
    def support(self) -> Constraint:
        return constraints.independent(constraints.interval(self.low, self.high), 1)

    # ---- densities

    def inside(self, x: Float[Tensor, "*lead d"]) -> Bool[Tensor, "*lead"]:
        """Whether points lie between the bounds, in every dimension."""
        return ((x >= self.low.to(x)) & (x <= self.high.to(x))).all(-1)

    def _clamp(self, x: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(x, self.low.to(x)), self.high.to(x))

    def term(self, x: Tensor, components: Tensor) -> Term:
        check_event("x", x, components.shape[-1:])
        clamped = self._clamp(x)
        term = self._inner_term(clamped, components)
        if term is None:
            term = self.kernel.score_term(self._block, clamped, components)
        return restricted(term, self.inside(x).unsqueeze(-1))

    def _inner_term(self, x: Tensor, components: Tensor) -> Term | None:
        """The inner kernel's term, one product in float64; None if that would cost digits.

        Like `_block`, relative to the highest point between the bounds.
        """
        eager = components.device.type == "cpu" and only_reverse_mode()
        if not eager or not isinstance(self.kernel, RBF) or components.dtype != torch.float32:
            return None
        wide = components.double()
        gap = (self._clamp(wide) - wide) / self.kernel.scale(wide)
        offset = gap.square().sum(-1, keepdim=True)
        top = float(offset.detach().amax())
        if not top <= _LARGEST_OFFSET:
            return None
        term = self.kernel.term(x, components)
        if not top:
            return term
        whole = Masked(term, offset, torch.ones_like(x[..., :1], dtype=torch.bool))
        return InDtype(whole, common_dtype((x, components)))

    def _block(self, x: Tensor, components: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        c, scales = self.kernel.centres_and_scales(components, parameters, x.shape[-1])
        parts = (tensor.unsqueeze(-3) for tensor in (self._clamp(c), c, scales))
        return sum_last(self.kernel.anchored_log_overlap, x.unsqueeze(-2), *parts)

    def log_overlap(self, x: Tensor, components: Tensor) -> Float[Tensor, "*lead"]:
        overlap = self.log_bump(self._clamp(x), components).sum(-1)
        return torch.where(self.inside(x), overlap, -math.inf)

    def log_norm(self, components: Tensor) -> Float[Tensor, "*batch m"]:
        norm, scale = self.kernel.log_norm(components), self.kernel.score_scale(components)
        return norm - self._log_whole(components.to(scale.dtype), scale).sum(-1).to(norm)

    def _log_mass(self, low: Tensor, high: Tensor, c: Tensor, scale: Tensor) -> Tensor:
        """The inner log mass of [low, high] in every dimension, relative to the mode between the bounds."""
        low, high = [end.to(c.device, torch.promote_types(end.dtype, c.dtype)) for end in (low, high)]
        return self.kernel.anchored_log_mass(low, high, self._clamp(c), c, scale)

    def _log_whole(self, c: Tensor, scale: Tensor) -> Tensor:
        """`_log_mass` of [self.low, self.high]; 0 if there is no mass.

        In float64: the gradient by a far centre is a small difference.
        """
        wide = as_float64(c)
        mass = self._log_mass(self.low.to(wide), self.high.to(wide), wide, scale.to(wide))
        return torch.where(torch.isneginf(mass), 0.0, mass).to(c.dtype)

    def pair_log_mass(self, low: Tensor, high: Tensor, components: Tensor) -> Float[Tensor, "*lead"]:
        """The log mass of [low, high] under the component beside it; leading dimensions broadcast."""
        scale = self.kernel.score_scale(components)
        c = components.to(scale.dtype)
        mass = self._log_mass(self._clamp(low), self._clamp(high), c, scale)
        return (mass - self._log_whole(c, scale)).sum(-1)

    # ---- regions

    def interval_term(self, low: Tensor, high: Tensor, components: Tensor) -> Term:
        check_event("region", low, components.shape[-1:])
        return self.kernel.score_term(self._mass_block, torch.cat([low, high], -1), components)

    def _mass_block(self, ends: Tensor, components: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        """As `pair_log_mass`; [self.low, self.high] is one interval more, so that one computation serves."""
        low, high = ends.unsqueeze(-2).chunk(2, -1)
        parts = self.kernel.centres_and_scales(components, parameters, low.shape[-1])
        c, scales = [as_float64(part[..., None, :, :]) for part in parts]
        low, high = [
            torch.cat([self._clamp(end).to(c), bound.expand(*low.shape[:-3], 1, 1, low.shape[-1])], -3)
            for end, bound in zip((low, high), self._finite_bounds(c.detach(), scales.detach()), strict=True)
        ]
        masses = self._log_mass(low, high, c, scales)
        mass, whole = masses[..., :-1, :, :], masses[..., -1:, :, :]
        return (mass - torch.where(torch.isneginf(whole), 0.0, whole)).sum(-1)

    def _finite_bounds(self, c: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds that hold the same masses in float64, for all components: open ends take longer."""
        low, high = self.low.to(c), self.high.to(c)
        reach = _FAR * scales.amax((-3, -2), keepdim=True)
        last = torch.maximum(c.amax((-3, -2), keepdim=True), low) + reach
        first = torch.minimum(c.amin((-3, -2), keepdim=True), high) - reach
        return torch.maximum(low, first), torch.minimum(high, last)

    def cdf(self, x: Tensor, components: Tensor) -> Float[Tensor, "*lead m"]:
        quick = self._difference(x, components) if only_reverse_mode() else None
        return self._mass_below(x, components) if quick is None else quick

    def _difference(self, x: Tensor, components: Tensor) -> Float[Tensor, "*lead m"] | None:
        """F(x) from the inner kernel's F at x and at the bounds; None if the difference loses digits.

        Both are taken from the tail in which they are small: densities of inner kernels are symmetric.
        """
        wide = as_float64(components).squeeze(-1)
        scale = self.kernel.scale(components).to(wide)
        scale = scale.squeeze(-1) if scale.ndim else scale
        low, high = self.low.to(wide).squeeze(), self.high.to(wide).squeeze()
        slope = torch.where(low > wide, -1.0, 1.0).to(wide) / scale
        first, last = self.kernel.unit_cdf(torch.stack([low - wide, high - wide]) * slope)
        total = last - first
        # Only the normal distribution function has all digits of small masses.
        smallest = first if isinstance(self.kernel, RBF) else torch.ones_like(first)
        if bool((total.abs() <= _DIGITS * smallest).any()):
            return None
        inside = as_float64(x).clamp(low, high).unsqueeze(-1)
        below = self.kernel.unit_cdf((inside - wide) * slope)
        return ((below - first) / total).to(common_dtype((x, components)))

    def quantile_bounds(self, q: Tensor, components: Tensor) -> tuple[Tensor, Tensor]:
        low, high = self.reach(components, torch.minimum(q, 1 - q)[..., None, None])
        return low.squeeze(-1), high.squeeze(-1)

    # ---- moments, modes and draws

    def mode(self, components: Tensor) -> Tensor:
        return self._moved_inside(components)

    def _moved_inside(self, x: Tensor) -> Tensor:
        """x between the bounds themselves, not only between those in its precision."""
        low, high = ends_inside(self.low, self.high, x)
        return torch.minimum(torch.maximum(x, low), high)

    def moments(self, components: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance by quadrature; the relative error is below 1e-8."""
        c = as_float64(components)
        mean, variance = density_moments(lambda x: self.log_bump(x, c), lambda x: x, self.panels(c))
        return mean.to(components), variance.to(components)

    def panels(
        self, components: Tensor, n: int = PANELS, kinks: Float[Tensor, " k"] | None = None
    ) -> Float[Tensor, "p *batch m d"]:
        """Points from end to end of each component, ascending; the density is smooth between neighbours.

        Args:
            n: the number of panels.
            kinks: points at which it is not smooth otherwise; between them few panels will do.
        """
        if kinks is None or not len(kinks):
            return even_panels(*self.reach(components, _IN_LONG_TAILS), n)
        return panels_with(kinks.to(components), *self.reach(components))

    def log_bump(self, x: Tensor, components: Tensor) -> Tensor:
        """The log-density in every dimension up to a constant, for x between the bounds."""
        scale = self.kernel.scale(components)
        return self.kernel.anchored_log_overlap(x, self._clamp(components), components, scale)

    def reach(self, components: Tensor, q: Tensor | float = _NEGLIGIBLE) -> tuple[Tensor, Tensor]:
        """Ends in every dimension beyond which less than a share q of a component lies.

        With a bump exp(−u²), the mass above √(a² + r²) is at most exp(−r²) of that above a > 0.
        """
        c = components.detach()
        scale = self.kernel.scale(c).detach()
        share = torch.as_tensor(q, dtype=c.dtype, device=c.device) / 4
        radius = self.kernel.unit_quantile_bound(share.clamp_min(torch.finfo(c.dtype).tiny))
        if math.isfinite(self.kernel.unit_radius):
            return self._clamp(c - scale + 0 * share), self._clamp(c + scale + 0 * share)
        first, last = torch.maximum(c, self.low.to(c)), torch.minimum(c, self.high.to(c))
        a, b = (first - c) / scale, (c - last) / scale
        # √(a² + r²) − a, from the bound on: the centre may be far away.
        up, down = [radius.square() / ((end.square() + radius.square()).sqrt() + end) for end in (a, b)]
        return self._clamp(last - scale * down), self._clamp(first + scale * up)

    def sample(
        self, components: Tensor, index: Int[Tensor, "*lead"], generator: torch.Generator | None = None
    ) -> Tensor:
        """Draws of the inner kernel; those beyond a bound once more, by inverting the distribution function.

        Dimensions are independent: each is drawn again by itself.
        """
        drawn = self.kernel.sample(components, index, generator)
        inside = drawn == self._moved_inside(drawn)
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
        chosen = self.around(self.kernel.with_bandwidth(width))
        return self._moved_inside(chosen._invert(uniform, wide).to(components.dtype))

    @torch.no_grad()
    def _invert(self, q: Float[Tensor, "*lead d"], components: Float[Tensor, "*lead d"]) -> Tensor:
        """The x with F(x) = q in every dimension, by dividing brackets: of few numbers into many parts.

        By log masses, which do not vanish if the centre lies far outside.
        """
        low, high = self.reach(components)
        scale = self.kernel.scale(components)
        wanted = q.log() + self._log_whole(components, scale)
        n_ends = max(1, min(_MOST_ENDS, _NUMBERS // max(1, wanted.numel())))
        ends = torch.arange(1, n_ends + 1, device=low.device).reshape(-1, *[1] * low.ndim).to(low)
        for _ in range(math.ceil(_STEPS / math.log2(n_ends + 1))):
            part = (high - low) / (n_ends + 1)
            between = low + part * ends
            below = self._log_mass(self.low.to(between), between, components, scale) < wanted
            low = low + part * below.sum(0)
            high = low + part
        return 0.5 * (low + high)

    # ---- events and components

    def check_component_values(self, argument: str, components: Tensor, event_shape: torch.Size) -> None:
        super().check_component_values(argument, components, event_shape)
        for name, end in (("low", self.low), ("high", self.high)):
            check_per_dimension(name, end, event_shape)

    # ---- description

    def config(self) -> dict[str, Any]:
        ends = {name: _finite(end) for name, end in (("low", self.low), ("high", self.high))}
        return {"kernel": "Truncated", "inner": self.kernel.config(), **ends}

    @classmethod
    def from_config(cls, config: dict[str, Any], *, encoder: nn.Module | None = None) -> Truncated:
        return cls(kernel_from_config(config["inner"]), config["low"], config["high"])

    def extra_repr(self) -> str:
        return f"{self.kernel!r}, {self.low.tolist()} … {self.high.tolist()}"


def check_per_dimension(name: str, numbers: Tensor, event_shape: torch.Size) -> None:
    """Raises if a kernel has numbers for another number of dimensions."""
    d = event_shape[-1]
    if numbers.ndim and numbers.shape[-1] not in (1, d):
        wanted = f"a number, or {d} for events of shape ({d},)"
        raise ValueError(bad_argument(name, wanted, f"shape {tuple(numbers.shape)}"))


def _bound(name: str, value: Any, open_end: float) -> Float[Tensor, "*d"]:
    """A bound in float64; None is open."""
    value = [open_end if end is None else end for end in value] if isinstance(value, list) else value
    value = open_end if value is None else value
    bound = as_tensor(name, value, like=torch.empty((), dtype=torch.float64)).detach().double()
    if bound.ndim > 1 or bool(bound.isnan().any()):
        raise ValueError(bad_argument(name, "a number or one for every dimension", bound.tolist()))
    return bound.clone()


def _finite(end: Tensor) -> Any:
    """Numbers for JSON: None for those that are infinite."""
    values = [None if math.isinf(value) else value for value in end.reshape(-1).tolist()]
    return values if end.ndim else values[0]
