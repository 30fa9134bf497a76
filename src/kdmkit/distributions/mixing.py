"""Values of variables against the components of a mixture, in every arrangement of batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kdmkit._core.shapes import broadcast
from kdmkit.kernels import Kernel
from kdmkit.ops import Masked, Term, attend, log_mix, log_mix_both, score_matrix


@dataclass(frozen=True)
class Entry:
    """One variable's values beside its components.

    Args:
        kernel: the variable's kernel.
        value: of shape `(*lead, *event)`, or labels `(*lead,)`.
        components: of shape `(*batch, m, *event)`.
        normalized: whether scores include the kernel's log-normaliser (a density) or not (a projection).
        keep: of shape `(*lead,)`; where False the variable is left out of the score.
    """

    kernel: Kernel
    value: Tensor
    components: Tensor
    normalized: bool = True
    keep: Bool[Tensor, "*lead"] | None = None

    @property
    def event_rank(self) -> int:
        return self.kernel.event_rank(self.value)

    @property
    def lead(self) -> torch.Size:
        lead = self.value.shape[: self.value.ndim - self.event_rank]
        return lead if self.keep is None else broadcast(lead, self.keep.shape)

    @property
    def components_batch(self) -> torch.Size:
        return broadcast(self.components.shape[: -1 - self.kernel.event_dim], self.kernel.batch_shape)

    @property
    def event_shape(self) -> torch.Size:
        return self.components.shape[self.components.ndim - self.kernel.event_dim :]

    def log_norm(self) -> Tensor | None:
        """The log-normaliser in the components' precision, where it is asked for."""
        if not self.normalized or self.kernel.unit_norm:
            return None
        norm = self.kernel.log_norm(self.event_shape)
        return norm.to(self.components if self.components.is_floating_point() else self.components.device)

    def placed(self, layout: Layout) -> Entry:
        """The entry with its values as queries and its components as the reductions' leading dimensions."""
        keep = None if self.keep is None else layout.queries(self.keep, 0)
        components = layout.mixture(self.components, 1 + self.kernel.event_dim)
        kernel = self.kernel
        if kernel.batch_shape:
            kernel = kernel.arranged(lambda scale: layout.mixture(scale, 2))
        value = layout.queries(self.value, self.event_rank)
        return replace(self, kernel=kernel, value=value, components=components, keep=keep)

    def term(self) -> Term:
        """The scores as the reductions take them: `value` has shape `(*lead, n, *event)`."""
        term = self.kernel.term(self.value, self.components)
        if self.keep is None:
            return term
        m = self.components.shape[-1 - self.kernel.event_dim]
        norm = self.log_norm()
        if norm is None:
            dtype = (
                self.components.dtype if self.components.is_floating_point() else torch.get_default_dtype()
            )
            norm = torch.zeros((), dtype=dtype, device=self.components.device)
        return Masked(term, norm.expand(m).unsqueeze(-1), self.keep.unsqueeze(-1))


@dataclass(frozen=True)
class Layout:
    """How leading dimensions become queries and batches of the reductions, and how results regain them.

    Dimensions along which the mixture itself differs are batches; all others, those of size 1 in the mixture
    included, merely count queries, so that no component is ever repeated for them.

    Args:
        lead: the leading dimensions of the result.
        batch: which of them are batches.
        by_row: whether components are shared and only weights differ: then batches are rows of one product.
    """

    lead: torch.Size
    batch: tuple[int, ...]
    by_row: bool

    @property
    def _order(self) -> tuple[int, ...]:
        free = tuple(i for i in range(len(self.lead)) if i not in self.batch)
        return (*free, *self.batch) if self.by_row else (*self.batch, *free)

    @property
    def _shape(self) -> tuple[int, ...]:
        sizes = [self.lead[i] for i in self.batch]
        n = math.prod([size for i, size in enumerate(self.lead) if i not in self.batch])
        return (n, math.prod(sizes)) if self.by_row else (*sizes, n)

    def queries(self, tensor: Tensor, event_rank: int) -> Tensor:
        """From `(*lead, *event)` to the reductions' `(*batch, n, *event)`."""
        event = tensor.shape[tensor.ndim - event_rank :]
        expanded = tensor.expand((*self.lead, *event))
        if not self.batch:
            return expanded.reshape((self.lead.numel(), *event))
        last = range(len(self.lead), len(self.lead) + event_rank)
        return expanded.permute((*self._order, *last)).reshape((*self._shape, *event))

    def restore(self, result: Tensor, event_rank: int) -> Tensor:
        """The inverse of `queries`."""
        event = result.shape[result.ndim - event_rank :]
        if not self.batch:
            return result.reshape((*self.lead, *event))
        order = self._order
        back = sorted(range(len(order)), key=order.__getitem__)
        last = range(len(order), len(order) + event_rank)
        return result.reshape((*(self.lead[i] for i in order), *event)).permute((*back, *last))

    def mixture(self, tensor: Tensor, rank: int) -> Tensor:
        """From `(*dims, *last)` with `rank` last dimensions to `(*batch, *last)`, or `last` where shared."""
        dims, last = tensor.shape[: tensor.ndim - rank], tensor.shape[tensor.ndim - rank :]
        if not dims:
            return tensor
        padded = (*([1] * (len(self.lead) - len(dims))), *dims)
        sizes = [padded[i] for i in self.batch]
        return tensor.reshape((*(sizes if math.prod(sizes) != 1 else ()), *last))

    def bias(self, log_weights: Float[Tensor, "*batch m"]) -> Float[Tensor, "*rows m"]:
        """Log-weights as the reductions take them."""
        placed = self.mixture(log_weights, 1)
        if self.by_row:
            return placed.reshape(-1, placed.shape[-1])
        return placed.unsqueeze(-2) if placed.ndim > 1 else placed


