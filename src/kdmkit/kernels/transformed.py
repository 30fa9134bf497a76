"""A continuous kernel of a changed variable: positive and bounded supports, skewed data."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.distributions import ComposeTransform, Transform, constraints
from torch.distributions.constraints import Constraint
from torch.distributions.transforms import AffineTransform, ExpTransform, SigmoidTransform

from kdmkit._core.checks import bad_argument, check_event
from kdmkit._core.tensors import at_least_float32
from kdmkit.kernels.base import Kernel
from kdmkit.kernels.calculus.integrals import PANELS, argmax, density_moments
from kdmkit.kernels.calculus.transforms import Change, QuantileNormal, as_float64, ends_inside
from kdmkit.kernels.location_scale import LocationScale
from kdmkit.kernels.measured import Around
from kdmkit.kernels.rbf import RBF
from kdmkit.kernels.registry import kernel_from_config
from kdmkit.kernels.truncated import Truncated, check_per_dimension
from kdmkit.ops import Term
from kdmkit.ops.terms import InDtype, common_dtype, restricted

# Steps of an end into an interval, each twice as long as the one before it.
_STEPS = 40


class Transformed(Around):
    """The density M·k²(T(x), c)·|T′(x)| for a monotone T, applied to every dimension.

    Components are points of T's image: unconstrained and of one scale, whatever the units of x. In the user's
    units a component is T⁻¹(c). Outside the domain of T the density is 0.

    Args:
        kernel: RBF, Epanechnikov, Tricube, or a `Truncated` one: the kernel of T(x).
        transform: T, made of affine, exp, sigmoid and `QuantileNormal` transforms and their inverses.

    >>> kernel = Transformed.log(RBF.from_std(0.5))   # a log-normal density
    >>> c = kernel.components_from(torch.tensor([[2.0]]))
    >>> kernel.mode(c), kernel.mean(c)
    (tensor([[1.5576]]), tensor([[2.2663]]))
    """

    is_continuous: ClassVar[bool] = True
    kernel: LocationScale | Truncated

    def __init__(self, kernel: Kernel, transform: Transform | Change) -> None:
        super().__init__()
        if not isinstance(kernel, LocationScale | Truncated):
            wanted = "a continuous kernel (RBF, Epanechnikov, Tricube, Truncated)"
            raise TypeError(bad_argument("kernel", wanted, repr(kernel)))
        self.kernel = kernel
        self.change = transform if isinstance(transform, Change) else Change(transform)
        self._check_image()

    def _check_image(self) -> None:
        """All of the inner kernel's mass has to lie in T's image."""
        low, high = self.change.image()
        inner_low, inner_high = (
            (end.cpu() for end in (self.kernel.low, self.kernel.high))
            if isinstance(self.kernel, Truncated)
            else (-torch.inf, torch.inf)
        )
        if bool((inner_low < low).any()) or bool((inner_high > high).any()):
            wanted = "one whose image holds the support of the kernel (a transform onto ℝ)"
            raise ValueError(bad_argument("transform", wanted, f"values in ({low}, {high})"))

    @classmethod
    def log(cls, kernel: Kernel, low: float = 0.0) -> Transformed:
        """T(x) = log(x − low): values above `low`."""
        return cls(kernel, ComposeTransform([AffineTransform(-float(low), 1.0), ExpTransform().inv]))

    @classmethod
    def logit(cls, kernel: Kernel, low: float = 0.0, high: float = 1.0) -> Transformed:
        """T(x) = logit((x − low)/(high − low)): values between `low` and `high`."""
        if not -torch.inf < low < high < torch.inf:
            raise ValueError(bad_argument("low, high", "finite numbers with low < high", (low, high)))
        scaled = AffineTransform(float(low), float(high) - float(low)).inv
        return cls(kernel, ComposeTransform([scaled, SigmoidTransform().inv]))

    @classmethod
    def affine(cls, kernel: Kernel, loc: Any, scale: Any) -> Transformed:
        """T(x) = (x − loc)/scale: other units."""
        return cls(kernel, AffineTransform(loc, scale).inv)

    @classmethod
    def quantile_normal(cls, kernel: Kernel, values: Any, n_knots: int | None = None) -> Transformed:
        """T maps the quantiles of `values` to those of a standard normal: see `QuantileNormal.from_data`."""
        return cls(kernel, QuantileNormal.from_data(values, n_knots))

    # ---- parameters

    @property
    def support(self) -> Constraint:
        if self.change.everywhere:
            return constraints.real_vector
        return constraints.independent(constraints.interval(*self.change.ends()), 1)

    @property
    def overlaps_everywhere(self) -> bool:
        return self.kernel.overlaps_everywhere and self.change.everywhere

    @property
    def per_component(self) -> bool:
        return self.kernel.per_component

    def around(self, kernel: Kernel) -> Transformed:
        return Transformed(kernel, self.change)

    def between(self, low: float, high: float, components: Tensor) -> tuple[Kernel, Tensor] | None:
        ends = self._without_open_ends(torch.tensor([[low], [high]], dtype=torch.float64))
        first, last = [end.item() for end in self.inner_ends(*ends)]
        inside = self.kernel.between(first, last, components) if first < last else None
        return None if inside is None else (self.around(inside[0]), inside[1])

    def _without_open_ends(self, ends: Float[Tensor, "2 1"]) -> Float[Tensor, "2 1"]:
        """The ends; those of the support in place of the numbers beside them."""
        low, high = self.change.ends()
        ends = torch.where(ends <= torch.nextafter(low, high), low, ends)
        return torch.where(ends >= torch.nextafter(high, low), high, ends)

    # ---- densities

    def term(self, x: Tensor, components: Tensor) -> Term:
        check_event("x", x, components.shape[-1:])
        x = at_least_float32(x)
        term = self.kernel.term(self.change(self.change.stand_in(x)), components)
        if self.change.everywhere:
            return term
        return restricted(term, self.change.inside(x).all(-1, keepdim=True))

    def log_overlap(self, x: Tensor, components: Tensor) -> Float[Tensor, "*lead"]:
        x = at_least_float32(x)
        overlap = self.kernel.log_overlap(self.change(self.change.stand_in(x)), components)
        if self.change.everywhere:
            return overlap
        return torch.where(self.change.inside(x).all(-1), overlap, -torch.inf)

    def log_norm(self, components: Tensor) -> Float[Tensor, "*batch_m"]:
        return self.kernel.log_norm(components)

    def log_jacobian(self, x: Tensor) -> Float[Tensor, "*lead"]:
        """Σ_i log|T′(x_i)|; 0 if T is not defined at x, since the overlap is −∞ there."""
        slope = self.change.log_slope(self.change.stand_in(x)).sum(-1)
        return slope if self.change.everywhere else torch.where(self.change.inside(x).all(-1), slope, 0.0)

    # ---- regions

    def interval_term(self, low: Tensor, high: Tensor, components: Tensor) -> Term:
        # In float64: T may bring the ends of an interval so close that float32 cannot tell its width.
        ends = self.inner_ends(as_float64(low), as_float64(high))
        return InDtype.of(self.kernel.interval_term(*ends, components), common_dtype((low, components)))

    def pair_log_mass(self, low: Tensor, high: Tensor, components: Tensor) -> Float[Tensor, "*lead"]:
        """The log mass of [low, high] under the component beside it; leading dimensions broadcast."""
        return self.kernel.pair_log_mass(*self.inner_ends(low, high), components)

    def inner_ends(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """The ends of T([low, high])."""
        low, high = self.change.bound(torch.stack(torch.broadcast_tensors(low, high))).unbind(0)
        return (low, high) if self.change.increasing else (high, low)

    def cdf(self, x: Tensor, components: Tensor) -> Float[Tensor, "*lead m"]:
        if not self.change.increasing:
            # 1 − F would lose the digits of small masses.
            return self._mass_below(x, components)
        return self.kernel.cdf(self.change.bound(x), components)

    def quantile_bounds(self, q: Tensor, components: Tensor) -> tuple[Tensor, Tensor]:
        # The bounds of inner kernels hold the quantiles of q and of 1 − q, which may round to 1.
        low, high = self.kernel.quantile_bounds(q, components)
        low, high = self.change.inverse(low), self.change.inverse(high)
        return (low, high) if self.change.increasing else (high, low)

    # ---- moments, modes and draws

    def moments(self, components: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance, closed for affine transforms and log-normal densities, otherwise by quadrature.

        Its relative error is below 1e-8.
        """
        if self.change.is_affine:
            slope = (-self.change.log_slope(self.change.inverse(components))).exp()
            variance = self.kernel.variance(components) * slope.square()
            return self.change.inverse(self.kernel.mean(components)), variance
        kinds = [kind for kind in self.change.kinds if not kind.endswith("affine")]
        if kinds == ["-exp"] and isinstance(self.kernel, RBF):
            return self._log_normal_moments(components)
        inner, c = self.product, as_float64(components)
        moments = density_moments(lambda z: inner.log_bump(z, c), self.change.inverse, self.panels(c))
        return moments[0].to(components), moments[1].to(components)

    def panels(self, components: Tensor, n: int = PANELS) -> Float[Tensor, "p *batch m d"]:
        """Points in T's image as in `Truncated.panels`, and those at which the slope of T jumps."""
        return self.product.panels(components, n, self.change(self.change.kinks(components.device)))

    def _log_normal_moments(self, components: Tensor) -> tuple[Tensor, Tensor]:
        """x = a + b·e^(α + βz) with a normal z."""
        base = self.change.inverse(torch.full_like(components, -torch.inf))
        if not self.change.increasing:
            high = self.change.inverse(torch.full_like(components, torch.inf))
            base = torch.where(base.isinf(), high, base)
        mean = self.kernel.mean(components)
        at_mean, at_next = [self.change.inverse(mean + step) - base for step in (0.0, 1.0)]
        rate = (at_next / at_mean).log().square() * self.kernel.variance(components)
        mean = at_mean * (0.5 * rate).exp()
        return base + mean, mean.square() * torch.expm1(rate)

    def mode(self, components: Tensor) -> Float[Tensor, "*batch m d"]:
        """The highest point of each component's density, to about 1e-9 of its width (kernels of products)."""
        if self.change.is_affine:
            return self._in_support(self.change.inverse(self.kernel.mode(components)))
        # A maximum is flat: float32 would find half of its digits.
        c = components.detach().double()
        inner = self.product

        def objective(z: Tensor) -> Tensor:
            return inner.log_bump(z, c) + self.change.log_slope(self.change.inverse(z))

        best = argmax(objective, *inner.reach(c))
        return self._in_support(self.change.inverse(best).to(components.dtype))

    def typical_event(self, components: Tensor) -> Tensor:
        """T⁻¹(c)."""
        return self._in_support(self.change.inverse(self.kernel.typical_event(components)))

    @property
    def product(self) -> Truncated:
        """The inner kernel as a product over dimensions."""
        if isinstance(self.kernel, Truncated):
            return self.kernel
        if isinstance(self.kernel, RBF) and self.kernel.shear is not None:
            self._cannot("a kernel without a metric")
        return Truncated(self.kernel)

    def sample(
        self, components: Tensor, index: Int[Tensor, "*lead"], generator: torch.Generator | None = None
    ) -> Tensor:
        if not isinstance(self.kernel, Truncated):
            return self._in_support(self.change.inverse(self.kernel.sample(components, index, generator)))
        # In float64: T⁻¹ of a rounded number may lie outside of T⁻¹ of the bounds.
        drawn = self.change.inverse(self.kernel.sample(as_float64(components), index, generator))
        return self._in_support(drawn.to(components.dtype))

    def _in_support(self, x: Tensor) -> Tensor:
        """x, moved inside if rounding has put it outside, or on the end of an open support."""
        if self.change.everywhere and not isinstance(self.kernel, Truncated):
            return x
        start, stop = self.change.ends(x.device)
        low, high = torch.nextafter(start, stop), torch.nextafter(stop, start)
        if isinstance(self.kernel, Truncated):
            ends = self._bounds_inside.to(x.device)
            low, high = torch.maximum(low, ends[0]), torch.minimum(high, ends[1])
        low, high = ends_inside(low, high, x)
        return torch.minimum(torch.maximum(x, low), high)

    @cached_property
    def _bounds_inside(self) -> Float[Tensor, "2 *d"]:
        """T⁻¹ of the bounds of the kernel, moved inside until T leads strictly between the bounds."""
        bounds = torch.stack(torch.broadcast_tensors(self.product.low, self.product.high)).cpu()
        inward = torch.tensor([1.0, -1.0], dtype=bounds.dtype).reshape(2, *([1] * (bounds.ndim - 1)))
        ends = self.change.inverse(bounds)
        step = ends.abs().nan_to_num(posinf=0.0).amax(0).clamp_min(1e-300) * torch.finfo(ends.dtype).eps
        for _ in range(_STEPS):
            outside = bounds.isfinite() & ((self.change.bound(ends) - bounds) * inward <= 0)
            if not bool(outside.any()):
                break
            ends = torch.where(outside, ends + step * inward * (1 if self.change.increasing else -1), ends)
            step = 2 * step
        return ends if self.change.increasing else ends.flip(0)

    # ---- events and components

    def check_component_values(self, argument: str, components: Tensor, event_shape: torch.Size) -> None:
        self.kernel.check_component_values(argument, components, event_shape)
        for name, numbers in self.change.numbers():
            check_per_dimension(name, numbers, event_shape)

    def components_from(self, events: Float[Tensor, "*batch m d"]) -> Float[Tensor, "*batch m d"]:
        outside = events[~self.change.inside(events)]
        if outside.numel():
            low, high = self.change.ends()
            wanted = f"values between {low.tolist()} and {high.tolist()}"
            raise ValueError(bad_argument("events", wanted, outside[0].item()))
        return self.change(events)

    # ---- description

    def config(self) -> dict[str, Any]:
        return {"kernel": "Transformed", "inner": self.kernel.config(), "transform": self.change.config()}

    @classmethod
    def from_config(cls, config: dict[str, Any], *, encoder: nn.Module | None = None) -> Transformed:
        return cls(kernel_from_config(config["inner"]), Change.from_config(config["transform"]))

    def extra_repr(self) -> str:
        return f"{self.kernel!r}, {self.change.extra_repr()}"
