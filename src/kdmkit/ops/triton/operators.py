"""The Triton backend's reduction as custom operators, which `torch.compile` does not trace into.

Only compiled code imports this module. Eager code calls the same functions through `torch.autograd.Function`,
which `torch.func` can transform.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from kdmkit.ops.triton.backend import Fused, differentiate, run_backward, run_forward

_INPUTS = "Tensor query, Tensor components, Tensor log_weights, Tensor? values, Tensor scale, bool metric"
_OUTPUTS = "Tensor averages, Tensor lse, Tensor maxima, Tensor top_weights"

reduce = torch.library.custom_op(
    "kdmkit::reduce", run_forward, mutates_args=(), schema=f"({_INPUTS}) -> (Tensor, Tensor, Tensor, Tensor)"
)
reduce_backward = torch.library.custom_op(
    "kdmkit::reduce_backward",
    run_backward,
    mutates_args=(),
    schema=f"(Tensor by_averages, Tensor by_lse, {_OUTPUTS}, {_INPUTS}, bool[] needs) -> Tensor[]",
)


@reduce.register_fake
def _(query: Tensor, components: Tensor, log_weights: Tensor, values: Tensor | None, *_: Any) -> Any:
    n, v = query.shape[0], 0 if values is None else values.shape[1]
    averages = query.new_empty((n, v), dtype=torch.float32)
    return averages, *(query.new_empty(n, dtype=torch.float32) for _ in range(3))


@reduce_backward.register_fake
def _(*arguments: Any) -> list[Tensor]:
    *inputs, _, needs = arguments[6:]
    return [
        torch.empty_like(tensor, memory_format=torch.contiguous_format)
        for tensor, need in zip(inputs, needs, strict=True)
        if need
    ]


reduce.register_autograd(partial(differentiate, reduce_backward), setup_context=Fused.setup_context)
