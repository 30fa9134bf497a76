"""Samples of numbers: their quantiles, frequent values and resolution."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import as_tensor, bad_argument, check_count, check_finite, check_number

# The default number of knots: every segment holds at least this many values, so that slopes are not noise.
_VALUES_PER_KNOT = 50
_MOST_KNOTS = 128
_FEWEST_KNOTS = 8
# One of this many knots lies in each tail.
_KNOTS_PER_TAIL_KNOT = 16


def normal_knots(values: Any, n_knots: int | None) -> tuple[Float[Tensor, " k"], Float[Tensor, " k"]]:
    """The knots of `QuantileNormal.from_data`: quantiles of the finite values, and those of a normal."""
    flat = as_tensor("values", values, wide=True).detach().double().flatten()
    flat = flat[~flat.isnan()]
    check_finite("values", flat)
    distinct, counts = flat.unique(return_counts=True)
    if len(distinct) < 2:
        got = f"{len(distinct)} distinct value(s)"
        raise ValueError(bad_argument("values", "at least two distinct numbers", got))
    if n_knots is None:
        n_knots = min(_MOST_KNOTS, max(_FEWEST_KNOTS, len(flat) // _VALUES_PER_KNOT))
    n_knots = check_count("n_knots", n_knots, least=2)
    ends = torch.stack([0.5 * counts[0], len(flat) - 0.5 * counts[-1]])
    rank = torch.cat([ends[:1], counts.cumsum(0)[:-1], ends[1:]]).double() / len(flat)
    places = torch.cat([distinct[:1], torch.lerp(distinct[:-1], distinct[1:], 0.5), distinct[-1:]])
    wanted = _spread_ranks(float(rank[0]), float(rank[-1]), n_knots)
    even = torch.searchsorted(rank, wanted.clamp_max(float(rank[-1])))
    frequent = (rank.diff() >= 1 / n_knots).nonzero().flatten()
    chosen = _apart(places, torch.cat([even, frequent, frequent + 1]).unique())
    return places[chosen], torch.special.ndtri(rank[chosen])


def _spread_ranks(first: float, last: float, n: int) -> Float[Tensor, " n"]:
    """n ranks at equal distances, of which some are moved to the tails: a tail has more than one segment."""
    in_tail = n // _KNOTS_PER_TAIL_KNOT
    even = torch.linspace(first, last, n - 2 * in_tail, dtype=torch.float64)
    share = torch.linspace(0, 1, in_tail + 2, dtype=torch.float64)[1:-1]
    score = torch.special.ndtri(even)
    low, high = [torch.lerp(score[i], score[i + 1], share) for i in (0, -2)]
    return torch.cat([even, torch.special.ndtr(low), torch.special.ndtr(high)])


def _apart(values: Tensor, chosen: Tensor) -> Tensor:
    """The chosen indices; of values that differ by rounding only, the first."""
    least = 1e-9 * float(values[-1] - values[0])
    kept: list[int] = []
    for i in chosen.tolist():
        if not kept or float(values[i] - values[kept[-1]]) > least:
            kept.append(i)
    return torch.tensor(kept)


class Resolution(NamedTuple):
    """Numbers are origin + k·step.

    Args:
        step: the distance between neighbouring numbers.
        origin: one of the numbers.

    >>> Resolution(0.5, 0.0)
    Resolution(step=0.5, origin=0.0)
    """

    step: float
    origin: float


def find_atoms(values: Any, share: float = 0.01, *, most: int = 100) -> Float[Tensor, " a"]:
    """The finite numbers that make up at least a share of the values, ascending; NaN last, if it is one.

    Args:
        values: numbers in any shape, of which some may be NaN.
        share: the least share of an atom, in (0, 1].
        most: the largest number of atoms: the most frequent ones.

    Returns:
        The atoms in float64, `(a,)`; empty if no number is frequent.

    >>> find_atoms([0.0, 0.0, 1.5, 2.5, torch.nan, torch.nan], share=0.3)
    tensor([0., nan], dtype=torch.float64)
    """
    share = check_number("share", share, "0 < share ≤ 1", positive=True, below=1, most=1)
    most = check_count("most", most)
    flat = as_tensor("values", values, wide=True).detach().double().flatten()
    missing = flat.isnan()
    distinct, counts = flat[flat.isfinite()].unique(return_counts=True)
    least = share * len(flat)
    order = counts.argsort(descending=True, stable=True)[:most]
    frequent = distinct[order[counts[order] >= least]].sort().values
    nan = flat.new_full((1,), math.nan) if missing.sum() >= max(least, 1) else flat[:0]
    return torch.cat([frequent, nan])
