"""Backend `triton`: when it can be used, and its reduction as a function that autograd knows.

Triton itself is imported with the first use: this module costs nothing where there is none.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit._core.precision import full_precision
from kdmkit.ops.blocks import one_by_one
from kdmkit.ops.terms import SquaredDistance, Term, total_shape

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_LARGEST_D = 512
_LARGEST_V = 128

# Device type → why Triton does not work there, None if it does; filled by the first question.
_REASONS: dict[str, str | None] = {}
_warned = False


class KernelError(RuntimeError):
    """Triton could not compile or launch a kernel."""


def why_unusable(device_type: str) -> str | None:
    """Why Triton cannot run kernels on this type of device, or None."""
    if torch.compiler.is_compiling():
        from kdmkit.ops.untraced import why_unusable_untraced

        return why_unusable_untraced(device_type)
    return find_reason(device_type)


def find_reason(device_type: str) -> str | None:
    if device_type not in _REASONS:
        # A thread of its own knows nothing of transformations by `torch.func` that may be under way here.
        with ThreadPoolExecutor(1) as pool:
            _REASONS[device_type] = pool.submit(_try_triton, device_type).result()
    return _REASONS[device_type]


def _try_triton(device_type: str) -> str | None:
    """Runs a small kernel: Triton may be there and yet lack a C compiler, a driver or a supported device."""
    try:
        import triton

        if device_type != "cuda" and not (device_type == "cpu" and triton.knobs.runtime.interpret):
            return f"expected tensors on a CUDA device, got {device_type}"
        from kdmkit.ops.triton_staging import stage

        one = torch.ones(1, device=device_type)
        stage(one.view(1, 1), one, one, width=16, passes=1)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else 'no message'}"
    return None


def usable_or_warn(device_type: str) -> bool:
    """Whether Triton works here; the first time that it does not, a warning says why."""
    reason = why_unusable(device_type)
    if reason is not None:
        _warn(reason)
    return reason is None


def give_up(device_type: str, error: KernelError) -> None:
    """Triton failed after all: do without it from now on."""
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


def why_unsupported(
    terms: Sequence[Term], log_weights: Tensor, values: Tensor | None
) -> tuple[str, object] | None:
    """What this backend expects and a problem has instead, or None."""
    term = terms[0]
    if len(terms) != 1 or not isinstance(term, SquaredDistance):
        return "one term of squared distances", [type(term).__name__ for term in terms]
    tensors = [*term.tensors, log_weights, *([] if values is None else [values])]
    for tensor in tensors:
        if tensor.dtype not in _DTYPES:
            return "float32, bfloat16 or float16", tensor.dtype
        if tensor.device != term.query.device:
            return f"all tensors on {term.query.device}", tensor.device
    for tensor in tensors[1:]:
        # Leading dimensions may be the queries' alone: everything else is shared by all of them.
        own = 1 if tensor is log_weights else 2
        if tensor.ndim > term.query.ndim or tensor.numel() != tensor.shape[-own:].numel():
            return "components, scale, weights and values without leading dimensions", tuple(tensor.shape)
    if term.query.shape[-1] > _LARGEST_D:
        return f"at most {_LARGEST_D} dimensions", term.query.shape[-1]
    if values is not None and not 1 <= values.shape[-1] <= _LARGEST_V:
        return f"1 to {_LARGEST_V} values", values.shape[-1]
    return None


def check_usable(terms: Sequence[Term], log_weights: Tensor, values: Tensor | None) -> None:
    """Raises unless this backend can do it, with the reason."""
    reason = why_unusable(log_weights.device.type)
    if reason is not None:
        raise RuntimeError(f'backend: "triton" does not work here ({reason})')
    unsupported = why_unsupported(terms, log_weights, values)
    if unsupported is not None:
        raise ValueError(bad_argument('backend "triton"', *unsupported))


def fused(
    terms: Sequence[Term],
    log_weights: Float[Tensor, "*weights m"],
    values: Float[Tensor, "*#lead m v"] | None,
) -> tuple[Tensor | None, Tensor]:
    """The reduction, for problems that `why_unsupported` has nothing against."""
    term = terms[0]
    assert isinstance(term, SquaredDistance)
    lead, n, m = total_shape(terms)
    d = term.query.shape[-1]
    query, scale = term.query.reshape(-1, d), term.scale.reshape(term.scale.shape[-2:])
    used = None if values is None else values.reshape(m, values.shape[-1])
    averages, lse, _, _ = _operator()(
        query, term.components.reshape(m, d), log_weights.reshape(m), used, scale, term.metric
    )
    lse = lse.reshape(*lead, n)
    return (None if values is None else averages.reshape(*lead, n, values.shape[-1])), lse


@contextmanager
def _as_kernel_error() -> Iterator[None]:
    """Whatever Triton raises becomes one kind of error; memory and interrupts are not Triton's."""
    try:
        yield
    except (torch.OutOfMemoryError, KernelError):
        raise
    except Exception as error:
        raise KernelError(f"{type(error).__name__}: {error}") from error


def _operator() -> Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]:
    """The reduction: to the compiler one opaque operator, else a function that `torch.func` can transform."""
    if torch.compiler.is_compiling():
        from kdmkit.ops.triton_operators import reduce

        return reduce
    return _Fused.apply


def run_forward(
    query: Tensor,
    components: Tensor,
    log_weights: Tensor,
    values: Tensor | None,
    scale: Tensor,
    metric: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    with full_precision(query.device.type), _as_kernel_error():
        from kdmkit.ops.fused import Operands, forward

        return forward(Operands(query, components, log_weights, values, scale, metric))


def run_backward(
    by_averages: Tensor,
    by_lse: Tensor,
    averages: Tensor,
    lse: Tensor,
    maxima: Tensor,
    shares: Tensor,
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
        from kdmkit.ops.fused import Operands
        from kdmkit.ops.fused_backward import backward

        gradients = backward(
            Operands(query, components, log_weights, values, scale, metric),
            (averages, lse, maxima, shares),
            (None if values is None else by_averages, by_lse),
            needs,
        )
    inputs = query, components, log_weights, values, scale
    return [
        gradient.to(tensor.dtype)
        for gradient, tensor in zip(gradients, inputs, strict=True)
        if gradient is not None and tensor is not None
    ]


class _Fused(torch.autograd.Function):
    forward = staticmethod(run_forward)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.metric = inputs
        ctx.save_for_backward(*output, *tensors)

    @staticmethod
    def backward(ctx: Any, by_averages: Tensor, by_lse: Tensor, *_: Tensor) -> tuple[Any, ...]:
        needs = ctx.needs_input_grad[:5]
        gradients = iter(_Gradients.apply(by_averages, by_lse, *ctx.saved_tensors, ctx.metric, needs))
        return *(next(gradients) if need else None for need in needs), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> Any:
        return one_by_one(_Fused.apply, info.batch_size, in_dims, inputs)


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
        return one_by_one(_Gradients.apply, info.batch_size, (*in_dims[:-1], None), inputs)
