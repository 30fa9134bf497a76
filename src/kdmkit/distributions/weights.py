"""The weights of a mixture: given as numbers, or inferred from evidence (the paper's Algorithm 1)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import as_tensor, bad_argument, check_log_weights, check_weights
from kdmkit._core.logspace import safe_log, safe_logsumexp
from kdmkit._core.runtime import only_reverse_mode
from kdmkit._core.tensors import component_dtype
from kdmkit.distributions.arguments import BatchIndex
from kdmkit.distributions.base import PartMap, cached_per_grad_mode
from kdmkit.distributions.component_scores import Features, Values, as_numbers
from kdmkit.distributions.mixing import Entry, Mixed, log_posterior_weights, mix, mix_given

if TYPE_CHECKING:
    from kdmkit.distributions.evidence import Evidence

# A matrix product adds one term after the other: over a million of them float32 would keep two digits.
_BLOCK = 4096
# Pairs of an evidence component and a joint component whose weights exist at once.
_PAIRS = 1 << 24


class Weights(ABC):
    """A probability vector over m components for every element of a batch."""

    batch_shape: torch.Size

    @property
    @abstractmethod
    def log_weights(self) -> Float[Tensor, "*batch m"]: ...

    @abstractmethod
    def average(self, values: Values) -> Float[Tensor, "*batch v"]:
        """Σ_j w_j v_j of values `(*lead, m, v)`; leading dimensions broadcast with the batch."""

    def mix(self, entries: Sequence[Entry], values: Values | None = None) -> Mixed:
        """log Σ_j w_j exp(scores_j), and averages of values under the weights w_j exp(scores_j)."""
        return mix(entries, self.log_weights, None if values is None else as_numbers(values))

    @abstractmethod
    def log_mix(self, entries: Sequence[Entry]) -> Float[Tensor, "*lead"]:
        """log Σ_j w_j exp(scores_j)."""

    @abstractmethod
    def mapped(self, function: PartMap) -> Weights:
        """The same weights with `function` applied to every tensor and kernel."""

    @abstractmethod
    def expand(self, batch_shape: torch.Size) -> Weights:
        """The same weights with more elements in the batch."""

    @abstractmethod
    def at(self, index: BatchIndex) -> Weights:
        """The weights of chosen elements of the batch."""

    def with_evidence(self, log_evidence: Tensor) -> Given:
        """The same weights, inferred from evidence of this log-probability."""
        return Given(self.log_weights, log_evidence)

    @property
    def log_evidence(self) -> Float[Tensor, "*batch"]:
        """The log-density of the evidence from which the weights were inferred."""
        raise AttributeError("log_evidence: only a KDM that `infer` returned has evidence")


class Given(Weights):
    """Weights that are given as numbers.

    Args:
        log_weights: their logarithms.
        source: the log-evidence from which the weights were inferred, or inferred weights that have it.
    """

    def __init__(
        self, log_weights: Float[Tensor, "*batch m"], source: Weights | Tensor | None = None
    ) -> None:
        self._log_weights, self._source = log_weights, source
        self.batch_shape = log_weights.shape[:-1]

    @property
    def log_evidence(self) -> Float[Tensor, "*batch"]:
        if self._source is None:
            return super().log_evidence
        return self._source if isinstance(self._source, Tensor) else self._source.log_evidence

    @property
    def log_weights(self) -> Float[Tensor, "*batch m"]:
        return self._log_weights

    def average(self, values: Values) -> Float[Tensor, "*batch v"]:
        if isinstance(values, Features) and values.by_row and not self.batch_shape:
            parts = [_weighted_sum(self._log_weights[place], part) for place, part in values.blocks()]
            return torch.stack(parts).sum(0)
        return _weighted_sum(self._log_weights, as_numbers(values))

    def log_mix(self, entries: Sequence[Entry]) -> Float[Tensor, "*lead"]:
        return self.mix(entries)[1]

    def mapped(self, function: PartMap) -> Given:
        source = self._source
        if source is not None:
            source = function(source) if isinstance(source, Tensor) else source.mapped(function)
        return Given(function(self._log_weights), source)

    def expand(self, batch_shape: torch.Size) -> Given:
        source = None if self._source is None else self._source.expand(batch_shape)
        return Given(self._log_weights.expand(*batch_shape, self._log_weights.shape[-1]), source)

    def at(self, index: BatchIndex) -> Given:
        source = self._source
        if source is not None:
            source = index.choose(source, 0) if isinstance(source, Tensor) else source.at(index)
        return Given(index.choose(self._log_weights, 1), source)


def _weighted_sum(
    log_weights: Float[Tensor, "*batch m"], values: Float[Tensor, "*values m v"]
) -> Float[Tensor, "*lead v"]:
    weights = log_weights.to(values.dtype).exp()
    if values.ndim > 2:
        weights = weights.unsqueeze(-2)
    whole = len(weights) // _BLOCK * _BLOCK if weights.ndim == 1 else 0
    if whole:
        # All blocks in one call: a GPU would wait for thousands of small ones.
        products = weights[:whole].view(-1, 1, _BLOCK) @ values[:whole].reshape(-1, _BLOCK, values.shape[1])
        return products.sum(0).squeeze(0) + weights[whole:] @ values[whole:]
    blocks = zip(weights.split(_BLOCK, -1), values.split(_BLOCK, -2), strict=True)
    average = torch.stack([torch.matmul(w, v) for w, v in blocks]).sum(0)
    return average.squeeze(-2) if values.ndim > 2 else average


def mix_points(
    log_values: Float[Tensor, "l *values"], log_weights: Float[Tensor, "*batch l"] | None
) -> Float[Tensor, "*lead"]:
    """log Σ_l p_l exp(log_values_l) over the points of evidence; no log-weights mean one point."""
    if log_weights is None:
        return log_values.squeeze(0)
    return safe_logsumexp(log_values.movedim(0, -1) + log_weights.to(log_values.dtype))


class Inferred(Weights):
    """p''_j = Σ_l p_l softmax_j(ℓ_j + log_overlap(x_l, x'_j)), computed when it is first read.

    Sums that are linear in p'' go through `attend`, densities through `log_mix_given`: the matrix
    (batch × m) exists only if `log_weights` is read. If x_l overlaps with no component, its weights are the
    prior's.

    Args:
        evidence: the points x_l and their weights p_l.
        prior: the joint's weights.
    """

    def __init__(self, evidence: Evidence, prior: Weights) -> None:
        self._evidence, self._prior, self.batch_shape = evidence, prior, evidence.batch_shape

    @cached_per_grad_mode
    def log_evidence(self) -> Float[Tensor, "*batch"]:
        """log Σ_l p_l f̂(x_l): how likely the evidence is under the joint."""
        log_density = self._prior.mix(self._evidence.entries("density"))[1]
        return mix_points(log_density, self._evidence.log_weights).expand(self.batch_shape)

    def average(self, values: Values) -> Float[Tensor, "*batch v"]:
        rank = max(self._evidence.rank, values.ndim - 2)
        averages, lse = self._prior.mix(self._evidence.entries(rank=rank), values)
        assert averages is not None
        prior = self._prior.average(values).to(averages.dtype)
        missed = torch.isneginf(lse).unsqueeze(-1)
        in_place = only_reverse_mode() and not (averages.requires_grad or prior.requires_grad)
        averages = torch.where(missed, prior, averages, out=averages if in_place else None)
        weights = self._evidence.weights
        return averages.squeeze(0) if weights is None else weights.average(averages.movedim(0, -2))

    def log_mix(self, entries: Sequence[Entry]) -> Float[Tensor, "*lead"]:
        evidence, prior, log_prior = self._evidence, self._prior, self._prior.log_weights
        if evidence.weights is None:
            given = evidence.point_entries()
        else:
            # The dimension of the evidence's points comes in front of every leading dimension of the values.
            shapes = [shape for entry in entries for shape in (entry.lead, entry.mixture_batch)]
            given = evidence.entries(rank=max(evidence.rank, *map(len, shapes)))
        lse, conditional = mix_given(given, entries, log_prior, only_conditional=not evidence.can_miss)
        if lse is not None and evidence.can_miss:
            conditional = torch.where(torch.isneginf(lse), prior.log_mix(entries), conditional)
        return conditional if evidence.weights is None else mix_points(conditional, evidence.log_weights)

    @cached_per_grad_mode
    def log_weights(self) -> Float[Tensor, "*batch m"]:
        m = self._prior.log_weights.shape[-1]
        weights = self._evidence.weights
        if weights is None:
            posterior = self._point_log_weights(self._evidence.entries())
            return posterior.squeeze(0).expand(*self.batch_shape, m)
        outer = weights.log_weights
        step = max(1, _PAIRS // max(1, m * self.batch_shape.numel()))
        blocks = []
        for start in range(0, outer.shape[-1], step):
            part = slice(start, start + step)
            inner = self._point_log_weights(self._evidence.entries(points=part))
            blocks.append(safe_logsumexp(inner.movedim(0, -1) + outer[..., None, part].to(inner.dtype)))
        return safe_logsumexp(torch.stack(blocks, -1)).expand(*self.batch_shape, m)

    def _point_log_weights(self, entries: Sequence[Entry]) -> Float[Tensor, "l *batch m"]:
        """log softmax_j of the scores; the prior's log-weights if there is no overlap."""
        posterior = log_posterior_weights(entries, self._prior.log_weights)
        missed = torch.isneginf(posterior).all(-1, keepdim=True)
        return torch.where(missed, self._prior.log_weights.to(posterior.dtype), posterior)

    def mapped(self, function: PartMap) -> Inferred:
        return Inferred(self._evidence.mapped(function), self._prior.mapped(function))

    def expand(self, batch_shape: torch.Size) -> Inferred:
        """The evidence is repeated (without copies), so that the weights stay uncomputed."""
        return Inferred(self._evidence.expand(batch_shape), self._prior)

    def at(self, index: BatchIndex) -> Inferred:
        return Inferred(self._evidence.at(index), self._prior.at(index))

    def __reduce__(self) -> tuple[type[Inferred], tuple[object, ...]]:
        """For pickle: without cached values, whose gradients would lead nowhere."""
        return Inferred, (self._evidence, self._prior)


def given_weights(weights: Any, log_weights: Any, components: Tensor, m_dim: int, *, validate: bool) -> Given:
    """The mixture's weights from whichever form the user gave."""
    m = components.shape[m_dim]
    like = torch.zeros((), dtype=component_dtype(components), device=components.device)
    if weights is None and log_weights is None:
        return Given(torch.full((m,), -math.log(m), dtype=like.dtype, device=like.device))
    if weights is not None and log_weights is not None:
        raise ValueError(bad_argument("weights", "either weights or log_weights", "both"))
    argument = "weights" if log_weights is None else "log_weights"
    tensor = as_tensor(argument, weights if log_weights is None else log_weights, like=like)
    if tensor.ndim == 0 or tensor.shape[-1] != m:
        raise ValueError(bad_argument(argument, f"shape (..., {m}), one per component", tuple(tensor.shape)))
    return Given(as_log_weights(argument, tensor, log_weights is not None, like, validate))


def as_log_weights(argument: str, tensor: Tensor, is_log: bool, like: Tensor, validate: bool) -> Tensor:
    """Checked logarithms of weights, from the weights or from their logarithms (`is_log`)."""
    if is_log:
        if validate:
            check_log_weights(argument, tensor)
        return tensor
    if tensor.dtype == torch.bool:
        raise TypeError(bad_argument(argument, "numbers", tensor.dtype))
    tensor = tensor if tensor.is_floating_point() else tensor.to(like.dtype)
    if validate:
        check_weights(argument, tensor)
    return safe_log(tensor)
