"""Scores of rows among which few differ."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Indexed:
    """Scores `distinct[index]` of r rows: a node whose rows repeat few values sends few messages.

    Args:
        distinct: scores of the rows that differ.
        index: by row, which of them it has.

    >>> Indexed(torch.tensor([[0.0, -1.0], [-2.0, 0.0]]), torch.tensor([1, 1, 0])).expanded()
    tensor([[-2.,  0.],
            [-2.,  0.],
            [ 0., -1.]])
    """

    distinct: Float[Tensor, "u k"]
    index: Int[Tensor, " r"]

    @property
    def dtype(self) -> torch.dtype:
        return self.distinct.dtype

    @property
    def device(self) -> torch.device:
        return self.distinct.device

    @property
    def shape(self) -> torch.Size:
        return torch.Size([len(self.index), self.distinct.shape[-1]])

    def numel(self) -> int:
        return self.shape.numel()

    def to(self, target: Any) -> Indexed:
        """With scores of another dtype."""
        return replace(self, distinct=self.distinct.to(target))

    def plus(self, other: Float[Tensor, " k"]) -> Indexed:
        """With a row added to all scores."""
        return replace(self, distinct=self.distinct + other)

    def expanded(self) -> Float[Tensor, "r k"]:
        """The scores of all rows."""
        return self.distinct.index_select(0, self.index)


#: Scores of one node, `(*lead, k)`.
NodeScores = Float[Tensor, "..."] | Indexed


def expanded(score: NodeScores | None) -> Float[Tensor, "..."] | None:
    """Scores as a tensor."""
    return score.expanded() if isinstance(score, Indexed) else score
