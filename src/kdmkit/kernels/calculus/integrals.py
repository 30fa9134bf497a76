"""Sums in little memory; integrals, moments and modes of one-dimensional densities by quadrature."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from kdmkit._core.logspace import safe_log
from kdmkit._core.runtime import only_reverse_mode
from kdmkit._core.tensors import broadcast

# Panels between the ends of a density, between the kinks of one, and the nodes in each.
PANELS, _FEW_PANELS = 32, 16
_PANEL_NODES, _PANEL_WEIGHTS = np.polynomial.legendre.leggauss(8)
# Exact for polynomials of degree 39; the product of two Tricube distribution functions has degree 38.
NODES = 20
_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(NODES)
# Points of a grid in which a maximum is searched, and how often a finer grid follows.
_GRID = 129
_ROUNDS = 6

# Numbers in a piece: some hundred tensors of this size exist at once.
_PIECE = 1 << 16

Function = Callable[[Tensor], Tensor]


# ---- sums


def sum_last(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Σ_i function(tensor[..., i], …), one dimension after the other: the summands never exist at once."""
    total = None
    for parts in zip(*[tensor.unbind(-1) for tensor in tensors], strict=True):
        value = function(*parts)
        total = value if total is None else total + value
    assert total is not None
    return total


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
    total = torch.zeros_like(top)
    for i in range(n):
        total = total + (part(i) - top).exp()
    return safe_log(total) + top


def in_pieces(function: Callable[..., Tensor], *tensors: Tensor, size: int = _PIECE) -> Tensor:
    """function(*tensors) for an elementwise function that broadcasts its arguments.

    The memory is that of a few results: pieces are evaluated one by one, and again for the gradient. Results
    larger than `size` have first derivatives only.
    """
    small = broadcast(*[tensor.shape for tensor in tensors]).numel() <= size
    if small or not only_reverse_mode():
        return function(*tensors)
    result: Tensor = _InPieces.apply(function, size, *tensors)
    return result


