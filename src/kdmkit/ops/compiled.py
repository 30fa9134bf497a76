"""Functions for `torch.compile`: loops that it does not trace, and the Triton backend as custom operators.

Only compiled code imports this module, since it imports the compiler. Eager code calls the same functions
through `torch.autograd.Function`, which `torch.func` can transform.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kdmkit.ops import chunked
from kdmkit.ops.api import choose
from kdmkit.ops.terms import Reduction, Result, Term
from kdmkit.ops.triton.backend import find_reason, run_backward, run_forward

_INPUTS = "bool metric, Tensor query, Tensor components, Tensor log_weights, Tensor? values, Tensor scale"
_OUTPUTS = "Tensor averages, Tensor lse, Tensor maxima, Tensor top_weights"


@torch.compiler.disable
def reduce_in_blocks(reduction: Reduction) -> Result:
    """Backend `chunked`. Traced, the loop over blocks would be unrolled."""
    return choose(reduction, "chunked").run(reduction)


@torch.compiler.disable
def reduce_given_in_blocks(
    terms: Sequence[Term], more: Sequence[Term], log_weights: Tensor
) -> tuple[Tensor, Tensor]:
    """The same for a conditional log-probability."""
    return chunked.reduce_given(terms, more, log_weights)


#: Whether Triton works is tried once and does not change.
find_reason_once = torch.compiler.assume_constant_result(find_reason)

fused = torch.library.custom_op(
    "kdmkit::reduce", run_forward, mutates_args=(), schema=f"({_INPUTS}) -> (Tensor, Tensor, Tensor, Tensor)"
)
fused_backward = torch.library.custom_op(
    "kdmkit::reduce_backward",
    run_backward,
    mutates_args=(),
    schema=f"({_INPUTS}, {_OUTPUTS}, Tensor by_averages, Tensor by_lse, bool[] needs) -> Tensor[]",
)


@fused.register_fake
def _(metric: bool, query: Tensor, components: Tensor, weights: Tensor, values: Tensor | None, _: Any) -> Any:
    n, v = query.shape[0], 0 if values is None else values.shape[1]
    averages = query.new_empty((n, v), dtype=torch.float32)
    return averages, *(query.new_empty(n, dtype=torch.float32) for _ in range(3))


@fused_backward.register_fake
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
    gradients = iter(fused_backward(ctx.metric, *ctx.saved_tensors, by_averages, by_lse, needs))
    return None, *(next(gradients) if need else None for need in needs)


fused.register_autograd(_backward, setup_context=_setup_context)
