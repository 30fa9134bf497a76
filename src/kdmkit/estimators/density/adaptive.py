"""Automatic bandwidths of a density: one per row and dimension, chosen by leave-one-out likelihood."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor
from tqdm import tqdm

from kdmkit._core.logspace import exp_
from kdmkit._core.tensors import effective_rows, exact_distances
from kdmkit.kernels import RBF
from kdmkit.nn import DensityLayer, Scaler
from kdmkit.nn.layer import LayerOptions
from kdmkit.ops import score_matrix

# In more dimensions than this, bandwidths exceed the steps of rounded columns, and are not mixed.
_FEW_DIMENSIONS = 4
# Subsample sizes, in few dimensions and in many: rows left out, rows of the density, candidate neighbours.
_SIZES = (512, 4096, 2048), (256, 2048, 1024)
# The largest number of pairs of rows and candidate neighbours, and rows per block of them.
PAIRS, _BLOCK = 1 << 27, 512
# If the density has this many times the rows that are left out, all of them are left out at once.
_ENOUGH = 4
# Exponents of the distance to neighbours in the bandwidth.
EXPONENTS = (0.0, 0.5, 1.0)
# Steps and range of log2(bandwidth).
_STEPS, _WIDEST, _NARROWEST = (1.0, 0.5), 2.0, -20.0
# Factors of the bandwidth to mix, the least gain of the mixture (nats per dimension), a factor's least share.
_SCALES, _LEAST_GAIN, _LEAST_SHARE = (0.5, 1.0, 2.0, 4.0), 0.02, 0.01
# Outliers are farther than this from most values, in units of the range of these.
_REACH = 10.0
# Rows that calibrate p-values, at most and at least, their scores, and scores that are computed at once.
_CALIBRATION, _LEAST_CALIBRATION, _SCORES, _SCORES_AT_ONCE = 512, 64, 1 << 23, 1 << 18
# Rows with a smaller log-overlap are no component's centre.
_NEAR = -1e-3
# A lower bound on a row's log-likelihood per dimension: a row far from all others must not decide alone.
LEAST = -1e3
# Rows nearer to each other than this, in standard deviations, count as repetitions of one row.
SAME = 1e-6


def automatic_density(
    x: Float[Tensor, "n d"],
    w: Float[Tensor, " n"],
    *,
    unit: Float[Tensor, " d"] | None = None,
    sizes: tuple[int, int, int] | None = None,
    verbose: bool = False,
) -> DensityLayer:
    """p(x) = Σ_j p_j·Σ_k a_k·N(x; x_j, diag(s_jk²)) with s_jki = max(h·f_k·r_j^b·s_i, g_i/2).

    s_i is the standard deviation of column i, r_j the distance of row j to its neighbours relative to that
    of other rows (heavy tails: components are wide where rows are far apart), and g_i the step between the
    values of a rounded column. Leave-one-out likelihood chooses h, the exponent b and the shares a_k of the
    factors f_k.

    Args:
        x, w: distinct rows and their weights.
        unit: s_i in place of the standard deviations.
        sizes: the largest numbers of rows left out, rows of the density and candidate neighbours; None
            decides by the number of columns.
        verbose: whether to show progress.
    """
    share, d = w / w.sum(), x.shape[1]
    q, most, neighbours = sizes or _SIZES[d > _FEW_DIMENSIONS]
    sample = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:most]
    scaler = scaler_without_outliers(x, w, sample)
    if unit is not None:
        scaler = Scaler(scaler.shift, unit)
    if len(x) < 2:
        return layer_of_rows(x, w, math.sqrt(2) * scaler.scale)
    z = scaler(x)
    floor = torch.stack([rounding_step(column, share) for column in z.mT]) / 2
    relative = neighbour_distance(z, share, sample, neighbours)
    chosen = Choice(z[sample], share[sample], floor, relative[sample], q, verbose)
    # Bandwidths of all rows are narrower than those of a sample, by Scott's rule.
    ratio = (effective_rows(share) / chosen.size) ** (-1 / (d + 4))
    # A mixture has a component for every factor: too many if rows are many.
    is_mixed = d <= _FEW_DIMENSIONS and len(z) == len(sample)
    factors, shares = chosen.mix() if is_mixed else (torch.ones(1), torch.ones(1, dtype=torch.float64))
    if len(factors) == 1 and chosen.exponent == 0:
        return layer_of_rows(x, w, math.sqrt(2) * floor.clamp_min(ratio * chosen.width) * scaler.scale)
    stds = factors.double().view(-1, 1, 1) * (ratio * chosen.width * relative**chosen.exponent).unsqueeze(-1)
    sigma = math.sqrt(2) * torch.maximum(stds, floor) * scaler.scale
    return layer_of_rows(x.repeat(len(factors), 1), torch.outer(shares, w).flatten(), sigma.flatten(0, 1))


def layer_of_rows(
    x: Float[Tensor, "m d"], w: Float[Tensor, " m"], sigma: Float[Tensor, "*s"]
) -> DensityLayer:
    """The layer whose components are the rows."""
    options: LayerOptions = {"dtype": torch.float64, "generator": torch.Generator()}
    layer = DensityLayer(x.shape[1], len(x), kernel=RBF(sigma), **options)
    return layer.assign({"x": x}, w.log())


def scaler_without_outliers(x: Tensor, w: Tensor, sample: Tensor) -> Scaler:
    """Standard deviations of columns whose outliers are moved to ten times the range of nine rows in ten."""
    low, high = x[sample].quantile(torch.tensor([0.05, 0.95], dtype=x.dtype), 0)
    reach = torch.where(high > low, _REACH * (high - low), torch.inf)
    return Scaler.from_data(x.clamp(low - reach, high + reach), w)


def rounding_step(column: Float[Tensor, " n"], share: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """The step between the values of a rounded column: the distance of most values to the nearest other one.

    0 if these distances differ, as they do in a column that is not rounded.

    >>> rounding_step(torch.tensor([3.0, 4.0, 5.0, 5.0, 8.0]), torch.full((5,), 0.2))
    tensor(1.)
    >>> rounding_step(torch.tensor([3.0, 4.1, 5.0, 5.7, 8.0]), torch.full((5,), 0.2))
    tensor(0.)
    """
    values, place = torch.unique(column, return_inverse=True)
    if len(values) < 2:
        return column.new_zeros(())
    gaps = values.diff()
    end = gaps.new_full((1,), math.inf)
    nearest, order = torch.minimum(torch.cat([end, gaps]), torch.cat([gaps, end]))[place].sort()
    below = share[order].cumsum(0)
    median = nearest[int((below < 0.5 * below[-1]).sum())]
    equal = (nearest - median).abs() < 1e-6 * median
    return median if float(share[order][equal].sum()) >= 0.5 * float(below[-1]) else torch.zeros_like(median)


def neighbour_distance(
    z: Float[Tensor, "n d"], share: Float[Tensor, " n"], sample: Int[Tensor, " m"], most: int | None = None
) -> Float[Tensor, " n"]:
    """The distance to the k-th neighbour among a sample of m rows, over its geometric mean.

    k is the larger of 5 and m^(1/max(2, d)), and at most m − 1. Distances count as equal if all of them are
    too small or too large to compare.
    """
    d = z.shape[1]
    most = _SIZES[d > _FEW_DIMENSIONS][2] if most is None else most
    sample = sample[: max(256, min(most, PAIRS // len(z)))]
    m = len(sample)
    k = min(max(5, round(m ** (1 / max(2, d)))), m - 1)
    in_sample = torch.zeros(len(z), dtype=torch.long)
    in_sample[sample] = 1
    others, parts = z[sample], []
    squares = others.square().sum(1)
    for rows, is_one in zip(z.split(_BLOCK), in_sample.split(_BLOCK), strict=True):
        # A row of the sample is its own nearest neighbour, which does not count.
        nearest = torch.addmm(squares, rows, others.mT, alpha=-2).topk(k + 1, largest=False).values
        parts.append(rows.square().sum(1) + nearest.gather(1, (k - 1 + is_one).unsqueeze(1)).squeeze(1))
    distance = torch.cat(parts).clamp_min(0).sqrt()
    largest = float(distance.max())
    if not SAME < largest < math.inf:
        return torch.ones_like(distance)
    distance = distance.clamp_min(1e-6 * largest)
    return distance / (share @ distance.log()).exp()


class Choice:
    """The bandwidth and its exponent with the largest leave-one-out likelihood."""

    def __init__(
        self, z: Tensor, share: Tensor, floor: Tensor, relative: Tensor, q: int, verbose: bool
    ) -> None:
        n, d = z.shape
        # Leave q rows out: one at a time, or all at once if many others remain.
        q = min(n, q)
        first = q if n > _ENOUGH * q else 0
        self.d, self.q, self.alone = d, q, first == 0
        self.weight = share[:q] / share[:q].sum()
        self.share, self.relative = share[first:] / share[first:].sum(), relative[first:]
        #: The number of rows that the density is made of.
        self.size = effective_rows(self.share)
        groups = [[i] for i in range(d)] if d <= _FEW_DIMENSIONS else [list(range(d))]
        self.squares = [_squared_distances(z[:q, group], z[first:, group]) for group in groups]
        # Nearly equal rows are left out with the row: they would make components as narrow as their
        # differences.
        same = torch.stack(self.squares).sum(0) < SAME**2
        self.squares[0][same] = torch.inf
        self.left_out = (same.to(self.share) @ self.share).clamp_max(1 - 1e-9)
        self.floors = floor.tolist() if d <= _FEW_DIMENSIONS else [0.0]
        self.width, self.exponent, self.likelihood = self.size ** (-1 / (d + 4)), 0.0, -math.inf
        with tqdm(desc="leave-one-out", unit="bandwidth", disable=not verbose) as self.bar:
            for exponent in EXPONENTS:
                log_width, likelihood = climb(self._likelihood_of(exponent), math.log2(self.width))
                if likelihood > self.likelihood:
                    self.width, self.exponent, self.likelihood = 2.0**log_width, exponent, likelihood

    def _likelihood_of(self, exponent: float) -> Callable[[float], float]:
        spread = self.relative**exponent
        return lambda log_width: float(self.weight @ self._log_density(2.0**log_width * spread))

    def _log_density(self, std: Float[Tensor, " n"]) -> Float[Tensor, " q"]:
        """log p(x_i) of the rows that are left out, under the density of the others.

        If columns are rounded, a row that is left out leaves a hole: the share of its component that falls
        into its own cell is missing. The density is corrected for it.
        """
        self.bar.update()
        log_weights, hole = self.share.log() - 0.5 * self.d * math.log(2 * math.pi), torch.ones(())
        scores = torch.zeros_like(self.squares[0])
        for squares, floor in zip(self.squares, self.floors, strict=True):
            s = std.clamp_min(floor)
            log_weights = log_weights - self.d / len(self.squares) * s.log()
            scores.addcmul_(squares, (-0.5 / s.square()).to(squares))
            hole = hole * torch.erf(floor / (math.sqrt(2) * s[: self.q]))
        scores += log_weights.to(scores)
        top = scores.amax(1, keepdim=True).clamp_min_(torch.finfo(scores.dtype).min)
        log_density = (exp_(scores.sub_(top)).sum(1).log() + top.squeeze(1)).double()
        log_density = log_density - torch.log1p(-self.left_out)
        if self.alone:
            log_density = log_density - torch.log1p(-hole)
        return log_density.clamp_min(LEAST * self.d)

    def mix(self) -> tuple[Float[Tensor, " k"], Float[Tensor, " k"]]:
        """Factors of the bandwidth and their shares; a single one if several gain little."""
        factors = torch.tensor(_SCALES, dtype=torch.float64)
        std = self.width * self.relative**self.exponent
        terms = torch.stack([self._log_density(float(factor) * std) for factor in factors], 1)
        shares = torch.full_like(factors, 1 / len(factors))
        for _ in range(50):
            shares = self.weight @ torch.softmax(terms + shares.log(), 1)
        shares = torch.where(shares < _LEAST_SHARE, torch.zeros_like(shares), shares)
        shares /= shares.sum()
        likelihood = float(self.weight @ torch.logsumexp(terms + shares.log(), 1))
        if likelihood < self.likelihood + _LEAST_GAIN * self.d:
            return torch.ones(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
        return factors[shares > 0], shares[shares > 0]


def _squared_distances(x: Float[Tensor, "q d"], z: Float[Tensor, "n d"]) -> Float[Tensor, "q n"]:
    distances = x - z.mT if x.shape[1] == 1 else exact_distances(x, z)
    return distances.square().float()


def climb(value: Callable[[float], float], place: float) -> tuple[float, float]:
    """A local maximum of a smooth function: by steps, then the vertex of a parabola through three places."""
    value = cache(value)
    for step in _STEPS:
        while True:
            near = [p for p in (place - step, place + step) if _NARROWEST <= p <= _WIDEST]
            better = max(near, key=value)
            # Not <=, which is false for NaN.
            if not value(better) > value(place):
                break
            place = better
    if not _NARROWEST <= place - step < place + step <= _WIDEST:
        return place, value(place)
    left, right = value(place) - value(place - step), value(place) - value(place + step)
    vertex = place + step * (left - right) / (2 * (left + right)) if left + right > 0 else place
    return max((place, value(place)), (vertex, value(vertex)), key=lambda pair: pair[1])


def leave_one_out_scores(
    layer: DensityLayer, x: Float[Tensor, "n d"], w: Float[Tensor, " n"]
) -> Float[Tensor, "2 k"]:
    """log p(x_i) of some rows without the components that sit on them, in order, and the rows' shares."""
    c, kernel = layer.components["x"].detach(), layer.kernel("x")
    most = min(_CALIBRATION, max(_LEAST_CALIBRATION, _SCORES // len(c)))
    sample = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:most]
    rows, share = x[sample], w[sample] / w[sample].sum()
    with torch.no_grad():
        log_weights = torch.log_softmax(layer.logits.detach(), -1)
        bias = log_weights + kernel.log_norm(c).to(log_weights)
        parts = []
        for block in rows.split(max(1, _SCORES_AT_ONCE // len(c))):
            overlap = score_matrix([kernel.term(block, c)], torch.zeros_like(log_weights))
            i, j = (overlap > _NEAR).nonzero(as_tuple=True)
            scores = overlap + bias
            equal = (block[i] == c[j]).all(-1)
            i, j = i[equal], j[equal]
            left_out = scores.new_zeros(len(block)).index_add_(0, i, log_weights[j].exp().to(scores))
            scores[i, j] = -torch.inf
            parts.append(torch.logsumexp(scores, 1) - torch.log1p(-left_out.clamp_max(1 - 1e-9)))
    log_density, order = torch.cat(parts).double().sort()
    return torch.stack([log_density, share[order].double()])
