"""Evidence: what users pass to `infer`, as weighted points of some variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.distributions.arguments import BatchIndex, common_batch, event_shape_of
from kdmkit.distributions.base import PartMap, map_values
from kdmkit.distributions.kdm import KDM
from kdmkit.distributions.mixing import Entry, ScoreKind
from kdmkit.distributions.weights import Given, Weights
from kdmkit.kernels import Kernel, Region

if TYPE_CHECKING:
    from kdmkit.distributions.joint import JointKDM, NamedVariables


@dataclass(frozen=True)
class Evidence:
    """L weighted points of some variables, for every element of a batch.

    Args:
        kernels, components: of the variables with evidence.
        values: by variable, of shape `(L, *batch, *event)`, or `(L, *event)` if the batch shares them.
        weights: of the L points; None for one point of weight 1 (then L = 1).
        observed: by variable, of shape `(*batch,)`: False where the variable is missing.
        variances: by variable whose points are noisy measurements, of shape `(L, *batch, d)`, or `(1, d)`
            if all points share it; the last dimension may be 1.
        regions: variables whose values are regions as `Kernel.pack` makes them, `(L, *batch, p)`.
        prior_batch: the batch of the weights that the evidence changes.

    Attributes:
        rank: the number of dimensions between the one that counts points and those of an event.
        batch_shape: the batch of the inferred weights.
        can_miss: whether a point may overlap with no component at all (compact and discrete kernels).
    """

    kernels: Mapping[str, Kernel]
    components: Mapping[str, Tensor]
    values: Mapping[str, Tensor]
    weights: Weights | None
    observed: Mapping[str, Bool[Tensor, "*batch"]]
    variances: Mapping[str, Float[Tensor, "l *batch d"]]
    regions: frozenset[str]
    prior_batch: torch.Size
    rank: int = field(init=False)
    batch_shape: torch.Size = field(init=False)
    can_miss: bool = field(init=False)

    def __post_init__(self) -> None:
        shapes, can_miss = {"weights of the joint": self.prior_batch}, bool(self.regions)
        for name, value in self.values.items():
            kernel, components = self.kernels[name], self.components[name]
            shapes[name] = value.shape[1 : value.ndim - self._event_rank(name)]
            shapes[f"components[{name!r}]"] = components.shape[: -1 - kernel.component_dim]
            can_miss = can_miss or not kernel.overlaps_everywhere
            shapes[f"kernels[{name!r}]"] = kernel.batch_shape
        for name, variance in self.variances.items():
            shapes[f"variance of {name!r}"] = variance.shape[1:-1]
        for name, mask in self.observed.items():
            shapes[f"observed[{name!r}]"] = mask.shape
        object.__setattr__(self, "can_miss", can_miss)
        # Without the batch of the evidence's weights: they join after the sums over components.
        object.__setattr__(self, "rank", max(map(len, shapes.values())))
        if self.weights is not None:
            shapes["weights of the evidence"] = self.weights.batch_shape
        object.__setattr__(self, "batch_shape", common_batch(shapes))

    def _event_rank(self, name: str) -> int:
        """The number of trailing dimensions of a variable's values that are one event, or one region."""
        return 1 if name in self.regions else self.kernels[name].event_rank(self.values[name])

    def entries_by_name(
        self, kind: ScoreKind = "relative", rank: int | None = None, points: slice = slice(None)
    ) -> dict[str, Entry]:
        """The points of every variable, with `rank` dimensions between their number and their events."""
        rank = self.rank if rank is None else rank
        entries = {}
        for name, value in self.values.items():
            value = with_rank(value[points], 1 + rank + self._event_rank(name))
            kernel, components = self._noisy_kernel(name, rank, points), self.components[name]
            keep, region = self.observed.get(name), name in self.regions
            entries[name] = Entry(kernel, value, components, kind, keep, region)
        return entries

    def entries(
        self, kind: ScoreKind = "relative", rank: int | None = None, points: slice = slice(None)
    ) -> list[Entry]:
        return list(self.entries_by_name(kind, rank, points).values())

    def point_entries(self) -> list[Entry]:
        """The entries of evidence that is one point, without the dimension that counts points."""
        entries = []
        for name, value in self.values.items():
            kernel, components = self.kernels[name], self.components[name]
            keep, region = self.observed.get(name), name in self.regions
            entries.append(Entry(kernel, value.squeeze(0), components, "relative", keep, region))
        return entries

    def _noisy_kernel(self, name: str, rank: int, points: slice) -> Kernel:
        """The kernel that compares points with components; noise of the measurements widens it."""
        kernel, variance = self.kernels[name], self.variances.get(name)
        if variance is None:
            return kernel
        if variance.shape[0] == 1 and variance.ndim == 2:
            return kernel.convolved(variance[0])
        variance = variance if variance.shape[0] == 1 else variance[points]
        per_point = with_rank(variance, rank + 2).unsqueeze(-2)
        m = self.components[name].shape[-1 - kernel.component_dim]
        return kernel.convolved(per_point.expand(*per_point.shape[:-2], m, per_point.shape[-1]))

    @property
    def log_weights(self) -> Float[Tensor, "*batch l"] | None:
        """The points' log-weights; None for one point."""
        return None if self.weights is None else self.weights.log_weights

    def mapped(self, function: PartMap) -> Evidence:
        """The same evidence with `function` applied to every tensor and kernel."""
        return replace(
            self,
            kernels=map_values(function, self.kernels),
            components=map_values(function, self.components),
            values=map_values(function, self.values),
            weights=None if self.weights is None else self.weights.mapped(function),
            observed=map_values(function, self.observed),
            variances=map_values(function, self.variances),
        )

    def expand(self, batch_shape: torch.Size) -> Evidence:
        """The evidence repeated for a larger batch, without copies."""
        if self.weights is not None:
            return replace(self, weights=self.weights.expand(batch_shape))
        name, value = next(iter(self.values.items()))
        event = value.shape[value.ndim - self._event_rank(name) :]
        value = with_rank(value, 1 + len(batch_shape) + len(event)).expand(1, *batch_shape, *event)
        return replace(self, values={**self.values, name: value})

    def at(self, index: BatchIndex) -> Evidence:
        """The evidence of chosen elements of the batch."""
        components, kernels = index.variables(self.components, self.kernels)
        ranks = {name: self._event_rank(name) for name in self.values}
        return replace(
            self,
            kernels=kernels,
            components=components,
            values={name: index.choose_behind(value, ranks[name]) for name, value in self.values.items()},
            weights=None if self.weights is None else self.weights.at(index),
            observed={name: index.choose(mask, 0) for name, mask in self.observed.items()},
            variances={name: index.choose_behind(value, 1) for name, value in self.variances.items()},
            prior_batch=index.of_shape(self.prior_batch),
        )


