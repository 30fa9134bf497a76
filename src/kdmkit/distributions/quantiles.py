"""The search for quantiles of mixtures over the real line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kdmkit.kernels import Kernel

_STEPS = 100
# Knots of a table of distribution functions, and the tails of components at which they lie.
_KNOTS = 512
_TAILS = (1e-9, 1e-4, 0.02, 0.25)
# A grid with at most this many events is a table of all of them.
_EVENTS = 1024
# Up to this many pairs of quantiles and components, a call costs more than the numbers F_j(x): then more
# points are compared in one step.
_FEW_PAIRS = 1 << 12
# Distances of points from the expected quantile, as shares of the bracket: for few quantiles; for many; and
# the share above which a step has missed.
_FEW = tuple(2.0**-i for i in range(2, 28, 2))
_NEAR, _FAR, _MISSED = 2.0**-8, 0.25, 2.0**-5
# Brackets with less probability are narrow enough for a density.
_LEAST_MASS = 1e-11


class Reached(NamedTuple):
    """Quantiles with the values of F about them.

    Attributes:
        x: the quantiles.
        below: P(event < x).
        upto: P(event ≤ x); of a density, both are the level of the quantile, up to its precision.
    """

    x: Tensor
    below: Tensor
    upto: Tensor


class Bracket(NamedTuple):
    """Intervals that contain quantiles.

    Attributes:
        low, high: F(low) < q ≤ F(high).
        below, reached: F(low) and F(high).
        share: the expected place of the quantile, from 0 at low to 1 at high.
        least: the width of the narrowest component.
    """

    low: Tensor
    high: Tensor
    below: Tensor
    reached: Tensor
    share: Tensor
    least: Tensor


@dataclass(frozen=True)
class Knots:
    """F_j at points that cover all components: quantiles of any mixture of them start from this table.

    Args:
        points: ascending; the kernel's `steps` are among them.
        cdf: F_j of every component at every point.
        least: the width of the narrowest component.
        complete: whether the points are all events between the first one and the last one.
    """

    points: Float[Tensor, " g"]
    cdf: Float[Tensor, "g m"]
    least: float
    complete: bool = False

    @classmethod
    def of(cls, kernel: Kernel, components: Tensor) -> Knots:
        """Knots at quantiles of single components, in float64; of a grid with few events, at all of them."""
        with torch.no_grad():
            tails = torch.tensor(_TAILS, dtype=torch.float64, device=components.device)
            low, high = [end.double() for end in kernel.quantile_bounds(tails, components)]
            every = torch.cat([low.flatten(), high.flatten()])
            every = every[every.isfinite()].unique()
            least = float((high - low)[-1].min())
            points = _all_events(kernel, every[0], every[-1]) if kernel.only_atoms else None
            if points is not None:
                return cls(points, kernel.cdf(points, components).double(), least, complete=True)
            place = torch.linspace(0, len(every) - 1, _KNOTS).to(every)
            points = torch.lerp(every[place.floor().long()], every[place.ceil().long()], place.frac())
            points = kernel.nearest_atom(points) if kernel.only_atoms else points
            points = torch.cat([points, kernel.steps().to(points)]).unique()
            return cls(points, kernel.cdf(points, components).double(), least)

    def bracket(self, mixed: Float[Tensor, "*lead g"], q: Float[Tensor, "*lead"]) -> Bracket | None:
        """Neighbouring knots about quantiles; None if one lies beyond all knots.

        Args:
            mixed: F of the mixtures at the knots.
        """
        last = len(self.points) - 1
        place = torch.searchsorted(mixed.contiguous(), q.unsqueeze(-1).contiguous())
        if bool((place == 0).any()) or bool((place > last).any()):
            return None
        near = (place + torch.arange(-2, 2, device=q.device)).clamp(0, last)
        heights, points = mixed.gather(-1, near), self.points[near]
        (low, high), (below, reached) = points[..., 1:3].unbind(-1), heights[..., 1:3].unbind(-1)
        share = _cubic(q, heights, points)
        return Bracket(low, high, below, reached, share, torch.full_like(q, self.least))


def _all_events(kernel: Kernel, low: Tensor, high: Tensor) -> Float[Tensor, " g"] | None:
    """All events between two numbers, None if there are many."""
    low, high = kernel.nearest_atom(low), kernel.nearest_atom(high)
    step = kernel.beside(low, up=True) - low
    count = round(float((high - low) / step))
    if count >= _EVENTS:
        return None
    events = kernel.nearest_atom(low + step * torch.arange(count + 1).to(low))
    return torch.cat([events, kernel.steps().to(events)]).unique()


def _cubic(
    q: Float[Tensor, "*lead"], heights: Float[Tensor, "*lead 4"], points: Float[Tensor, "*lead 4"]
) -> Tensor:
    """The place between the inner two of four knots where a monotone cubic reaches q, as a share."""
    slopes = heights.diff() / points.diff().clamp_min(1e-300)
    width, rise = points[..., 2] - points[..., 1], (heights[..., 2] - heights[..., 1]).clamp_min(1e-300)
    before, after = slopes[..., :-1], slopes[..., 1:]
    means = 2 * before * after / (before + after).clamp_min(1e-300)
    first, last = (means * (width / rise).unsqueeze(-1)).unbind(-1)
    wanted = ((q - heights[..., 1]) / rise).clamp(0, 1)
    share = wanted
    for _ in range(4):  # Newton's method for s·(first + s·(b + s·c)) = wanted
        b, c = 3 - 2 * first - last, first + last - 2
        value = share * (first + share * (b + share * c))
        slope = first + share * (2 * b + 3 * share * c)
        share = (share - (value - wanted) / slope.clamp_min(0.05)).clamp(0, 1)
    return share


#: F at points `(n, active)` of some of the quantiles, given by their indices.
Heights = Callable[[Float[Tensor, "n a"], Int[Tensor, " a"]], Float[Tensor, "n a"]]


def search(
    cdf: Heights, kernel: Kernel, q: Float[Tensor, " n"], start: Bracket, pairs: int, eps: float
) -> Reached:
    """The smallest x with F(x) ≥ q, and F about it.

    Brackets shrink to neighbours among points about the interpolated quantile, until they are as narrow as
    rounding errors.

    Args:
        cdf: F of the mixtures.
        pairs: the number of pairs of quantiles and components.
        eps: the precision of the components.
    """
    result = torch.stack([start.high, start.below, start.reached])
    active = torch.arange(len(q), device=q.device)
    now, few = start, pairs <= _FEW_PAIRS
    reach = q.new_tensor(_FEW).unsqueeze(-1) if few else torch.full_like(q, _NEAR).unsqueeze(0)
    for _ in range(_STEPS):
        points = _points(kernel, now, reach, few)
        wide = _is_wide(kernel, now, eps) & ((points > now.low) & (points < now.high)).any(0)
        if not bool(wide.any()):
            break
        if not bool(wide.all()):
            active, points = active[wide], points[:, wide]
            now = Bracket(*torch.stack(now)[:, wide])
        before = now.high - now.low
        now = _narrowed(now, points, cdf(points, active), q[active])
        result[:, active] = torch.stack([now.high, now.below, now.reached])
        if not few:  # after a step that missed, points are farther apart
            missed = now.high - now.low > _MISSED * before
            reach = torch.where(missed, _FAR, _NEAR).to(q).unsqueeze(0)
    return Reached(*result)


def _is_wide(kernel: Kernel, now: Bracket, eps: float) -> Bool[Tensor, " a"]:
    """Whether brackets are wider than rounding errors; beside atoms F has steps of any height."""
    wide = now.high - now.low > precision(now.high, now.least, eps)
    return wide if kernel.has_atoms else wide & (now.reached - now.below > _LEAST_MASS)


def precision(x: Tensor, least: Tensor, eps: float) -> Tensor:
    """The precision of a quantile x, if the narrowest component has the width `least`."""
    return 2 * eps * (x.abs() + least)


def _points(kernel: Kernel, now: Bracket, reach: Float[Tensor, "r #a"], few: bool) -> Float[Tensor, "n a"]:
    """Points between the ends, ascending, on both sides of the expected one.

    For few quantiles, and on a grid, also the middle. On a grid the search ends when no event lies between.
    """
    width = now.high - now.low
    if kernel.only_atoms:  # both neighbours of the expected point
        step = kernel.beside(now.low, up=True) - now.low
        reach = torch.maximum(reach, 0.5 * step / width)
    shares = torch.cat([now.share - reach, now.share + reach.flip(0)]).clamp(0, 1)
    if few or kernel.only_atoms:
        shares = torch.cat([shares, torch.full_like(shares[:1], 0.5)]).sort(0).values
    points = (now.low + width * shares).clamp_max(now.high)
    return kernel.nearest_atom(points) if kernel.only_atoms else points


def _narrowed(now: Bracket, points: Tensor, cdf: Tensor, q: Tensor) -> Bracket:
    """The bracket between the last point below q and the first that reaches it."""
    ends = torch.cat([now.low.unsqueeze(0), points, now.high.unsqueeze(0)])
    heights = torch.cat([now.below.unsqueeze(0), cdf, now.reached.unsqueeze(0)])
    # Rounding must not make F decrease: the first point that reaches q decides.
    reaches = heights[1:] >= q
    first = torch.where(
        reaches.any(0, keepdim=True), reaches.int().argmax(0, keepdim=True) + 1, len(ends) - 1
    )
    place = torch.cat([first - 1, first])
    (low, high), (below, reached) = ends.gather(0, place), heights.gather(0, place)
    share = ((q - below) / (reached - below).clamp_min(1e-300)).clamp(0, 1)
    return Bracket(low, high, below, reached, share, now.least)
