"""Evidence beside the kernels and components of the variables that it is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kdmkit._core.logspace import safe_logsumexp
from kdmkit.distributions._validation import common_batch
from kdmkit.distributions.mixing import Entry, ScoreKind
from kdmkit.distributions.weights import PartMap, Weights, each
from kdmkit.kernels import Kernel, Region


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


class Known:
    """Evidence with the kernels and components of its variables; those of other variables are not kept.

    Args:
        batches: batch shapes of what the evidence is about, by name.
    """

    def __init__(
        self,
        evidence: Evidence,
        kernels: Mapping[str, Kernel],
        components: Mapping[str, Tensor],
        batches: Mapping[str, torch.Size],
    ) -> None:
        self.evidence = evidence
        self.kernels = {name: kernels[name] for name in evidence.values}
        self.components = {name: components[name] for name in evidence.values}
        self._batches = dict(batches)
        shapes = self._shapes()
        # Dimensions that follow the one of the evidence's points: its weights join only after the mixture.
        self.rank = max(len(shape) for shape in shapes.values())
        if evidence.weights is not None:
            shapes["weights of the evidence"] = evidence.weights.batch_shape
        self.batch_shape = common_batch(shapes)

    def _shapes(self) -> dict[str, torch.Size]:
        shapes = dict(self._batches)
        for name, value in self.evidence.values.items():
            kernel, components = self.kernels[name], self.components[name]
            shapes[name] = value.shape[1 : value.ndim - self.evidence.event_rank(name, kernel)]
            shapes[f"components[{name!r}]"] = components.shape[: -1 - kernel.component_dim]
            shapes[f"kernels[{name!r}]"] = kernel.batch_shape
        for name, variance in self.evidence.variances.items():
            shapes[f"variance of {name!r}"] = variance.shape[1:-1]
        return shapes | {f"observed[{name!r}]": mask.shape for name, mask in self.evidence.observed.items()}

    def entries(
        self, kind: ScoreKind = "relative", rank: int | None = None, points: slice = slice(None)
    ) -> dict[str, Entry]:
        """Points of the evidence, with `rank` dimensions between their number and their events."""
        rank = self.rank if rank is None else rank
        entries = {}
        for name, value in self.evidence.values.items():
            value = _with_rank(value[points], rank, self.evidence.event_rank(name, self.kernels[name]))
            kernel, components = self._kernel(name, rank, points), self.components[name]
            keep, region = self.evidence.observed.get(name), self.evidence.regions.get(name)
            entries[name] = Entry(kernel, value, components, kind, keep, region)
        return entries

    def point_entries(self) -> list[Entry] | None:
        """The one point of the evidence, without the dimension that counts points; None of several."""
        known = self.evidence
        if known.weights is not None:
            return None
        return [
            Entry(
                self.kernels[name],
                value.squeeze(0),
                self.components[name],
                "relative",
                known.observed.get(name),
                known.regions.get(name),
            )
            for name, value in known.values.items()
        ]

    def _kernel(self, name: str, rank: int, points: slice) -> Kernel:
        """The kernel that compares points with components, wider where points are noisy measurements."""
        kernel, variance = self.kernels[name], self.evidence.variances.get(name)
        if variance is None:
            return kernel
        if variance.shape[0] == 1 and variance.ndim == 2:
            return kernel.convolved(variance[0])
        variance = variance if variance.shape[0] == 1 else variance[points]
        each = _with_rank(variance, rank, 1).unsqueeze(-2)
        m = self.components[name].shape[-1 - kernel.component_dim]
        return kernel.convolved(each.expand(*each.shape[:-2], m, each.shape[-1]))

    @property
    def log_weights(self) -> Float[Tensor, "*batch l"] | None:
        """Of the points; None for one point."""
        return None if self.evidence.weights is None else self.evidence.weights.log_weights

    def over_points(self, log_values: Float[Tensor, "l *own"]) -> Float[Tensor, "*lead"]:
        """log Σ_l p_l exp(log_values_l)."""
        weights = self.log_weights
        if weights is None:
            return log_values.squeeze(0)
        log_values = log_values.movedim(0, -1)
        return safe_logsumexp(log_values + weights.to(log_values.dtype))

    @property
    def can_miss(self) -> bool:
        """Whether a point may overlap with no component at all (compact and discrete kernels)."""
        regions = self.evidence.regions
        return bool(regions) or any(not kernel.overlaps_everywhere for kernel in self.kernels.values())

    def mapped(self, function: PartMap) -> Known:
        """The same evidence made of `function`'s values of all tensors and kernels."""
        known = self.evidence
        weights = None if known.weights is None else known.weights.mapped(function)
        tensors = (each(function, part) for part in (known.values, known.observed, known.variances))
        values, observed, variances = tensors
        evidence = Evidence(values, weights, observed, variances, known.regions)
        return Known(evidence, each(function, self.kernels), each(function, self.components), self._batches)

    def expand(self, batch_shape: torch.Size) -> Known:
        """The evidence is repeated, without copies."""
        known = self.evidence
        if known.weights is not None:
            evidence = replace(known, weights=known.weights.expand(batch_shape))
        else:
            name, value = next(iter(known.values.items()))
            event = value.shape[value.ndim - known.event_rank(name, self.kernels[name]) :]
            value = _with_rank(value, len(batch_shape), len(event)).expand(1, *batch_shape, *event)
            evidence = replace(known, values={**known.values, name: value})
        return Known(evidence, self.kernels, self.components, self._batches)


def _with_rank(tensor: Tensor, rank: int, event_rank: int) -> Tensor:
    """Dimensions of size 1 after the first, so that `rank` dimensions lie between it and the event's."""
    missing = rank + 1 - (tensor.ndim - event_rank)
    return tensor.reshape(tensor.shape[0], *([1] * missing), *tensor.shape[1:])
