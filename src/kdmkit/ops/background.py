"""Averages beside a background: a component with the same score for every query, and the value 0.

Scores of squared distances have an upper bound, the largest log-weight, and what is far below the background
does not count. So exponentials need no maximum of their query, and blocks without large scores are left out.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.modes import only_reverse_mode
from kdmkit.ops.api import attend
from kdmkit.ops.blocks import slices
from kdmkit.ops.reduction import Reduction
from kdmkit.ops.scaled_points import ScaledPoints
from kdmkit.ops.terms import SquaredDistance, Term, robust_centre

_LOG2_E = math.log2(math.e)
# Queries and components per block: their scores stay in the caches of a CPU.
_QUERIES, _COMPONENTS = 1024, 512
# The largest (‖s x‖ + ‖s c‖)² for which float32 products give averages that are exact to 1e-5.
_FLOAT32_REACH = 512.0
# All components together, each with a score this far below the background, change averages by less than 1e-9.
_NEGLIGIBLE = 1e-9
# e to this power and its products with numbers of values are finite in float32.
_LARGEST_SCORE = 60.0


def attend_beside(
    term: Term,
    log_weights: Float[Tensor, " m"],
    values: Float[Tensor, "m v"],
    log_background: Float[Tensor, ""],
) -> tuple[Float[Tensor, "n v"], Float[Tensor, "n 1"]]:
    """Σ_j e^{s_ij}·v_j / (b + Σ_j e^{s_ij}) with s_ij = log_weights_j + score_ij, and Σ_j e^{s_ij} / (b + …).

    Args:
        term, log_weights, values: as in `attend`.
        log_background: log b.

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
        return _in_blocks(term, log_weights - log_background, values)
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


class _Factors:
    """Two matrices, `(m, d + 2)` and `(d + 2, n)`, whose product has the scores of all pairs.

    Scores are in units of log 2: their exponentials are powers of two, which a CPU computes faster.
    """

    def __init__(self, points: ScaledPoints, log_weights: Tensor) -> None:
        bias = points.column(log_weights).unsqueeze(1)
        self.components = torch.cat([points.c, torch.ones_like(bias), _LOG2_E * bias], 1)
        row, twice = points.row().unsqueeze(0), 2 * _LOG2_E * points.units
        self.queries = torch.cat([twice * points.x.mT, _LOG2_E * row, torch.ones_like(row)])
        self._scores = row.new_empty(min(_QUERIES, len(points.x)) * min(_COMPONENTS, len(points.c)))

    def scores(self, components: slice, queries: slice) -> Float[Tensor, "some few"]:
        """The scores of one block, written over those of the last."""
        left, right = self.components[components], self.queries[:, queries]
        out = self._scores[: len(left) * right.shape[1]].view(len(left), right.shape[1])
        return torch.mm(left, right, out=out)


def _in_blocks(
    term: SquaredDistance, log_weights: Float[Tensor, " m"], values: Float[Tensor, "m v"]
) -> tuple[Float[Tensor, "n v"], Float[Tensor, "n 1"]]:
    """`attend_beside` with log-weights relative to the background."""
    query, components, scale = term.tensors
    dtype = Reduction([term], log_weights, values).dtype
    near = ScaledPoints.about(components.mean(0, dtype=dtype), query, components, scale, dtype)
    factors, exact, least = _Factors(near, log_weights), None, -math.inf
    if dtype == torch.float32 and not near.reach <= _FLOAT32_REACH:
        # Float32 finds the blocks that count.
        points = ScaledPoints.about(robust_centre(components), query, components, scale, torch.float64)
        exact = _Factors(points, log_weights)
        least = math.log2(_NEGLIGIBLE / len(components)) - 1e-6 * near.reach
    kept = torch.cat([values.to(dtype), values.new_ones(len(values), 1, dtype=dtype)], 1).mT.contiguous()
    sums = torch.zeros(len(kept), len(query), dtype=torch.float64)
    for queries in slices(len(query), _QUERIES):
        for some in slices(len(components), _COMPONENTS):
            scores = factors.scores(some, queries)
            if exact is not None:
                # Not ≥, which is false for NaN.
                if bool(scores.amax() < least):
                    continue
                scores = scores.copy_(exact.scores(some, queries))
            sums[:, queries] += kept[:, some] @ scores.exp2_()
    shares = (sums / (1 + sums[-1])).mT.to(dtype)
    return shares[:, :-1], shares[:, -1:]
