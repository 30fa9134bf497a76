"""Log-domain arithmetic in which −∞ is a valid value: weight 0, gradient 0, never NaN."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

#: The factor from natural logarithms to those of base 2.
LOG2_E = math.log2(math.e)


def finite_max(scores: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch 1"]:
    """The maximum over the last dimension, detached; 0 where every entry is −∞."""
    top = scores.detach().amax(-1, keepdim=True)
    return torch.where(torch.isneginf(top), torch.zeros_like(top), top)


def safe_log(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """log x with log 0 = −∞ and a zero (not infinite) gradient there."""
    positive = x > 0
    return torch.where(positive, torch.where(positive, x, 1.0).log(), -math.inf)


def safe_logsumexp(scores: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch"]:
    """logsumexp over the last dimension; a row of −∞ gives −∞ and no gradient.

    >>> safe_logsumexp(torch.tensor([[0.0, 0.0], [-torch.inf, -torch.inf]]))
    tensor([0.6931,   -inf])
    """
    top = finite_max(scores)
    return safe_log((scores - top).exp().sum(-1)) + top.squeeze(-1)


def log_add(parts: Sequence[Tensor]) -> Tensor:
    """log Σ_i exp(part_i) of tensors that broadcast with each other: −∞ and no gradient where all are −∞.

    >>> log_add([torch.tensor([0.0, -torch.inf]), torch.tensor([0.0, -torch.inf])])
    tensor([0.6931,   -inf])
    """
    top = parts[0].detach()
    for part in parts[1:]:
        top = torch.maximum(top, part.detach())
    top = torch.where(torch.isneginf(top), torch.zeros_like(top), top)
    total = (parts[0] - top).exp()
    for part in parts[1:]:
        total = total + (part - top).exp()
    return safe_log(total) + top


def exp_(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """e^x in place, by powers of two: on a CPU `torch.exp` is slower, many times if results underflow."""
    return x.mul_(LOG2_E).exp2_()


def log_normalize(scores: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch m"]:
    """scores − logsumexp(scores): logarithms of weights that sum to 1; a row of −∞ stays −∞."""
    total = safe_logsumexp(scores).unsqueeze(-1)
    return scores - torch.where(torch.isneginf(total), torch.zeros_like(total), total)
