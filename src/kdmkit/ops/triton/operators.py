"""The Triton backend's reduction as custom operators, which `torch.compile` does not trace into.

Only compiled code imports this module. Eager code calls the same functions through `torch.autograd.Function`,
which `torch.func` can transform.
"""

from typing import Any

import torch
from torch import Tensor

from kdmkit.ops.triton.backend import run_backward, run_forward

_INPUTS = "bool metric, Tensor query, Tensor components, Tensor log_weights, Tensor? values, Tensor scale"
_OUTPUTS = "Tensor averages, Tensor lse, Tensor maxima, Tensor top_weights"

reduce = torch.library.custom_op(
    "kdmkit::reduce", run_forward, mutates_args=(), schema=f"({_INPUTS}) -> (Tensor, Tensor, Tensor, Tensor)"
)
reduce_backward = torch.library.custom_op(
    "kdmkit::reduce_backward",
    run_backward,
    mutates_args=(),
    schema=f"({_INPUTS}, {_OUTPUTS}, Tensor by_averages, Tensor by_lse, bool[] needs) -> Tensor[]",
)


@reduce.register_fake
def _(metric: bool, query: Tensor, components: Tensor, weights: Tensor, values: Tensor | None, _: Any) -> Any:
    n, v = query.shape[0], 0 if values is None else values.shape[1]
    averages = query.new_empty((n, v), dtype=torch.float32)
    return averages, *(query.new_empty(n, dtype=torch.float32) for _ in range(3))


@reduce_backward.register_fake
def _(*arguments: Any) -> list[Tensor]:
    inputs, needs = arguments[1:6], arguments[-1]
    return [
        torch.empty_like(tensor, memory_format=torch.contiguous_format)
        for tensor, need in zip(inputs, needs, strict=True)
        if need
    ]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.metric, *tensors = inputs
    ctx.save_for_backward(*tensors, *output)


def _backward(ctx: Any, by_averages: Tensor, by_lse: Tensor, *_: Tensor) -> Any:
    needs = list(ctx.needs_input_grad[1:])
    gradients = iter(reduce_backward(ctx.metric, *ctx.saved_tensors, by_averages, by_lse, needs))
    return None, *(next(gradients) if need else None for need in needs)


reduce.register_autograd(_backward, setup_context=_setup_context)