def _lay_out(entries: Sequence[Entry], log_weights: Tensor, values: Tensor | None) -> Layout:
    own = [entry.components_batch for entry in entries]
    own += [] if values is None else [values.shape[:-2]]
    batch = broadcast(log_weights.shape[:-1], *own)
    lead = broadcast(batch, *(entry.lead for entry in entries))
    first = len(lead) - len(batch)
    differing = tuple(first + i for i, size in enumerate(batch) if size != 1)
    shared = all(math.prod(shape) == 1 for shape in own)
    return Layout(lead, differing, by_row=shared and bool(differing))


def _terms(
    entries: Sequence[Entry], log_weights: Tensor, layout: Layout
) -> tuple[list[Term], Tensor, Tensor | None]:
    """The entries' scores, the bias of every component, and the constant that all components share."""
    bias, constant = _offsets(entries, log_weights)
    return [entry.placed(layout).term() for entry in entries], layout.bias(bias), constant


def _offsets(entries: Sequence[Entry], log_weights: Tensor) -> tuple[Tensor, Tensor | None]:
    """Log-normalisers: those per component join the weights, the others are one constant."""
    bias, constant = log_weights, None
    for entry in entries:
        norm = entry.log_norm() if entry.keep is None else None
        if norm is None:
            continue
        if norm.ndim:
            bias = bias + norm.to(bias)
        else:
            constant = norm if constant is None else constant + norm.to(constant)
    return bias, constant


def mix(
    entries: Sequence[Entry],
    log_weights: Float[Tensor, "*batch m"],
    values: Float[Tensor, "*own m v"] | None = None,
) -> tuple[Float[Tensor, "*lead v"] | None, Float[Tensor, "*lead"]]:
    """log Σ_j exp(log_weights_j + scores_j), and averages of `values` under it, for all leading dimensions.

    Leading dimensions of the entries broadcast with each other and, at their end, with the mixture's batch.
    Shared components are never expanded.
    """
    layout = _lay_out(entries, log_weights, values)
    terms, bias, constant = _terms(entries, log_weights, layout)
    averages = None
    if values is None:
        lse = log_mix(terms, bias)
    else:
        averages, lse = attend(terms, bias, layout.mixture(values, 2))
        averages = layout.restore(averages, 1)
    lse = layout.restore(lse, 0)
    return averages, lse if constant is None else lse + constant.to(lse.dtype)


def mix_both(
    entries: Sequence[Entry], more: Sequence[Entry], log_weights: Float[Tensor, "*batch m"]
) -> tuple[Float[Tensor, "*lead"], Float[Tensor, "*lead"]] | None:
    """`mix` of some entries, and of those and more; None where their leading dimensions differ."""
    layout = _lay_out(entries, log_weights, None)
    # A normaliser per component would have to enter one of the two sums and not the other.
    own_norms = any(entry.normalized and entry.kernel.per_component for entry in more)
    if own_norms or _lay_out([*entries, *more], log_weights, None) != layout:
        return None
    terms, bias, constant = _terms(entries, log_weights, layout)
    extra, _, constant_more = _terms(more, log_weights, layout)
    results = [layout.restore(lse, 0) for lse in log_mix_both(terms, extra, bias)]
    constants = [constant, _plus(constant, constant_more)]
    first, second = (
        lse if c is None else lse + c.to(lse.dtype) for lse, c in zip(results, constants, strict=True)
    )
    return first, second


def _plus(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b.to(a)


def scores(entries: Sequence[Entry], log_weights: Float[Tensor, "*batch m"]) -> Float[Tensor, "*lead m"]:
    """log_weights_j + scores_j in full, without the constants that all components share."""
    layout = _lay_out(entries, log_weights, None)
    terms, bias, _ = _terms(entries, log_weights, layout)
    return layout.restore(score_matrix(terms, bias), 1)
