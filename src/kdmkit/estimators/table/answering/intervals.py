"""Intervals that hold a stated probability, also where single values have probabilities of their own."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit.distributions.quantiles import Reached

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

    def reach(self, q: Tensor) -> Reached:
        """The first event x with P(event ≤ x) ≥ q, with the probabilities below x and up to x."""

    def beside(self, x: Tensor, up: bool) -> Tensor:
        """The next event after x, or before it."""


class LevelSteps:
    """Ordered levels as `Ordered`: events are their codes.

    Args:
        probs: of the levels.
    """

    has_atoms = only_atoms = True

    def __init__(self, probs: Float[Tensor, "*batch n"]) -> None:
        self._upto = probs.cumsum(-1)

    def reach(self, q: Float[Tensor, "k *own"]) -> Reached:
        last = self._upto.shape[-1] - 1
        code = (self._upto < q.unsqueeze(-1)).sum(-1).clamp_max(last)
        every = self._upto.expand(*code.shape, last + 1)
        below, upto = (every.gather(-1, at.clamp_min(0).unsqueeze(-1)).squeeze(-1) for at in (code - 1, code))
        return Reached(code, torch.where(code > 0, below, 0.0), upto)

    def beside(self, x: Tensor, up: bool) -> Tensor:
        return x + (1 if up else -1)


class Held(NamedTuple):
    """Intervals and what they hold.

    Attributes:
        ends: `(2, *batch)`.
        mass: their probabilities, `(*batch,)`.
    """

    ends: Tensor
    mass: Float[Tensor, "*batch"]


def nearest_interval(rho: Ordered, coverage: float, central: Reached) -> Held:
    """The interval, near the central one, whose mass is nearest to the coverage.

    The central interval is to leave (1 − coverage)/2 on either side. It leaves less where an end is an event
    with a probability of its own. Then the other end moves inwards, until the mass is the coverage; where
    that end is such an event too, it stays or is left out, whichever is nearer.

    Args:
        central: the quantiles of (1 ∓ coverage)/2, `(2, *batch)`.
    """
    (low, high), below, upto = central.x, central.below[0], central.upto[1]
    if not rho.has_atoms:
        return Held(central.x, upto - below)
    inner = rho.reach(torch.stack([upto - coverage, below + coverage]))
    (lower, upper), after, before = inner.x, inner.upto[0], inner.below[1]
    ends = [(low, upper), (lower, high)]
    masses = [inner.upto[1] - below, upto - inner.below[0]]
    if rho.only_atoms:
        ends += [(low, rho.beside(upper, up=False)), (rho.beside(lower, up=True), high)]
        masses += [before - below, upto - after]
    lows, highs = (torch.stack(end) for end in zip(*ends, strict=True))
    held = torch.stack(masses)
    off = torch.where(lows <= highs, (held - coverage).abs(), torch.inf)
    # Of two that are equally near, the first, which holds the coverage.
    first = _TIE * torch.arange(len(off), dtype=off.dtype, device=off.device)
    best = (off + first.reshape(-1, *[1] * (off.ndim - 1))).argmin(0, keepdim=True)
    lows, highs, held = (part.gather(0, best) for part in (lows, highs, held))
    return Held(torch.cat([lows, highs]), held.squeeze(0))
