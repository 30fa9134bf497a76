"""Bags with random label proportions, drawn from a pool of labelled rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdmlab.common.checks import bad_argument

Array = NDArray[Any]


class DrawnBags(NamedTuple):
    """Rows of a pool in bags of one size: `rows (n_bags, size)`, and the share of positives `(n_bags,)`."""

    rows: Array
    share: Array


def draw_bags(
    y: Array, *, total: int, size: int, interval: tuple[float, float], rng: np.random.Generator
) -> DrawnBags:
    """total/size disjoint bags: per bag γ ~ U(a, b), then Binomial(size, γ) positives, in random order.

    Args:
        y: of shape `(n,)`, labels 0 and 1 of the pool.
        total: T, the number of rows in all bags together.
        size: of every bag; it divides `total`.
        interval: (a, b), within [0, 1].
        rng: source of randomness.

    >>> y = np.arange(100) % 2
    >>> bags = draw_bags(y, total=40, size=8, interval=(0, 0.5), rng=np.random.default_rng(0))
    >>> bags.rows.shape, np.array_equal(y[bags.rows].mean(1), bags.share)
    ((5, 8), True)
    """
    low, high = interval
    if not 0 <= low <= high <= 1:
        raise ValueError(bad_argument("interval", "0 ≤ a ≤ b ≤ 1", list(interval)))
    if size < 1 or total < size or total % size:
        raise ValueError(bad_argument("bag size", f"a divisor of the {total} rows to draw", size))
    positives = rng.binomial(size, rng.uniform(low, high, total // size))
    pools = {label: np.flatnonzero(y == label) for label in (0, 1)}
    counts = {0: size - positives, 1: positives}
    for label, name in enumerate(("negative", "positive")):
        needed, there = int(counts[label].sum()), len(pools[label])
        if needed > there:
            wanted = f"one that a pool with {there} {name} rows can serve"
            raise ValueError(
                bad_argument("interval", wanted, f"{list(interval)}, which needs {needed} of them")
            )
    drawn = {label: rng.permutation(pools[label])[: counts[label].sum()] for label in (0, 1)}
    ends = {label: counts[label].cumsum() for label in (0, 1)}
    bags = [
        np.concatenate([drawn[label][end[i] - counts[label][i] : end[i]] for label, end in ends.items()])
        for i in range(len(positives))
    ]
    # Shuffled: otherwise the order in a bag would reveal the labels.
    return DrawnBags(np.stack([rng.permutation(bag) for bag in bags]), positives / size)
