"""Scores of labels under amplitudes, whose squares are probabilities."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from kdmkit._core.runtime import only_reverse_mode
from kdmkit.ops.terms.base import Roles, Term
from kdmkit.ops.terms.lookup import Lookup


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
    """log (x_i/‖x‖)²: the softmax of 2·log|x|, which nothing overflows; −∞ where x is 0."""
    if x.device.type == "cpu" and only_reverse_mode() and not torch.is_autocast_enabled("cpu"):
        found: Tensor = _LogProbs.apply(x)
        # NaN where all of x is 0. Other sums are −∞ at worst.
        if not math.isnan(found.detach().sum().item()):
            return found
    return differentiable_log_probs(x)


class _LogProbs(torch.autograd.Function):
    """`differentiable_log_probs` of vectors that are not 0, with its written-out gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        found = torch.log_softmax(x.abs().log_().mul_(2), -1)
        ctx.save_for_backward(x, found)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        x, found = ctx.saved_tensors
        if torch.is_grad_enabled():
            again = differentiable_log_probs(x)
            return torch.autograd.grad(again, x, gradient, create_graph=True)[0]
        slopes = torch.ops.aten._log_softmax_backward_data(gradient, found, -1, x.dtype)
        return slopes.div_(x).mul_(2).masked_fill_(x == 0, 0.0)


def differentiable_log_probs(x: Float[Tensor, "*lead n"]) -> Float[Tensor, "*lead n"]:
    """`log_probs` by differentiable operations."""
    empty = (x == 0).all(-1, keepdim=True)
    return torch.log_softmax(log_square(x).masked_fill(empty, 0.0), -1).masked_fill(empty, -math.inf)


def log_square(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """2·log|x|, −∞ with no gradient at 0."""
    zero = x == 0
    return (2 * x.masked_fill(zero, 1.0).abs().log()).masked_fill(zero, -math.inf)
