"""Inference (the paper's Algorithm 1): from evidence on some variables to weights for the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kdmkit._core.logspace import safe_logsumexp
from kdmkit.distributions._lazy import cached_per_grad_mode
from kdmkit.distributions._validation import common_batch
from kdmkit.distributions.mixing import Entry, ScoreKind, log_posterior_weights, mix, mix_given
from kdmkit.distributions.weights import PartMap, Weights, each
from kdmkit.kernels import Kernel, Region

# Pairs of (evidence component, joint component) whose weights are held at once.
_PAIRS = 1 << 24


@dataclass(frozen=True)
class Evidence:
    """What is known: L weighted points of some variables, for every element of a batch.

    Args:
        values: by variable, of shape `(L, *batch, *event)`, or `(L, *event)` where the batch shares them.
        weights: over the L points; None for one point of weight 1 (then L = 1).
        observed: by variable, of shape `(*batch,)`: False where the variable is missing.
        regions: by variable, the class of the regions that its values hold in packed form, `(L, *batch, p)`.
        variances: by variable whose points are noisy measurements, of shape `(L, *batch, d)`, or `(1, d)`
            where all points share it; the last dimension may be 1.
    """

    values: Mapping[str, Tensor]
    weights: Weights | None
    observed: Mapping[str, Bool[Tensor, "*batch"]]
    variances: Mapping[str, Float[Tensor, "l *batch d"]] = field(default_factory=dict)
    regions: Mapping[str, type[Region]] = field(default_factory=dict)

    def event_rank(self, name: str, kernel: Kernel) -> int:
        """The number of trailing dimensions of a variable's values that are one event, or one region."""
        return 1 if name in self.regions else kernel.event_rank(self.values[name])


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
        self._evidence, self._prior = evidence, prior
        self._kernels = {name: kernels[name] for name in evidence.values}
        self._components = {name: components[name] for name in evidence.values}
        batches = self._batches()
        # Dimensions that follow the one of the evidence's points: its weights join only after the mixture.
        self._rank = max(len(shape) for shape in batches.values())
        if evidence.weights is not None:
            batches["weights of the evidence"] = evidence.weights.batch_shape
        self._batch_shape = common_batch(batches)

    def _batches(self) -> dict[str, torch.Size]:
        shapes = {"weights of the joint": self._prior.batch_shape}
        for name, value in self._evidence.values.items():
            kernel, components = self._kernels[name], self._components[name]
            shapes[name] = value.shape[1 : value.ndim - self._evidence.event_rank(name, kernel)]
            shapes[f"components[{name!r}]"] = components.shape[: -1 - kernel.component_dim]
            shapes[f"kernels[{name!r}]"] = kernel.batch_shape
        for name, variance in self._evidence.variances.items():
            shapes[f"variance of {name!r}"] = variance.shape[1:-1]
        return shapes | {f"observed[{name!r}]": mask.shape for name, mask in self._evidence.observed.items()}

    @property
    def batch_shape(self) -> torch.Size:
        return self._batch_shape

    def _entries(
        self, kind: ScoreKind = "relative", rank: int | None = None, points: slice = slice(None)
    ) -> list[Entry]:
        """Points of the evidence, with `rank` dimensions between their number and their events."""
        rank = self._rank if rank is None else rank
        entries = []
        for name, value in self._evidence.values.items():
            value = _with_rank(value[points], rank, self._evidence.event_rank(name, self._kernels[name]))
            kernel, components = self._kernel(name, rank, points), self._components[name]
            keep, region = self._evidence.observed.get(name), self._evidence.regions.get(name)
            entries.append(Entry(kernel, value, components, kind, keep, region))
        return entries

    def _kernel(self, name: str, rank: int, points: slice) -> Kernel:
        """The kernel that compares points with components, wider where points are noisy measurements."""
        kernel, variance = self._kernels[name], self._evidence.variances.get(name)
        if variance is None:
            return kernel
        if variance.shape[0] == 1 and variance.ndim == 2:
            return kernel.convolved(variance[0])
        variance = variance if variance.shape[0] == 1 else variance[points]
        each = _with_rank(variance, rank, 1).unsqueeze(-2)
        m = self._components[name].shape[-1 - kernel.component_dim]
        return kernel.convolved(each.expand(*each.shape[:-2], m, each.shape[-1]))

    @cached_per_grad_mode
    def log_evidence(self) -> Float[Tensor, "*batch"]:
        """log Σ_l p_l f̂(x_l): how likely the evidence is under the joint."""
        log_density = mix(self._entries("density"), self._prior.log_weights)[1]
        return self._over_points(log_density).expand(self.batch_shape)

    def _over_points(self, log_values: Float[Tensor, "l *own"]) -> Float[Tensor, "*lead"]:
        """log Σ_l p_l exp(log_values_l)."""
        weights = self._evidence.weights
        if weights is None:
            return log_values.squeeze(0)
        log_values = log_values.movedim(0, -1)
        return safe_logsumexp(log_values + weights.log_weights.to(log_values.dtype))

    def average(self, values: Float[Tensor, "*own m v"]) -> Float[Tensor, "*batch v"]:
        rank = max(self._rank, values.ndim - 2)
        averages, lse = mix(self._entries(rank=rank), self._prior.log_weights, values)
        assert averages is not None
        prior = self._prior.average(values).to(averages.dtype)
        averages = torch.where(torch.isneginf(lse).unsqueeze(-1), prior, averages)
        weights = self._evidence.weights
        return averages.squeeze(0) if weights is None else weights.average(averages.movedim(0, -2))

    def log_mix(self, entries: Sequence[Entry]) -> Float[Tensor, "*lead"]:
        # The dimension of the evidence's points comes in front of every leading dimension of the values.
        shapes = [shape for entry in entries for shape in (entry.lead, entry.mixture_batch)]
        rank = max(self._rank, *map(len, shapes))
        lse, conditional = mix_given(self._entries(rank=rank), entries, self._prior.log_weights)
        if self._can_miss:
            conditional = torch.where(torch.isneginf(lse), self._prior.log_mix(entries), conditional)
        return self._over_points(conditional)

    @property
    def _can_miss(self) -> bool:
        """Whether a point may overlap with no component at all (compact and discrete kernels)."""
        regions = self._evidence.regions
        return bool(regions) or any(not kernel.overlaps_everywhere for kernel in self._kernels.values())

    @cached_per_grad_mode
    def log_weights(self) -> Float[Tensor, "*batch m"]:
        m = self._prior.log_weights.shape[-1]
        weights = self._evidence.weights
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
        known = self._evidence
        weights = None if known.weights is None else known.weights.mapped(function)
        tensors = (each(function, part) for part in (known.values, known.observed, known.variances))
        values, observed, variances = tensors
        evidence = Evidence(values, weights, observed, variances, known.regions)
        kernels, components = each(function, self._kernels), each(function, self._components)
        return Inferred(evidence, kernels, components, self._prior.mapped(function))

    def expand(self, batch_shape: torch.Size) -> Inferred:
        """The evidence is repeated (without copies), so that the weights stay uncomputed."""
        known = self._evidence
        if known.weights is not None:
            evidence = replace(known, weights=known.weights.expand(batch_shape))
        else:
            name, value = next(iter(known.values.items()))
            event = value.shape[value.ndim - known.event_rank(name, self._kernels[name]) :]
            value = _with_rank(value, len(batch_shape), len(event)).expand(1, *batch_shape, *event)
            evidence = replace(known, values={**known.values, name: value})
        return Inferred(evidence, self._kernels, self._components, self._prior)

    def __reduce__(self) -> tuple[type[Inferred], tuple[object, ...]]:
        """For pickle: cached values are left out, their gradients would lead nowhere."""
        return Inferred, (self._evidence, self._kernels, self._components, self._prior)


def _with_rank(tensor: Tensor, rank: int, event_rank: int) -> Tensor:
    """Dimensions of size 1 after the first, so that `rank` dimensions lie between it and the event's."""
    missing = rank + 1 - (tensor.ndim - event_rank)
    return tensor.reshape(tensor.shape[0], *([1] * missing), *tensor.shape[1:])
