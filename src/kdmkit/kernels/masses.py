"""Logarithms of masses, precise in every digit: in both tails, for tiny intervals, and close to 1.

No mass is a difference of two numbers close to each other. A mass of zero is −∞ and has no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from kdmkit._core.logspace import safe_log
from kdmkit._core.runtime import only_reverse_mode

_ROOT_HALF = math.sqrt(0.5)
LOG_ROOT_2PI = 0.5 * math.log(2 * math.pi)
# Gauss–Legendre nodes on [−1, 1] that are positive, and their weights; the rule is symmetric.
LEGENDRE = list(zip(*(values[3:].tolist() for values in np.polynomial.legendre.leggauss(6)), strict=True))
# Above this many standard deviations the tail of a Gaussian is 0 in float64.
_NO_TAIL = 50.0


def log_sum(part: Callable[[int], Tensor], n: int) -> Tensor:
    """log Σ_i exp(part(i)) for i = 0 … n−1, with two parts in memory at a time.

    >>> log_sum(lambda i: torch.tensor([-1000.0 * i, -torch.inf]), 3)
    tensor([0., -inf])
    """
    with torch.no_grad():
        top = part(0)
        for i in range(1, n):
            top = torch.maximum(top, part(i))
        top = torch.where(torch.isneginf(top), 0.0, top)
    total = (part(0) - top).exp()
    for i in range(1, n):
        total = total + (part(i) - top).exp()
    return safe_log(total) + top


def first_occurrences(values: Tensor) -> tuple[Tensor, Tensor]:
    """Values `(*lead, k)` in ascending order, and which of them differ from the one before."""
    ordered = values.sort(-1).values
    new = torch.ones_like(ordered, dtype=torch.bool)
    new[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    return ordered, new


def interval_units(low: Tensor, high: Tensor, centre: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(low − c)/s, (high − c)/s and their difference; ends that are infinite or far away give ±∞.

    The difference comes from the ends themselves: of a narrow interval it has all its digits.
    """
    a, b = (_unit(end, centre, scale) for end in (low, high))
    closed = torch.isfinite(a) & torch.isfinite(b)
    width = torch.where(closed, high - low, 0.0) / torch.where(closed, scale, 1.0)
    return a, b, torch.where(closed, width, torch.where(a == b, 0.0, math.inf))


def _unit(end: Tensor, centre: Tensor, scale: Tensor) -> Tensor:
    gap = end - centre
    # Beyond this the square overflows, and so would a gradient.
    far = ~(gap.abs() < math.sqrt(torch.finfo(gap.dtype).max) * scale)
    unit = torch.where(far, 0.0, gap) / torch.where(far, 1.0, scale)
    return torch.where(far, gap.sign() * math.inf, unit)


