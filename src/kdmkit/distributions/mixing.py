"""Scores of values against the components of a mixture, arranged for the reductions of `kdmkit.ops`.

A value has shape `(*lead, *event)`. A mixture has log-weights `(*batch, m)`, components `(m, *event)` or
`(*batch, m, *event)`, and kernels whose bandwidths may have a batch too. `batch` broadcasts with the end of
`lead`. `Layout` arranges them, for example a value `(7, 1, 3, d)` and log-weights `(4, 3, m)`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kdmkit._core.tensors import broadcast
from kdmkit.distributions.layout import Layout
from kdmkit.kernels import Kernel, Region
from kdmkit.ops import (
    Lookup,
    Masked,
    RelativeScores,
    Term,
    attend,
    log_labels_given,
    log_mix,
    log_mix_given,
    log_posterior,
)
from kdmkit.ops import score_matrix as all_scores

#: What a score of x under component j is: `"overlap"`, 2·log|k(x, c_j)|; `"relative"`, the log-density up to
#: terms that all components share, from which posterior weights follow; `"density"`, the whole log-density.
ScoreKind = Literal["overlap", "relative", "density"]


@dataclass(frozen=True)
class Entry:
    """One variable's values beside its components.

    Args:
        kernel: the variable's kernel.
        value: of shape `(*lead, *event)`, or labels `(*lead,)`.
        components: of shape `(*batch, m, *event)`.
        kind: which terms of the log-density belong to the score.
        region: the class of the regions that `value` holds in packed form, `(*lead, p)`: the score is the log
            mass of the component there. None: `value` holds events.
        keep: of shape `(*lead,)`; where False the variable is left out of the score.
    """

    kernel: Kernel
    value: Tensor
    components: Tensor
    kind: ScoreKind = "density"
    keep: Bool[Tensor, "*lead"] | None = None
    region: type[Region] | None = None

    @property
    def event_rank(self) -> int:
        return self.kernel.event_rank(self.value) if self.region is None else 1

    @property
    def lead(self) -> torch.Size:
        lead = self.value.shape[: self.value.ndim - self.event_rank]
        return lead if self.keep is None else broadcast(lead, self.keep.shape)

    @property
    def is_flat(self) -> bool:
        """Whether values have one leading dimension, and components and bandwidths no batch."""
        kernel = self.kernel
        return (
            self.keep is None
            and self.value.ndim == 1 + self.event_rank
            and self.components.ndim == 1 + kernel.component_dim
            and not kernel.batch_shape
        )

    @property
    def mixture_batch(self) -> torch.Size:
        """The batch of the components and of the kernel's bandwidths."""
        return broadcast(self.components.shape[: -1 - self.kernel.component_dim], self.kernel.batch_shape)

    @property
    def has_own_norms(self) -> bool:
        """Whether the score holds a log-normaliser for every component."""
        return self.region is None and self.kind != "overlap" and self.kernel.per_component

    def log_norm(self) -> Tensor | None:
        """The log-normaliser in the components' precision, where the score holds one."""
        present = not self.kernel.unit_norm if self.kind == "density" else self.has_own_norms
        if not present or self.region is not None:
            return None
        norm = self.kernel.log_norm(self.components)
        return norm.to(self.components if self.components.is_floating_point() else self.components.device)

    def log_jacobian(self) -> Float[Tensor, "*lead"] | None:
        """The term of x that all components share, where the score holds one."""
        if self.kind != "density" or self.region is not None:
            return None
        jacobian = self.kernel.log_jacobian(self.value)
        if jacobian is None or self.keep is None:
            return jacobian
        return torch.where(self.keep, jacobian, torch.zeros_like(jacobian))

    def placed(self, layout: Layout) -> Entry:
        """The entry as the reductions take it: values as queries, components and kernel as batches."""
        if layout.is_flat:
            return self
        return replace(
            self,
            kernel=self.kernel.arranged(lambda bandwidth: layout.to_batch(bandwidth, 2)),
            value=layout.to_queries(self.value, self.event_rank),
            components=layout.to_batch(self.components, 1 + self.kernel.component_dim),
            keep=None if self.keep is None else layout.to_queries(self.keep, 0),
        )

    def _scores(self) -> Term:
        if self.region is None:
            return self.kernel.term(self.value, self.components)
        dims = self.components.ndim - self.kernel.component_dim
        event = self.kernel.event_shape(self.components.shape[dims:])
        return self.kernel.region_term(self.region.unpacked(self.value, event), self.components)

    def term(self) -> Term:
        """The scores of a placed entry; a masked one holds its log-normaliser, others leave it to `bias`."""
        term = self._scores()
        if self.keep is None:
            return term
        m = self.components.shape[-1 - self.kernel.component_dim]
        norm = self.log_norm()
        if norm is None:
            dtype = (
                self.components.dtype if self.components.is_floating_point() else torch.get_default_dtype()
            )
            norm = torch.zeros((), dtype=dtype, device=self.components.device)
        return Masked(term, norm.expand(*norm.shape[:-1], m).unsqueeze(-1), self.keep.unsqueeze(-1))


