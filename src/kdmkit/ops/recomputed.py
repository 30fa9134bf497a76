"""Reductions whose backward pass computes the scores again, as functions with gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor

from kdmkit._core.tensors import full_precision
from kdmkit.ops.blocks import vmap_one_by_one

#: Tensors, some of them None.
Tensors = Sequence[Any]
#: Which inputs need a gradient.
Needs = Sequence[bool]
#: By the inputs, None where none is needed.
Gradients = Sequence[Tensor | None]


class Recomputed(ABC):
    """A function of tensors (some may be None) with explicit gradients, that `torch.func` can transform.

    Attributes hold what is not a tensor.
    """

    #: How error messages call it.
    backend: ClassVar[str] = "chunked"

    @abstractmethod
    def forward(self, *inputs: Any) -> tuple[Tensor, ...]:
        """The outputs; the last of them may be there for the backward pass only."""

    @abstractmethod
    def backward(self, needs: Needs, inputs: Tensors, outputs: Tensors, upstream: Tensors) -> Gradients:
        """Gradients by the inputs, None where none is needed.

        Args:
            inputs, outputs: of `forward`.
            upstream: the derivatives by the outputs, None where nothing depends on them.
        """

    def __call__(self, *inputs: Any) -> tuple[Tensor, ...]:
        outputs: tuple[Tensor, ...] = _Outputs.apply(self, *inputs)
        return outputs


class _Outputs(torch.autograd.Function):
    """(function, *inputs) → outputs."""

    @staticmethod
    def forward(function: Recomputed, *inputs: Any) -> tuple[Tensor, ...]:
        return function.forward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.function, *tensors = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, *output)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        needs = ctx.needs_input_grad[1:]
        found = iter(_Gradients.apply(ctx.function, needs, *ctx.saved_tensors, *upstream))
        return None, *(next(found) if need else None for need in needs)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], function: Recomputed, *inputs: Any) -> tuple[Any, Any]:
        return vmap_one_by_one(partial(_Outputs.apply, function), info.batch_size, in_dims[1:], inputs)


class _Gradients(torch.autograd.Function):
    """(function, needs, *inputs, *outputs, *upstream) → the gradients that are needed.

    A separate Function, since `vmap` cannot add the gradients of its elements into one tensor.
    """

    @staticmethod
    def forward(function: Recomputed, needs: Needs, *tensors: Any) -> tuple[Tensor, ...]:
        inputs, rest = tensors[: len(needs)], tensors[len(needs) :]
        outputs, upstream = rest[: len(rest) // 2], rest[len(rest) // 2 :]
        with full_precision(outputs[0].device.type):
            gradients = function.backward(needs, inputs, outputs, upstream)
        return tuple(gradient for gradient in gradients if gradient is not None)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.backend = inputs[0].backend

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> NoReturn:
        raise NotImplementedError(f'backend: expected "torch" for second derivatives, got "{ctx.backend}"')

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], function: Recomputed, needs: Needs, *tensors: Any
    ) -> tuple[Any, Any]:
        apply = partial(_Gradients.apply, function, needs)
        return vmap_one_by_one(apply, info.batch_size, in_dims[2:], tensors)
