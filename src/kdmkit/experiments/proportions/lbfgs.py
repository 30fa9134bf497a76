"""L-BFGS for many separate problems at once, one per column."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

Objective = Callable[[Tensor], tuple[Tensor, Tensor]]

_MEMORY = 10
_SUFFICIENT = 1e-4
_HALVINGS = 30


def minimize(
    objective: Objective, start: Float[Tensor, "n c"], *, steps: int = 500, tolerance: float = 1e-6
) -> Float[Tensor, "n c"]:
    """Minimises every column of its own; each has its own curvature, step length and end.

    Args:
        objective: from points `(n, c)` to values `(c,)` and gradients `(n, c)`.
        start: where to begin.
        steps: at most so many.
        tolerance: a column is done where its largest gradient falls below it.

    >>> centre = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    >>> scale = torch.tensor([1.0, 100.0], dtype=torch.float64)
    >>> minimize(lambda x: ((scale * (x - centre) ** 2).sum(0), 2 * scale * (x - centre)), 0 * centre)
    tensor([[1., 2.]], dtype=torch.float64)
    """
    x = start.clone()
    value, gradient = objective(x)
    pairs: list[tuple[Tensor, Tensor, Tensor]] = []
    for _ in range(steps):
        going = gradient.abs().amax(0) > tolerance
        if not bool(going.any()):
            break
        direction = _direction(gradient, pairs)
        uphill = _dot(direction, gradient) >= 0
        direction = torch.where(uphill, -gradient, direction) * going
        if not pairs:
            direction = direction / gradient.norm(dim=0).clamp_min(1.0)
        moved, new_value, new_gradient, found = _search(objective, x, direction, value, gradient)
        if not bool((found & going).any()):
            break
        pairs = [*pairs, _pair(moved - x, new_gradient - gradient)][-_MEMORY:]
        x, value, gradient = moved, new_value, new_gradient
    return x


def _dot(a: Tensor, b: Tensor) -> Float[Tensor, " c"]:
    return (a * b).sum(0)


def _pair(s: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A step, the change of gradient along it, and 1/s·y; 0 where the curvature was not positive."""
    curvature = _dot(s, y)
    useful = curvature > 1e-10 * s.norm(dim=0) * y.norm(dim=0)
    return s, y, torch.where(useful, 1 / curvature, 0.0)


def _direction(gradient: Tensor, pairs: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """The two-loop recursion; pairs whose weight is 0 leave everything as it is."""
    q = gradient.clone()
    steps = []
    for s, y, rho in reversed(pairs):
        alpha = rho * _dot(s, q)
        q = q - alpha * y
        steps.append(alpha)
    q = q * _scale(gradient, pairs)
    for (s, y, rho), alpha in zip(pairs, reversed(steps), strict=True):
        q = q + (alpha - rho * _dot(y, q)) * s
    return -q


def _scale(gradient: Tensor, pairs: list[tuple[Tensor, Tensor, Tensor]]) -> Float[Tensor, " c"]:
    """s·y/y·y of every column's last useful pair."""
    scale = torch.ones_like(gradient[0])
    for s, y, rho in pairs:
        scale = torch.where(rho > 0, _dot(s, y) / _dot(y, y).clamp_min(1e-300), scale)
    return scale


def _search(
    objective: Objective, x: Tensor, direction: Tensor, value: Tensor, gradient: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Halves a column's step until it falls enough; where it never does the column stays."""
    slope = _dot(direction, gradient)
    length = torch.ones_like(value)
    for _ in range(_HALVINGS):
        moved = x + length * direction
        new_value, new_gradient = objective(moved)
        found = torch.isfinite(new_value) & (new_value <= value + _SUFFICIENT * length * slope)
        if bool(found.all()):
            break
        length = torch.where(found, length, length / 2)
    keep = ~found
    return (
        torch.where(keep, x, moved),
        torch.where(keep, value, new_value),
        torch.where(keep, gradient, new_gradient),
        found,
    )
