"""What columns tell about each other: mutual information by leave-one-out prediction.

A table of counts holds the noise of its rows: two independent columns of many levels have a large mutual
information in it. So every row is predicted by the others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kdmkit._core.checks import is_integer
from kdmkit._core.tensors import effective_rows
from kdmkit.nn.layer import Variable

# Bins of numbers: few, which show weak dependences, and more, one for every 5 rows of a pair of bins.
_FEW_BINS, _MOST_BINS, _ROWS_PER_PAIR = 5, 16, 5
# Quantiles are taken from about this many values.
_SAMPLE = 10_000
# Rows × pairs of columns that are looked at, and the least number of rows.
_WORK, _FEWEST_ROWS = 1.5e8, 1000
# Counts of at most this many pairs of levels are a table; those of more are sorted.
_TABLE = 1 << 22
# α = first · 4^k, up to a few times the number of rows.
_FIRST, _FACTOR = 0.5, 4.0
# Independent columns reach n·I ≥ log(pairs) + 4 in one of twenty tables at most.
_MARGIN = 4.0
# Two-sided intervals of 90 %.
_ERRORS = 1.645


class PairInformation(NamedTuple):
    """What columns tell about each other, in nats per row: `(v, v)` each.

    Attributes:
        estimate: mutual information by leave-one-out prediction, 0 or more.
        error: its standard error.
        floor: what independent columns reach in one of twenty tables at most; ∞ if no row has both columns.
    """

    estimate: Float[Tensor, "v v"]
    error: Float[Tensor, "v v"]
    floor: Float[Tensor, "v v"]

    @property
    def value(self) -> Float[Tensor, "v v"]:
        """The estimate; 0 if independent columns could have reached it."""
        return torch.where(self.estimate > self.floor, self.estimate, 0.0)

    @property
    def interval(self) -> tuple[Float[Tensor, "v v"], Float[Tensor, "v v"]]:
        """The ends of 90 % intervals. The upper end at a value of 0 is what the rows cannot rule out."""
        low = (self.value - _ERRORS * self.error).clamp_min(0.0)
        return low, torch.where(self.value > 0, self.value + _ERRORS * self.error, self.floor)

    def of_groups(self, groups: Sequence[Sequence[int]]) -> PairInformation:
        """The largest information between members of two groups of columns, such as the parts of dates."""
        result, stacked = torch.zeros(3, len(groups), len(groups)), torch.stack(self)
        for i, first in enumerate(groups):
            for j, second in enumerate(groups[:i]):
                block = stacked[:, first][:, :, second].flatten(1)
                if block.numel():
                    result[:, i, j] = result[:, j, i] = block[:, block[0].argmax()]
        return PairInformation(*result)


def pair_information(
    variables: Sequence[Variable],
    data: Mapping[str, Tensor],
    observed: Mapping[str, Bool[Tensor, " n"]],
    weights: Float[Tensor, " n"] | None = None,
) -> PairInformation:
    """The information of all pairs of columns, each pair by the rows that have both.

    A level y of one column is predicted by the level x of the other: from the other rows, with shrunken
    frequencies, p(y | x) = (n_xy − 1 + α·q_y)/(n_x − 1 + α), q_y being the share of y. The information is the
    mean of log(p(y | x)/q_y) over the rows with the best α, in the better direction. For independent columns
    it is below 0 on average, however many levels they have; a rare level counts as far as it predicts.
    Numbers are put into few bins and into more; the larger information counts. Wide tables are judged by a
    sample of the rows.

    Args:
        variables: the columns.
        data: by variable, `(n, *event)`, or labels `(n,)`.
        observed: by variable, False if the value is missing; a variable without a mask has all values.
        weights: of the rows; n is then the effective number of rows, (Σw)²/Σw².
    """
    n, v = len(next(iter(data.values()))), len(variables)
    rows = _some_rows(n, v)
    masks = {name: mask.cpu()[rows] for name, mask in observed.items()}
    columns = [(variable, data[variable.name].cpu()[rows]) for variable in variables]
    weights = None if weights is None else _scaled(weights.cpu()[rows].double())
    best = torch.zeros(3, v, v, dtype=torch.float64)
    bins = max(_FEW_BINS, min(_MOST_BINS, math.isqrt(len(rows) // _ROWS_PER_PAIR)))
    for most in dict.fromkeys((_FEW_BINS, bins)):
        views = [
            (i, codes)
            for i, (variable, value) in enumerate(columns)
            for codes in _codings(variable, value, masks.get(variable.name), most)
        ]
        _keep_best(best, [i for i, _ in views], leave_one_out([codes for _, codes in views], weights))
    best.diagonal(dim1=1, dim2=2).zero_()
    estimate, error, seen = best
    floor = (math.log(max(1.0, v * (v - 1) / 2)) + _MARGIN) / seen
    return PairInformation(estimate, error, floor)


def _some_rows(n: int, v: int) -> Int[Tensor, " m"]:
    most = max(_FEWEST_ROWS, int(_WORK / max(1, v * (v - 1) // 2)))
    if n <= most:
        return torch.arange(n)
    return torch.randperm(n, generator=torch.Generator().manual_seed(0))[:most].sort().values


def _scaled(weights: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Weights whose sum is the effective number of rows."""
    return weights * (effective_rows(weights) / float(weights.sum()))


