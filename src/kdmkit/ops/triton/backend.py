"""Backend `triton`: when it can be used, and its reduction as a function with gradients.

Triton is imported with the first use, so that the library imports without it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.tensors import full_precision
from kdmkit.ops.recomputed import Gradients, Needs, Recomputed, Tensors
from kdmkit.ops.terms import Reduction, Result, SquaredDistance, Term

if TYPE_CHECKING:
    from kdmkit.ops.triton.prepared_sum import PreparedSum

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_LARGEST_D = 512
LARGEST_V = 128
# Fewer components are prepared in no time.
LEAST_COMPONENTS = 1 << 15

Outputs = tuple[Float[Tensor, "n v"], Float[Tensor, "n"], Float[Tensor, "n"], Float[Tensor, "n"]]


# For each type of device that was tried: why Triton does not work there, None if it does.
_REASONS: dict[str, str | None] = {}
_warned = False


class KernelError(RuntimeError):
    """Triton could not compile or launch a kernel."""


def why_unusable(device_type: str) -> str | None:
    """Why Triton cannot run kernels on this type of device, or None."""
    if torch.compiler.is_compiling():
        from kdmkit.ops.compiled import find_reason_once

        return find_reason_once(device_type)
    return find_reason(device_type)


def find_reason(device_type: str) -> str | None:
    if device_type not in _REASONS:
        # In a separate thread, since a transformation by `torch.func` may be active in this one.
        with ThreadPoolExecutor(1) as pool:
            _REASONS[device_type] = pool.submit(_try_triton, device_type).result()
    return _REASONS[device_type]


def _try_triton(device_type: str) -> str | None:
    """Runs a small kernel: Triton may be installed but lack a C compiler, a driver or a supported device."""
    try:
        import triton

        if device_type != "cuda" and not (device_type == "cpu" and triton.knobs.runtime.interpret):
            return f"expected tensors on a CUDA device, got {device_type}"
        from kdmkit.ops.triton.staging import stage

        one = torch.ones(1, device=device_type)
        stage(one.view(1, 1), one, one, width=16, passes=1)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else 'no message'}"
    return None


def is_usable(reduction: Reduction) -> bool:
    """Whether the tensors are on a CUDA device and Triton works there; if not, one warning says why."""
    if reduction.device_type != "cuda":
        return False
    reason = why_unusable("cuda")
    if reason is not None:
        _warn(reason)
    return reason is None


def give_up(device_type: str, error: KernelError) -> None:
    """Stops using Triton on this type of device, with a warning."""
    _REASONS[device_type] = str(error)
    _warn(str(error))


def _warn(reason: str) -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            f'backend "triton" does not work here, using "chunked" instead ({reason})',
            RuntimeWarning,
            stacklevel=2,
        )


def supports(reduction: Reduction) -> str | None:
    """Why this backend cannot compute a reduction, or None."""
    terms, log_weights, values = reduction.terms, reduction.log_weights, reduction.values
    term = terms[0]
    if len(terms) != 1 or not isinstance(term, SquaredDistance):
        return f"expected one term of squared distances, got {[type(term).__name__ for term in terms]}"
    tensors = [*term.tensors, log_weights, *([] if values is None else [values])]
    for tensor in tensors:
        if tensor.dtype not in _DTYPES:
            return f"expected float32, bfloat16 or float16, got {tensor.dtype}"
        if tensor.device != term.query.device:
            return f"expected all tensors on {term.query.device}, got {tensor.device}"
    for tensor in tensors[1:]:
        # Only queries may have leading dimensions: everything else is shared by all of them.
        dims = 1 if tensor is log_weights else 2
        if tensor.ndim > term.query.ndim or tensor.numel() != tensor.shape[-dims:].numel():
            wanted = "components, scale, weights and values without leading dimensions"
            return f"expected {wanted}, got {tuple(tensor.shape)}"
    if term.query.shape[-1] > _LARGEST_D:
        return f"expected at most {_LARGEST_D} dimensions, got {term.query.shape[-1]}"
    if values is not None and not 1 <= values.shape[-1] <= LARGEST_V:
        return f"expected 1 to {LARGEST_V} values, got {values.shape[-1]}"
    return None


def reduce(reduction: Reduction) -> Result:
    """A reduction for which `supports` returns None; raises if Triton does not work here."""
    term, values = reduction.terms[0], reduction.values
    assert isinstance(term, SquaredDistance)
    reason = why_unusable(reduction.device_type)
    if reason is not None:
        raise KernelError(f'backend: "triton" does not work here ({reason})')
    (lead, n, m), d = reduction.shape, term.query.shape[-1]
    averages, lse, _, _ = _operator(term.metric)(
        term.query.reshape(-1, d),
        term.components.reshape(m, d),
        reduction.log_weights.reshape(m),
        None if values is None else values.reshape(m, values.shape[-1]),
        term.scale.reshape(term.scale.shape[-2:]),
    )
    lse = lse.reshape(*lead, n)
    return (None if values is None else averages.reshape(*lead, n, values.shape[-1])), lse


def _operator(metric: bool) -> Callable[..., tuple[Tensor, ...]]:
    """The reduction: for the compiler a custom operator, else a function that `torch.func` can transform."""
    if torch.compiler.is_compiling():
        from kdmkit.ops.compiled import fused

        return partial(fused, metric)
    return _Fused(metric)


@contextmanager
def as_kernel_error() -> Iterator[None]:
    """Turns every exception of Triton into a KernelError, except out of memory."""
    try:
        yield
    except (torch.OutOfMemoryError, KernelError):
        raise
    except Exception as error:
        raise KernelError(f"{type(error).__name__}: {error}") from error


def run_forward(metric: bool, query: Tensor, *operands: Any) -> Outputs:
    """(metric, query, components, log_weights, values, scale) → averages, logsumexps, two more tensors."""
    with full_precision(query.device.type), as_kernel_error():
        from kdmkit.ops.triton.forward import forward

        return forward(metric, query, *operands)


def run_backward(*arguments: Any) -> list[Tensor]:
    """(*operands, *outputs, by_averages, by_lse, needs) → the gradients that are needed.

    `needs` has a flag for each of query, components, log-weights, values and scale.
    """
    operands, outputs = arguments[:6], arguments[6:10]
    by_averages, by_lse, needs = arguments[10:]
    upstream = None if operands[4] is None else by_averages, by_lse
    with full_precision(by_lse.device.type), as_kernel_error():
        from kdmkit.ops.triton.backward import backward

        gradients = backward(operands, outputs, upstream, needs)
    pairs = zip(gradients, operands[1:], strict=True)
    return [gradient.to(x.dtype) for gradient, x in pairs if gradient is not None]


def prepare_sum(term: Term, log_weights: Float[Tensor, " m"], *, most_bytes: float) -> PreparedSum | None:
    """Sums over the components of a term, whatever its queries; None if nothing is gained.

    Nothing is gained on a CPU, with few components, with terms that this backend does not support, and if the
    prepared components would take more than `most_bytes`.
    """
    reduction = Reduction([term], log_weights)
    if (
        log_weights.shape[-1] < LEAST_COMPONENTS
        or supports(reduction) is not None
        or not is_usable(reduction)
    ):
        return None
    assert isinstance(term, SquaredDistance)
    (m, d), scale = term.components.shape[-2:], term.scale
    from kdmkit.ops.triton.prepared_sum import PreparedSum, bytes_per_component

    if bytes_per_component(d) * m > most_bytes:
        return None
    components, scale = term.components.reshape(m, d), scale.reshape(scale.shape[-2:])
    try:
        return PreparedSum(components, log_weights.reshape(m), scale, metric=term.metric)
    except KernelError as error:
        give_up(reduction.device_type, error)
        return None


@dataclass(frozen=True)
class _Fused(Recomputed):
    """(query, components, log_weights, values, scale) → the outputs of `run_forward`."""

    backend: ClassVar[str] = "triton"
    metric: bool

    def forward(self, *inputs: Any) -> Outputs:
        return run_forward(self.metric, *inputs)

    def backward(self, needs: Needs, inputs: Tensors, outputs: Tensors, upstream: Tensors) -> Gradients:
        given = (
            torch.zeros_like(x) if by is None else by for x, by in zip(outputs[:2], upstream[:2], strict=True)
        )
        return run_backward(self.metric, *inputs, *outputs, *given, needs)
