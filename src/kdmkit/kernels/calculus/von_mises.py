"""The von Mises density e^(κ(cos θ − 1))/(2π·i0e(κ)) on a circle: log masses of arcs, and draws.

An arc that does not hold the mode is one or two pieces on which the density falls, from the end nearest to
the mode on. One that holds the mode is two such pieces, or 1 minus what is outside. Every piece is integrated
by Gauss–Legendre quadrature relative to its first value, as far as the density falls by e²⁴.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from kdmkit._core.runtime import only_reverse_mode

_NODES, _WEIGHTS = [values.tolist() for values in np.polynomial.legendre.leggauss(16)]
# Beyond a fall of the logarithm by this much an integral changes by less than 1e-10 of itself.
_FALL = 24.0
# Tables of probabilities hold at most this many numbers at a time.
_TABLE = 1 << 22
# Arcs that reach at least this many standard deviations to both sides of the mode hold most of the mass.
_MOST = 0.7


def mean_length(kappa: Tensor) -> Tensor:
    """E cos θ = I₁(κ)/I₀(κ)."""
    return torch.special.i1e(kappa) / torch.special.i0e(kappa)


def turned(x: Tensor, period: float) -> Tensor:
    """x minus whole periods, between −period/2 and period/2; the derivative is 1."""
    return x - period * (x.detach() / period).round()


def log_arc_mass(start: Tensor, end: Tensor, width: Tensor, kappa: Tensor) -> Tensor:
    """The log mass of arcs, relative to the mode; they broadcast with each other.

    Its derivatives are written out: there are first ones only.

    Args:
        start, end: the angles at which an arc begins and ends, between −π and π.
        width: its length, with all its digits. At least 2π is the whole circle, at most 0 is nothing.
        kappa: κ.

    >>> quarter = torch.tensor(math.pi / 2)
    >>> log_arc_mass(-quarter / 2, quarter / 2, quarter, torch.tensor(1e-6)).exp()
    tensor(0.2500)
    """
    start, end, width, kappa = torch.broadcast_tensors(start, end, width, kappa)
    inside = (width > 0) & (width < 2 * math.pi)
    # The arc from 0 to 1 stands for those that have no ends.
    arc = torch.where(inside, start, 0.0), torch.where(inside, end, 1.0), torch.where(inside, width, 1.0)
    explicit = torch.is_grad_enabled() and only_reverse_mode()
    mass = _LogArcMass.apply if explicit else composed_log_arc_mass
    value: Tensor = mass(*arc, kappa)
    return torch.where(inside, value, torch.where(width > 0, 0.0, -math.inf))


def composed_log_arc_mass(start: Tensor, end: Tensor, width: Tensor, kappa: Tensor) -> Tensor:
    """`log_arc_mass` of arcs shorter than 2π, by operations that can be differentiated and compiled."""
    log_share, outside, *_ = _shares(start, end, width, kappa)
    return _log_mass(log_share, outside)


class _LogArcMass(torch.autograd.Function):
    """The log mass with its derivatives: those of an arc that turns, of one that grows, and that of κ."""

    @staticmethod
    def forward(ctx: Any, start: Tensor, end: Tensor, width: Tensor, kappa: Tensor) -> Tensor:
        log_share, outside, average, log_norm = _shares(start, end, width, kappa)
        log_mass = _log_mass(log_share, outside)
        log_starts = (-2 * kappa * (0.5 * angle).sin().square() for angle in (start, end))
        at_start, at_end = [(log - log_norm - log_mass).exp() for log in log_starts]
        # A narrow arc has nearly the same density at both ends: their difference comes from their ratio.
        rise = -2 * kappa * (0.5 * width).sin() * (start + 0.5 * width).sin()
        by_turn = torch.where(rise < 0, at_start * rise.expm1(), -at_end * (-rise).expm1())
        inner = average - (mean_length(kappa.double()) - 1).to(kappa.dtype)
        by_kappa = torch.where(outside, -(log_share - log_mass).exp() * inner, inner)
        ctx.save_for_backward(by_turn, at_end, by_kappa)
        return log_mass

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        by_turn, by_length, by_kappa = [part * gradient for part in ctx.saved_tensors]
        return by_turn, None, by_length, by_kappa


def _shares(
    start: Tensor, end: Tensor, width: Tensor, kappa: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The log mass of an arc's pieces, whether they are the outside of the arc, the average of cos θ − 1 over
    the pieces, and log(2π·i0e(κ)).
    """
    (first, second), outside = _pieces(start, end, width, kappa)
    (a, average_a), (b, average_b) = _log_integral(*first, kappa), _log_integral(*second, kappa)
    top = torch.maximum(a, b).detach()
    weight_a, weight_b = (a - top).exp(), (b - top).exp()
    total = weight_a + weight_b
    average = (weight_a * average_a + weight_b * average_b) / total
    log_norm = (2 * math.pi * torch.special.i0e(kappa.double())).log().to(kappa.dtype)
    return total.log() + top - log_norm, outside, average, log_norm


def _log_mass(log_share: Tensor, outside: Tensor) -> Tensor:
    rest = torch.log1p(-torch.where(outside, log_share, -1.0).exp())
    return torch.where(outside, rest, log_share)


Piece = tuple[Tensor, Tensor]


