"""Evidence as users pass it to `infer`, turned into weighted points of the known variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from kdmkit._core.checks import as_tensor, bad_argument, check_instance
from kdmkit.distributions._validation import check_region, common_batch, event_shape_of
from kdmkit.distributions.kdm import KDM
from kdmkit.distributions.known import Evidence
from kdmkit.distributions.weights import Given, Weights
from kdmkit.kernels import Kernel, Region

if TYPE_CHECKING:
    from kdmkit.distributions.joint import JointKDM


class Variables(Protocol):
    """What evidence is about: variables with kernels and components."""

    kernels: dict[str, Kernel]
    components: dict[str, Tensor]
    _validate_args: bool

    @property
    def event_shapes(self) -> dict[str, torch.Size]: ...


#: Tensors by what they are, "value" or "variance", and by variable; the first dimension counts points.
Parts = dict[tuple[str, str], Tensor]


def gather_evidence(
    joint: Variables,
    given: JointKDM | None,
    evidence: Mapping[str, Any],
    observed: Mapping[str, Any],
    noisy: bool,
) -> Evidence:
    """Points, KDMs and a joint KDM as one set of weighted points: independent parts multiply."""
    if noisy and given is None and not any(isinstance(value, KDM) for value in evidence.values()):
        raise ValueError(bad_argument("noisy", "False where no evidence is a KDM", noisy))
    known = [*(given.variables if given is not None else ()), *evidence]
    masks = gather_masks(observed, known, next(iter(joint.components.values())))
    tensors: Parts = {}
    weights: Weights | None = None
    for part_tensors, part_weights in _parts(joint, given, evidence, masks, noisy):
        tensors, weights = _product(tensors, weights, part_tensors, part_weights)
    values, variances = (
        {name: tensor for (kind, name), tensor in tensors.items() if kind == wanted}
        for wanted in ("value", "variance")
    )
    if weights is not None:
        points = max(value.shape[0] for value in values.values())
        values = {name: value.expand(points, *value.shape[1:]) for name, value in values.items()}
    regions = {name: type(value) for name, value in evidence.items() if isinstance(value, Region)}
    return Evidence(values, weights, masks, variances, regions)


def check_masks(observed: Any) -> Mapping[str, Any]:
    observed = {} if observed is None else observed
    check_instance("observed", observed, Mapping, "a mapping from variable to boolean mask")
    checked: Mapping[str, Any] = observed
    return checked


def gather_masks(observed: Mapping[str, Any], known: list[str], like: Tensor) -> dict[str, Tensor]:
    """Masks as tensors; a mask of a variable without evidence raises."""
    masks = {}
    for name, mask in observed.items():
        if name not in known:
            raise ValueError(bad_argument("observed", f"variables with evidence, {known}", repr(name)))
        tensor = as_tensor(f"observed[{name!r}]", mask, like=like)
        if tensor.dtype != torch.bool:
            raise TypeError(bad_argument(f"observed[{name!r}]", "a boolean mask", tensor.dtype))
        masks[name] = tensor
    return masks


def _parts(
    joint: Variables,
    given: JointKDM | None,
    evidence: Mapping[str, Any],
    masks: Mapping[str, Tensor],
    noisy: bool,
) -> list[tuple[Parts, Weights | None]]:
    parts: list[tuple[Parts, Weights | None]] = []
    if given is not None:
        repeated = [name for name in evidence if name in given.variables]
        if repeated:
            raise ValueError(
                bad_argument("evidence", "variables that the joint evidence does not hold", repeated)
            )
        together: Parts = {}
        for name in given.variables:
            together |= _of_kdm(joint, name, given.marginal(name), noisy)
        parts.append((together, given._weights))
    for name, value in evidence.items():
        if isinstance(value, KDM) and not joint.kernels[name].components_are_events:
            parts.append(_of_distribution(joint, name, value, noisy))
        elif isinstance(value, KDM):
            parts.append((_of_kdm(joint, name, value, noisy), value._weights))
        else:
            point = gather_values(joint, name, value, masks.get(name)).unsqueeze(0)
            parts.append(({("value", name): point}, None))
    return parts


def _of_kdm(joint: Variables, name: str, rho: KDM, noisy: bool) -> Parts:
    """The components of an input KDM, and, where they are measurements, the variances of their noise."""
    parts: Parts = {("value", name): _points(joint, name, rho)}
    if noisy:
        variance = rho.kernel.noise_variance
        if variance.ndim < 2:
            # All components share it.
            parts["variance", name] = variance.reshape(1, -1)
        else:
            parts["variance", name] = variance.movedim(-2, 0)
    return parts


def _of_distribution(joint: Variables, name: str, rho: KDM, noisy: bool) -> tuple[Parts, Weights]:
    """An input KDM whose components are not events, as the weighted events that its kernel makes of it."""
    _check_same_kind(joint, name, rho)
    if noisy:
        raise TypeError(bad_argument("noisy", f"False, for {rho.kernel}", noisy))
    points, log_weights = rho.kernel.evidence_points(rho.components, rho.log_weights)
    points = points.movedim(points.ndim - rho.kernel.event_dim - 1, 0)
    return {("value", name): points}, Given(log_weights)


def _points(joint: Variables, name: str, rho: KDM) -> Tensor:
    """The components of an input KDM, with the dimension that counts them in front."""
    kernel = joint.kernels[name]
    if not kernel.components_are_events:
        raise TypeError(bad_argument(name, f"points, a region or a KDM for {kernel}", "a joint KDM"))
    _check_same_kind(joint, name, rho)
    return rho.components.movedim(rho.components.ndim - kernel.component_dim - 1, 0)


def _check_same_kind(joint: Variables, name: str, rho: KDM) -> None:
    kernel = joint.kernels[name]
    if not kernel.same_family(rho.kernel):
        raise ValueError(bad_argument(name, f"a KDM with the kernel {kernel}", rho.kernel))
    if rho.event_shape != joint.event_shapes[name]:
        raise ValueError(
            bad_argument(name, f"events of shape {tuple(joint.event_shapes[name])}", tuple(rho.event_shape))
        )


def gather_values(joint: Variables, name: str, value: Any, mask: Tensor | None) -> Tensor:
    """A variable's events, with a stand-in where they are missing, or its regions in packed form."""
    kernel, components = joint.kernels[name], joint.components[name]
    event = event_shape_of(kernel, components)
    if isinstance(value, Region):
        packed = check_region(name, value, kernel, event, components, joint._validate_args)
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


def _product(
    tensors: Parts, weights: Weights | None, more: Parts, more_weights: Weights | None
) -> tuple[Parts, Weights | None]:
    """All pairs of the points of two independent parts."""
    if weights is None or more_weights is None:
        return {**tensors, **more}, more_weights if weights is None else weights
    a, b = weights.log_weights, more_weights.log_weights
    n_a, n_b = a.shape[-1], b.shape[-1]
    paired = (a.unsqueeze(-1) + b.unsqueeze(-2)).flatten(-2)
    left = {n: v if v.shape[0] == 1 else v.repeat_interleave(n_b, 0) for n, v in tensors.items()}
    right = {n: v if v.shape[0] == 1 else v.repeat(n_a, *([1] * (v.ndim - 1))) for n, v in more.items()}
    return {**left, **right}, Given(paired)
