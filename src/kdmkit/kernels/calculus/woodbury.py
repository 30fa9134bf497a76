"""Woodbury's identity for covariances that are diagonal plus low rank, for many of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


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