def _lay_out(entries: Sequence[Entry], log_weights: Tensor, values: Tensor | None) -> Layout:
    n = entries[0].value.shape[:1]
    flat = log_weights.ndim == 1 and (values is None or values.ndim == 2)
    if flat and all(entry.value.shape[:1] == n and entry.is_flat for entry in entries):
        return Layout(n, (), by_row=False, is_flat=True)
    mixture = [entry.mixture_batch for entry in entries]
    mixture += [] if values is None else [values.shape[:-2]]
    batch = broadcast(log_weights.shape[:-1], *mixture)
    lead = broadcast(batch, *(entry.lead for entry in entries))
    first = len(lead) - len(batch)
    differing = tuple(first + i for i, size in enumerate(batch) if size != 1)
    shared = all(math.prod(shape) == 1 for shape in mixture)
    return Layout(lead, differing, by_row=shared and bool(differing))


def _terms(entries: Sequence[Entry], log_weights: Tensor, layout: Layout) -> tuple[list[Term], Tensor]:
    """The entries' scores, and the bias of every component: its log-weight and its own log-normalisers."""
    norms = _own_norms(entries)
    bias = log_weights if norms is None else log_weights + norms.to(log_weights)
    return [entry.placed(layout).term() for entry in entries], layout.to_bias(bias)


def _own_norms(entries: Sequence[Entry]) -> Float[Tensor, "*batch m"] | None:
    """The sum of the log-normalisers that every component has for itself; masked terms hold their own."""
    total = None
    for entry in entries:
        norm = entry.log_norm() if entry.keep is None and entry.has_own_norms else None
        if norm is not None:
            total = norm if total is None else total + norm
    return total


def _shared(entries: Sequence[Entry]) -> list[Tensor]:
    """What the scores of all components share: common log-normalisers, and terms of x."""
    found = []
    for entry in entries:
        if entry.keep is None and not entry.has_own_norms:
            found.append(entry.log_norm())
        found.append(entry.log_jacobian())
    return [part for part in found if part is not None]


def _add(result: Tensor, parts: Sequence[Tensor]) -> Tensor:
    """The sum, constants first: they are added to each other before they are rounded to the result's."""
    if not parts:
        return result
    total = parts[0]
    for part in parts[1:]:
        total = total + part.to(total.dtype)
    return result + total.to(result.dtype)


def mix(
    entries: Sequence[Entry],
    log_weights: Float[Tensor, "*batch m"],
    values: Float[Tensor, "*own m v"] | None = None,
) -> tuple[Float[Tensor, "*lead v"] | None, Float[Tensor, "*lead"]]:
    """log Σ_j exp(log_weights_j + scores_j), and averages of `values` under it, for all leading dimensions.

    Leading dimensions of the entries broadcast with each other and, at their end, with the mixture's batch.
    """
    layout = _lay_out(entries, log_weights, values)
    terms, bias = _terms(entries, log_weights, layout)
    averages = None
    if values is None:
        lse = log_mix(terms, bias)
    else:
        averages, lse = attend(terms, bias, layout.to_batch(values, 2))
        averages = layout.to_lead(averages, 1)
    return averages, _add(layout.to_lead(lse, 0), _shared(entries))


def mix_prepared(
    entry: Entry, result: tuple[Float[Tensor, "*lead v"] | None, Float[Tensor, "*lead"]]
) -> tuple[Float[Tensor, "*lead v"] | None, Float[Tensor, "*lead"]]:
    """`mix` of one entry whose components have no batch, from what was reduced over its scores."""
    averages, lse = result
    return averages, _add(lse, _shared([entry]))


