"""Scores of several variables by few operations: kernels of one kind become one with a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.modes import only_reverse_mode
from kdmkit.distributions.mixing import Entry, relative_matrices, relative_scores


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
        values, components = entry.value, entry.components
        plain = entry.region is None and components.ndim == 1 + entry.kernel.component_dim
        plain = plain and len(entry.lead) == 1
        key = (
            (type(entry.kernel), entry.kind, values.shape, values.dtype, components.shape, components.dtype)
            if plain and only_reverse_mode()
            else i
        )
        groups.setdefault((key, None if entry.keep is None else entry.keep.shape), []).append(i)
    return list(groups.values())


def _stack(entries: Sequence[Entry]) -> Entry | None:
    """One entry with a batch of variables, the last one of its leading dimensions; None where there is none."""
    first = entries[0]
    kernel = first.kernel.stacked([entry.kernel for entry in entries[1:]]) if len(entries) > 1 else None
    if kernel is None:
        return None
    values = torch.stack([entry.value for entry in entries], -1 - first.event_rank)
    components = torch.stack([entry.components for entry in entries])
    keep = None if first.keep is None else torch.stack([e.keep for e in entries if e.keep is not None], -1)
    return Entry(kernel, values, components, first.kind, keep)