def _keep_best(best: Float[Tensor, "3 v v"], owners: list[int], information: Float[Tensor, "3 m m"]) -> None:
    """Puts value, error and rows of views at the place of their columns where the value is larger."""
    information = information + information.mT
    first = [i for i, owner in enumerate(owners) if i == 0 or owners[i - 1] != owner]
    second = sorted(set(range(len(owners))) - set(first))
    for a, b in itertools.product((first, second), repeat=2):
        rows, columns = (torch.tensor([owners[i] for i in views], dtype=torch.long) for views in (a, b))
        here = best[:, rows][:, :, columns]
        there = information[:, a][:, :, b]
        is_better = (there[0] > here[0]) | (here[2] == 0)
        best[:, rows.unsqueeze(-1), columns] = torch.where(is_better, there, here)


# ---- codes


def _codings(
    variable: Variable, value: Tensor, observed: Bool[Tensor, " n"] | None, most: int
) -> list[Int[Tensor, " n"]]:
    """The column as codes, −1 if missing: bins of numbers; levels, and ranges of them if they are many."""
    if not variable.kernel.discrete:
        return [
            quantile_bins(main_direction(value.double().reshape(len(value), -1), observed), observed, most)
        ]
    codes = value.long() if is_integer(value) else value.abs().flatten(1).argmax(-1)
    if observed is not None:
        codes = torch.where(observed, codes, -1)
    if not len(codes) or int(codes.max()) < 2 * most:
        return [codes]
    # Codes of ordered values are in their order.
    return [codes, quantile_bins(codes.double(), observed, most)]


def bin_codes(variable: Variable, value: Tensor, observed: Bool[Tensor, " n"] | None) -> Int[Tensor, " n"]:
    """The bin of every value, −1 if it is missing.

    Numbers go into bins between their quantiles; frequent values have bins of their own. Codes of a
    discrete kernel are bins themselves, rare ones share one. Events of several dimensions are binned along
    the direction of their largest variance. Observed NaN, which is a state, has a separate bin.
    """
    if variable.kernel.discrete:
        codes = value.long() if is_integer(value) else value.abs().flatten(1).argmax(-1)
        return _pooled(codes, observed)
    return quantile_bins(
        main_direction(value.double().reshape(len(value), -1), observed), observed, _MOST_BINS
    )


def _pooled(codes: Int[Tensor, " n"], observed: Bool[Tensor, " n"] | None) -> Int[Tensor, " n"]:
    """The most frequent codes in the order of their frequency, all others together."""
    seen = codes if observed is None else codes[observed]
    if not len(seen):
        return torch.full_like(codes, -1)
    levels, counts = seen.unique(return_counts=True)
    kept = levels[counts.argsort(descending=True, stable=True)[: _MOST_BINS - 1]]
    place = torch.full((int(levels.max()) + 1,), len(kept))
    place[kept] = torch.arange(len(kept))
    binned = place[codes.clamp(0, len(place) - 1)]
    return binned if observed is None else torch.where(observed, binned, -1)


def main_direction(value: Tensor, observed: Bool[Tensor, " n"] | None) -> Float[Tensor, " n"]:
    """Events `(n, *event)` along the direction of their largest variance."""
    x = value.double().reshape(len(value), -1)
    if x.shape[1] == 1:
        return x[:, 0]
    seen = x if observed is None else x[observed]
    seen = seen[seen.isfinite().all(1)]
    if len(seen) < 2:
        return x[:, 0]
    seen = (seen - seen.mean(0)) / seen.std(0).clamp_min(torch.finfo(x.dtype).tiny)
    return x @ torch.linalg.eigh(seen.mT @ seen).eigenvectors[:, -1]


