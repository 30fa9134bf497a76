"""Reductions whose backward pass computes the scores again, block by block, as functions with gradients."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor

from kdmkit._core.tensors import at_least_float32, compute_dtype, full_precision
from kdmkit.ops.blocks import Block, slices
from kdmkit.ops.terms import Term, total_shape

#: Tensors, some of them None.
Tensors = Sequence[Any]
#: Which inputs need a gradient.
Needs = Sequence[bool]
#: Gradients by the inputs, None if none is needed.
Gradients = Sequence[Tensor | None]


class Recomputed(ABC):
    """A function of tensors (some may be None) with explicit gradients, that `torch.func` can transform.

    Attributes hold what is not a tensor.
    """

    #: Its name in error messages.
    backend: ClassVar[str] = "chunked"

    @abstractmethod
    def forward(self, *inputs: Any) -> tuple[Tensor, ...]:
        """The outputs; the last of them may be there for the backward pass only."""

    @abstractmethod
    def backward(self, needs: Needs, inputs: Tensors, outputs: Tensors, upstream: Tensors) -> Gradients:
        """Gradients by the inputs, None if none is needed.

        Args:
            inputs, outputs: of `forward`.
            upstream: the derivatives by the outputs, None if nothing depends on them.
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
        gradients = iter(_Gradients.apply(ctx.function, needs, *ctx.saved_tensors, *upstream))
        return None, *(next(gradients) if need else None for need in needs)

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


def differentiable_gradients(
    outputs: Sequence[Tensor | None], inputs: Tensors, needs: Needs, upstream: Tensors
) -> list[Tensor | None]:
    """Gradients by the inputs that need one, which can be differentiated again.

    Args:
        outputs: computed from the inputs by differentiable operations.
        upstream: the derivatives by the outputs, None if nothing depends on them.
    """
    wanted = [i for i, need in enumerate(needs) if need]
    pairs = [(o, by) for o, by in zip(outputs, upstream, strict=True) if o is not None and by is not None]
    used, by_used = zip(*pairs, strict=True)
    chosen = [inputs[i] for i in wanted]
    computed = torch.autograd.grad(used, chosen, by_used, create_graph=True, allow_unused=True)
    gradients = dict(zip(wanted, computed, strict=True))
    return [gradients.get(i) for i in range(len(inputs))]


def vmap_one_by_one(
    function: Callable[..., Sequence[Tensor]],
    size: int,
    in_dims: Sequence[int | None],
    inputs: Sequence[Any],
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """A rule for `vmap` with bounded memory: applies the function to one element of the batch at a time."""
    results = [
        function(*(x if dim is None else x.select(dim, b) for x, dim in zip(inputs, in_dims, strict=True)))
        for b in range(size)
    ]
    outputs = tuple(torch.stack(parts) for parts in zip(*results, strict=True))
    return outputs, tuple(0 for _ in outputs)


def rebuild(terms: Sequence[Term], tensors: Sequence[Tensor]) -> list[Term]:
    """The terms on other tensors, prepared for blocks."""
    rebuilt, start = [], 0
    for term in terms:
        stop = start + len(term.tensors)
        rebuilt.append(term.with_tensors(tensors[start:stop]).prepared())
        start = stop
    return rebuilt


def pairs_of_blocks(terms: Sequence[Term], block: Block) -> Iterator[tuple[slice, slice]]:
    """The queries and the components of every block of scores."""
    _, n, m = total_shape(terms)
    return itertools.product(slices(n, block[0]), slices(m, block[1]))


def weights_block(log_weights: Tensor, rows: slice, columns: slice) -> Tensor:
    """The log-weights of some queries and some components."""
    if log_weights.ndim >= 2 and log_weights.shape[-2] != 1:
        log_weights = log_weights[..., rows, :]
    return log_weights[..., columns]


def accumulator(tensor: Tensor) -> Tensor:
    """Zeros to add gradients to, in float32 at least: autograd rounds the sum, not every block."""
    return torch.zeros_like(tensor, dtype=compute_dtype(tensor.dtype))


def accumulate(target: Tensor, gradient: Tensor) -> None:
    """Adds a gradient to a slice that may have been broadcast along leading dimensions."""
    target.add_(gradient.sum_to_size(target.shape))


def summed(blocks: Sequence[Term]) -> Tensor:
    """The sum of the blocks' scores, with a graph."""
    with torch.enable_grad():
        scores = blocks[0].matrix()
        for block in blocks[1:]:
            scores = scores + block.matrix()
        return scores


class TermGradients:
    """Sums of the gradients by every tensor of some terms, None if no gradient is needed."""

    def __init__(self, terms: Sequence[Term], tensors: Sequence[Tensor], needs: Sequence[bool]) -> None:
        self.terms, self.needs = terms, needs
        self.roles = [role for term in terms for role in term.roles]
        pairs = zip(tensors, needs, strict=True)
        self.gradients = [accumulator(tensor) if need else None for tensor, need in pairs]

    def leaves(self, rows: slice, columns: slice) -> tuple[list[Term], list[Tensor]]:
        """A block's terms on fresh leaves, so that a gradient stops at the slices."""
        blocks, leaves, position = [], [], 0
        for term in self.terms:
            part = term.queries(rows).columns(columns)
            fresh = []
            for tensor in part.tensors:
                fresh.append(at_least_float32(tensor.detach()).requires_grad_(self.needs[position]))
                position += 1
            blocks.append(part.with_tensors(fresh))
            leaves.extend(fresh)
        return blocks, leaves

    def add(
        self, pairs: Sequence[tuple[Tensor, Tensor]], leaves: list[Tensor], rows: slice, columns: slice
    ) -> None:
        """Adds the gradients of a block.

        Args:
            pairs: sums of the block's scores, and the gradients by them.
            leaves: of the block's terms.
        """
        pairs = [(scores, slopes) for scores, slopes in pairs if scores.requires_grad]
        if not pairs:
            return
        wanted = [i for i, leaf in enumerate(leaves) if leaf.requires_grad]
        # The weights may have leading dimensions that the terms lack.
        slopes = [slopes.sum_to_size(scores.shape).to(scores.dtype) for scores, slopes in pairs]
        scores = [scores for scores, _ in pairs]
        gradients = torch.autograd.grad(scores, [leaves[i] for i in wanted], slopes, allow_unused=True)
        for i, gradient in zip(wanted, gradients, strict=True):
            target = self.gradients[i]
            if gradient is None or target is None:
                continue
            if self.roles[i] == "query":
                target = target[..., rows, :]
            elif self.roles[i] == "component":
                target = target[..., columns, :]
            target.add_(gradient)
