"""Backend `chunked`: online softmax over blocks of components; the backward pass computes blocks again.

Memory is bounded by one block of scores.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from kdmkit._core.logspace import exp_, finite_max, safe_log
from kdmkit._core.precision import at_least_float32, compute_dtype, full_precision
from kdmkit.ops.blocks import Block, run_in_memory, slices, vmap_one_by_one
from kdmkit.ops.combine import combine
from kdmkit.ops.dense import add_row, sum_rows
from kdmkit.ops.reduction import Reduction, Result
from kdmkit.ops.terms import Term, total_shape

# Pairs per block: small enough for the caches of a CPU, large enough that the interpreter does not matter.
_PAIRS = {"cpu": 1 << 20}
_PAIRS_DEFAULT = 1 << 25
_COLUMNS = {"cpu": 2048}
_COLUMNS_DEFAULT = 8192


@dataclass(frozen=True)
class _Plan:
    """The parts of a reduction that are not tensors."""

    terms: tuple[Term, ...]
    block: Block
    dtype: torch.dtype
    has_values: bool

    @property
    def n_out(self) -> int:
        return 2 if self.has_values else 1

    def rebuild(self, tensors: Sequence[Tensor]) -> list[Term]:
        rebuilt, start = [], 0
        for term in self.terms:
            stop = start + len(term.tensors)
            rebuilt.append(term.with_tensors(tensors[start:stop]).prepared())
            start = stop
        return rebuilt


def default_block(lead: tuple[int, ...], n: int, m: int, device: torch.device) -> Block:
    """Queries and components per block."""
    pairs = max(1, _PAIRS.get(device.type, _PAIRS_DEFAULT) // max(1, math.prod(lead)))
    columns = min(m, _COLUMNS.get(device.type, _COLUMNS_DEFAULT))
    return max(1, min(n, pairs // columns)), columns


def _weights_block(log_weights: Tensor, rows: slice, columns: slice) -> Tensor:
    if log_weights.ndim >= 2 and log_weights.shape[-2] != 1:
        log_weights = log_weights[..., rows, :]
    return log_weights[..., columns]


def _scores(terms: Sequence[Term], log_weights: Tensor, rows: slice, columns: slice) -> Tensor:
    scores = at_least_float32(_weights_block(log_weights, rows, columns))
    for term in terms:
        scores = term.queries(rows).columns(columns).matrix() + scores
    return scores


def _rows_forward(
    terms: Sequence[Term],
    log_weights: Tensor,
    values: Tensor | None,
    rows: slice,
    step: int,
    dtype: torch.dtype,
) -> tuple[Tensor | None, Tensor]:
    """One block of queries against all components; results of blocks of components are merged."""
    averages: Tensor | None = None
    lse: Tensor | None = None
    for columns in slices(terms[0].shape[2], step):
        scores = _scores(terms, log_weights, rows, columns)
        top = finite_max(scores)
        weights = exp_(scores.sub_(top).to(dtype))
        total = weights.sum(-1)
        block_lse = safe_log(total).to(top.dtype) + top.squeeze(-1)
        block_averages = None
        if values is not None:
            safe_total = torch.where(total > 0, total, torch.ones_like(total))
            block_averages = torch.matmul(weights, values[..., columns, :]) / safe_total.unsqueeze(-1)
        if lse is None:
            averages, lse = block_averages, block_lse
        elif averages is None or block_averages is None:
            lse = torch.logaddexp(lse, block_lse)
        else:
            averages, lse = combine((averages, lse), (block_averages, block_lse))
    assert lse is not None  # a reduction has at least one component
    return averages, lse


class _Chunked(torch.autograd.Function):
    """(plan, log_weights, values, *tensors) → (averages, logsumexp), or (logsumexp,) without values."""

    @staticmethod
    def forward(plan: _Plan, log_weights: Tensor, values: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        terms = plan.rebuild(tensors)
        _, n, _ = total_shape(terms)
        used = values.to(plan.dtype) if plan.has_values else None
        parts: list[tuple[Tensor | None, Tensor]] = []
        start, block = 0, plan.block
        # One block at least, so that no queries give results of the right shape too.
        while start < n or not parts:

            def attempt(block: Block, start: int = start) -> tuple[int, tuple[Tensor | None, Tensor]]:
                rows = slice(start, min(start + block[0], n))
                return rows.stop, _rows_forward(terms, log_weights, used, rows, block[1], plan.dtype)

            (start, part), block = run_in_memory(block, attempt)
            parts.append(part)
        lse = torch.cat([part[1] for part in parts], -1)
        if used is None:
            return (lse,)
        return torch.cat([part[0] for part in parts if part[0] is not None], -2), lse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.plan = inputs[0]
        ctx.save_for_backward(*inputs[1:], *output)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        needs = ctx.needs_input_grad[1:]
        gradients = iter(_Gradients.apply(ctx.plan, needs, *ctx.saved_tensors, *upstream))
        return (None, *(next(gradients) if need else None for need in needs))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], plan: _Plan, *inputs: Tensor) -> tuple[Any, Any]:
        function = functools.partial(_Chunked.apply, plan)
        return vmap_one_by_one(function, info.batch_size, in_dims[1:], inputs)


class _Gradients(torch.autograd.Function):
    """(plan, needs, inputs, outputs, upstream) → the gradients that are needed.

    A separate Function, since `vmap` cannot add the gradients of its elements into one tensor.
    """

    @staticmethod
    def forward(plan: _Plan, needs: tuple[bool, ...], *inputs: Tensor) -> tuple[Tensor, ...]:
        log_weights, values, *tensors = inputs[: len(needs)]
        outputs, upstream = inputs[len(needs) :][: plan.n_out], inputs[-plan.n_out :]
        with full_precision(log_weights.device.type):

            def attempt(block: Block) -> tuple[Tensor | None, ...]:
                smaller = replace(plan, block=block)
                return _Backward(smaller, log_weights, values, tensors, outputs, upstream, needs).run()

            gradients, _ = run_in_memory(plan.block, attempt)
        return tuple(gradient for gradient in gradients if gradient is not None)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> NoReturn:
        raise NotImplementedError('backend: expected "torch" for second derivatives, got "chunked"')

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], plan: _Plan, needs: Any, *inputs: Tensor
    ) -> tuple[Any, Any]:
        return vmap_one_by_one(
            lambda *x: _Gradients.apply(plan, needs, *x), info.batch_size, in_dims[2:], inputs
        )


class _Backward:
    """Gradients of one reduction; every block of scores is computed again."""

    def __init__(
        self,
        plan: _Plan,
        log_weights: Tensor,
        values: Tensor,
        tensors: Sequence[Tensor],
        outputs: Sequence[Tensor],
        upstream: Sequence[Tensor],
        needs: Sequence[bool],
    ) -> None:
        self.plan, self.log_weights, self.values = plan, log_weights, values
        self.terms = plan.rebuild(tensors)
        self.roles = [role for term in self.terms for role in term.roles]
        lse = outputs[-1]
        self.lse = torch.where(torch.isneginf(lse), torch.zeros_like(lse), lse)
        self.grad_lse = upstream[-1]
        self.grad_averages = upstream[0] if plan.has_values else None
        self.dot = (upstream[0] * outputs[0]).sum(-1, keepdim=True) if plan.has_values else None
        self.needs_weights, self.needs_values, *self.needs = needs
        self.grads = [_accumulator(t) if need else None for t, need in zip(tensors, self.needs, strict=True)]
        self.grad_weights = _accumulator(log_weights) if self.needs_weights else None
        self.grad_values = _accumulator(values) if self.needs_values else None

    def run(self) -> tuple[Tensor | None, ...]:
        _, n, m = total_shape(self.terms)
        for rows in slices(n, self.plan.block[0]):
            for columns in slices(m, self.plan.block[1]):
                self._block(rows, columns)
        return self.grad_weights, self.grad_values, *self.grads

    def _block(self, rows: slice, columns: slice) -> None:
        blocks, leaves = self._leaves(rows, columns)
        with torch.enable_grad():
            scores = blocks[0].matrix()
            for block in blocks[1:]:
                scores = scores + block.matrix()
        log_weights = _weights_block(self.log_weights, rows, columns)
        dtype = self.grad_lse.dtype
        probability = (scores.detach() + log_weights - self.lse[..., rows].unsqueeze(-1)).to(dtype)
        probability = exp_(probability)
        slope = self.grad_lse[..., rows].unsqueeze(-1)
        if self.grad_averages is not None and self.dot is not None:
            upstream = self.grad_averages[..., rows, :]
            block_values = self.values[..., columns, :].to(upstream.dtype)
            if self.grad_values is not None:
                gained = torch.matmul(probability.mT.to(upstream.dtype), upstream)
                _accumulate(self.grad_values[..., columns, :], gained)
            gain = torch.matmul(upstream, block_values.mT) - self.dot[..., rows, :]
            slope = gain.sum_to_size(probability.shape) + slope
        grad_scores = probability * slope
        if self.grad_weights is not None:
            _accumulate(_weights_block(self.grad_weights, rows, columns), grad_scores)
        # The weights may have leading dimensions that the terms lack.
        self._push(scores, grad_scores.sum_to_size(scores.shape).to(scores.dtype), leaves, rows, columns)

    def _leaves(self, rows: slice, columns: slice) -> tuple[list[Term], list[Tensor]]:
        """The terms of a block on leaves of their own, so that gradients stop at the slices."""
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

    def _push(
        self, scores: Tensor, grad_scores: Tensor, leaves: list[Tensor], rows: slice, columns: slice
    ) -> None:
        wanted = [i for i, leaf in enumerate(leaves) if leaf.requires_grad]
        if not wanted:
            return
        grads = torch.autograd.grad(scores, [leaves[i] for i in wanted], grad_scores, allow_unused=True)
        for i, grad in zip(wanted, grads, strict=True):
            target = self.grads[i]
            if grad is None or target is None:
                continue
            if self.roles[i] == "query":
                target = target[..., rows, :]
            elif self.roles[i] == "component":
                target = target[..., columns, :]
            target.add_(grad)


def _accumulator(tensor: Tensor) -> Tensor:
    """Zeros to add gradients to, at least float32: the sum is rounded to the dtype of the tensor, once."""
    return torch.zeros_like(tensor, dtype=compute_dtype(tensor.dtype))


def _accumulate(target: Tensor, gradient: Tensor) -> None:
    """Adds a gradient to a slice, summed over the dimensions along which the slice was broadcast."""
    target.add_(gradient.sum_to_size(target.shape))


def reduce(reduction: Reduction) -> Result:
    """The reduction by blocks of queries and components."""
    values, dtype = reduction.values, reduction.dtype
    block = reduction.block or default_block(*reduction.shape, reduction.log_weights.device)
    terms = [term.prepared() for term in reduction.terms]
    plan = _Plan(tuple(terms), block, dtype, values is not None)
    tensors = [tensor for term in terms for tensor in term.tensors]
    log_weights = reduction.log_weights
    *averages, lse = _Chunked.apply(plan, log_weights, log_weights if values is None else values, *tensors)
    return (averages[0] if averages else None), add_row(lse, sum_rows(terms)).to(dtype)