def quantile_bins(
    x: Float[Tensor, " n"], observed: Bool[Tensor, " n"] | None, most: int
) -> Int[Tensor, " n"]:
    """Codes of bins between quantiles, at most twice as many as `most`. Observed NaN has its own bin.

    A value that more than 1/most of the rows have has its own bin, and the quantiles are those of the other
    values: few numbers beside many zeros still make bins, of about n/most² rows at least.
    """
    seen = x[x.isfinite() if observed is None else x.isfinite() & observed]
    some = seen[:: max(1, len(seen) // _SAMPLE)].sort().values
    values, counts = some.unique_consecutive(return_counts=True)
    frequent = values[counts * most > len(some)]
    rest = some[~torch.isin(some, frequent)]
    n_bins = min(max(1, most - len(frequent)), len(rest) * most**2 // max(1, len(some)))
    cuts = rest[torch.arange(n_bins)[1:] * len(rest) // max(1, n_bins)]
    behind = torch.nextafter(frequent, torch.full_like(frequent, torch.inf))
    edges = torch.cat([frequent, behind, cuts]).unique()
    codes = torch.searchsorted(edges, x.contiguous(), right=True)
    codes = torch.where(x.isnan(), len(edges) + 1, codes)
    return codes if observed is None else torch.where(observed, codes, -1)


# ---- leave one out


class _Cells(NamedTuple):
    """Pairs of levels that occur: x of one column with y of an earlier one, the `v`-th."""

    rows: Float[Tensor, " c"]
    x: Int[Tensor, " c"]
    y: Int[Tensor, " c"]
    v: Int[Tensor, " c"]


def leave_one_out(
    codes: Sequence[Int[Tensor, " n"]], weights: Float[Tensor, " n"] | None = None
) -> Float[Tensor, "3 m m"]:
    """Information by leave-one-out prediction, its standard error, and the rows that have both columns.

    Only the lower triangle is filled.

    Args:
        codes: by column, numbers of levels, −1 if the value is missing.
        weights: of the rows, with the effective number of rows as their sum.
    """
    m = len(codes)
    result = torch.zeros(3, m, m, dtype=torch.float64)
    if not m or not len(codes[0]):
        return result
    sizes = [int(column.max()) + 1 for column in codes]
    # Every column has one more level, of missing values.
    starts = torch.tensor([0, *(size + 1 for size in sizes)]).cumsum(0)
    levels = [torch.where(column < 0, size, column) for column, size in zip(codes, sizes, strict=True)]
    places = torch.stack([level + start for level, start in zip(levels, starts, strict=False)], 1)
    column_of = torch.repeat_interleave(torch.arange(m), starts.diff())
    is_missing = torch.zeros(int(starts[-1]), dtype=torch.bool)
    is_missing[starts[1:] - 1] = True
    for u in range(1, m):
        rows, x, y = _count_pairs(levels[u], sizes[u] + 1, places[:, :u], int(starts[u]), weights)
        keep = (x < sizes[u]) & ~is_missing[y]
        cells = _Cells(rows[keep], x[keep], y[keep], column_of[y[keep]])
        result[:, u, :u] = _predict(cells, sizes[u], int(starts[u]), u)
    return result


def _count_pairs(
    x: Int[Tensor, " n"],
    n_levels: int,
    places: Int[Tensor, "n u"],
    width: int,
    weights: Float[Tensor, " n"] | None,
) -> tuple[Float[Tensor, " c"], Int[Tensor, " c"], Int[Tensor, " c"]]:
    """The number of rows with a level and a place, for all pairs that occur, and both."""
    keys = (x.unsqueeze(-1) * width + places).flatten()
    each = None if weights is None else weights.unsqueeze(-1).expand(places.shape).flatten()
    if n_levels * width <= _TABLE:
        rows = torch.bincount(keys, each, minlength=n_levels * width).double()
        pairs = rows.nonzero().squeeze(-1)
        rows = rows[pairs]
    else:
        pairs, inverse = keys.unique(return_inverse=True)
        rows = torch.bincount(inverse, each, minlength=len(pairs)).double()
    return rows, pairs // width, pairs % width


def _predict(cells: _Cells, n_levels: int, width: int, u: int) -> Float[Tensor, "3 u"]:
    """The larger information of both directions, its standard error, and the number of rows, by column."""
    rows, x, y, v = cells
    total = torch.bincount(v, rows, minlength=u)
    by_x = torch.bincount(x * u + v, rows, minlength=n_levels * u)[x * u + v]
    by_y = torch.bincount(y, rows, minlength=width)[y]
    n = total[v]
    best = torch.zeros(3, u, dtype=torch.float64)
    best[2] = total
    others = (rows - 1).clamp_min(0.0)
    scale = total.clamp_min(1.0)
    for given, predicted in ((by_x, by_y), (by_y, by_x)):
        share, rest = predicted / n, (given - 1).clamp_min(0.0)
        log_share = share.log()
        alpha = _FIRST
        while alpha <= _FACTOR * float(total.max()):
            gain = (others + alpha * share).log() - (rest + alpha).log() - log_share
            mean = torch.bincount(v, rows * gain, minlength=u) / scale
            square = torch.bincount(v, rows * gain.square(), minlength=u) / scale
            error = ((square - mean.square()).clamp_min(0.0) / scale).sqrt()
            best[:2] = torch.where(mean > best[0], torch.stack([mean, error]), best[:2])
            alpha *= _FACTOR
    return best
