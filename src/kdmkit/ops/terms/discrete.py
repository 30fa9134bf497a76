"""Scores of labels, read from a table of log-probabilities or computed from amplitudes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

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

    def _embedded(self, columns: Float[Tensor, "*tables k m"]) -> Float[Tensor, "*lead n m"]:
        """The same for a GPU: gradients of other ways are scattered sums, which differ from run to run."""
        (lead, n, m), (*batch, k, _) = self.shape, columns.shape
        tables = torch.arange(math.prod(batch), device=columns.device).view(batch).expand(lead)
        index = self.codes.squeeze(-1).long().expand(*lead, n) + k * tables.unsqueeze(-1)
        return nn.functional.embedding(index, columns.reshape(-1, m))


@dataclass(frozen=True)
class Amplitudes(Term):
    """scores[i, j] = log (a_j,code_i/‖a_j‖)²: to reductions, a `Lookup` of logarithms.

    Args:
        codes: of shape `(*lead, n, 1)`, integers in 0 … k−1.
        amplitudes: a, of shape `(*lead, m, k)`.

    >>> Amplitudes(torch.tensor([[1], [0]]), torch.tensor([[3.0, 4.0]])).exact().exp()
    tensor([[0.6400],
            [0.3600]])
    """

    field_roles: ClassVar[Roles] = {"codes": "query", "amplitudes": "component"}
    codes: Integer[Tensor, "*#lead n 1"]
    amplitudes: Float[Tensor, "*#lead m k"]

    def exact(self) -> Float[Tensor, "*lead n m"]:
        return self.prepared().exact()

    def matrix(self) -> Float[Tensor, "*lead n m"]:
        return self.prepared().matrix()

    def prepared(self) -> Lookup:
        return Lookup(self.codes, log_probs(self.amplitudes))

    def summands(self) -> tuple[Term, ...]:
        return (self.prepared(),)


def log_probs(x: Float[Tensor, "*lead n"]) -> Float[Tensor, "*lead n"]:
    """log (x_i/‖x‖)²: the softmax of 2·log|x|, which cannot overflow; −∞ at 0."""
    if x.device.type == "cpu" and only_reverse_mode() and not torch.is_autocast_enabled("cpu"):
        log_probs: Tensor = _LogProbs.apply(x)
        # NaN if all of a vector is 0. Other sums are −∞ at worst.
        if not math.isnan(log_probs.detach().sum().item()):
            return log_probs
    return differentiable_log_probs(x)


class _LogProbs(torch.autograd.Function):
    """`differentiable_log_probs` of vectors that are not 0, with its written-out gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        log_probs = torch.log_softmax(x.abs().log_().mul_(2), -1)
        ctx.save_for_backward(x, log_probs)
        return log_probs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        x, log_probs = ctx.saved_tensors
        if torch.is_grad_enabled():
            again = differentiable_log_probs(x)
            return torch.autograd.grad(again, x, gradient, create_graph=True)[0]
        slopes = torch.ops.aten._log_softmax_backward_data(gradient, log_probs, -1, x.dtype)
        return slopes.div_(x).mul_(2).masked_fill_(x == 0, 0.0)


def differentiable_log_probs(x: Float[Tensor, "*lead n"]) -> Float[Tensor, "*lead n"]:
    """`log_probs` by differentiable operations."""
    empty = (x == 0).all(-1, keepdim=True)
    return torch.log_softmax(log_square(x).masked_fill(empty, 0.0), -1).masked_fill(empty, -math.inf)


def log_square(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """2·log|x|, −∞ with no gradient at 0."""
    zero = x == 0
    return (2 * x.masked_fill(zero, 1.0).abs().log()).masked_fill(zero, -math.inf)