def mix_given(
    given: Sequence[Entry],
    entries: Sequence[Entry],
    log_weights: Float[Tensor, "*batch m"],
    *,
    only_conditional: bool = False,
) -> tuple[Float[Tensor, "*lead"] | None, Float[Tensor, "*lead"]]:
    """`mix` of the entries of a condition, and that of all entries less it.

    Args:
        only_conditional: whether the first may be None.
    """
    layout = _lay_out([*given, *entries], log_weights, None)
    terms, bias = _terms(given, log_weights, layout)
    more = [entry.placed(layout).term() for entry in entries]
    norms = _own_norms(entries)
    if norms is not None:
        # They belong to the second sum alone: a table with one column, which all queries read.
        codes = torch.zeros(more[0].shape[1], 1, dtype=torch.long, device=norms.device)
        more.append(Lookup(codes, layout.to_batch(norms, 1).unsqueeze(-1)))
    if only_conditional and layout.is_flat and len(terms) == len(more) == 1:
        labels = log_labels_given(terms[0], more[0], bias)
        if labels is not None:
            return None, _add(labels, _shared(entries))
    lse, conditional = (layout.to_lead(result, 0) for result in log_mix_given(terms, more, bias))
    return _add(lse, _shared(given)), _add(conditional, _shared(entries))


def score_matrix(entries: Sequence[Entry]) -> Float[Tensor, "*lead m"]:
    """Σ_entries scores of all values under every component: whole log-densities, or log masses of regions."""
    none = _no_weights(entries)
    layout = _lay_out(entries, none, None)
    terms, bias = _terms(entries, none, layout)
    scores = layout.to_lead(all_scores(terms, bias), 1)
    return _add(scores, [part.unsqueeze(-1) if part.ndim else part for part in _shared(entries)])


def relative_scores(entries: Sequence[Entry]) -> tuple[Float[Tensor, "*lead m"], Float[Tensor, "*lead"]]:
    """`score_matrix` in two parts: the largest score of every row is taken out before scores are rounded.

    Returns:
        Scores `(*lead, m)` of at most 0, and what has to be added to them, `(*lead,)`.
    """
    none = _no_weights(entries)
    layout = _lay_out(entries, none, None)
    scores, tops = RelativeScores.of(*_terms(entries, none, layout)).compute()
    return layout.to_lead(scores, 1), _add(layout.to_lead(tops, 0), _shared(entries))


def relative_matrices(
    entry: Entry,
) -> tuple[Sequence[Float[Tensor, "n m"]], Float[Tensor, "n b"]]:
    """`relative_scores` of values `(n, b, *event)` under a batch of b mixtures, with a matrix for each."""
    none = _no_weights([entry])
    layout = _lay_out([entry], none, None)
    matrices, tops = RelativeScores.of(*_terms([entry], none, layout)).matrices()
    return matrices, _add(layout.to_lead(tops, 0), _shared([entry]))


@dataclass(frozen=True)
class RowScores:
    """`relative_scores` for any rows of entries with one leading dimension; what they share is computed once.

    Args:
        relative: the scores of terms.
        shared: what all components share: numbers, or one per row.
    """

    relative: RelativeScores
    shared: tuple[Tensor, ...]

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> RowScores:
        none = _no_weights(entries)
        terms, bias = _terms(entries, none, _lay_out(entries, none, None))
        return cls(RelativeScores.of(terms, bias), tuple(_shared(entries)))

    def rows(self, part: slice) -> RowScores:
        shared = tuple(one[part] if one.ndim else one for one in self.shared)
        return RowScores(self.relative.queries(part), shared)

    def compute(self) -> tuple[Float[Tensor, "n m"], Float[Tensor, " n"]]:
        scores, tops = self.relative.compute()
        return scores, _add(tops, self.shared)


def _no_weights(entries: Sequence[Entry]) -> Float[Tensor, " m"]:
    """Zeros in place of log-weights."""
    components, kernel = entries[0].components, entries[0].kernel
    dtype = components.dtype if components.is_floating_point() else torch.get_default_dtype()
    return torch.zeros(components.shape[-1 - kernel.component_dim], dtype=dtype, device=components.device)


def log_posterior_weights(
    entries: Sequence[Entry], log_weights: Float[Tensor, "*batch m"]
) -> Float[Tensor, "*lead m"]:
    """log softmax_j(log_weights_j + scores_j), a row of −∞ where nothing overlaps."""
    layout = _lay_out(entries, log_weights, None)
    terms, bias = _terms(entries, log_weights, layout)
    return layout.to_lead(log_posterior(terms, bias), 1)
