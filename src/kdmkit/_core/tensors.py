"""Shapes of batches, distances, and sums and products in float32 at least."""

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from jaxtyping import Float, Int
from torch import Tensor

_COMPUTE_DTYPES = (torch.float32, torch.float64)


def broadcast(*shapes: Sequence[int]) -> torch.Size:
    """`torch.broadcast_shapes`, faster in the usual case that every shape is an end of the longest one.

    >>> broadcast((), (3,), (2, 3)), broadcast((2, 1), (3,))
    (torch.Size([2, 3]), torch.Size([2, 3]))
    """
    # A loop: the compiler cannot trace `max(shapes, key=len)`.
    longest: tuple[int, ...] = ()
    for shape in shapes:
        longest = tuple(shape) if len(shape) > len(longest) else longest
    for shape in shapes:
        if len(shape) and longest[len(longest) - len(shape) :] != tuple(shape):
            return torch.broadcast_shapes(*shapes)
    return torch.Size(longest)


def pick(components: Tensor, index: Int[Tensor, "*n_batch"], event_dim: int) -> Tensor:
    """The chosen components: `(n, *batch, *event)` from shared `(m, *event)` or batched ones."""
    m_dim = components.ndim - event_dim - 1
    if m_dim == 0:
        return components[index]
    event = components.shape[m_dim + 1 :]
    batch = index.shape[1:]
    expanded = components.expand(*batch, *components.shape[m_dim:])
    place = index.movedim(0, -1).reshape(*batch, -1, *([1] * event_dim)).expand(*batch, -1, *event)
    return expanded.gather(len(batch), place).movedim(len(batch), 0)


def effective_rows(weights: Float[Tensor, " n"]) -> float:
    """Kish's effective sample size (Σw)²/Σw², 0 if all weights are 0.

    >>> effective_rows(torch.tensor([1.0, 1.0, 1.0, 0.0])), effective_rows(torch.zeros(2))
    (3.0, 0.0)
    """
    weights = weights.double()
    return float(weights.sum().square() / weights.square().sum().clamp_min(torch.finfo(torch.float64).tiny))


def component_dtype(components: Tensor) -> torch.dtype:
    """The dtype of scores of components: their real one, or the default one if they are codes.

    >>> component_dtype(torch.zeros(1, dtype=torch.complex128)), component_dtype(torch.arange(3))
    (torch.float64, torch.float32)
    """
    if components.is_complex():
        return components.real.dtype
    return components.dtype if components.is_floating_point() else torch.get_default_dtype()


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums and products: float32 for half precision, every other dtype itself."""
    return dtype if dtype in _COMPUTE_DTYPES else torch.promote_types(dtype, torch.float32)


def at_least_float32(x: Tensor) -> Tensor:
    """Half-precision tensors in float32; all others, integers and booleans too, unchanged.

    >>> at_least_float32(torch.ones(2, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    return x.to(compute_dtype(x.dtype)) if x.is_floating_point() else x


def full_precision(device_type: str) -> torch.autocast | nullcontext[None]:
    """A context in which autocast does not run products in half precision."""
    # The first test is for others: compilers break graphs at it.
    has_autocast = device_type in ("cpu", "cuda") or torch.amp.is_autocast_available(device_type)
    if has_autocast and torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()


def exact_distances(x: Float[Tensor, "n d"], z: Float[Tensor, "m d"]) -> Float[Tensor, "n m"]:
    """Distances of all pairs, from differences: products would put coinciding points 1e-7 apart."""
    return torch.cdist(x, z, compute_mode="donot_use_mm_for_euclid_dist")
