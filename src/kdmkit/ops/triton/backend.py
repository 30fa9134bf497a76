"""Backend `triton`: when it can be used, and its reduction as a function with gradients.

Triton is imported with the first use, so that the library imports without it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor

from kdmkit._core.precision import full_precision
from kdmkit.ops.blocks import vmap_one_by_one
from kdmkit.ops.reduction import Reduction, Result
from kdmkit.ops.terms import SquaredDistance

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_LARGEST_D = 512
_LARGEST_V = 128

# For each type of device that was tried: why Triton does not work there, None if it does.
_REASONS: dict[str, str | None] = {}
_warned = False


class KernelError(RuntimeError):
    """Triton could not compile or launch a kernel."""


def why_unusable(device_type: str) -> str | None:
    """Why Triton cannot run kernels on this type of device, or None."""
    if torch.compiler.is_compiling():
        from kdmkit.ops.untraced import find_reason_once

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
    """What this backend expects and the reduction has instead, or None if it can compute the reduction."""
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
        own = 1 if tensor is log_weights else 2
        if tensor.ndim > term.query.ndim or tensor.numel() != tensor.shape[-own:].numel():
            wanted = "components, scale, weights and values without leading dimensions"
            return f"expected {wanted}, got {tuple(tensor.shape)}"
    if term.query.shape[-1] > _LARGEST_D:
        return f"expected at most {_LARGEST_D} dimensions, got {term.query.shape[-1]}"
    if values is not None and not 1 <= values.shape[-1] <= _LARGEST_V:
        return f"expected 1 to {_LARGEST_V} values, got {values.shape[-1]}"
    return None


def reduce(reduction: Reduction) -> Result:
    """The reduction, where `supports` returns None; raises if Triton does not work here."""
    term, values = reduction.terms[0], reduction.values
    assert isinstance(term, SquaredDistance)
    reason = why_unusable(reduction.device_type)
    if reason is not None:
        raise KernelError(f'backend: "triton" does not work here ({reason})')
    (lead, n, m), d = reduction.shape, term.query.shape[-1]
    averages, lse, _, _ = _operator()(
        term.query.reshape(-1, d),
        term.components.reshape(m, d),
        reduction.log_weights.reshape(m),
        None if values is None else values.reshape(m, values.shape[-1]),
        term.scale.reshape(term.scale.shape[-2:]),
        term.metric,
    )
    lse = lse.reshape(*lead, n)
    return (None if values is None else averages.reshape(*lead, n, values.shape[-1])), lse


@contextmanager
def _as_kernel_error() -> Iterator[None]:
    """Turns every exception of Triton into a KernelError, except out of memory."""
    try:
        yield
    except (torch.OutOfMemoryError, KernelError):
        raise
    except Exception as error:
        raise KernelError(f"{type(error).__name__}: {error}") from error


def _operator() -> Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]:
    """The reduction: for the compiler a custom operator, else a function that `torch.func` can transform."""
    if torch.compiler.is_compiling():
        from kdmkit.ops.triton.operators import reduce

        return reduce
    return Fused.apply


def run_forward(
    query: Tensor,
    components: Tensor,
    log_weights: Tensor,
    values: Tensor | None,
    scale: Tensor,
    metric: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    with full_precision(query.device.type), _as_kernel_error():
        from kdmkit.ops.triton.forward import Operands, forward

        return forward(Operands(query, components, log_weights, values, scale, metric))


def run_backward(
    by_averages: Tensor,
    by_lse: Tensor,
    averages: Tensor,
    lse: Tensor,
    maxima: Tensor,
    top_weights: Tensor,
    query: Tensor,
    components: Tensor,
    log_weights: Tensor,
    values: Tensor | None,
    scale: Tensor,
    metric: bool,
    needs: Sequence[bool],
) -> list[Tensor]:
    """Gradients by those of query, components, log-weights, values and scale that are needed."""
    with full_precision(query.device.type), _as_kernel_error():
        from kdmkit.ops.triton.backward import backward
        from kdmkit.ops.triton.forward import Operands

        gradients = backward(
            Operands(query, components, log_weights, values, scale, metric),
            (averages, lse, maxima, top_weights),
            (None if values is None else by_averages, by_lse),
            needs,
        )
    inputs = query, components, log_weights, values, scale
    return [
        gradient.to(tensor.dtype)
        for gradient, tensor in zip(gradients, inputs, strict=True)
        if gradient is not None and tensor is not None
    ]


def differentiate(run: Callable[..., Any], ctx: Any, by_averages: Tensor, by_lse: Tensor, *_: Tensor) -> Any:
    """Gradients by all inputs, None where none is needed; `run` is `run_backward` as an operator."""
    needs = list(ctx.needs_input_grad[:5])
    gradients = iter(run(by_averages, by_lse, *ctx.saved_tensors, ctx.metric, needs))
    return *(next(gradients) if need else None for need in needs), None


class Fused(torch.autograd.Function):
    forward = staticmethod(run_forward)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.metric = inputs
        ctx.save_for_backward(*output, *tensors)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        return differentiate(_Gradients.apply, ctx, *upstream)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> Any:
        return vmap_one_by_one(Fused.apply, info.batch_size, in_dims, inputs)


class _Gradients(torch.autograd.Function):
    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        return tuple(run_backward(*inputs))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> NoReturn:
        raise NotImplementedError('backend: expected "torch" for second derivatives, got "triton"')

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
        return vmap_one_by_one(_Gradients.apply, info.batch_size, (*in_dims[:-1], None), inputs)
