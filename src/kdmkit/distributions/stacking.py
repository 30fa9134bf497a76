"""Scores of several variables by few operations: kernels of one kind become one with a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.runtime import only_reverse_mode
from kdmkit.distributions.mixing import Entry, relative_matrices, relative_scores

# Scores of a variable that take much longer than calls: stacks of more would only take more memory.
_MANY = 1 << 18


def scores_of_each(
    entries: Sequence[Entry],
) -> list[tuple[Float[Tensor, "*lead m"], Float[Tensor, "*lead"]]]:
    """`relative_scores` of every entry by itself, in one computation for those that can be stacked."""
    found: list[Any] = [None] * len(entries)
    for places in _alike(entries):
        together = _stack([entries[i] for i in places])
        if together is None:
            for i in places:
                found[i] = relative_scores([entries[i]])
        else:
            matrices, tops = relative_matrices(together)
            for i, matrix, top in zip(places, matrices, tops.unbind(-1), strict=True):
                found[i] = matrix, top
    return found


def _alike(entries: Sequence[Entry]) -> list[list[int]]:
    """The places of entries in groups of equal shapes."""
    groups: dict[Any, list[int]] = {}
    for i, entry in enumerate(entries):
        groups.setdefault(_shapes(entry) or i, []).append(i)
    return list(groups.values())


def _shapes(entry: Entry) -> Any:
    """What entries have to share that can be stacked; None of one that cannot, or that is large."""
    kernel, components = entry.kernel, entry.components
    has_batch = components.ndim > 1 + kernel.component_dim
    if entry.region is not None or has_batch or len(entry.lead) != 1 or not only_reverse_mode():
        return None
    if entry.lead.numel() * components.shape[0] > _MANY:
        return None
    tensors = [entry.value, components, *kernel.parameters(), *([] if entry.keep is None else [entry.keep])]
    return type(kernel), entry.kind, *((tensor.shape, tensor.dtype) for tensor in tensors)


def _stack(entries: Sequence[Entry]) -> Entry | None:
    """One entry of values `(n, b, *event)`, where the kernels of b variables can be stacked."""
    first = entries[0]
    kernel = first.kernel.stacked([entry.kernel for entry in entries[1:]]) if len(entries) > 1 else None
    if kernel is None:
        return None
    values = torch.stack([entry.value for entry in entries], -1 - first.event_rank)
    components = torch.stack([entry.components for entry in entries])
    keep = None if first.keep is None else torch.stack([e.keep for e in entries if e.keep is not None], -1)
    return Entry(kernel, values, components, first.kind, keep)