def evidence_of_points(
    name: str, value: Tensor, kernel: Kernel, components: Tensor, batch: torch.Size, *, validate: bool
) -> Evidence:
    """Evidence on one variable that is a point, or a batch of points, as `gather_evidence` makes it."""
    event = event_shape_of(kernel, components)
    value = kernel.as_events(name, value, event, components)
    if validate:
        kernel.check_events(name, value, event)
    values = {name: value.unsqueeze(0)}
    return Evidence({name: kernel}, {name: components}, values, None, {}, {}, frozenset(), batch)


def with_rank(tensor: Tensor, rank: int) -> Tensor:
    """Adds dimensions of size 1 after the first, so that there are `rank` in all."""
    return tensor.reshape(tensor.shape[0], *([1] * (rank - tensor.ndim)), *tensor.shape[1:])


# ---- from what users pass

#: Tensors by kind, "value" or "variance", and by variable; the first dimension counts points.
Tensors = dict[tuple[str, str], Tensor]


def gather_evidence(
    joint: NamedVariables,
    given: JointKDM | None,
    evidence: Mapping[str, Any],
    masks: Mapping[str, Tensor],
    noisy: bool,
) -> Evidence:
    """Points, KDMs and a joint KDM as one set of weighted points: those of independent parts multiply."""
    if noisy and given is None and not any(isinstance(value, KDM) for value in evidence.values()):
        raise ValueError(bad_argument("noisy", "False where no evidence is a KDM", noisy))
    regions = frozenset([name for name, value in evidence.items() if isinstance(value, Region)])
    if given is None and not any(isinstance(value, KDM) for value in evidence.values()):
        values = {n: gather_values(joint, n, v, masks.get(n)).unsqueeze(0) for n, v in evidence.items()}
        kernels = {name: joint.kernels[name] for name in evidence}
        components = {name: joint.components[name] for name in evidence}
        return Evidence(kernels, components, values, None, masks, {}, regions, joint._weights_batch)
    parts: list[tuple[Tensors, Weights | None]] = []
    if given is not None:
        parts.append(_joint_points(joint, given, evidence, noisy))
    for name, value in evidence.items():
        if isinstance(value, KDM):
            parts.append(_kdm_points(joint, name, value, noisy))
            continue
        point = gather_values(joint, name, value, masks.get(name)).unsqueeze(0)
        parts.append(({("value", name): point}, None))
    tensors, weights = parts[0]
    for part in parts[1:]:
        tensors, weights = _product(tensors, weights, *part)
    n_points = 1 if weights is None else max(len(tensor) for tensor in tensors.values())
    kernels, components, values, variances = {}, {}, {}, {}
    for (kind, name), tensor in tensors.items():
        if kind == "variance":
            variances[name] = tensor
        else:
            kernels[name], components[name] = joint.kernels[name], joint.components[name]
            values[name] = tensor if len(tensor) == n_points else tensor.expand(n_points, *tensor.shape[1:])
    batch = joint._weights_batch
    return Evidence(kernels, components, values, weights, masks, variances, regions, batch)


