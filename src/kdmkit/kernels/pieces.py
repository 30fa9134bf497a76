"""Functions of many numbers each, evaluated piece by piece: what autograd would keep is computed again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kdmkit._core.runtime import only_reverse_mode
from kdmkit._core.tensors import broadcast

# Numbers in a piece: some hundred tensors of this size exist at once.
_PIECE = 1 << 16


def in_pieces(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """function(*tensors), for a function of single numbers that broadcasts its arguments.

    It takes the memory of a few of its results, whatever the function does inside. First derivatives only,
    where the result is large.
    """
    small = broadcast(*(tensor.shape for tensor in tensors)).numel() <= _PIECE
    if small or not only_reverse_mode():
        return function(*tensors)
    result: Tensor = _InPieces.apply(function, *tensors)
    return result


class _InPieces(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        ctx.function = function
        ctx.save_for_backward(*tensors)
        slices = _Slices(tensors)
        return torch.cat([function(*part) for part in slices.parts(tensors)], slices.dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tensors, wanted = ctx.saved_tensors, ctx.needs_input_grad[1:]
        slices = _Slices(tensors)
        totals = [torch.zeros_like(t) if want else None for t, want in zip(tensors, wanted, strict=True)]
        for part, places, upstream in zip(
            slices.parts(tensors), slices.parts(totals), slices.parts([gradient]), strict=True
        ):
            leaves = [tensor.detach().requires_grad_(want) for tensor, want in zip(part, wanted, strict=True)]
            with torch.enable_grad():
                value = ctx.function(*leaves)
            asked = [leaf for leaf in leaves if leaf.requires_grad]
            found = iter(torch.autograd.grad(value, asked, upstream[0]))
            for place in places:
                if place is not None:
                    place += next(found)
        return None, *totals


class _Slices:
    """Slices along the longest dimension of tensors that broadcast with each other."""

    def __init__(self, tensors: tuple[Tensor, ...]) -> None:
        shape = broadcast(*(tensor.shape for tensor in tensors))
        longest = max(range(len(shape)), key=lambda i: shape[i])
        self.dim, self.length = longest - len(shape), shape[longest]
        self.step = max(1, _PIECE * self.length // shape.numel())

    def parts(self, tensors: Any) -> Iterator[list[Any]]:
        """The tensors' slices, one list after the other; tensors without the dimension are whole."""
        for start in range(0, self.length, self.step):
            size = min(self.step, self.length - start)
            yield [self._part(tensor, start, size) for tensor in tensors]

    def _part(self, tensor: Tensor | None, start: int, size: int) -> Tensor | None:
        if tensor is None or tensor.ndim < -self.dim or tensor.shape[self.dim] == 1:
            return tensor
        return tensor.narrow(self.dim, start, size)


def sum_last(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Σ_i function(tensor[..., i], …), one dimension after the other."""
    total = None
    for parts in zip(*(tensor.unbind(-1) for tensor in tensors), strict=True):
        value = function(*parts)
        total = value if total is None else total + value
    assert total is not None
    return total
