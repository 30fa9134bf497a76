"""Checks of what users pass to KDMs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import as_tensor, bad_argument, check_event, check_finite
from kdmkit._core.tensors import broadcast
from kdmkit.kernels import Kernel, Region


def is_checked(validate_args: bool | None, components: Tensor) -> bool:
    """Whether arguments are checked: by default always, except while `torch.compile` traces.

    The default of torch's distributions is no guide: the first `torch.compile` of a process switches it off.
    Tensors on the meta device have no numbers to check.
    """
    if components.is_meta:
        return False
    return not torch.compiler.is_compiling() if validate_args is None else validate_args


def check_components(argument: str, components: Tensor, kernel: Kernel) -> int:
    """The dimension that counts components."""
    m_dim = components.ndim - kernel.component_dim - 1
    if m_dim < 0 or 0 in components.shape[m_dim:]:
        event = ", ".join(["m", *(["d"] if kernel.component_dim == 1 else ["..."] * kernel.component_dim)])
        wanted = (
            f"shape (..., {event}) with m ≥ 1{' and d ≥ 1' if 0 in components.shape[m_dim + 1 :] else ''}"
        )
        raise ValueError(bad_argument(argument, wanted, tuple(components.shape)))
    if kernel.components_trainable and not components.is_floating_point():
        raise TypeError(
            bad_argument(argument, f"a floating-point tensor for {type(kernel).__name__}", components.dtype)
        )
    return m_dim


def event_shape_of(kernel: Kernel, components: Tensor) -> torch.Size:
    """The shape of one event of a variable with components `(*batch, m, *component)`."""
    return kernel.event_shape(components.shape[components.ndim - kernel.component_dim :])


def check_region(
    argument: str, region: Region, kernel: Kernel, event_shape: torch.Size, like: Tensor, validate: bool
) -> Tensor:
    """The packed tensor of a region that `kernel` has masses of."""
    packed = region.packed(argument, event_shape, like)
    if validate:
        kernel.check_region(argument, region, event_shape)
    return packed


def check_value(
    argument: str, value: Any, kernel: Kernel, event_shape: torch.Size, like: Tensor, validate: bool
) -> Tensor:
    """`value` as events of `kernel`; plain numbers get the dtype and device of `like`."""
    value = kernel.as_events(argument, value, event_shape, like)
    if validate:
        kernel.check_events(argument, value, event_shape)
    return value


def per_dimension(
    argument: str, value: Any, event_shape: torch.Size, like: Tensor, validate: bool
) -> Float[Tensor, "*batch d"]:
    """Numbers for every dimension of an event, from one number for all or `(*batch, d)`."""
    tensor = as_tensor(argument, value, like=like).to(like)
    tensor = tensor if tensor.ndim else tensor.expand(event_shape)
    check_event(argument, tensor, event_shape)
    if validate:
        check_finite(argument, tensor)
    return tensor


def common_batch(shapes: Mapping[str, torch.Size]) -> torch.Size:
    """The shape that leading dimensions broadcast to; their names are for the error message.

    >>> common_batch({"x": torch.Size([3, 1]), "y": torch.Size([4])})
    torch.Size([3, 4])
    """
    try:
        return broadcast(*shapes.values())
    except RuntimeError as error:
        given = {name: tuple(shape) for name, shape in shapes.items() if len(shape)}
        got = ", ".join(map(str, given.values()))
        raise ValueError(bad_argument(", ".join(given), "leading dimensions that broadcast", got)) from error


def check_index(index: Any, d: int) -> list[int]:
    """The coordinates of events `(d,)` that an index names, counted from 0.

    >>> check_index(-1, 3), check_index(slice(1, None), 3)
    ([2], [1, 2])
    """
    places = range(d)
    try:
        if isinstance(index, slice):
            chosen = list(places[index])
        else:
            listed = index.tolist() if isinstance(index, Tensor | np.ndarray) else index
            chosen = [places[i] for i in (listed if isinstance(listed, Sequence) else [listed])]
    except (IndexError, TypeError) as error:
        raise ValueError(bad_argument("index", f"coordinates in 0 … {d - 1}", index)) from error
    if not chosen or len(set(chosen)) < len(chosen):
        raise ValueError(bad_argument("index", "one or more different coordinates", index))
    return chosen


def check_levels(argument: str, q: Tensor) -> None:
    """Raises where a level is not strictly between 0 and 1."""
    outside = q[~((q > 0) & (q < 1))]
    if outside.numel():
        wanted = "quantiles strictly between 0 and 1"
        raise ValueError(bad_argument(argument, wanted, outside[:3].tolist()))
