"""Sums over dimensions and over sets, and evaluation in pieces: memory stays small."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kdmkit._core.logspace import safe_log
from kdmkit._core.modes import only_reverse_mode
from kdmkit._core.shapes import broadcast

# Numbers in a piece: some hundred tensors of this size exist at once.
_PIECE = 1 << 16


def sum_last(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Σ_i function(tensor[..., i], …), one dimension after the other: the summands never exist at once."""
    total = None
    for parts in zip(*(tensor.unbind(-1) for tensor in tensors), strict=True):
        value = function(*parts)
        total = value if total is None else total + value
    assert total is not None
    return total


def log_sum(part: Callable[[int], Tensor], n: int) -> Tensor:
    """log Σ_i exp(part(i)) for i = 0 … n−1, with two parts in memory at a time.

    >>> log_sum(lambda i: torch.tensor([-1000.0 * i, -torch.inf]), 3)
    tensor([0., -inf])
    """
    with torch.no_grad():
        top = part(0)
        for i in range(1, n):
            top = torch.maximum(top, part(i))
        top = torch.where(torch.isneginf(top), 0.0, top)
    total = torch.zeros_like(top)
    for i in range(n):
        total = total + (part(i) - top).exp()
    return safe_log(total) + top


def in_pieces(function: Callable[..., Tensor], *tensors: Tensor, size: int = _PIECE) -> Tensor:
    """function(*tensors) for an elementwise function that broadcasts its arguments.

    The memory is that of a few results: pieces are evaluated one by one, and again for the gradient. Results
    larger than `size` have first derivatives only.
    """
    small = broadcast(*(tensor.shape for tensor in tensors)).numel() <= size
    if small or not only_reverse_mode():
        return function(*tensors)
    result: Tensor = _InPieces.apply(function, size, *tensors)
    return result


class _InPieces(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[..., Tensor], size: int, *tensors: Tensor) -> Tensor:
        ctx.function, ctx.size = function, size
        ctx.save_for_backward(*tensors)
        dim, slices = _slices(tensors, size)
        return torch.cat([function(*_parts(tensors, dim, piece)) for piece in slices], dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tensors, wanted = ctx.saved_tensors, ctx.needs_input_grad[2:]
        totals = [torch.zeros_like(t) if want else None for t, want in zip(tensors, wanted, strict=True)]
        dim, slices = _slices(tensors, ctx.size)
        for piece in slices:
            parts = zip(_parts(tensors, dim, piece), wanted, strict=True)
            leaves = [tensor.detach().requires_grad_(want) for tensor, want in parts]
            with torch.enable_grad():
                value = ctx.function(*leaves)
            sources = [leaf for leaf in leaves if leaf.requires_grad]
            upstream = gradient.narrow(dim, *piece)
            targets = _parts([total for total in totals if total is not None], dim, piece)
            for target, slope in zip(targets, torch.autograd.grad(value, sources, upstream), strict=True):
                target += slope
        return None, None, *totals


def _slices(tensors: Sequence[Tensor], size: int) -> tuple[int, Iterator[tuple[int, int]]]:
    """The longest dimension of tensors that broadcast, and (start, length) of its slices."""
    shape = broadcast(*(tensor.shape for tensor in tensors))
    longest = max(range(len(shape)), key=lambda i: shape[i])
    length = shape[longest]
    step = max(1, size * length // shape.numel())
    return longest - len(shape), ((start, min(step, length - start)) for start in range(0, length, step))


def _parts(tensors: Sequence[Tensor], dim: int, piece: tuple[int, int]) -> list[Tensor]:
    """One slice of every tensor; tensors without the dimension stay whole."""
    return [
        tensor if tensor.ndim < -dim or tensor.shape[dim] == 1 else tensor.narrow(dim, *piece)
        for tensor in tensors
    ]