def log_normal_mass_parts(a: Tensor, b: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
    """log(Φ(b) − Φ(a)) as rest − z²/2, where z is the number in [a, b] that is nearest to 0.

    Far from 0 the second part is much larger than the first, which holds the mass relative to φ(z). By
    operations that can be differentiated any number of times, and compiled; `normal_mass` is the fast twin.

    With m = (a + b)/2 ≥ 0, by symmetry, there are three cases: a narrow interval, by quadrature of
    φ(m + t)/φ(m); one in the tail, by Q(a)·(1 − Q(b)/Q(a)) with scaled complementary error functions; one
    around 0, by 1 − Q(b) − Q(−a).

    Args:
        a, b: a ≤ b, either of which may be infinite.
        width: b − a, with all its digits.
    """
    flip = a + b < 0
    low, high = torch.where(flip, -b, a), torch.where(flip, -a, b)
    dead = ~(width > 0) | (low == math.inf)
    is_open = torch.isinf(high)
    middle = 0.5 * (torch.where(is_open, torch.zeros_like(low), low) + torch.where(is_open, 0.0, high))
    narrow = ~is_open & (width * (1 + middle) <= 1)
    tail, near = ~narrow & (low >= 0) & ~dead, narrow & ~dead
    central = ~narrow & ~tail & ~dead
    mass = torch.full_like(low, -math.inf)
    if _is_used(near):
        mass = torch.where(near, _narrow_mass(low, middle, width, near), mass)
    if _is_used(tail):
        mass = torch.where(tail, _tail_mass(low, high, width, middle, tail), mass)
    if _is_used(central):
        mass = torch.where(central, _central_mass(low, high, narrow), mass)
    return mass, 0.5 * torch.where(dead, 0.0, low).clamp_min(0).square()


def _is_used(case: Tensor) -> bool:
    """Whether a case has to be computed: on a CPU, where asking costs little, only if it occurs."""
    return case.device.type != "cpu" or not only_reverse_mode() or bool(case.any())


def _narrow_mass(low: Tensor, middle: Tensor, width: Tensor, used: Tensor) -> Tensor:
    m, w = torch.where(used, middle, 0.0), torch.where(used, width, 1.0)
    total = torch.zeros_like(m)
    for node, weight in LEGENDRE:
        t = 0.5 * node * w
        total = total + weight * (-0.5 * t.square()).exp() * torch.cosh(m * t)
    a = torch.where(used, low, 0.0)
    # φ(m)/φ(z) with z = a, or 0 where the interval holds 0.
    ratio = torch.where(a > 0, 0.25 * w * (m + a), 0.5 * m.square())
    return w.log() - ratio - LOG_ROOT_2PI + total.log()


def _tail_mass(low: Tensor, high: Tensor, width: Tensor, middle: Tensor, used: Tensor) -> Tensor:
    is_open = torch.isinf(high) | ~used
    a = torch.where(used, low, 0.0)
    b, drop = torch.where(is_open, a.detach() + 1, high), torch.where(is_open, 1.0, width * middle)
    q = torch.special.erfcx(a * _ROOT_HALF)
    ratio = torch.special.erfcx(b * _ROOT_HALF) / q * (-drop).exp()
    return (0.5 * q).log() + torch.log1p(-torch.where(is_open, 0.0, ratio))


def _central_mass(low: Tensor, high: Tensor, unused: Tensor) -> Tensor:
    outside = torch.zeros_like(low)
    for end in (high, -low):
        end = torch.where(unused | ~(end >= 0), 1.0, end).clamp_max(_NO_TAIL)
        outside = outside + 0.5 * torch.erfc(end * _ROOT_HALF)
    return torch.log1p(-outside)


@dataclass(frozen=True)
class Bump:
    """A symmetric density on [−1, 1], given by the distance s to the nearer end: M·sᵖ·r(s) for s ≤ 1.

    Args:
        power: p.
        rest: r, a polynomial.
        norm: M.
        nodes: how many nodes of Gauss–Legendre quadrature integrate sᵖ·r(s) exactly.
    """

    power: int
    rest: Callable[[Tensor], Tensor]
    norm: float
    nodes: int
    #: Nodes on [0, 1], and their weights.
    rule: list[tuple[float, float]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        nodes, weights = np.polynomial.legendre.leggauss(self.nodes)
        rule = list(zip((0.5 + 0.5 * nodes).tolist(), (0.5 * weights).tolist(), strict=True))
        object.__setattr__(self, "rule", rule)

    def log_integral(self, start: Tensor, length: Tensor) -> Tensor:
        """log ∫ M·sᵖ·r(s) ds from `start` to start + length ≤ 1; −∞ where length ≤ 0."""
        # Of smaller lengths the gradient would overflow.
        used = length >= torch.finfo(length.dtype).tiny
        start, length = torch.where(used, start, 0.0), torch.where(used, length, 1.0)
        end = start + length
        total = torch.zeros_like(end)
        for node, weight in self.rule:
            s = start + node * length
            # Powers of s itself would underflow.
            total = total + weight * (s / end) ** self.power * self.rest(s)
        value = length.log() + self.power * end.log() + total.log() + math.log(self.norm)
        return torch.where(used, value, -math.inf)


def log_bump_mass(low: Tensor, high: Tensor, centre: Tensor, h: Tensor, bump: Bump) -> Tensor:
    """The log mass of [low, high] under a bump at `centre` that ends at the distance h.

    Three cases: an interval on one side of the centre is integrated by distances to the end of the bump, a
    narrow one around the centre by distances to the centre, and a wide one by what lies outside it.
    """
    ends = _BumpInterval.of(low, high, centre, h)
    alive = ends.width > 0
    central = alive & (ends.far > 1)
    wide = central & (ends.width >= 1)
    zero = torch.zeros_like(ends.width)

    def piece(outside: Tensor, inside: Tensor, otherwise: tuple[Tensor, Tensor]) -> Tensor:
        start = torch.where(wide, zero, torch.where(central, 1 - inside, otherwise[0]))
        length = torch.where(wide, outside, torch.where(central, inside, otherwise[1]))
        return bump.log_integral(start, length)

    first = piece(ends.near, ends.near_side, (ends.near, torch.where(alive, ends.width, zero)))
    second = piece(ends.other, ends.other_side, (zero, zero))
    both = torch.where(central, first.exp() + second.exp(), 0.5)
    # Outside of a wide interval the mass may underflow: its logarithm would have an infinite gradient.
    outside, inside = torch.where(wide, both, zero), torch.where(wide, 0.5, both)
    around = torch.where(wide, torch.log1p(-outside), inside.log())
    return torch.where(central, around, first)


@dataclass(frozen=True)
class _BumpInterval:
    """An interval in units of h, seen from the end of the bump that is nearer to it.

    Args:
        near, far: distances of the interval's ends to the bump's nearer end, and `other`, that of its far end
            to the bump's other end; 0 beyond an end.
        near_side, other_side: how far the interval reaches from the centre to both sides.
        width: of the interval within the bump; not positive where they do not meet.
    """

    near: Tensor
    far: Tensor
    other: Tensor
    near_side: Tensor
    other_side: Tensor
    width: Tensor

    @classmethod
    def of(cls, low: Tensor, high: Tensor, centre: Tensor, h: Tensor) -> _BumpInterval:
        low, left, right_far, below = _seen_from(low, centre, h)
        high, left_far, right, above = _seen_from(high, centre, h)
        below = -below
        flip = left < right
        near, other = torch.where(flip, left, right), torch.where(flip, right, left)
        far = torch.where(flip, left_far, right_far)
        cut = torch.where(other > 0, far, 2.0) - near.clamp_min(0)
        return cls(
            near.clamp_min(0),
            far,
            other.clamp_min(0),
            torch.where(flip, below, above),
            torch.where(flip, above, below),
            # The ends themselves give every digit of the width of a narrow interval.
            torch.where(near > 0, (high - low) / h, cut),
        )


def _seen_from(end: Tensor, centre: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """An end of an interval, its distances to the bump's left and right end, and its place, in units of h.

    Ends that are far outside count as 2h from the centre and have no gradient.
    """
    gap = end - centre
    outside = ~(gap.abs() < 2 * h)
    side = 2 * gap.detach().sign()
    end = torch.where(outside, centre.detach(), end)
    left = torch.where(outside, 1 + side, _sum3(end, -centre, h) / h)
    right = torch.where(outside, 1 - side, _sum3(-end, centre, h) / h)
    return end, left, right, torch.where(outside, side, (end - centre) / h)


def _sum3(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a + b + c with the rounding errors of both sums added back: exact where they cancel."""
    first = a + b
    second = first + c
    return second + (_lost(a, b, first) + _lost(first, c, second))


def _lost(a: Tensor, b: Tensor, total: Tensor) -> Tensor:
    """What a + b lost to rounding (Knuth)."""
    rounded = total - a
    return (a - (total - rounded)) + (b - rounded)
