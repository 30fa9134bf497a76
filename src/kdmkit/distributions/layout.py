"""Leading dimensions of values and mixtures, arranged for the reductions of `kdmkit.ops`.

For example:

    value               (7, 1, 3, d)
    log-weights            (4, 3, m)
    components                (m, d)
    result                 (7, 4, 3)      leading dimensions after broadcasting

Every leading dimension of the result is of one of two kinds. Along a *batch* dimension the mixture differs
(4 and 3 above). Along a *free* dimension only values differ (7 above); a size of 1 in the mixture is free.
The reductions know queries `(*lead, n, d)`, components `(*lead, m, d)` and a bias per component. There are
two ways to arrange the example:

    components or kernels differ: batch dimensions lead, free ones count queries
        queries (4, 3, 7, d)     components (4, 3, m, d)     bias (4, 3, 1, m)
    only weights differ ("by row"): components stay shared, each batch element is a row of weights
        queries (7, 12, d)       components (m, d)           bias (12, m)

So shared components are never repeated. `Layout` does both and brings results back to `lead`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """How leading dimensions become batches and queries of the reductions, and how results regain them.

    Args:
        lead: the leading dimensions of the result.
        batch: which of them are batch dimensions; the others are free.
        by_row: whether only weights differ along batch dimensions.
        is_flat: whether values, components and weights already are as the reductions take them.
    """

    lead: torch.Size
    batch: tuple[int, ...]
    by_row: bool
    is_flat: bool = False

    @property
    def _order(self) -> tuple[int, ...]:
        """The dimensions of `lead` in the order of the reductions."""
        free = tuple(i for i in range(len(self.lead)) if i not in self.batch)
        return (*free, *self.batch) if self.by_row else (*self.batch, *free)

    @property
    def _query_shape(self) -> tuple[int, ...]:
        sizes = [self.lead[i] for i in self.batch]
        n = math.prod([size for i, size in enumerate(self.lead) if i not in self.batch])
        return (n, math.prod(sizes)) if self.by_row else (*sizes, n)

    def to_queries(self, tensor: Tensor, event_rank: int) -> Tensor:
        """From `(*lead, *event)` to `(*batch, n, *event)`, or `(n, rows, *event)` by row."""
        event = tensor.shape[tensor.ndim - event_rank :]
        shape = (*self.lead, *event)
        expanded = tensor if tensor.shape == shape else tensor.expand(shape)
        if not self.batch:
            return expanded.reshape((math.prod(self.lead), *event))
        last = range(len(self.lead), len(self.lead) + event_rank)
        return expanded.permute((*self._order, *last)).reshape((*self._query_shape, *event))

    def to_lead(self, result: Tensor, event_rank: int) -> Tensor:
        """The inverse of `to_queries`."""
        if self.is_flat:
            return result
        event = result.shape[result.ndim - event_rank :]
        if not self.batch:
            return result.reshape((*self.lead, *event))
        order = self._order
        back = sorted(range(len(order)), key=order.__getitem__)
        last = range(len(order), len(order) + event_rank)
        return result.reshape((*(self.lead[i] for i in order), *event)).permute((*back, *last))

    def to_batch(self, tensor: Tensor, rank: int) -> Tensor:
        """A part of the mixture, `(*dims, *last)` with `rank` last dimensions, as `(*batch, *last)`.

        Where the batch shares it the result is `last` alone.
        """
        dims, last = tensor.shape[: tensor.ndim - rank], tensor.shape[tensor.ndim - rank :]
        if not dims:
            return tensor
        padded = (*([1] * (len(self.lead) - len(dims))), *dims)
        sizes = [padded[i] for i in self.batch]
        return tensor.reshape((*(sizes if math.prod(sizes) != 1 else ()), *last))

    def to_bias(self, log_weights: Float[Tensor, "*batch m"]) -> Float[Tensor, "*rows m"]:
        """Log-weights as `(m,)`, `(*batch, 1, m)`, or `(rows, m)` by row."""
        if self.is_flat:
            return log_weights
        placed = self.to_batch(log_weights, 1)
        if self.by_row:
            return placed.reshape(-1, placed.shape[-1])
        return placed.unsqueeze(-2) if placed.ndim > 1 else placed