def _joint_points(
    joint: NamedVariables, given: JointKDM, evidence: Mapping[str, Any], noisy: bool
) -> tuple[Tensors, Weights]:
    """The components of a joint KDM that is evidence on several variables at once."""
    repeated = [name for name in evidence if name in given.variables]
    if repeated:
        raise ValueError(
            bad_argument("evidence", "variables that the joint evidence does not hold", repeated)
        )
    points: Tensors = {}
    for name in given.variables:
        kernel = joint.kernels[name]
        if not kernel.components_are_events:
            raise TypeError(bad_argument(name, f"points, a region or a KDM for {kernel}", "a joint KDM"))
        points |= _component_points(joint, name, given.marginal(name), noisy)
    return points, given._weights


def _kdm_points(joint: NamedVariables, name: str, rho: KDM, noisy: bool) -> tuple[Tensors, Weights]:
    """The points of a KDM that is evidence on one variable: its components, if they are events.

    Otherwise they are the weighted events that the kernel makes of it.
    """
    if joint.kernels[name].components_are_events:
        return _component_points(joint, name, rho, noisy), rho._weights
    _check_same_kind(joint, name, rho)
    if noisy:
        raise TypeError(bad_argument("noisy", f"False, for {rho.kernel}", noisy))
    points, log_weights = rho.kernel.evidence_points(rho.components, rho.log_weights)
    points = points.movedim(points.ndim - rho.kernel.event_dim - 1, 0)
    return {("value", name): points}, Given(log_weights)


def _component_points(joint: NamedVariables, name: str, rho: KDM, noisy: bool) -> Tensors:
    """The components of an input KDM and, if they are noisy measurements, the variances of the noise."""
    _check_same_kind(joint, name, rho)
    m_dim = rho.components.ndim - joint.kernels[name].component_dim - 1
    points: Tensors = {("value", name): rho.components.movedim(m_dim, 0)}
    if noisy:
        variance = rho.kernel.noise_variance
        all_share_it = variance.ndim < 2
        points["variance", name] = variance.reshape(1, -1) if all_share_it else variance.movedim(-2, 0)
    return points


def _check_same_kind(joint: NamedVariables, name: str, rho: KDM) -> None:
    kernel = joint.kernels[name]
    if not kernel.same_family(rho.kernel):
        raise ValueError(bad_argument(name, f"a KDM with the kernel {kernel}", rho.kernel))
    if rho.event_shape != joint.event_shapes[name]:
        wanted = f"events of shape {tuple(joint.event_shapes[name])}"
        raise ValueError(bad_argument(name, wanted, tuple(rho.event_shape)))


def _product(
    tensors: Tensors, weights: Weights | None, more: Tensors, more_weights: Weights | None
) -> tuple[Tensors, Weights | None]:
    """All pairs of the points of two independent parts."""
    if weights is None or more_weights is None:
        return {**tensors, **more}, more_weights if weights is None else weights
    a, b = weights.log_weights, more_weights.log_weights
    n_a, n_b = a.shape[-1], b.shape[-1]
    paired = (a.unsqueeze(-1) + b.unsqueeze(-2)).flatten(-2)
    left = {n: v if v.shape[0] == 1 else v.repeat_interleave(n_b, 0) for n, v in tensors.items()}
    right = {n: v if v.shape[0] == 1 else v.repeat(n_a, *([1] * (v.ndim - 1))) for n, v in more.items()}
    return {**left, **right}, Given(paired)


def gather_values(joint: NamedVariables, name: str, value: Any, mask: Tensor | None) -> Tensor:
    """A variable's events, with a stand-in for missing ones, or its regions in packed form."""
    kernel, components = joint.kernels[name], joint.components[name]
    event = joint.event_shapes[name]
    if isinstance(value, Region):
        packed = kernel.pack(name, value, event, components.device)
        if mask is not None:
            common_batch({name: packed.shape[:-1], f"observed[{name!r}]": mask.shape})
        return packed
    value = kernel.as_events(name, value, event, components)
    if mask is not None:
        rank = kernel.event_rank(value)
        common_batch({name: value.shape[: value.ndim - rank], f"observed[{name!r}]": mask.shape})
        value = kernel.fill_missing(value, mask.reshape((*mask.shape, *([1] * rank))), components)
    if joint._validate_args:
        kernel.check_events(name, value, event)
    return value
