"""Sums and products of KDMs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from kdmkit._core.checks import as_tensor, bad_argument, check_instance
from kdmkit.distributions.arguments import check_variables, common_batch, is_checked
from kdmkit.distributions.base import Mixture, same_kernel
from kdmkit.distributions.joint import JointKDM
from kdmkit.distributions.kdm import KDM
from kdmkit.distributions.weights import Given, as_log_weights
from kdmkit.kernels import Kernel, check_continuous

M = TypeVar("M", KDM, JointKDM)


def mix(distributions: Sequence[M], weights: Any = None) -> M:
    """The mixture Σ_i w_i ρ_i of KDMs, or of JointKDMs over the same variables: all components together.

    Kernels must agree. Continuous kernels of one class may differ in their bandwidths, which then become
    those of every component.

    Args:
        distributions: ρ_i, one or more; batches broadcast.
        weights: w, of shape `(*batch, n)`, non-negative and summing to 1; None is uniform.

    Returns:
        A KDM or a JointKDM as they are, with the components of all.

    >>> import kdmkit as kdm
    >>> left = kdm.KDM(torch.tensor([[0.0]]), None, kdm.RBF.from_std(1.0))
    >>> right = kdm.KDM(torch.tensor([[4.0], [6.0]]), None, kdm.RBF.from_std(2.0))
    >>> kdm.mix([left, right], torch.tensor([0.2, 0.8])).mean
    tensor([4.])
    """
    parts: list[Mixture] = list(distributions)
    if not parts:
        raise ValueError(bad_argument("distributions", "one or more KDMs", "none"))
    first = parts[0]
    for part in parts:
        check_instance("distributions", part, type(first), f"only {type(first).__name__} objects")
        if set(part._variables()) != set(first._variables()):
            wanted = f"the variables {list(first._variables())}"
            raise ValueError(bad_argument("distributions", wanted, list(part._variables())))
    shares = _log_shares(weights, len(parts), first.log_weights)
    shapes = {f"distributions[{i}]": part.batch_shape for i, part in enumerate(parts)}
    batch = common_batch({**shapes, "weights": shares.shape[:-1]})
    log_weights = [
        part.log_weights.expand(*batch, -1) + shares[..., i : i + 1] for i, part in enumerate(parts)
    ]
    given = Given(torch.cat(log_weights, -1))
    kernels, components = {}, {}
    for name in first._variables():
        variable = [part._variables()[name] for part in parts]
        kernels[name], components[name] = _joined_kernel(variable), _joined_components(variable)
    validate = all(part._validate_args for part in distributions)
    mixed: Any = (
        JointKDM._made(components, given, kernels, validate)
        if isinstance(first, JointKDM)
        else KDM._made(components[""], given, kernels[""], validate)
    )
    return mixed


def _log_shares(weights: Any, n: int, like: Tensor) -> Tensor:
    if weights is None:
        return torch.full((n,), -math.log(n), dtype=like.dtype, device=like.device)
    tensor = as_tensor("weights", weights, like=like)
    if tensor.ndim == 0 or tensor.shape[-1] != n:
        raise ValueError(bad_argument("weights", f"shape (..., {n}), one per KDM", tuple(tensor.shape)))
    return as_log_weights("weights", tensor, False, like, is_checked(None, tensor))


def _joined_kernel(parts: Sequence[tuple[Kernel, Tensor]]) -> Kernel:
    """The kernel of all components, one part after the other."""
    kernel, components = parts[0]
    m = components.shape[-1 - kernel.component_dim]
    for other, more in parts[1:]:
        size = more.shape[-1 - other.component_dim]
        if kernel.batch_shape or other.batch_shape:
            raise ValueError(bad_argument("kernel", "bandwidths without a batch", repr(other)))
        if kernel.is_continuous and other.is_continuous:
            kernel = check_continuous("kernel", kernel).joined(other, (m, size))
        elif other is not kernel and not same_kernel(kernel, other):
            raise ValueError(bad_argument("distributions", f"KDMs with the kernel {kernel}", repr(other)))
        m += size
    return kernel


def _joined_components(parts: Sequence[tuple[Kernel, Tensor]]) -> Tensor:
    """The components of all parts, in a common batch."""
    dim = parts[0][0].component_dim
    shapes = {f"distributions[{i}]": c.shape[c.ndim - dim :] for i, (_, c) in enumerate(parts)}
    if len(set(shapes.values())) > 1:
        got = ", ".join(str(tuple(shape)) for shape in shapes.values())
        raise ValueError(bad_argument("distributions", "events of one shape", got))
    batch = common_batch({f"components {i}": c.shape[: c.ndim - dim - 1] for i, (_, c) in enumerate(parts)})
    expanded = [c.expand(*batch, *c.shape[c.ndim - dim - 1 :]) for _, c in parts]
    return torch.cat(expanded, len(batch))


def product(**distributions: KDM | JointKDM) -> JointKDM:
    """The joint distribution of independent variables: every component of one with every one of the others.

    It has as many components as the product of theirs. For many variables use a `TreeKDM`, which keeps the
    factors apart.

    Args:
        distributions: by variable, a KDM; or by any name a JointKDM, which brings variables of its own.

    Returns:
        A JointKDM over all variables.

    >>> import kdmkit as kdm
    >>> x = kdm.KDM(torch.tensor([[0.0], [1.0]]), torch.tensor([0.3, 0.7]), kdm.RBF(1.0))
    >>> y = kdm.KDM.from_probs(torch.tensor([0.1, 0.9]))
    >>> rho = kdm.product(x=x, y=y)
    >>> rho.n_components, rho.infer(x=torch.tensor([5.0])).probs
    (4, tensor([0.1000, 0.9000]))
    """
    parts: dict[str, tuple[Kernel, Tensor]] = {}
    log_weights: Tensor | None = None
    for label, rho in distributions.items():
        check_instance(label, rho, (KDM, JointKDM), "a KDM or a JointKDM")
        named = {(name or label): part for name, part in rho._variables().items()}
        repeated = [name for name in named if name in parts]
        if repeated:
            raise ValueError(bad_argument(label, "variables that no other part has", repeated))
        if log_weights is None:
            parts, log_weights = named, rho.log_weights
            continue
        pairs = torch.cartesian_prod(torch.arange(log_weights.shape[-1]), torch.arange(rho.n_components))
        first, second = pairs.to(log_weights.device).unbind(-1)
        parts = {name: _taken(*part, first) for name, part in parts.items()}
        parts |= {name: _taken(*part, second) for name, part in named.items()}
        log_weights = log_weights[..., first] + rho.log_weights.to(log_weights)[..., second]
    if log_weights is None:
        raise ValueError(bad_argument("distributions", "one or more", "none"))
    kernels = check_variables({n: c for n, (_, c) in parts.items()}, {n: k for n, (k, _) in parts.items()})
    validate = all(rho._validate_args for rho in distributions.values())
    return JointKDM._made({n: c for n, (_, c) in parts.items()}, Given(log_weights), kernels, validate)


def _taken(kernel: Kernel, components: Tensor, index: Int[Tensor, " k"]) -> tuple[Kernel, Tensor]:
    """The chosen components, some of them many times."""
    m_dim = components.ndim - kernel.component_dim - 1
    taken = check_continuous("kernel", kernel).take(index) if kernel.is_continuous else kernel
    return taken, components.index_select(m_dim, index)
