"""Averages beside a background: a component with the same score for every query, and the value 0.

Scores of squared distances have an upper bound, the largest log-weight, and scores far below the background
do not count. So no maximum per query has to be subtracted before the exponential. If points are near the
origin, sums need no squares either: e^{−‖x − c‖²} = e^{−‖x‖²}·e^{2 x·c}·e^{−‖c‖²}, and the outer factors
leave the sum. If kernels are narrow, pairs that are far from each other are left out (`near_pairs`).
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.logspace import LOG2_E
from kdmkit._core.runtime import only_reverse_mode
from kdmkit.ops.api import attend
from kdmkit.ops.blocks import Block
from kdmkit.ops.near_pairs import BLOCK, FLOAT32_REACH, sums_of_near_pairs
from kdmkit.ops.scaled_points import ScaledPoints, ScoreBlocks
from kdmkit.ops.terms import SquaredDistance, Term, result_dtype

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
