"""Events with a positive probability, on the real line."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kdmkit._core.checks import as_tensor, check_count, check_number


class WithAtoms(nn.Module):
    """Which events have a positive probability: none, where a kernel does not say otherwise."""

    #: Whether all of the probability belongs to such events.
    only_atoms: bool = False

    @property
    def has_atoms(self) -> bool:
        """Whether single events have a positive probability, so that the distribution function has steps."""
        return False

    def steps(self) -> Float[Tensor, " s"]:
        """Where F_j jumps beside a density or a grid, each after the event before it, in float64."""
        return torch.zeros(0, dtype=torch.float64)

    def nearest_atom(self, x: Float[Tensor, "*lead"]) -> Float[Tensor, "*lead"]:
        """The event nearest to x that has a positive probability, where the kernel has such events."""
        return x

    def beside(self, x: Float[Tensor, "*lead"], up: bool) -> Float[Tensor, "*lead"]:
        """The next event after an event x (`up`) or before it: of a density, the next number in its dtype."""
        return torch.nextafter(x, torch.full_like(x, torch.inf if up else -torch.inf))


def find_atoms(values: Any, share: float = 0.01, *, most: int = 100) -> Float[Tensor, " a"]:
    """The finite numbers that make up at least a share of the values, ascending; NaN last, if it does.

    Args:
        values: numbers in any shape, of which some may be NaN.
        share: the least share of an atom, in (0, 1].
        most: at most so many atoms, the most frequent ones.

    Returns:
        The atoms in float64, `(a,)`; empty where no number is frequent.

    >>> find_atoms([0.0, 0.0, 1.5, 2.5, torch.nan, torch.nan], share=0.3)
    tensor([0., nan], dtype=torch.float64)
    """
    share = check_number("share", share, "0 < share ≤ 1", positive=True, below=1, most=1)
    most = check_count("most", most)
    flat = as_tensor("values", values, wide=True).detach().double().flatten()
    missing = flat.isnan()
    found, counts = flat[flat.isfinite()].unique(return_counts=True)
    least = share * len(flat)
    order = counts.argsort(descending=True, stable=True)[:most]
    frequent = found[order[counts[order] >= least]].sort().values
    lost = flat.new_full((1,), math.nan) if missing.sum() >= max(least, 1) else flat[:0]
    return torch.cat([frequent, lost])
