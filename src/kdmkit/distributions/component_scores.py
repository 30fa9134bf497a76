"""Numbers of every component: features to average over a mixture, and scores of values without weights.

Features are probabilities of labels and parts of means. Messages on a tree are made of scores.

Scores come in two parts that have to be added: the largest score of every row is taken out before scores are
rounded. Kernels of one kind are stacked into one with a batch, so that few operations serve many variables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit._core.logspace import finite_max
from kdmkit._core.runtime import only_reverse_mode
from kdmkit.distributions.mixing import Entry, Layout, add_parts, lay_out, terms_and_bias
from kdmkit.kernels import Kernel
from kdmkit.ops.dense import RelativeScores
from kdmkit.ops.terms import whole

# Components whose numbers are computed at a time, to bound memory.
_STEP = 1 << 18


@dataclass(frozen=True, eq=False)
class Features:
    """A kernel's numbers of components, computed when they are needed.

    Args:
        name: the kernel's method that computes them.
    """

    kernel: Kernel
    components: Tensor
    name: Literal["probs", "mean_features"]

    @property
    def ndim(self) -> int:
        """The number of dimensions of `numbers()`."""
        return self.components.ndim - self.kernel.component_dim + 1

    @property
    def by_row(self) -> bool:
        """Whether components have no batch, and their numbers can be computed for some of them."""
        return self.ndim == 2 and not self.kernel.per_component

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that the numbers are computed from."""
        return [self.components, *self.kernel.parameters(), *self.kernel.buffers()]

    def rows(self, index: Int[Tensor, " k"] | slice) -> Float[Tensor, "k v"]:
        """The numbers of some components; needs `by_row`."""
        values: Tensor = getattr(self.kernel, self.name)(self.components[index])
        return values

    def blocks(self) -> Iterator[tuple[slice, Float[Tensor, "k v"]]]:
        """The numbers of all components, some at a time; needs `by_row`."""
        for start in range(0, len(self.components), _STEP):
            place = slice(start, start + _STEP)
            yield place, self.rows(place)

    def numbers(self) -> Float[Tensor, "*batch m v"]:
        """The numbers of all components."""
        many = self.by_row and len(self.components) > _STEP
        if not many or (torch.is_grad_enabled() and any(x.requires_grad for x in self.tensors)):
            values: Tensor = getattr(self.kernel, self.name)(self.components)
            return values
        # Kernels take several times the memory of the result.
        few = self.rows(slice(0, 1))
        total = few.new_empty(len(self.components), few.shape[1])
        for place, block in self.blocks():
            total[place] = block
        return total


#: Numbers of every component, given or to be computed.
Values = Tensor | Features


def as_numbers(values: Values) -> Float[Tensor, "*batch m v"]:
    return values.numbers() if isinstance(values, Features) else values


# Above this many scores of a variable, computing takes much longer than calling: stacking would only take
# more memory.
_MANY = 1 << 18


def _score(entries: Sequence[Entry]) -> tuple[RelativeScores, list[Tensor], Layout]:
    """The scores of terms, the parts that all components share, and the layout of both."""
    first = entries[0]
    no_weights = torch.zeros(first.m, dtype=first.dtype, device=first.components.device)
    layout = lay_out(entries, no_weights)
    terms, bias, shared = terms_and_bias(entries, no_weights, layout)
    return RelativeScores.of(terms, bias), shared, layout


def relative_scores(entries: Sequence[Entry]) -> tuple[Float[Tensor, "*lead m"], Float[Tensor, "*lead"]]:
    """Σ_entries scores of all values under every component: whole log-densities, or log masses of regions.

    Returns:
        Scores `(*lead, m)` of at most 0, and what has to be added to them, `(*lead,)`.
    """
    if len(entries) == 1 and entries[0].is_region and entries[0].is_flat:
        (entry,) = entries
        masses = whole(entry.kernel.region_term(entry.value, entry.components).prepared())
        top = finite_max(masses)
        return (masses - top).to(entry.dtype), top.squeeze(-1)
    relative, shared, layout = _score(entries)
    scores, tops = relative.compute()
    return layout.to_lead(scores, 1), add_parts(layout.to_lead(tops, 0), shared)


@dataclass(frozen=True)
class RowScores:
    """`relative_scores` for any rows of entries with one leading dimension; what they share is computed once.

    Args:
        relative: the scores of terms.
        shared: parts that all components share: numbers, or one per row.
    """

    relative: RelativeScores
    shared: tuple[Tensor, ...]

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> RowScores:
        relative, shared, _ = _score(entries)
        return cls(relative, tuple(shared))

    def rows(self, part: slice) -> RowScores:
        shared = tuple(one[part] if one.ndim else one for one in self.shared)
        return RowScores(self.relative.queries(part), shared)

    def compute(self) -> tuple[Float[Tensor, "n m"], Float[Tensor, " n"]]:
        scores, tops = self.relative.compute()
        return scores, add_parts(tops, self.shared)


def scores_of_each(
    entries: Sequence[Entry],
) -> list[tuple[Float[Tensor, "*lead m"], Float[Tensor, "*lead"]]]:
    """`relative_scores` of every entry by itself, in one computation for those that can be stacked."""
    scores: list[Any] = [None] * len(entries)
    for places in _alike(entries):
        together = _stack([entries[i] for i in places])
        if together is None:
            for i in places:
                scores[i] = relative_scores([entries[i]])
        else:
            relative, shared, layout = _score([together])
            matrices, tops = relative.matrices()
            tops = add_parts(layout.to_lead(tops, 0), shared)
            for i, matrix, top in zip(places, matrices, tops.unbind(-1), strict=True):
                scores[i] = matrix, top
    return scores


def _alike(entries: Sequence[Entry]) -> list[list[int]]:
    """The places of entries in groups of equal shapes."""
    groups: dict[Any, list[int]] = {}
    for i, entry in enumerate(entries):
        groups.setdefault(_shapes(entry) or i, []).append(i)
    return list(groups.values())


def _shapes(entry: Entry) -> Any:
    """Entries with equal shapes can be stacked; None if the entry cannot, or is large."""
    kernel, components = entry.kernel, entry.components
    has_batch = components.ndim > 1 + kernel.component_dim
    if entry.is_region or has_batch or len(entry.lead) != 1 or not only_reverse_mode():
        return None
    if entry.lead.numel() * components.shape[0] > _MANY:
        return None
    tensors = [entry.value, components, *kernel.parameters(), *([] if entry.keep is None else [entry.keep])]
    return type(kernel), entry.kind, *[(tensor.shape, tensor.dtype) for tensor in tensors]


def _stack(entries: Sequence[Entry]) -> Entry | None:
    """One entry of values `(n, b, *event)`, if the kernels of b variables can be stacked."""
    first = entries[0]
    kernel = first.kernel.stacked([entry.kernel for entry in entries[1:]]) if len(entries) > 1 else None
    if kernel is None:
        return None
    values = torch.stack([entry.value for entry in entries], -1 - first.event_rank)
    components = torch.stack([entry.components for entry in entries])
    keep = None if first.keep is None else torch.stack([e.keep for e in entries if e.keep is not None], -1)
    return Entry(kernel, values, components, first.kind, keep)
