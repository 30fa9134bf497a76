"""Woodbury's identity for covariances that are diagonal plus low rank, for many of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.runtime import only_reverse_mode
from kdmkit.ops.recomputed import differentiable_gradients


class Woodbury(NamedTuple):
    """What Woodbury's identity needs: L·Lᵀ = I + F′ᵀF′ with F′ = F/σ, entry by entry.

    Small matrices in a batch are slow; here every operation is on a column of all of them.

    Attributes:
        scales: 1/σ.
        scaled: the columns of F′.
        root: the rows of L, up to the diagonal.
    """

    scales: Float[Tensor, "*m d"]
    scaled: list[Float[Tensor, "*m d"]]
    root: list[list[Float[Tensor, "*m 1"]]]

    @classmethod
    def of(cls, scales: Float[Tensor, "*#m d"], factors: Float[Tensor, "r *#m d"]) -> Woodbury:
        """By Cholesky's algorithm."""
        scaled = [scales * factor for factor in factors.unbind(0)]
        root: list[list[Tensor]] = []
        for column in scaled:
            row: list[Tensor] = []
            for other, before in zip(scaled, root, strict=False):
                total = (column * other).sum(-1, keepdim=True)
                for one, two in zip(row, before, strict=False):
                    total = total - one * two
                row.append(total / before[-1])
            square = 1 + column.square().sum(-1, keepdim=True)
            for entry in row:
                square = square - entry.square()
            # Rounding apart, it is at least 1.
            root.append([*row, square.clamp_min(1).sqrt()])
        return cls(scales, scaled, root)

    def solved(self, columns: Sequence[Float[Tensor, "*m d"]]) -> list[Float[Tensor, "*m d"]]:
        """The columns of A·L⁻ᵀ for those of A."""
        result: list[Tensor] = []
        for column, row in zip(columns, self.root, strict=True):
            for entry, other in zip(row[:-1], result, strict=True):
                column = column - entry * other
            result.append(column / row[-1])
        return result

    @property
    def directions(self) -> list[Float[Tensor, "*m d"]]:
        """The columns of F′L⁻ᵀ/σ."""
        return [self.scales * column for column in self.solved(self.scaled)]

    @property
    def log_root(self) -> Float[Tensor, "*m"]:
        """log det L."""
        diagonal = torch.cat([row[-1] for row in self.root], -1)
        return diagonal.log().sum(-1)


def whiten(
    scales: Float[Tensor, "*#m d"], factors: Float[Tensor, "r *#m d"]
) -> tuple[Float[Tensor, "*m rd"], Float[Tensor, "*m"]]:
    """`directions` side by side, and `log_root`; of many covariances with explicit gradients.

    >>> directions, log_root = whiten(torch.ones(1, 2), torch.tensor([[[1.0, 0.0]]]))
    >>> directions, log_root  # 1/√2, ½·log 2
    (tensor([[0.7071, 0.0000]]), tensor([0.3466]))
    """
    shape = factors.shape[1:]
    if len(shape) == 2 and scales.shape in (shape, shape[1:]) and only_reverse_mode():
        whitened: tuple[Tensor, Tensor] = _Whiten.apply(scales.expand(shape), factors)
        return whitened
    return _composed(scales, factors)


def _composed(scales: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    whitened = Woodbury.of(scales, factors)
    return torch.cat(torch.broadcast_tensors(*whitened.directions), -1), whitened.log_root


class _Whiten(torch.autograd.Function):
    """(1/σ, F) → the directions 1/σ·H with H = F′L⁻ᵀ, and log det L."""

    @staticmethod
    def forward(ctx: Any, scales: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
        whitened = Woodbury.of(scales, factors)
        eye = torch.eye(len(factors), dtype=scales.dtype, device=scales.device)
        inverse = torch.stack(whitened.solved(eye.expand(len(scales), -1, -1).unbind(1)), -1)
        ctx.save_for_backward(scales, factors, inverse, eye)
        return torch.cat(whitened.directions, -1), whitened.log_root

    @staticmethod
    def backward(ctx: Any, by_directions: Tensor, by_log_root: Tensor) -> tuple[Tensor | None, ...]:
        scales, factors, inverse, eye = ctx.saved_tensors  # `inverse` is L⁻ᵀ
        if torch.is_grad_enabled():
            inputs, upstream = (scales, factors), (by_directions, by_log_root)
            return tuple(differentiable_gradients(_composed(*inputs), inputs, ctx.needs_input_grad, upstream))
        scales, factors = scales.unsqueeze(1), factors.movedim(0, 1)
        by_directions = by_directions.view(len(scales), len(eye), -1)
        scaled, by_h = scales * factors, scales * by_directions  # F′ᵀ, and the gradient by Hᵀ
        h = inverse.mT @ scaled
        # With A = I + F′ᵀF′ = LLᵀ: the lower triangle of Lᵀ·(gradient by L), made symmetric, is that by 2A
        # between L⁻ᵀ and L⁻¹.
        lower = (by_log_root[:, None, None] * eye - by_h @ h.mT).tril()
        by_gram = inverse @ (lower + lower.tril(-1).mT) @ inverse.mT
        by_scaled = torch.baddbmm(inverse @ by_h, by_gram, scaled)
        by_scales = (by_directions * h).sum(1) + (factors * by_scaled).sum(1)
        return by_scales, (scales * by_scaled).movedim(1, 0)
