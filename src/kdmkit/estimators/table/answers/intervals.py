"""Intervals that hold a stated probability, also where single values have probabilities of their own."""

from __future__ import annotations

from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

# Masses that differ by less are equal.
_TIE = 1e-6


class Ordered(Protocol):
    """A distribution of ordered events: a mixture over the real line, or levels."""

    @property
    def has_atoms(self) -> bool:
        """Whether single events have a probability."""

    @property
    def only_atoms(self) -> bool:
        """Whether all have."""

    def cdf(self, x: Tensor) -> Tensor:
        """P(event ≤ x)."""

    def quantile(self, q: Tensor) -> Tensor:
        """The first event with P(event ≤ x) ≥ q."""

    def beside(self, x: Tensor, up: bool) -> Tensor:
        """The next event after x, or before it."""


class LevelSteps:
    """Ordered levels as `Ordered`: events are their codes.

    Args:
        probs: of the levels.
    """

    has_atoms = only_atoms = True

    def __init__(self, probs: Float[Tensor, "*batch n"]) -> None:
        self._reached = probs.cumsum(-1)

    def cdf(self, x: Int[Tensor, "k *batch"]) -> Float[Tensor, "k *batch"]:
        reached = self._reached.expand(*x.shape, -1)
        found = reached.gather(-1, x.clamp(0, reached.shape[-1] - 1).unsqueeze(-1)).squeeze(-1)
        return torch.where(x < 0, 0.0, found)

    def quantile(self, q: Float[Tensor, "k *own"]) -> Int[Tensor, "k *batch"]:
        last = self._reached.shape[-1] - 1
        return (self._reached < q.unsqueeze(-1)).sum(-1).clamp_max(last)

    def beside(self, x: Tensor, up: bool) -> Tensor:
        return x + (1 if up else -1)


def nearest_interval(rho: Ordered, coverage: float, central: Tensor) -> Tensor:
    """Ends `(2, *batch)` of the interval, near the central one, whose mass is nearest to the coverage.

    The central interval is to leave (1 − coverage)/2 on either side. It leaves less where an end is an event
    with a probability of its own. Then the other end moves inwards, until the mass is the coverage; where
    that end is such an event too, it stays or is left out, whichever is nearer.

    Args:
        central: the quantiles of (1 ∓ coverage)/2, `(2, *batch)`.
    """
    if not rho.has_atoms:
        return central
    low, high = central
    below, reached = rho.cdf(torch.stack([rho.beside(low, up=False), high])).double()
    upper, lower = rho.quantile(torch.stack([below + coverage, reached - coverage]))
    candidates = [(low, upper), (lower, high)]
    if rho.only_atoms:
        candidates += [(low, rho.beside(upper, up=False)), (rho.beside(lower, up=True), high)]
    lows, highs = (torch.stack(ends) for ends in zip(*candidates, strict=True))
    before, upto = rho.cdf(torch.cat([rho.beside(lows, up=False), highs])).double().chunk(2)
    off = torch.where(lows <= highs, (upto - before - coverage).abs(), torch.inf)
    # Of two that are equally near, the first, which holds the coverage.
    first = _TIE * torch.arange(len(off), dtype=off.dtype, device=off.device)
    best = (off + first.reshape(-1, *[1] * (off.ndim - 1))).argmin(0, keepdim=True)
    return torch.cat([lows.gather(0, best), highs.gather(0, best)])
