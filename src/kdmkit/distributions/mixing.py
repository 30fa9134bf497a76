"""Values of variables against the components of a mixture, in every arrangement of batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kdmkit.kernels import Kernel
from kdmkit.ops import Masked, Term, attend, log_mix, score_matrix


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
        return lead if self.keep is None else torch.broadcast_shapes(lead, self.keep.shape)

    @property
    def components_batch(self) -> torch.Size:
        return self.components.shape[: -1 - self.kernel.event_dim]

    @property
    def event_shape(self) -> torch.Size:
        return self.components.shape[self.components.ndim - self.kernel.event_dim :]

    def log_norm(self) -> Tensor | None:
        """The log-normaliser in the components' precision, where it is asked for."""
        if not self.normalized:
            return None
        norm = self.kernel.log_norm(self.event_shape)
        return norm.to(self.components) if self.components.is_floating_point() else norm

    def placed(self, lead: torch.Size, shape: Sequence[int], moved: int | None = None) -> Entry:
        """Values expanded to `lead`, then reshaped; dimension 0 may move to position `moved`."""
        event = self.value.shape[self.value.ndim - self.event_rank :]
        value = self.value.expand((*lead, *event)).reshape((*shape, *event))
        keep = None if self.keep is None else self.keep.expand(lead).reshape(tuple(shape))
        if moved is not None:
            value = value.movedim(0, moved)
            keep = None if keep is None else keep.movedim(0, moved)
        return Entry(self.kernel, value, self.components, self.normalized, keep)

    def term(self) -> Term:
        """The scores as the reductions take them: `value` has shape `(*lead, n, *event)`."""
        term = self.kernel.term(self.value, self.components)
        if self.keep is None:
            return term
        m = self.components.shape[-1 - self.kernel.event_dim]
        norm = self.log_norm() if self.kernel.has_density else None
        if norm is None:
            dtype = (
                self.components.dtype if self.components.is_floating_point() else torch.get_default_dtype()
            )
            norm = torch.zeros((), dtype=dtype, device=self.components.device)
        return Masked(term, norm.expand(m).unsqueeze(-1), self.keep.unsqueeze(-1))


@dataclass(frozen=True)
class _Layout:
    """Entries laid out as terms with the bias of every component, and how results regain their shape."""

    terms: list[Term]
    bias: Tensor
    constant: Tensor | None
    lead: torch.Size
    batch: torch.Size
    batch_first: bool

    def restore(self, result: Tensor, trailing: int) -> Tensor:
        """A result of the reductions with `trailing` dimensions after the queries', in the shape `lead`."""
        tail = result.shape[result.ndim - trailing :]
        if self.batch_first:
            outer = self.lead.numel() // max(1, self.batch.numel()) if self.batch.numel() else 1
            result = result.expand((*self.batch, outer, *tail)).movedim(len(self.batch), 0)
        return result.reshape((*self.lead, *tail))


def _lay_out(entries: Sequence[Entry], log_weights: Tensor, values_batch: torch.Size) -> _Layout:
    batch = torch.broadcast_shapes(
        values_batch, log_weights.shape[:-1], *(entry.components_batch for entry in entries)
    )
    lead = torch.broadcast_shapes(batch, *(entry.lead for entry in entries))
    outer = lead[: len(lead) - len(batch)].numel()
    bias, constant = _offsets(entries, log_weights)
    shared = not values_batch and not any(entry.components_batch for entry in entries)
    batch_first = bool(batch) and not (shared and len(batch) == 1)
    if not batch:
        placed = [entry.placed(lead, (lead.numel(),)) for entry in entries]
    elif batch_first:
        placed = [entry.placed(lead, (outer, *batch), moved=len(batch)) for entry in entries]
        bias = bias.unsqueeze(-2)
    else:  # Weights per row, components for all: rows of one product.
        placed = [entry.placed(lead, (outer, *batch)) for entry in entries]
        bias = bias.expand((*batch, bias.shape[-1]))
    return _Layout([entry.term() for entry in placed], bias, constant, lead, batch, batch_first)


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
    values: Float[Tensor, "*batch m v"] | None = None,
) -> tuple[Float[Tensor, "*lead v"] | None, Float[Tensor, "*lead"]]:
    """log Σ_j exp(log_weights_j + scores_j), and averages of `values` under it, for all leading dimensions.

    Leading dimensions of the entries broadcast with each other and, at their end, with the mixture's batch.
    Shared components are never expanded.
    """
    layout = _lay_out(entries, log_weights, torch.Size() if values is None else values.shape[:-2])
    averages = None
    if values is None:
        lse = log_mix(layout.terms, layout.bias)
    else:
        averages, lse = attend(layout.terms, layout.bias, values)
        averages = layout.restore(averages, 1)
    lse = layout.restore(lse, 0)
    return averages, lse if layout.constant is None else lse + layout.constant.to(lse.dtype)


def scores(entries: Sequence[Entry], log_weights: Float[Tensor, "*batch m"]) -> Float[Tensor, "*lead m"]:
    """log_weights_j + scores_j in full, without the constants that all components share."""
    layout = _lay_out(entries, log_weights, torch.Size())
    return layout.restore(score_matrix(layout.terms, layout.bias), 1)
