"""Bags of rows, and the proportions of their labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit._core.logspace import log_normalize, safe_log, safe_logsumexp

# Proportions are often written with three digits.
_SUM_TOLERANCE = 1e-3
_EM_STEPS = 5


def check_bags(bags: Any, n: int, n_bags: int | None = None) -> Int[Tensor, " n"]:
    """Ids 0 … n_bags − 1, one per row; every bag has a row. Without `n_bags` the largest id gives it."""
    array = np.asarray(bags)
    if array.shape != (n,) or not np.issubdtype(array.dtype, np.integer):
        got = f"{array.dtype} of shape {array.shape}"
        raise ValueError(bad_argument("bags", f"{n} integer ids, one per row", got))
    wanted = "ids of bags that all have a row" if n_bags is None else "ids with proportions"
    n_bags = min(n, int(array.max()) + 1) if n_bags is None else n_bags
    outside = array[(array < 0) | (array >= n_bags)]
    if len(outside):
        raise ValueError(bad_argument("bags", f"{wanted}, 0 … {n_bags - 1}", outside[0]))
    empty = np.flatnonzero(np.bincount(array, minlength=n_bags) == 0)
    if len(empty):
        raise ValueError(bad_argument("bags", "at least one row in every bag", f"none in bag {empty[0]}"))
    return torch.from_numpy(array.astype(np.int64))


@dataclass(frozen=True)
class LabelProportions:
    """The label proportions of bags: exact ones, ranges, or those of a poll of some rows.

    Args:
        mean: the likeliest proportions.
        low, high: bounds on every proportion.
        counted: the number of labels that `mean` was counted from: the prior is Dirichlet(counted · mean);
            zero if there are only bounds.
        exact: whether `mean` is exact.
    """

    mean: Float[Tensor, "n_bags n_classes"]
    low: Float[Tensor, "n_bags n_classes"]
    high: Float[Tensor, "n_bags n_classes"]
    counted: Float[Tensor, " n_bags"]
    exact: bool

    def __len__(self) -> int:
        return len(self.mean)

    @property
    def n_classes(self) -> int:
        return self.mean.shape[1]


def check_label_proportions(proportions: Any, counted: Any = None) -> LabelProportions:
    """Proportions `(n_bags, n_classes)`, or ranges of them `(n_bags, n_classes, 2)`, as users give them."""
    values = torch.from_numpy(np.array(proportions, dtype=np.float64))
    if values.ndim == 3:
        if counted is not None:
            raise ValueError(bad_argument("counted", "None beside ranges of proportions", "numbers"))
        return _ranges(values)
    mean = check_proportions(values)
    if counted is None:
        return LabelProportions(mean, mean, mean, torch.zeros(len(mean), dtype=mean.dtype), exact=True)
    return LabelProportions(
        mean, 0 * mean, torch.ones_like(mean), _check_counted(counted, len(mean)), exact=False
    )


def check_proportions(values: Tensor) -> Float[Tensor, "n_bags n_classes"]:
    """Rows that sum to 1 up to rounding, made to sum to 1."""
    if values.ndim != 2 or values.shape[0] < 1 or values.shape[1] < 2:
        wanted = "shape (n_bags, n_classes ≥ 2), or (n_bags, n_classes, 2) for ranges"
        raise ValueError(bad_argument("proportions", wanted, tuple(values.shape)))
    wanted = "non-negative rows that sum to 1"
    wrong = ~torch.isfinite(values) | (values < 0)
    if bool(wrong.any()):
        raise ValueError(bad_argument("proportions", wanted, f"a value of {values[wrong][0].item():g}"))
    total = values.sum(1)
    off = (total - 1).abs()
    if bool((off > _SUM_TOLERANCE).any()):
        worst = int(off.argmax())
        raise ValueError(
            bad_argument("proportions", wanted, f"a sum of {total[worst].item():.7g} in row {worst}")
        )
    return values / total.unsqueeze(1)


def _ranges(values: Float[Tensor, "n_bags n_classes 2"]) -> LabelProportions:
    if values.shape[0] < 1 or values.shape[1] < 2 or values.shape[2] != 2:
        raise ValueError(
            bad_argument("proportions", "ranges of shape (n_bags, n_classes ≥ 2, 2)", tuple(values.shape))
        )
    low, high = values.unbind(-1)
    right = ((low >= 0) & (low <= high) & (high <= 1)).all(1)
    _check_bags(right, "0 ≤ low ≤ high ≤ 1", lambda bag: str(values[bag].tolist()))
    below, above = low.sum(1), high.sum(1)
    right = (below <= 1 + _SUM_TOLERANCE) & (above >= 1 - _SUM_TOLERANCE)
    _check_bags(right, "room for a sum of 1", lambda bag: f"sums from {below[bag]:g} to {above[bag]:g}")
    mean = fit_log_proportions(safe_log(low + high), low, high).exp()
    return LabelProportions(mean, low, high, torch.zeros(len(mean), dtype=mean.dtype), exact=False)


def _check_bags(right: Tensor, wanted: str, got: Callable[[int], str]) -> None:
    """Raises if the ranges of a bag are not right."""
    if not bool(right.all()):
        bag = int((~right).int().argmax())
        raise ValueError(bad_argument("proportions", f"ranges with {wanted}", f"{got(bag)} in row {bag}"))


def _check_counted(counted: Any, n_bags: int) -> Float[Tensor, " n_bags"]:
    numbers = np.asarray(counted, dtype=np.float64)
    if numbers.shape not in ((), (n_bags,)):
        raise ValueError(
            bad_argument("counted", f"a number, or one for each of {n_bags} bags", numbers.shape)
        )
    if not (np.isfinite(numbers) & (numbers > 0)).all():
        worst = numbers[~(np.isfinite(numbers) & (numbers > 0))].flat[0]
        raise ValueError(bad_argument("counted", "finite numbers > 0", f"{worst:g}"))
    return torch.from_numpy(np.broadcast_to(numbers, (n_bags,)).copy())


def fit_log_proportions(
    log_counts: Float[Tensor, "b c"], low: Float[Tensor, "b c"], high: Float[Tensor, "b c"]
) -> Float[Tensor, "b c"]:
    """log γ of the γ with low ≤ γ ≤ high and Σγ = 1 that maximises Σ_y counts_y log γ_y.

    It is γ = clip(t·counts, low, high). The sum of γ is piecewise linear in t.

    >>> one, half = torch.ones(1, 3), torch.tensor([[0.5, 1.0, 1.0]])
    >>> fit_log_proportions(torch.tensor([[8.0, 1.0, 1.0]]).log(), 0 * one, half).exp()
    tensor([[0.5000, 0.2500, 0.2500]])
    """
    low, high = safe_log(low), safe_log(high)
    # log t at which a label reaches a bound. A label without a count, or a bound of 0, has no such place.
    bends = torch.cat([low - log_counts, high - log_counts], 1)
    bends = torch.where(bends.isfinite(), bends, 0.0).sort(1).values
    bends = torch.cat([bends[:, :1] - 1, bends, bends[:, -1:] + 1], 1)
    log_sums = (log_counts.unsqueeze(1) + bends.unsqueeze(2)).clamp(low.unsqueeze(1), high.unsqueeze(1))
    piece = ((log_sums.logsumexp(2) <= 0).sum(1, keepdim=True) - 1).clamp(0, bends.shape[1] - 2)
    start, end = bends.gather(1, piece), bends.gather(1, piece + 1)
    inside = (start + end) / 2
    free = (log_counts + inside > low) & (log_counts + inside < high)
    bound = (log_counts + inside).clamp(low, high).masked_fill(free, -torch.inf)
    log_room = safe_log(1 - bound.exp().sum(1, keepdim=True))
    log_t = log_room - log_counts.masked_fill(~free, -torch.inf).logsumexp(1, keepdim=True)
    # Rounding of the room must not lead out of the piece, whose first one has no start.
    log_t = log_t.clamp(start.masked_fill(piece == 0, -torch.inf), end)
    # If the bounds leave no choice, no label is free.
    log_t = torch.where(free.any(1, keepdim=True), log_t, inside)
    return log_normalize((log_counts + log_t).clamp(low, high))


@torch.no_grad()
def log_posterior_proportions(
    log_ratio: Float[Tensor, "b l c"],
    weights: Float[Tensor, "b l"],
    mean: Float[Tensor, "b c"],
    low: Float[Tensor, "b c"],
    high: Float[Tensor, "b c"],
    counted: Float[Tensor, " b"],
) -> Float[Tensor, "b c"]:
    """log γ of the γ that maximise Σ_j log Σ_y γ_y r_jy + Σ_y counted·mean_y log γ_y within bounds.

    A few steps of expectation-maximisation from `mean`.

    Args:
        log_ratio: log r_jy = log p(y|x_j) − log p(y).
        weights: 1/size for the rows of a bag, 0 for padding.
    """
    # A row of a bag counts 1, padding 0.
    log_rows = safe_log(weights / weights.amax(1, keepdim=True)).unsqueeze(-1)
    log_prior = safe_log(counted.unsqueeze(1) * mean)
    log_gamma = safe_log(mean)
    for _ in range(_EM_STEPS):
        log_posterior = log_normalize(log_gamma.unsqueeze(1) + log_ratio)
        log_counts = safe_logsumexp((log_rows + log_posterior).mT)
        log_gamma = fit_log_proportions(torch.logaddexp(log_counts, log_prior), low, high)
    return log_gamma