class _InPieces(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[..., Tensor], size: int, *tensors: Tensor) -> Tensor:
        ctx.function, ctx.size = function, size
        ctx.save_for_backward(*tensors)
        dim, slices = _slices(tensors, size)
        return torch.cat([function(*_parts(tensors, dim, piece)) for piece in slices], dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tensors, wanted = ctx.saved_tensors, ctx.needs_input_grad[2:]
        totals = [torch.zeros_like(t) if want else None for t, want in zip(tensors, wanted, strict=True)]
        dim, slices = _slices(tensors, ctx.size)
        for piece in slices:
            parts = zip(_parts(tensors, dim, piece), wanted, strict=True)
            leaves = [tensor.detach().requires_grad_(want) for tensor, want in parts]
            with torch.enable_grad():
                value = ctx.function(*leaves)
            sources = [leaf for leaf in leaves if leaf.requires_grad]
            upstream = gradient.narrow(dim, *piece)
            targets = _parts([total for total in totals if total is not None], dim, piece)
            for target, slope in zip(targets, torch.autograd.grad(value, sources, upstream), strict=True):
                target += slope
        return None, None, *totals


def _slices(tensors: Sequence[Tensor], size: int) -> tuple[int, Iterator[tuple[int, int]]]:
    """The longest dimension of tensors that broadcast, and (start, length) of its slices."""
    shape = broadcast(*[tensor.shape for tensor in tensors])
    longest = max(range(len(shape)), key=lambda i: shape[i])
    length = shape[longest]
    step = max(1, size * length // shape.numel())
    return longest - len(shape), ((start, min(step, length - start)) for start in range(0, length, step))


def _parts(tensors: Sequence[Tensor], dim: int, piece: tuple[int, int]) -> list[Tensor]:
    """One slice of every tensor; tensors without the dimension stay whole."""
    return [
        tensor if tensor.ndim < -dim or tensor.shape[dim] == 1 else tensor.narrow(dim, *piece)
        for tensor in tensors
    ]


# ---- integrals


def integral(
    function: Function, low: Float[Tensor, "*shape"], high: Float[Tensor, "*shape"]
) -> Float[Tensor, "*shape"]:
    """∫ function from `low` to `high`, exact for polynomials of degree 39.

    Args:
        function: of points `(*shape, k)`.
        low, high: the ends, of the same shape.
    """
    points = torch.as_tensor(_POINTS, dtype=low.dtype, device=low.device)
    weights = torch.as_tensor(_WEIGHTS, dtype=low.dtype, device=low.device)
    half = 0.5 * (high - low)
    t = low.unsqueeze(-1) + half.unsqueeze(-1) * (1 + points)
    return half * (function(t) * weights).sum(-1)


def density_moments(
    log_density: Function, value: Function, panels: Float[Tensor, "p *shape"]
) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
    """Mean and variance of value(z) for a random z.

    Args:
        log_density: the log-density of z `(k, *shape)` up to a constant.
        value: the function of z.
        panels: ascending points between which both functions are smooth; the density ends at the outer ones.
    """
    panels = panels.detach()
    half = 0.5 * panels.diff(dim=0).unsqueeze(0)
    nodes, weights = [_column(part, half) for part in (_PANEL_NODES, _PANEL_WEIGHTS)]
    z = (panels[:-1] + half * (1 + nodes)).flatten(0, 1)
    logs = log_density(z)
    top = logs.detach().amax(0)
    mass = (half * weights).flatten(0, 1) * (logs - torch.where(torch.isneginf(top), 0.0, top)).exp()
    total = mass.sum(0)
    mass = mass / torch.where(total > 0, total, 1.0)
    x = value(z)
    # Relative to a value in the middle, so that a small variance far from 0 keeps its digits.
    centre = x.detach()[len(x) // 2]
    mean = (mass * (x - centre)).sum(0)
    variance = (mass * (x - centre - mean).square()).sum(0)
    return centre + mean, variance


def even_panels(low: Tensor, high: Tensor, n: int) -> Float[Tensor, "p *shape"]:
    """n panels of equal width between two ends."""
    share = torch.linspace(0, 1, n + 1, dtype=low.dtype, device=low.device)
    low, high = torch.broadcast_tensors(low, high)
    return torch.lerp(low, high, share.reshape(-1, *[1] * low.ndim))


def panels_with(
    kinks: Float[Tensor, " k"], low: Float[Tensor, "*shape"], high: Float[Tensor, "*shape"]
) -> Float[Tensor, "p *shape"]:
    """The kinks between two ends, and a few panels of equal width; the upper end repeats to fill columns.

    >>> panels_with(torch.tensor([0.1, 1.5]), torch.tensor([0.0, 1.0]), torch.tensor([1.6, 2.6])).T[:, :3]
    tensor([[0.0000, 0.1000, 0.1000],
            [1.0000, 1.1000, 1.2000]])
    """
    high = torch.maximum(low, high)
    inside = torch.minimum(torch.maximum(_column(kinks, low.unsqueeze(0)), low), high)
    every = torch.cat([even_panels(low, high, _FEW_PANELS), inside]).sort(0).values
    before, after = [(every == end).sum(0) for end in (low, high)]
    n = max(2, len(every) + 2 - int((before + after).amin()))
    rows = torch.arange(n, device=low.device).reshape(-1, *[1] * low.ndim)
    return every.gather(0, (before - 1 + rows).clamp_max(len(every) - 1))


def _column(numbers: Any, like: Tensor) -> Tensor:
    """Numbers along the first dimension, with as many dimensions as `like`."""
    column = torch.as_tensor(numbers, dtype=like.dtype, device=like.device)
    return column.reshape(-1, *[1] * (like.ndim - 1))


def argmax(
    objective: Function, low: Float[Tensor, "*shape"], high: Float[Tensor, "*shape"]
) -> Float[Tensor, "*shape"]:
    """The z in [low, high] at which the objective is largest, by finer and finer grids."""
    steps = torch.linspace(0, 1, _GRID, dtype=low.dtype, device=low.device)
    steps = steps.reshape(-1, *([1] * low.ndim))
    best = low
    start, stop = low, high
    for _ in range(_ROUNDS):
        z = start + (stop - start) * steps
        best = z.gather(0, objective(z).argmax(0, keepdim=True)).squeeze(0)
        reach = (stop - start) / (_GRID - 1)
        start, stop = torch.maximum(best - reach, low), torch.minimum(best + reach, high)
    return best


# ---- sums of smooth functions over whole numbers


def panel_sums(
    edges: Float[Tensor, "p *shape"],
) -> tuple[Float[Tensor, "n *shape"], Float[Tensor, "n *shape"]]:
    """Nodes k and weights w with Σ_i w_i f(k_i) ≈ Σ_k f(k) over the whole numbers k < edges[-1] − edges[0].

    In every panel, f is taken for the polynomial of degree 7 through 8 nodes, which is summed exactly.

    Args:
        edges: where panels begin, and the end of the last one: whole numbers, ascending. Nodes are counted
            from the first one.

    >>> nodes, weights = panel_sums(torch.tensor([0.0, 10.0, 1000.0], dtype=torch.float64))
    >>> round(float((weights * nodes**3).sum()) / sum(k**3 for k in range(1000)), 9)
    1.0
    """
    count, first = edges[1:] - edges[:-1], edges[:-1] - edges[:1]
    reach = (count - 1).clamp_min(0)
    nodes = first.unsqueeze(0) + 0.5 * reach * (1 + _column(_PANEL_NODES, edges.unsqueeze(0)))
    # Means of even powers of the numbers on [−1, 1], which are polynomials of their count.
    inverse, wider = 2 / count.clamp_min(1), (count / reach.clamp_min(1)).square()
    powers = torch.stack([inverse ** (2 * j) for j in range(_SUM_POWERS)], -1)
    scales = torch.stack([wider**r for r in range(_SUM_POWERS)], -1)
    means = (powers @ torch.from_numpy(_SUM_MEANS.T).to(edges)) * scales
    weights = count * (means @ torch.from_numpy(_SUM_WEIGHTS.T).to(edges)).movedim(-1, 0)
    return nodes.flatten(0, 1), weights.flatten(0, 1)


def _mean_coefficients() -> np.ndarray:
    """a_rj: the mean of u^(2r) over the middles of n equal parts of [−1, 1] is Σ_j a_rj (2/n)^(2j)."""
    table = np.zeros((_SUM_POWERS, _SUM_POWERS))
    for r in range(_SUM_POWERS):
        for j in range(r + 1):
            at_half = (2.0 ** (1 - 2 * j) - 1) * _BERNOULLI[j]
            table[r, j] = math.comb(2 * r + 1, 2 * j) * at_half / (2 * r + 1)
    return table


_SUM_POWERS = 4
_BERNOULLI = (1, 1 / 6, -1 / 30, 1 / 42)
_SUM_MEANS = _mean_coefficients()
_SUM_WEIGHTS = np.linalg.inv(np.vander(_PANEL_NODES, increasing=True).T)[:, ::2]


# ---- masses of bumps


@dataclass(frozen=True)
class Bump:
    """A symmetric density on [−1, 1], given by the distance s to the nearer end: M·sᵖ·r(s) for s ≤ 1.

    Args:
        power: p.
        rest: r, a polynomial.
        norm: M.
        nodes: the number of Gauss–Legendre nodes that integrate sᵖ·r(s) exactly.
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
        """log ∫ M·sᵖ·r(s) ds from `start` to start + length ≤ 1; −∞ if length ≤ 0."""
        # The gradient of smaller lengths would overflow.
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
    near, far, other, near_side, other_side, width = _bump_interval(low, high, centre, h)
    alive = width > 0
    central = alive & (far > 1)
    wide = central & (width >= 1)
    zero = torch.zeros_like(width)

    def piece(outside: Tensor, inside: Tensor, otherwise: tuple[Tensor, Tensor]) -> Tensor:
        start = torch.where(wide, zero, torch.where(central, 1 - inside, otherwise[0]))
        length = torch.where(wide, outside, torch.where(central, inside, otherwise[1]))
        return bump.log_integral(start, length)

    first = piece(near, near_side, (near, torch.where(alive, width, zero)))
    second = piece(other, other_side, (zero, zero))
    both = torch.where(central, first.exp() + second.exp(), 0.5)
    # Outside of a wide interval the mass may underflow: its logarithm would have an infinite gradient.
    outside, inside = torch.where(wide, both, zero), torch.where(wide, 0.5, both)
    around = torch.where(wide, torch.log1p(-outside), inside.log())
    return torch.where(central, around, first)


def _bump_interval(low: Tensor, high: Tensor, centre: Tensor, h: Tensor) -> tuple[Tensor, ...]:
    """An interval in units of h, seen from the end of the bump that is nearer to it.

    Returns:
        near, far: distances of the interval's ends to the bump's nearer end.
        other: the distance of the interval's far end to the bump's other end. `near` and `other` are 0 beyond
            an end.
        near_side, other_side: how far the interval reaches from the centre to both sides.
        width: the width of the interval within the bump; not positive if they do not meet.
    """
    low, left, right_far, below = _seen_from(low, centre, h)
    high, left_far, right, above = _seen_from(high, centre, h)
    below = -below
    flip = left < right
    near, other = torch.where(flip, left, right), torch.where(flip, right, left)
    far = torch.where(flip, left_far, right_far)
    cut = torch.where(other > 0, far, 2.0) - near.clamp_min(0)
    # The difference of the ends has every digit of the width of a narrow interval.
    width = torch.where(near > 0, (high - low) / h, cut)
    sides = torch.where(flip, below, above), torch.where(flip, above, below)
    return near.clamp_min(0), far, other.clamp_min(0), *sides, width


def _seen_from(end: Tensor, centre: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """An end of an interval, its distances to the bump's left and right end, and its position, in units of h.

    Ends farther than 2h from the centre are moved there and have no gradient.
    """
    gap = end - centre
    outside = ~(gap.abs() < 2 * h)
    side = 2 * gap.detach().sign()
    end = torch.where(outside, centre.detach(), end)
    left = torch.where(outside, 1 + side, _sum3(end, -centre, h) / h)
    right = torch.where(outside, 1 - side, _sum3(-end, centre, h) / h)
    return end, left, right, torch.where(outside, side, (end - centre) / h)


def _sum3(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a + b + c with the rounding errors of both sums added back: exact if they cancel."""
    first = a + b
    second = first + c
    return second + (_lost(a, b, first) + _lost(first, c, second))


def _lost(a: Tensor, b: Tensor, total: Tensor) -> Tensor:
    """The rounding error of a + b (Knuth)."""
    rounded = total - a
    return (a - (total - rounded)) + (b - rounded)
