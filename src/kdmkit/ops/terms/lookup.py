"""Scores of discrete queries, read from a table."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from kdmkit._core.runtime import only_reverse_mode
from kdmkit._core.tensors import at_least_float32
from kdmkit.ops.terms.base import Roles, Term


@dataclass(frozen=True)
class Lookup(Term):
    """scores[i, j] = table[j, code_i].

    Args:
        codes: of shape `(*lead, n, 1)`, integers in 0 … k−1.
        table: of shape `(*lead, m, k)`.

    >>> Lookup(torch.tensor([[1], [0]]), torch.tensor([[0.1, 0.9], [0.5, 0.5]]).log()).exact().exp()
    tensor([[0.9000, 0.5000],
            [0.1000, 0.5000]])
    """

    field_roles: ClassVar[Roles] = {"codes": "query", "table": "component"}
    codes: Integer[Tensor, "*#lead n 1"]
    table: Float[Tensor, "*#lead m k"]

    def exact(self) -> Float[Tensor, "*lead n m"]:
        return self.matrix()

    def matrix(self) -> Float[Tensor, "*lead n m"]:
        columns = at_least_float32(self.table).mT
        if columns.is_cuda and only_reverse_mode() and not torch.compiler.is_compiling():
            return self._embedded(columns)
        # Compiled for a CPU (torch 2.13), the gradient of index_select writes past its buffer.
        if self.codes.ndim == 2 and self.table.ndim == 2 and not torch.compiler.is_compiling():
            return columns.index_select(0, self.codes.squeeze(-1).long())
        (lead, n, m), k = self.shape, self.table.shape[-1]
        index = self.codes.long().expand(*lead, n, m)
        return columns.expand(*lead, k, m).gather(-2, index)

    def _embedded(self, columns: Float[Tensor, "*own k m"]) -> Float[Tensor, "*lead n m"]:
        """The same for a GPU: gradients of other ways are scattered sums, which differ from run to run."""
        (lead, n, m), (*own, k, _) = self.shape, columns.shape
        tables = torch.arange(math.prod(own), device=columns.device).view(own).expand(lead)
        index = self.codes.squeeze(-1).long().expand(*lead, n) + k * tables.unsqueeze(-1)
        return nn.functional.embedding(index, columns.reshape(-1, m))
