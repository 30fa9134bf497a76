"""Backend `chunked` for bandwidths per component on a CPU, without gradients.

Densities whose components have bandwidths of their own consist of this reduction. Its blocks are written
into one buffer, which stays in the caches.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kdmkit._core.logspace import LOG2_E
from kdmkit._core.runtime import only_reverse_mode
from kdmkit.ops.blocks import slices
from kdmkit.ops.reduction import Reduction, Result
from kdmkit.ops.terms import ComponentDistance, robust_centre
from kdmkit.ops.terms.distance import loses_digits, scores_by_differences

# Queries and pairs per block.
_ROWS, _PAIRS = 128, 1 << 18


def supports(reduction: Reduction) -> str | None:
    """Why this implementation cannot compute a reduction, or None."""
    first, *rest = reduction.terms
    plain = isinstance(first, ComponentDistance) and all(tensor.ndim == 2 for tensor in first.tensors)
    if rest or not plain or reduction.values is not None or reduction.log_weights.ndim != 1:
        return "expected one distance with scales per component, without batch or values"
    tensors = (*first.tensors, reduction.log_weights)
    if reduction.device_type != "cpu" or (torch.is_grad_enabled() and any(t.requires_grad for t in tensors)):
        return "expected tensors on a CPU, without gradients"
    return None if only_reverse_mode() else "expected eager code outside of torch.func and forward mode"


def is_worthwhile(reduction: Reduction) -> bool:
    """Whether the reduction is large enough: for a few pairs whole matrices take fewer calls."""
    return reduction.shape[1] * reduction.shape[2] > _PAIRS // 4


def reduce(reduction: Reduction) -> Result:
    """The logsumexps, as `chunked.reduce`."""
    x, c, scales = (tensor.double() for tensor in reduction.terms[0].tensors)
    scales, log_weights, centre = scales.expand_as(c), reduction.log_weights.double(), robust_centre(c)
    rows, width = reduction.block or (_ROWS, _PAIRS // _ROWS)
    lossy = loses_digits(c - centre, scales)
    if not bool(lossy.any()):
        return None, _by_products(reduction, x - centre, c - centre, scales, log_weights)
    # Narrow components far from the centre.
    found = _by_differences(x, c[lossy], scales[lossy], log_weights[lossy], rows, width)
    if not bool(lossy.all()):
        others = c[~lossy] - centre, scales[~lossy], log_weights[~lossy]
        found = torch.logaddexp(found, _by_products(reduction, x - centre, *others).double())
    return None, found.to(reduction.dtype)


def _by_products(reduction: Reduction, x: Tensor, c: Tensor, scales: Tensor, log_weights: Tensor) -> Tensor:
    """The logsumexps; x and c are relative to a centre."""
    features, against, column = _product(x, c, scales)
    column = (log_weights + column).mul_(LOG2_E)
    against = against.mul_(LOG2_E)
    rows, width = reduction.block or (_ROWS, _PAIRS // _ROWS)
    buffer = features.new_empty(min(rows, len(features)) * min(width, len(against)))
    narrow = buffer if reduction.dtype == torch.float64 else buffer.to(reduction.dtype)
    parts = [
        _rows(features[part], against, column, width, buffer, narrow) for part in slices(len(features), rows)
    ]
    return (torch.cat(parts) / LOG2_E).to(reduction.dtype)


def _by_differences(
    x: Tensor, c: Tensor, scales: Tensor, log_weights: Tensor, rows: int, width: int
) -> Tensor:
    """The logsumexps, from differences."""
    parts = []
    for part in slices(len(x), rows):
        blocks = [
            (scores_by_differences(x[part], c[block], scales[block]) + log_weights[block]).logsumexp(1)
            for block in slices(len(c), width)
        ]
        parts.append(torch.stack(blocks).logsumexp(0))
    return torch.cat(parts)


def _product(x: Tensor, c: Tensor, scales: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Features, weights and biases of the scores −Σ p(x − c)² = Σ −p·x² + 2pc·x − p·c² with p = scales²."""
    shape = scales[:1] / scales[:1, :1]
    if torch.allclose(scales, scales[:, :1] * shape, rtol=1e-13, atol=0.0):
        # One factor per component: Σ x² is one feature, in units of the common shape.
        x, c, precision = x * shape, c * shape, scales[:, :1].square()
        square = x.square().sum(1, keepdim=True)
    else:
        precision, square = scales.square(), x.square()
    column = (precision * c.square()).sum(1).neg()
    return torch.cat([square, x], 1), torch.cat([-precision, 2 * precision * c], 1), column


def _rows(x: Tensor, against: Tensor, column: Tensor, width: int, buffer: Tensor, narrow: Tensor) -> Tensor:
    """log2 Σ_j 2^scores of some queries."""
    top = x.new_full((len(x), 1), torch.finfo(x.dtype).min)
    total = torch.zeros_like(top)
    for part in slices(len(against), width):
        shape = len(x), part.stop - part.start
        scores = buffer[: shape[0] * shape[1]].view(shape)
        torch.addmm(column[part], x, against[part].mT, out=scores)
        higher = torch.maximum(top, scores.amax(1, keepdim=True))
        scores.sub_(higher)
        if narrow is not buffer:
            scores = narrow[: scores.numel()].view(shape).copy_(scores)
        total = total * (top - higher).exp2() + scores.exp2_().sum(1, keepdim=True)
        top = higher
    return (total.log2() + top).squeeze(1)
