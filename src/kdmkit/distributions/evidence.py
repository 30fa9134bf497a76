"""Evidence as users pass it to `infer`, turned into weighted points of the known variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kdmkit._core.checks import as_tensor, bad_argument
from kdmkit.distributions._validation import check_value, common_batch
from kdmkit.distributions.inference import Evidence
from kdmkit.distributions.kdm import KDM
from kdmkit.distributions.weights import Given, Weights

if TYPE_CHECKING:
    from kdmkit.distributions.joint import JointKDM


#: Tensors by what they are, "value" or "variance", and by variable; the first dimension counts points.
Parts = dict[tuple[str, str], Tensor]


def gather_evidence(
    joint: JointKDM,
    given: JointKDM | None,
    evidence: Mapping[str, Any],
    observed: Mapping[str, Any],
    noisy: bool,
) -> Evidence:
    """Points, KDMs and a joint KDM as one set of weighted points: independent parts multiply."""
    if noisy and given is None and not any(isinstance(value, KDM) for value in evidence.values()):
        raise ValueError(bad_argument("noisy", "False where no evidence is a KDM", noisy))
    known = [*(given.variables if given is not None else ()), *evidence]
    masks = _masks(observed, known, next(iter(joint.components.values())))
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
    return Evidence(values, weights, masks, variances)


def _masks(observed: Mapping[str, Any], known: list[str], like: Tensor) -> dict[str, Tensor]:
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
    joint: JointKDM,
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
        if isinstance(value, KDM):
            parts.append((_of_kdm(joint, name, value, noisy), value._weights))
        else:
            point = _tensor(joint, name, value, masks.get(name)).unsqueeze(0)
            parts.append(({("value", name): point}, None))
    return parts


def _of_kdm(joint: JointKDM, name: str, rho: KDM, noisy: bool) -> Parts:
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


def _points(joint: JointKDM, name: str, rho: KDM) -> Tensor:
    """The components of an input KDM, with the dimension that counts them in front."""
    kernel = joint.kernels[name]
    if not kernel.same_family(rho.kernel):
        raise ValueError(bad_argument(name, f"a KDM with the kernel {kernel}", rho.kernel))
    if rho.event_shape != joint.event_shapes[name]:
        raise ValueError(
            bad_argument(name, f"events of shape {tuple(joint.event_shapes[name])}", tuple(rho.event_shape))
        )
    return rho.components.movedim(rho.components.ndim - kernel.event_dim - 1, 0)


def _tensor(joint: JointKDM, name: str, value: Any, mask: Tensor | None) -> Tensor:
    kernel, components, event = joint.kernels[name], joint.components[name], joint.event_shapes[name]
    value = kernel.as_events(name, value, event, components)
    if mask is not None:
        rank = kernel.event_rank(value)
        common_batch({name: value.shape[: value.ndim - rank], f"observed[{name!r}]": mask.shape})
        value = _fill(value, mask, components, rank)
    return check_value(name, value, kernel, event, components, joint._validate_args)


def _fill(value: Tensor, mask: Tensor, components: Tensor, rank: int) -> Tensor:
    """A valid value in place of missing evidence, which may be anything, NaN for example."""
    keep = mask.reshape(*mask.shape, *([1] * rank))
    if rank == 0:
        return torch.where(keep, value, torch.zeros_like(value))
    stand_in = components.detach().reshape(-1, *components.shape[components.ndim - rank :])[0]
    return torch.where(keep, value, stand_in.to(value.dtype))


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
