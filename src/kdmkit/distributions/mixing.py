"""Sums over the components of a mixture, arranged for the reductions of `kdmkit.ops`.

A value has shape `(*lead, *event)`. A mixture has log-weights `(*batch, m)`, components `(m, *event)` or
`(*batch, m, *event)`, and kernels whose bandwidths may have a batch too. `batch` broadcasts with the end of
`lead`. For example:

    value               (7, 1, 3, d)
    log-weights            (4, 3, m)
    components                (m, d)
    result                 (7, 4, 3)      leading dimensions after broadcasting

Every leading dimension of the result is of one of two kinds. Along a *batch* dimension the mixture differs
(4 and 3 above). Along a *free* dimension only values differ (7 above); a size of 1 in the mixture is free.
The reductions take queries `(*lead, n, d)`, components `(*lead, m, d)` and a bias per component. There are
two ways to arrange the example:

    components or kernels differ: batch dimensions lead, free ones count queries
        queries (4, 3, 7, d)     components (4, 3, m, d)     bias (4, 3, 1, m)
    only weights differ ("by row"): components stay shared, each batch element is a row of weights
        queries (7, 12, d)       components (m, d)           bias (12, m)

So shared components are never repeated. An `Entry` is one variable of the question, and a `Layout` arranges
entries and log-weights and brings results back to `lead`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kdmkit._core.tensors import broadcast, component_dtype
from kdmkit.kernels import Kernel
from kdmkit.ops import Lookup, Term, attend, log_mix
from kdmkit.ops.api import log_mix_given
from kdmkit.ops.dense import log_posterior
from kdmkit.ops.labels import log_labels_given
from kdmkit.ops.terms import Masked

#: What a score of x under component j is: `"overlap"`, 2·log|k(x, c_j)|; `"relative"`, the log-density up to
#: terms that all components share, from which posterior weights follow; `"density"`, the whole log-density.
ScoreKind = Literal["overlap", "relative", "density"]
#: Averages of values (None without values), and logsumexps.
Mixed = tuple[Float[Tensor, "*lead v"] | None, Float[Tensor, "*lead"]]


@dataclass(frozen=True)
class Layout:
    """How leading dimensions become batches and queries of the reductions, and how results regain them.

    Args:
        lead: the leading dimensions of the result.
        batch: which of them are batch dimensions; the others are free.
        by_row: whether only weights differ along batch dimensions.
        is_flat: whether values, components and weights already have the shapes that the reductions take.
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
        """Reshapes `(*lead, *event)` to `(*batch, n, *event)`, or `(n, rows, *event)` by row."""
        event = tensor.shape[tensor.ndim - event_rank :]
        shape = (*self.lead, *event)
        expanded = tensor.expand(shape)
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
        return result.reshape((*[self.lead[i] for i in order], *event)).permute((*back, *last))

    def to_batch(self, tensor: Tensor, rank: int) -> Tensor:
        """A part of the mixture, `(*dims, *last)` with `rank` last dimensions, as `(*batch, *last)`.

        If the batch shares it, the result is `last` alone.
        """
        dims, last = tensor.shape[: tensor.ndim - rank], tensor.shape[tensor.ndim - rank :]
        if not dims:
            return tensor
        padded = (*([1] * (len(self.lead) - len(dims))), *dims)
        sizes = [padded[i] for i in self.batch]
        return tensor.reshape((*(sizes if math.prod(sizes) != 1 else ()), *last))

    def to_bias(self, log_weights: Float[Tensor, "*batch m"]) -> Float[Tensor, "*rows m"]:
        """Log-weights as `(m,)`, `(*batch, 1, m)`, or `(rows, m)` by row."""
        placed = self.to_batch(log_weights, 1)
        if self.by_row:
            return placed.reshape(-1, placed.shape[-1])
        return placed.unsqueeze(-2) if placed.ndim > 1 else placed


