"""Inference (the paper's Algorithm 1): from evidence on some variables to weights for the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.logspace import safe_logsumexp
from kdmkit._core.runtime import only_reverse_mode
from kdmkit.distributions._lazy import cached_per_grad_mode
from kdmkit.distributions.features import Values
from kdmkit.distributions.known import Evidence, Known
from kdmkit.distributions.mixing import Entry, ScoreKind, log_posterior_weights, mix_given
from kdmkit.distributions.weights import PartMap, Weights
from kdmkit.kernels import Kernel

# Pairs of (evidence component, joint component) whose weights are held at once.
_PAIRS = 1 << 24


class Inferred(Weights):
    """p''_j = Σ_l p_l softmax_j(ℓ_j + log_overlap(x_l, x'_j)), computed when it is first read.

    Sums that are linear in p'' go through `attend`, densities through `log_mix_given`: the matrix
    (batch × m) exists only if `log_weights` is read. Where x_l overlaps with no component, its weights are
    the prior's.

    Args:
        evidence: the points x_l and their weights p_l.
        kernels, components: of the joint's variables; those without evidence are not kept.
        prior: the joint's weights.
    """

    def __init__(
        self,
        evidence: Evidence,
        kernels: Mapping[str, Kernel],
        components: Mapping[str, Tensor],
        prior: Weights,
    ) -> None:
        self._prior = prior
        self._known = Known(evidence, kernels, components, {"weights of the joint": prior.batch_shape})

    @classmethod
    def _of(cls, known: Known, prior: Weights) -> Inferred:
        return cls(known.evidence, known.kernels, known.components, prior)

    @property
    def batch_shape(self) -> torch.Size:
        return self._known.batch_shape

    def _entries(
        self, kind: ScoreKind = "relative", rank: int | None = None, points: slice = slice(None)
    ) -> list[Entry]:
        return list(self._known.entries(kind, rank, points).values())

    @cached_per_grad_mode
    def log_evidence(self) -> Float[Tensor, "*batch"]:
        """log Σ_l p_l f̂(x_l): how likely the evidence is under the joint."""
        log_density = self._prior.mix(self._entries("density"))[1]
        return self._known.over_points(log_density).expand(self.batch_shape)

    def average(self, values: Values) -> Float[Tensor, "*batch v"]:
        rank = max(self._known.rank, values.ndim - 2)
        averages, lse = self._prior.mix(self._entries(rank=rank), values)
        assert averages is not None
        prior = self._prior.average(values).to(averages.dtype)
        missed = torch.isneginf(lse).unsqueeze(-1)
        same = only_reverse_mode() and not (averages.requires_grad or prior.requires_grad)
        averages = torch.where(missed, prior, averages, out=averages if same else None)
        weights = self._known.evidence.weights
        return averages.squeeze(0) if weights is None else weights.average(averages.movedim(0, -2))

    def log_mix(self, entries: Sequence[Entry]) -> Float[Tensor, "*lead"]:
        given = point = self._known.point_entries()
        if given is None:
            # The dimension of the evidence's points comes in front of every leading dimension of the values.
            shapes = [shape for entry in entries for shape in (entry.lead, entry.mixture_batch)]
            given = self._entries(rank=max(self._known.rank, *map(len, shapes)))
        prior, can_miss = self._prior, self._known.can_miss
        lse, conditional = mix_given(given, entries, prior.log_weights, only_conditional=not can_miss)
        if lse is not None and can_miss:
            conditional = torch.where(torch.isneginf(lse), self._prior.log_mix(entries), conditional)
        return self._known.over_points(conditional) if point is None else conditional

    @cached_per_grad_mode
    def log_weights(self) -> Float[Tensor, "*batch m"]:
        m = self._prior.log_weights.shape[-1]
        weights = self._known.evidence.weights
        if weights is None:
            return self._point_log_weights(self._entries()).squeeze(0).expand(*self.batch_shape, m)
        outer = weights.log_weights
        step = max(1, _PAIRS // max(1, m * self.batch_shape.numel()))
        blocks = []
        for start in range(0, outer.shape[-1], step):
            part = slice(start, start + step)
            inner = self._point_log_weights(self._entries(points=part))
            blocks.append(safe_logsumexp(inner.movedim(0, -1) + outer[..., None, part].to(inner.dtype)))
        return safe_logsumexp(torch.stack(blocks, -1)).expand(*self.batch_shape, m)

    def _point_log_weights(self, entries: Sequence[Entry]) -> Float[Tensor, "l *batch m"]:
        """log softmax_j of the scores, the prior's where there is no overlap."""
        posterior = log_posterior_weights(entries, self._prior.log_weights)
        missed = torch.isneginf(posterior).all(-1, keepdim=True)
        return torch.where(missed, self._prior.log_weights.to(posterior.dtype), posterior)

    def mapped(self, function: PartMap) -> Inferred:
        return Inferred._of(self._known.mapped(function), self._prior.mapped(function))

    def expand(self, batch_shape: torch.Size) -> Inferred:
        """The evidence is repeated (without copies), so that the weights stay uncomputed."""
        return Inferred._of(self._known.expand(batch_shape), self._prior)

    def __reduce__(self) -> tuple[type[Inferred], tuple[object, ...]]:
        """For pickle: cached values are left out, their gradients would lead nowhere."""
        known = self._known
        return Inferred, (known.evidence, known.kernels, known.components, self._prior)
