"""Sums over blocks of components, without the blocks that contribute nearly nothing.

A block has a sum of weights and an upper bound of its scores for the queries of a box. Weight times the
exponential of the bound is the most that the block can contribute. For a few near queries at a time:

1. The blocks with the largest bounds are summed, until the other blocks have at most half of all bounds. The
   sum is a lower bound of the answer, query by query.
2. Blocks that together have at most a quarter of the allowed error are left out.
3. The other blocks are bounded again for every single query. Those with the largest bounds relative to an
   answer are summed, until the rest has at most three quarters of the allowed error, for every query.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit.ops.api import log_mix
from kdmkit.ops.blocks import block_order, slices
from kdmkit.ops.terms import Term

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