@dataclass(frozen=True)
class Entry:
    """One variable's values beside its components.

    Args:
        kernel: the variable's kernel.
        value: of shape `(*lead, *event)`, or labels `(*lead,)`.
        components: of shape `(*batch, m, *event)`.
        kind: which terms of the log-density belong to the score.
        keep: of shape `(*lead,)`; where it is False, the variable is left out of the score.
        is_region: whether `value` holds regions as `Kernel.pack` makes them, `(*lead, p)`: the score is the
            log mass of the component there. Otherwise it holds events.
    """

    kernel: Kernel
    value: Tensor
    components: Tensor
    kind: ScoreKind = "density"
    keep: Bool[Tensor, "*lead"] | None = None
    is_region: bool = False

    @property
    def event_rank(self) -> int:
        return 1 if self.is_region else self.kernel.event_rank(self.value)

    @property
    def lead(self) -> torch.Size:
        lead = self.value.shape[: self.value.ndim - self.event_rank]
        return lead if self.keep is None else broadcast(lead, self.keep.shape)

    @property
    def is_flat(self) -> bool:
        """Whether values have one leading dimension, all of them count, and nothing else has a batch."""
        if self.keep is not None or self.value.ndim != 1 + self.event_rank:
            return False
        return self.components.ndim == 1 + self.kernel.component_dim and not self.kernel.batch_shape

    @property
    def m(self) -> int:
        """The number of components."""
        return self.components.shape[-1 - self.kernel.component_dim]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of scores: that of the components, or the default one if they are codes."""
        return component_dtype(self.components)

    @property
    def mixture_batch(self) -> torch.Size:
        """The batch of the components and of the kernel's bandwidths."""
        return broadcast(self.components.shape[: -1 - self.kernel.component_dim], self.kernel.batch_shape)

    @property
    def has_component_norms(self) -> bool:
        """Whether the score contains a log-normaliser that differs between components."""
        return not self.is_region and self.kind != "overlap" and self.kernel.per_component

    @property
    def has_log_norm(self) -> bool:
        """Whether the score contains a log-normaliser."""
        present = not self.kernel.unit_norm if self.kind == "density" else self.has_component_norms
        return present and not self.is_region

    def log_norm(self) -> Tensor | None:
        """The log-normaliser in the components' precision, None if the score contains none."""
        return self._rounded(self.kernel.log_norm(self.components)) if self.has_log_norm else None

    def _rounded(self, norm: Tensor) -> Tensor:
        return norm.to(self.components if self.components.is_floating_point() else self.components.device)

    def log_jacobian(self) -> Float[Tensor, "*lead"] | None:
        """The term of x that all components share, None if the score contains none."""
        if self.kind != "density" or self.is_region:
            return None
        jacobian = self.kernel.log_jacobian(self.value)
        if jacobian is None or self.keep is None:
            return jacobian
        return torch.where(self.keep, jacobian, torch.zeros_like(jacobian))

    def term(self, layout: Layout) -> Term:
        """The scores for the reductions.

        The term of a masked entry contains its log-normaliser; other entries leave it to the bias.
        """
        entry = self if layout.is_flat else self._placed(layout)
        value, components = entry.value, entry.components
        score = entry.kernel.region_term if entry.is_region else entry.kernel.term
        term = score(value, components)
        if entry.keep is None:
            return term
        norm = entry.log_norm()
        if norm is None:
            norm = torch.zeros((), dtype=entry.dtype, device=components.device)
        return Masked(term, norm.expand(*norm.shape[:-1], entry.m).unsqueeze(-1), entry.keep.unsqueeze(-1))

    def term_and_log_norm(self, layout: Layout) -> tuple[Term, Tensor | None]:
        """The scores, and the log-normaliser that they leave to the bias."""
        if not self.has_log_norm:
            return self.term(layout), None
        if layout.is_flat:
            term, norm = self.kernel.term_and_log_norm(self.value, self.components)
            return term, self._rounded(norm)
        return self.term(layout), self.log_norm() if self.keep is None else None

    def _placed(self, layout: Layout) -> Entry:
        """The entry as the reductions take it: values as queries, components and kernel as batches."""
        return replace(
            self,
            kernel=self.kernel.arranged(lambda bandwidth: layout.to_batch(bandwidth, 2)),
            value=layout.to_queries(self.value, self.event_rank),
            components=layout.to_batch(self.components, 1 + self.kernel.component_dim),
            keep=None if self.keep is None else layout.to_queries(self.keep, 0),
        )


def lay_out(entries: Sequence[Entry], log_weights: Tensor, values: Tensor | None = None) -> Layout:
    """The layout of a question: entries, log-weights, and values to average."""
    n = entries[0].value.shape[:1]
    # Usually values have one leading dimension, and nothing has a batch.
    flat = log_weights.ndim == 1 and (values is None or values.ndim == 2)
    for entry in entries:
        flat = flat and entry.is_flat and entry.value.shape[:1] == n
    if flat:
        return Layout(n, (), by_row=False, is_flat=True)
    mixture = [entry.mixture_batch for entry in entries]
    mixture += [] if values is None else [values.shape[:-2]]
    batch = broadcast(log_weights.shape[:-1], *mixture)
    lead = broadcast(batch, *[entry.lead for entry in entries])
    first = len(lead) - len(batch)
    differing = tuple(first + i for i, size in enumerate(batch) if size != 1)
    shared = all(math.prod(shape) == 1 for shape in mixture)
    return Layout(lead, differing, by_row=shared and bool(differing))


