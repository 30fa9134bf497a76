"""Sums that leave out components which contribute nearly nothing: over blocks, or beside a background.

**Over blocks.** A block has a sum of weights and an upper bound of its scores for the queries of a box. Its
weight times the exponential of the bound is the most that it can contribute. For a few near queries at
a time:

1. The blocks with the largest bounds are summed, until the other blocks have at most half of all bounds. The
   sum is a lower bound of the answer, query by query.
2. Blocks that together have at most a quarter of the allowed error are left out.
3. The other blocks are bounded again for every single query. Those with the largest bounds relative to an
   answer are summed, until the rest has at most three quarters of the allowed error, for every query.

**Beside a background**, a component with the same score for every query, and the value 0. Scores of squared
distances have an upper bound, the largest log-weight, and scores far below the background do not count. So no
maximum per query has to be subtracted before the exponential. If points are near the origin, sums need no
squares either: e^{−‖x − c‖²} = e^{−‖x‖²}·e^{2 x·c}·e^{−‖c‖²}, and the outer factors leave the sum. If kernels
are narrow, pairs that are far from each other are left out (`near_pairs`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit._core.logspace import LOG2_E
from kdmkit._core.runtime import only_reverse_mode
from kdmkit.ops.api import attend, log_mix
from kdmkit.ops.blocks import Block, block_order, slices
from kdmkit.ops.near_pairs import BLOCK, FLOAT32_REACH, sums_of_near_pairs
from kdmkit.ops.scaled_points import ScaledPoints, ScoreBlocks
from kdmkit.ops.terms import SquaredDistance, Term, result_dtype

# Queries that share a choice of blocks: at most, and at least; and the number of choices to aim for.
_QUERIES, _FEWEST, _CHOICES = 32, 8, 256
# Components that are summed at a time.
_COMPONENTS = 1 << 18
# If a larger share of the blocks is needed, gathering them takes longer than it saves.
_MANY = 0.4
# Lower bounds of an answer are less than it by this many units in the last place.
_ULPS = 8.0


#: Upper bounds of the scores of all components of some blocks, in float64: from the lower and upper corners
#: `(n, d)` between which queries are, and the numbers of the blocks, to `(n, b)`.
Bounds = Callable[[Tensor, Tensor, Int[Tensor, " b"] | slice], Float[Tensor, "n b"]]


@dataclass(frozen=True)
class PrunedSum:
    """log Σ_j exp(log_weights_j + scores_ij) with a bounded error, over components in the order of blocks.

    Args:
        term: the scores of queries `(n, d)` and of some components, which are given by their numbers.
        log_weights: of all components.
        totals: the logsumexp of the log-weights of every block, in float64.
        bounds: of the scores.
        size: the number of components of a block; the last one may have fewer.

    >>> import kdmkit as kdm  # a `PreparedKDM` makes one
    >>> prepared = kdm.PreparedKDM(kdm.KDM(torch.randn(600, 2), None, kdm.RBF(0.1)))
    >>> prepared.log_prob(torch.zeros(1, 2), rtol=1e-3).shape
    torch.Size([1])
    """

    term: Callable[[Tensor, Int[Tensor, " k"] | slice], Term]
    log_weights: Float[Tensor, " m"]
    totals: Float[Tensor, " b"]
    bounds: Bounds
    size: int

    def log_mix(
        self, query: Float[Tensor, "n d"], places: Float[Tensor, "n d"], rtol: float
    ) -> Float[Tensor, " n"]:
        """log s_i of sums with s_i ≤ Σ_i ≤ (1 + rtol)·s_i, beside rounding; queries may come in any order.

        Args:
            query: as `term` takes them.
            places: the queries as `bounds` takes them, in float64.
        """
        result = torch.empty_like(places[:, 0])
        if not len(query):
            return result
        step = min(_QUERIES, max(_FEWEST, len(query) // _CHOICES))
        for part in block_order(places, step).split(step):
            result[part] = self._near(query[part], places[part], rtol)
        # NaN marks queries to which most blocks matter.
        rest = result.isnan().nonzero().squeeze(1)
        if len(rest):
            result[rest] = log_mix(self.term(query[rest], slice(None)), self.log_weights).to(result)
        return result

    def _near(self, query: Tensor, places: Tensor, rtol: float) -> Float[Tensor, " q"]:
        """The sums of a few queries that are near each other; NaN if most blocks have to be summed."""
        low, high = places.amin(0, keepdim=True), places.amax(0, keepdim=True)
        most, order = (self.totals + self.bounds(low, high, slice(None))[0]).sort(descending=True)
        rest = _tails(most)
        first = max(1, int((rest > rest[0] - math.log(2)).sum()))
        unknown = torch.full_like(places[:, 0], torch.nan)
        if first > _MANY * len(order):
            return unknown
        sums = self._sum(query, order[:first])
        least = sums - _ULPS * torch.finfo(sums.dtype).eps * (1 + sums.abs()).nan_to_num(posinf=0)
        enough = int((rest > least.amin() + math.log(rtol / 4)).sum())
        order = order[first:enough]
        if len(order):
            more = self._needed(places, order, least.to(places), 0.75 * rtol)
            if len(more) + first > _MANY * len(self.totals):
                return unknown
            sums = torch.logaddexp(sums, self._sum(query, more)) if len(more) else sums
        return sums.to(places)

    def _needed(self, places: Tensor, blocks: Int[Tensor, " b"], least: Tensor, rtol: float) -> Tensor:
        """The blocks without which an error may exceed rtol times the least answer of a query."""
        share = self.totals[blocks] + self.bounds(places, places, blocks)
        share = torch.where(torch.isneginf(share), share, share - least.unsqueeze(1))
        order = share.amax(0).argsort(descending=True)
        rest = _tails(share[:, order]).amax(0)
        return blocks[order[: int((rest > math.log(rtol)).sum())]]

    def _sum(self, query: Tensor, blocks: Int[Tensor, " b"]) -> Float[Tensor, " q"]:
        """The sum over some blocks."""
        inside = torch.arange(self.size, device=blocks.device)
        # In order of memory.
        blocks = blocks.sort().values
        parts = []
        for part in slices(len(blocks), max(1, _COMPONENTS // self.size)):
            index = (blocks[part].unsqueeze(1) * self.size + inside).flatten()
            index = index[: len(index) - max(0, int(index[-1]) + 1 - len(self.log_weights))]
            parts.append(log_mix(self.term(query, index), self.log_weights[index]))
        return torch.stack(parts).logsumexp(0) if len(parts) > 1 else parts[0]


def _tails(logs: Float[Tensor, "*n b"]) -> Float[Tensor, "*n b"]:
    """log Σ_{k ≥ i} exp(logs_k) for every i."""
    return logs.flip(-1).logcumsumexp(-1).flip(-1)


# ---- beside a background

# The largest 2·‖s x‖·‖s c‖ + log-weight for which sums of e^{2 x·c} are finite in float32. Components whose
# constants underflow are so far away then that they contribute less than 1e-13.
_LARGEST_PRODUCT = 64.0
# e to this power and its products with numbers of values are finite in float32.
_LARGEST_SCORE = 60.0


def attend_beside(
    term: Term,
    log_weights: Float[Tensor, " m"],
    values: Float[Tensor, "m v"],
    log_background: Float[Tensor, ""],
    *,
    block: Block = (1024, BLOCK),
) -> tuple[Float[Tensor, "n v"], Float[Tensor, "n 1"]]:
    """Σ_j e^{s_ij}·v_j / (b + Σ_j e^{s_ij}) with s_ij = log_weights_j + score_ij, and Σ_j e^{s_ij} / (b + …).

    Args:
        term, log_weights, values: as in `attend`.
        log_background: log b.
        block: queries and components per block, whose scores stay in the caches of a CPU.

    Returns:
        Averages, and the coverage: the components' share of the sum.

    >>> import kdmkit as kdm
    >>> x, c = torch.zeros(1, 1), torch.tensor([[0.0], [9.0]])
    >>> term, values = kdm.RBF(1.0).term(x, c), torch.tensor([[4.0], [8.0]])
    >>> average, coverage = attend_beside(term, torch.zeros(2), values, torch.tensor(0.0))
    >>> round(average.item(), 4), round(coverage.item(), 4)
    (2.0, 0.5)
    """
    if _is_simple(term, log_weights, values, log_background):
        assert isinstance(term, SquaredDistance)
        return _in_blocks(term, log_weights - log_background, values, block)
    averages, log_total = attend(term, log_weights, values)
    coverage = (log_total - log_background).sigmoid().to(averages.dtype).unsqueeze(-1)
    return coverage * averages, coverage


def _is_simple(term: Term, log_weights: Tensor, values: Tensor, log_background: Tensor) -> bool:
    """Whether `_in_blocks` can compute it: one squared distance on a CPU, without gradients or transforms."""
    if not isinstance(term, SquaredDistance) or not term.plain or log_weights.ndim != 1 or values.ndim != 2:
        return False
    tensors = (*term.tensors, log_weights, values, log_background)
    if any(tensor.device.type != "cpu" for tensor in tensors) or not only_reverse_mode():
        return False
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return False
    return bool((log_weights - log_background).amax() < _LARGEST_SCORE)


def _in_blocks(
    term: SquaredDistance, log_weights: Float[Tensor, " m"], values: Float[Tensor, "m v"], block: Block
) -> tuple[Float[Tensor, "n v"], Float[Tensor, "n 1"]]:
    """`attend_beside` with log-weights relative to the background."""
    dtype = result_dtype([term], log_weights, values)
    kept = torch.cat([values.to(dtype), values.new_ones(len(values), 1, dtype=dtype)], 1).mT.contiguous()
    points = ScaledPoints.about(None, term.query, term.components, term.scale, dtype)
    bias, row, twice = points.column(log_weights), points.row(), 2 * LOG2_E * points.factor * points.x
    largest_product = 2 * points.factor * math.prod(points.lengths)
    if largest_product + max(0.0, log_weights.amax().item()) <= _LARGEST_PRODUCT:
        # e^{2 x·c} with the constants of components in the values, and those of queries in the sums.
        sums = _sums(points.c, twice, kept * bias.exp(), block).mul_(row.double().exp())
    elif points.reach <= FLOAT32_REACH:
        left = torch.cat([points.c, torch.ones_like(points.c[:, :1]), LOG2_E * bias.unsqueeze(1)], 1)
        right = torch.cat([twice, LOG2_E * row.unsqueeze(1), torch.ones_like(twice[:, :1])], 1)
        sums = _sums(left, right, kept, block)
    else:
        sums = sums_of_near_pairs(term, log_weights, kept, block)
    shares = (sums / (1 + sums[-1])).mT.to(dtype)
    return shares[:, :-1], shares[:, -1:]


def _sums(
    components: Float[Tensor, "m p"],
    queries: Float[Tensor, "n p"],
    kept: Float[Tensor, "v m"],
    block: Block,
) -> Float[Tensor, "v n"]:
    """Σ_j kept_j·2^(components_j · queries_i) in float64."""
    blocks = ScoreBlocks(components, queries, block[::-1])
    sums = torch.zeros(len(kept), len(queries), dtype=torch.float64)
    for some in blocks.columns():
        for rows in blocks.rows():
            sums[:, some] += kept[:, rows] @ blocks.scores(rows, some).exp2_()
    return sums
