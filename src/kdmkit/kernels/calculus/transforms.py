"""Monotone changes of variable, made of `torch.distributions` transforms."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.distributions import Transform, constraints
from torch.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    ExpTransform,
    SigmoidTransform,
)

from kdmkit._core.checks import as_tensor, bad_argument, check_finite
from kdmkit.kernels.calculus.empirical import normal_knots


@contextmanager
def exact_buffers(module: nn.Module) -> Iterator[None]:
    """The module's buffers, not those of its parts, keep their dtype while the module is converted.

    Rounded to float32, knots may coincide, and an offset may move values by more than their spread.
    """
    before = dict(module._buffers)
    yield
    for name, old in before.items():
        new = module._buffers[name]
        if old is not None and new is not None and new.dtype != old.dtype:
            module._buffers[name] = old.to(new.device)


class QuantileNormal(Transform):
    """z = T(x), increasing and piecewise linear through knots: the data's quantiles become a normal's.

    Beyond the first and the last knot the outer segments go on, so that T maps the real line onto itself.

    Args:
        values: x at the knots, strictly increasing, `(k,)` with k ≥ 2.
        scores: z at the knots, strictly increasing, `(k,)`.
        cache_size: of the base class; 1 keeps the last result.

    >>> transform = QuantileNormal.from_data(torch.arange(1000.0))
    >>> transform(torch.tensor(499.5)).abs() < 1e-4
    tensor(True)
    """

    bijective = True
    domain = constraints.real
    codomain = constraints.real
    sign = 1

    def __init__(self, values: Any, scores: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size=cache_size)
        like = torch.empty((), dtype=torch.float64)
        self.values = _knots("values", as_tensor("values", values, like=like).double())
        self.scores = _knots("scores", as_tensor("scores", scores, like=like).double())
        if self.values.shape != self.scores.shape:
            wanted = f"as many numbers as values ({len(self.values)})"
            raise ValueError(bad_argument("scores", wanted, len(self.scores)))

    @classmethod
    def from_data(cls, values: Any, n_knots: int | None = None) -> QuantileNormal:
        """Knots at quantiles of the finite values.

        Knots lie halfway between neighbouring values, so that values may repeat, and at the least and the
        greatest value, with the middle of its ranks. A value with a share of 1/`n_knots` or more has a knot
        on either side.

        Args:
            values: numbers in any shape; NaN is left out.
            n_knots: the largest number of knots, beside those of frequent values; None: one for 50 values,
                from 8 to 128.
        """
        return cls(*normal_knots(values, n_knots))

    @classmethod
    def unchecked(cls, values: Float[Tensor, " k"], scores: Float[Tensor, " k"]) -> QuantileNormal:
        """The transform without checks of its knots."""
        made = cls.__new__(cls)
        Transform.__init__(made)
        made.values, made.scores = values, scores
        return made

    def _call(self, x: Tensor) -> Tensor:
        return interpolate(x, self.values, self.scores)

    def _inverse(self, y: Tensor) -> Tensor:
        return interpolate(y, self.scores, self.values)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        values, scores = self.values.to(x.device), self.scores.to(x.device)
        slopes = (scores.diff() / values.diff()).log()
        return slopes[_segment(x, values)].to(x.dtype)

    def with_cache(self, cache_size: int = 1) -> QuantileNormal:
        """The same transform with another size of the cache."""
        return QuantileNormal(self.values, self.scores, cache_size=cache_size)


def _knots(argument: str, knots: Tensor) -> Float[Tensor, " k"]:
    if knots.ndim != 1 or len(knots) < 2 or not bool((knots.diff() > 0).all()):
        raise ValueError(bad_argument(argument, "two or more strictly increasing numbers", knots.tolist()))
    check_finite(argument, knots)
    return knots


def _segment(x: Tensor, knots: Float[Tensor, " k"]) -> Tensor:
    """The index of the segment that holds each number; the outer segments have no end."""
    inner = knots[1:-1].contiguous()
    return torch.searchsorted(inner, x.detach().to(knots.dtype).contiguous(), right=True)


def interpolate(x: Tensor, knots: Float[Tensor, " k"], heights: Float[Tensor, " k"]) -> Tensor:
    """The piecewise linear function through points; the outer segments go on beyond them."""
    knots, heights = knots.to(x.device), heights.to(x.device)
    i = torch.searchsorted(knots[1:-1], x.detach().to(knots.dtype).contiguous(), right=True)
    slope = heights.diff() / knots.diff()
    return (heights[i] + (x - knots[i]) * slope[i]).to(x.dtype)


class Change(nn.Module):
    """A monotone change of variable z = T(x) as a module: it moves, copies and is saved with its numbers.

    Args:
        transform: an `AffineTransform`, `ExpTransform`, `SigmoidTransform` or `QuantileNormal`, the inverse
            of one, or a `ComposeTransform` of such.
    """

    def __init__(self, transform: Transform) -> None:
        super().__init__()
        steps = _steps(transform)
        self.steps: Any = nn.ModuleList(steps)
        self.increasing = math.prod([step.sign for step in steps]) > 0
        # Whether T maps the real line onto itself, and ±∞ to ±∞.
        self._is_onto = all(step.domain == step.image == _REAL for step in self.steps)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of the steps, with a minus sign for an inverse."""
        return tuple(f"-{step.kind}" if step.inverse else step.kind for step in self.steps)

    @property
    def everywhere(self) -> bool:
        """Whether T is defined on the whole real line."""
        return all(step.domain == _REAL for step in self.steps)

    @property
    def is_affine(self) -> bool:
        """Whether T is linear up to a constant."""
        return all(step.kind == "affine" for step in self.steps)

    def kinks(self, device: torch.device | None = None) -> Float[Tensor, " k"]:
        """The numbers x at which the slope of T jumps."""
        kinks = torch.zeros(0, dtype=torch.float64, device=device)
        for step in reversed(self.steps):
            more = (
                step.numbers["scores" if step.inverse else "values"]
                if step.kind == "quantile_normal"
                else kinks
            )
            kinks = (
                torch.cat([step.backward(kinks), more.to(device)])
                if more is not kinks
                else step.backward(kinks)
            )
        return kinks

    def numbers(self) -> list[tuple[str, Tensor]]:
        """The names and numbers of the steps that may differ between dimensions."""
        return [pair for step in self.steps if step.kind == "affine" for pair in step.numbers.items()]

    def ends(self, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
        """The open interval on which T is defined, for every dimension if its numbers differ."""
        return _map_line([(step.image, step.backward, step.sign) for step in reversed(self.steps)], device)

    def image(self) -> tuple[Tensor, Tensor]:
        """The open interval of T's values."""
        return _map_line([(step.domain, step, step.sign) for step in self.steps], None)

    def inside(self, x: Tensor) -> Bool[Tensor, "*shape"]:
        """Whether T is defined at x."""
        low, high = self.ends(x.device)
        return (x > low) & (x < high)

    def inverse(self, z: Tensor) -> Tensor:
        """T⁻¹(z), also of ±∞."""
        x = as_float64(z)
        for step in reversed(self.steps):
            x = step.mapped(x, not step.inverse)
        return x.to(z.dtype)

    def stand_in(self, x: Tensor) -> Tensor:
        """x if T is defined there, otherwise a point of its domain."""
        return x if self.everywhere else torch.where(self.inside(x), x, self._middle(x))

    def _middle(self, like: Tensor) -> Tensor:
        """T⁻¹(0)."""
        return self.inverse(torch.zeros((), dtype=torch.float64, device=like.device)).to(like.dtype)

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """T(x) in the precision of x, for x in the domain of T."""
        z = as_float64(x)
        for step in self.steps:
            z = step.mapped(z, step.inverse)
        return z.to(x.dtype)

    def log_slope(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """log|T′(x)|."""
        wide = as_float64(x)
        total, point = torch.zeros_like(wide), wide
        for step in self.steps:
            image = step(point)
            total = total + step.transform.log_abs_det_jacobian(point, image)
            point = image
        return total.to(x.dtype)

    def bound(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """T(x) of an interval's end: ±∞ from the ends of T's domain on."""
        if self._is_onto:
            return self(x)
        low, high = self.ends(x.device)
        inside = (x > low) & (x < high)
        z = self(torch.where(inside, x, self._middle(x)))
        outside = torch.where(x <= low, -torch.inf, torch.inf).to(z)
        return torch.where(inside, z, outside if self.increasing else -outside)

    def config(self) -> list[dict[str, Any]]:
        return [step.config() for step in self.steps]

    @classmethod
    def from_config(cls, config: Sequence[dict[str, Any]]) -> Change:
        return cls(ComposeTransform([step_from_config(step).transform for step in config]))

    def extra_repr(self) -> str:
        return " → ".join(self.kinds)


class Step(nn.Module):
    """One transform of a chain, with its numbers as buffers that stay in float64."""

    values: Tensor
    scores: Tensor

    def __init__(self, kind: str, numbers: dict[str, Tensor], *, inverse: bool) -> None:
        super().__init__()
        self.kind, self.inverse, self.sign = kind, inverse, 1
        self._names = tuple(numbers)
        for name, number in numbers.items():
            check_finite(name, number)
            self.register_buffer(name, number.detach().double().clone())
        if kind == "affine":
            self.sign = _sign(numbers["scale"])

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        with exact_buffers(self):
            return super()._apply(fn, recurse=recurse)

    @property
    def numbers(self) -> dict[str, Tensor]:
        return {name: cast("Tensor", getattr(self, name)) for name in self._names}

    @property
    def transform(self) -> Transform:
        return self._plain.inv if self.inverse else self._plain

    @property
    def domain(self) -> tuple[float, float]:
        """The ends of the open interval on which the step is defined."""
        return _IMAGES.get(self.kind, _REAL) if self.inverse else _REAL

    @property
    def image(self) -> tuple[float, float]:
        """The ends of the step's image."""
        return _REAL if self.inverse else _IMAGES.get(self.kind, _REAL)

    def forward(self, x: Tensor) -> Tensor:
        """The step's value, also at the ends of its domain."""
        return self.mapped(x, self.inverse)

    def backward(self, z: Tensor) -> Tensor:
        """The inverse of the step, also at the ends of its image."""
        return self.mapped(z, not self.inverse)

    def mapped(self, x: Tensor, inverse: bool) -> Tensor:
        """The value of the transform, or of its inverse."""
        if self.kind == "quantile_normal":
            ends = (self.scores, self.values) if inverse else (self.values, self.scores)
            return interpolate(x, *ends)
        if self.kind == "sigmoid":  # SigmoidTransform clips its values near 0 and 1.
            return x.logit() if inverse else x.sigmoid()
        return cast("Tensor", self._plain._inverse(x) if inverse else self._plain._call(x))

    @property
    def _plain(self) -> Transform:
        return _KINDS[self.kind](**self.numbers)

    def config(self) -> dict[str, Any]:
        numbers = {name: number.tolist() for name, number in self.numbers.items()}
        return {"kind": self.kind, "inverse": self.inverse, **numbers}


_SIMPLE = (AffineTransform, ExpTransform, SigmoidTransform, QuantileNormal)
_KINDS: dict[str, Callable[..., Transform]] = {
    "affine": AffineTransform,
    "exp": ExpTransform,
    "sigmoid": SigmoidTransform,
    "quantile_normal": QuantileNormal.unchecked,
}
_REAL = (-math.inf, math.inf)
_IMAGES = {"exp": (0.0, math.inf), "sigmoid": (0.0, 1.0)}


def _sign(scale: Tensor) -> int:
    if bool((scale > 0).all()):
        return 1
    if bool((scale < 0).all()):
        return -1
    raise ValueError(bad_argument("scale", "numbers other than 0 of one sign", scale.tolist()))


def step_from_config(config: dict[str, Any]) -> Step:
    if config["kind"] not in _KINDS:
        raise ValueError(bad_argument("kind", f"one of {', '.join(_KINDS)}", repr(config["kind"])))
    numbers = {
        name: torch.tensor(value, dtype=torch.float64)
        for name, value in config.items()
        if name not in ("kind", "inverse")
    }
    if config["kind"] == "quantile_normal":
        QuantileNormal(numbers["values"], numbers["scores"])  # checks the knots
    return Step(config["kind"], numbers, inverse=bool(config["inverse"]))


def _steps(transform: Transform) -> list[Step]:
    """The steps of a transform in the order in which x passes them."""
    if isinstance(transform, ComposeTransform):
        return [step for part in transform.parts for step in _steps(part)]
    if isinstance(transform, _SIMPLE):
        return [_step(transform, inverse=False)]
    if isinstance(transform, Transform) and isinstance(transform.inv, _SIMPLE):
        return [_step(transform.inv, inverse=True)]
    wanted = "affine, exp, sigmoid or QuantileNormal transforms, their inverses or a composition"
    raise TypeError(bad_argument("transform", wanted, type(transform).__name__))


def _step(transform: Transform, *, inverse: bool) -> Step:
    if isinstance(transform, AffineTransform):
        loc, scale = [torch.as_tensor(n, dtype=torch.float64) for n in (transform.loc, transform.scale)]
        return Step("affine", {"loc": loc, "scale": scale}, inverse=inverse)
    if isinstance(transform, QuantileNormal):
        knots = {"values": transform.values, "scores": transform.scores}
        return Step("quantile_normal", knots, inverse=inverse)
    return Step("exp" if isinstance(transform, ExpTransform) else "sigmoid", {}, inverse=inverse)


def _map_line(
    steps: Sequence[tuple[tuple[float, float], Callable[[Tensor], Tensor], int]], device: torch.device | None
) -> tuple[Tensor, Tensor]:
    """The ends of the real line after steps `(ends of the domain, function, sign of the slope)`."""
    low, high = [torch.full((), end, dtype=torch.float64, device=device) for end in _REAL]
    for domain, function, sign in steps:
        low, high = function(low.clamp_min(domain[0])), function(high.clamp_max(domain[1]))
        low, high = (low, high) if sign > 0 else (high, low)
    return low, high


def ends_inside(low: Tensor, high: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """The outermost numbers in the precision of `like` that lie in [low, high]: rounding may lead outside."""
    first, last = low.to(like), high.to(like)
    first = torch.where(first.double() < low.to(like.device), torch.nextafter(first, last), first)
    return first, torch.where(last.double() > high.to(like.device), torch.nextafter(last, first), last)


def as_float64(x: Tensor) -> Tensor:
    """x in float64, if the device has it."""
    return x if x.device.type == "mps" else x.double()