def terms_and_bias(
    entries: Sequence[Entry], log_weights: Tensor, layout: Layout
) -> tuple[list[Term], Tensor, list[Tensor]]:
    """The arguments of a reduction, and what has to be added to its result.

    Returns:
        The entries' scores; the bias of every component, its log-weight and log-normalisers; and the parts of
        the scores that all components share.
    """
    terms, norms, shared = terms_and_norms(entries, layout)
    bias = log_weights if norms is None else log_weights + norms.to(log_weights)
    return terms, bias if layout.is_flat else layout.to_bias(bias), shared


def terms_and_norms(
    entries: Sequence[Entry], layout: Layout
) -> tuple[list[Term], Float[Tensor, "*batch m"] | None, list[Tensor]]:
    """The entries' scores, and what they leave out, see `sum_norms`."""
    pairs = [entry.term_and_log_norm(layout) for entry in entries]
    return [term for term, _ in pairs], *sum_norms(entries, [norm for _, norm in pairs])


def sum_norms(
    entries: Sequence[Entry], norms: Sequence[Tensor | None]
) -> tuple[Float[Tensor, "*batch m"] | None, list[Tensor]]:
    """Parts of the scores that the terms leave out.

    Args:
        norms: the log-normalisers of the entries.

    Returns:
        The sum of log-normalisers that differ between components, None if there are none; and the parts that
        all components share: common log-normalisers, and terms of x.
    """
    total, shared = None, []
    for entry, norm in zip(entries, norms, strict=True):
        if norm is not None and entry.has_component_norms:
            total = norm if total is None else total + norm
        elif norm is not None:
            shared.append(norm)
        jacobian = entry.log_jacobian()
        if jacobian is not None:
            shared.append(jacobian)
    return total, shared


def add_parts(result: Tensor, parts: Sequence[Tensor]) -> Tensor:
    """`result` plus the sum of the parts, which is rounded to the result's dtype only once."""
    if not parts:
        return result
    total = parts[0]
    for part in parts[1:]:
        total = total + part.to(total.dtype)
    return result + total.to(result.dtype)


def mix(
    entries: Sequence[Entry],
    log_weights: Float[Tensor, "*batch m"],
    values: Float[Tensor, "*values m v"] | None = None,
) -> Mixed:
    """log Σ_j exp(log_weights_j + scores_j), and averages of `values` under it, for all leading dimensions.

    Leading dimensions of the entries broadcast with each other and, at their end, with the mixture's batch.
    """
    layout = lay_out(entries, log_weights, values)
    terms, bias, shared = terms_and_bias(entries, log_weights, layout)
    averages = None
    if values is None:
        lse = log_mix(terms, bias)
    else:
        averages, lse = attend(terms, bias, layout.to_batch(values, 2))
        averages = layout.to_lead(averages, 1)
    return averages, add_parts(layout.to_lead(lse, 0), shared)


def mix_given(
    given: Sequence[Entry],
    entries: Sequence[Entry],
    log_weights: Float[Tensor, "*batch m"],
    *,
    only_conditional: bool = False,
) -> tuple[Float[Tensor, "*lead"] | None, Float[Tensor, "*lead"]]:
    """`mix` of the entries of a condition, and `mix` of all entries minus it.

    Args:
        only_conditional: whether the first may be None.
    """
    layout = lay_out([*given, *entries], log_weights)
    terms, bias, given_shared = terms_and_bias(given, log_weights, layout)
    more, norms, shared = terms_and_norms(entries, layout)
    if norms is not None:
        # They belong to the second sum alone: a table with one column, which all queries read.
        codes = torch.zeros(more[0].shape[1], 1, dtype=torch.long, device=norms.device)
        more.append(Lookup(codes, layout.to_batch(norms, 1).unsqueeze(-1)))
    if only_conditional and layout.is_flat and len(terms) == len(more) == 1:
        labels = log_labels_given(terms[0], more[0], bias)
        if labels is not None:
            return None, add_parts(labels, shared) if shared else labels
    lse, conditional = [layout.to_lead(result, 0) for result in log_mix_given(terms, more, bias)]
    return add_parts(lse, given_shared), add_parts(conditional, shared)


def log_posterior_weights(
    entries: Sequence[Entry], log_weights: Float[Tensor, "*batch m"]
) -> Float[Tensor, "*lead m"]:
    """log softmax_j(log_weights_j + scores_j), a row of −∞ if no component overlaps."""
    layout = lay_out(entries, log_weights)
    terms, bias, _ = terms_and_bias(entries, log_weights, layout)
    return layout.to_lead(log_posterior(terms, bias), 1)