def _pieces(start: Tensor, end: Tensor, width: Tensor, kappa: Tensor) -> tuple[tuple[Piece, Piece], Tensor]:
    """Two pieces `(distance from the mode, length)`, and whether they are what is outside the arc."""
    near, far = [torch.where(angle >= 0, angle, -angle) for angle in (start, end)]
    last = start + width
    after_mode = start >= 0
    holds_mode = torch.where(after_mode, last > 2 * math.pi, last > 0)
    # The outside is one piece if the arc goes on beyond the opposite of the mode.
    beyond = holds_mode & (after_mode | (last > math.pi))
    broad = torch.minimum(near, far) * kappa.sqrt() > _MOST
    outside = beyond | (holds_mode & (broad | (width > math.pi)))
    single = beyond | (~holds_mode & ~(after_mode & (last > math.pi)))
    around = holds_mode & ~outside
    zero = torch.zeros_like(near)
    alone = torch.where(beyond ^ after_mode, near, far)
    length = torch.where(beyond, 2 * math.pi - width, width)
    first = (
        torch.where(single, alone, torch.where(around, zero, near)),
        torch.where(single, length, torch.where(around, near, math.pi - near)),
    )
    second = (
        torch.where(single | around, zero, far),
        torch.where(single, zero, torch.where(around, far, math.pi - far)),
    )
    return (first, second), outside


def _log_integral(start: Tensor, length: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor]:
    """log ∫ e^(κ(cos θ − 1)) dθ over a piece, and the average of cos θ − 1; −∞ and 0 for an empty one."""
    used = length > 0
    sine = (0.5 * start).sin()
    # The integral does not depend on the point at which it is cut off: no gradient.
    reach = _reach(sine.detach(), (0.5 * start.detach()).cos(), kappa.detach())
    span = torch.minimum(torch.where(used, length, 1.0), reach)
    total, weighted = torch.zeros_like(span), torch.zeros_like(span)
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        half = 0.25 * (1 + node) * span
        fall = -2 * kappa * half.sin() * (start + half).sin()
        value = 0.5 * weight * fall.exp()
        total = total + value
        weighted = weighted + value * fall
    first = -2 * sine.square()
    log_integral = kappa * first + span.log() + total.log()
    average = first + weighted / (total * kappa)
    return torch.where(used, log_integral, -math.inf), torch.where(used, average, 0.0)


def _reach(sine: Tensor, cosine: Tensor, kappa: Tensor) -> Tensor:
    """The distance over which the density falls by e²⁴, given sine and cosine of half the start."""
    step = 0.5 * _FALL / kappa
    reached = (sine.square() + step).sqrt()
    inside = reached < 1
    reached = torch.where(inside, reached, 1.0)
    ratio = step / (reached * cosine + sine * (1 - reached.square()).sqrt())
    return torch.where(inside & (ratio < 1), 2 * ratio.clamp_max(1).asin(), math.pi)


# ---- draws


def draw_von_mises(
    kappa: Float[Tensor, "*shape"], generator: torch.Generator | None
) -> Float[Tensor, "*shape"]:
    """Angles with the density e^(κ cos θ)/(2π·I₀(κ)), by rejection (Best and Fisher, 1979)."""
    flat = kappa.reshape(-1)
    drawn, left = torch.zeros_like(flat), torch.arange(flat.numel(), device=flat.device)
    while left.numel():
        k = flat[left]
        angle, accepted = _propose(k, generator)
        drawn[left[accepted]] = angle[accepted]
        left = left[~accepted]
    return drawn.reshape(kappa.shape)


def _propose(kappa: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    uniform = torch.rand((3, *kappa.shape), dtype=kappa.dtype, device=kappa.device, generator=generator)
    tau = 1 + (1 + 4 * kappa.square()).sqrt()
    # (τ − √(2τ))/(2κ) without the difference, which is 0 for small κ.
    rho = 2 * kappa / (tau + (2 * tau).sqrt())
    r = (1 + rho.square()) / (2 * rho)
    cosine = (math.pi * uniform[0]).cos()
    turned = ((1 + r * cosine) / (r + cosine)).clamp(-1, 1)
    c = kappa * (r - turned)
    accepted = (c * (2 - c) > uniform[1]) | ((c / uniform[1]).log() + 1 >= c)
    return torch.where(uniform[2] < 0.5, -1.0, 1.0) * turned.acos(), accepted


def draw_whole(
    centre: Float[Tensor, "*shape"],
    kappa: Float[Tensor, "*shape"],
    period: int,
    generator: torch.Generator | None,
) -> Int[Tensor, "*shape"]:
    """Numbers i in 0 … period − 1 with probabilities in proportion to e^(κ cos(2π(i − c)/period))."""
    numbers = torch.arange(period, dtype=centre.dtype, device=centre.device)
    drawn = []
    parts = (tensor.reshape(-1, 1).split(max(1, _TABLE // period)) for tensor in (centre, kappa))
    for c, k in zip(*parts, strict=True):
        scores = -2 * k * ((numbers - c) * (math.pi / period)).sin().square()
        drawn.append(torch.multinomial(torch.softmax(scores, -1), 1, generator=generator))
    return torch.cat([part.reshape(-1) for part in drawn]).reshape(centre.shape)
