"""Messages along a chain of states with one table for all steps: a hidden Markov model.

Messages are written into one tensor, step by step, without a graph: gradients follow from the posteriors of
states and of pairs of neighbours, which are computed for all steps at once.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

# The largest score of a step is 0, and tables have no entry below their floor: the messages of so many steps
# cannot underflow in float64 before they are normalised.
_STRIDE = 16
# In place of a sum of 0.
_TINY = torch.finfo(torch.float64).tiny


def chain_log_prob(
    scores: Float[Tensor, "t b k"], log_start: Float[Tensor, " k"], log_table: Float[Tensor, "k k"]
) -> Float[Tensor, " b"]:
    """log Σ_z p(z_1) Π_t p(z_t | z_{t−1}) exp(scores_t(z_t)) of b chains of t steps.

    Args:
        scores: at most 0, with a maximum of 0 over the states of every step.
        log_start: log p(z_1).
        log_table: log p(z_t | z_{t−1}); entries above e^−18.
    """
    result: Tensor = _ChainLogProb.apply(scores, log_start, log_table)
    return result


def filtered_states(
    scores: Float[Tensor, "t b k"], start: Float[Tensor, " k"], table: Float[Tensor, "k k"]
) -> tuple[Float[Tensor, "t b k"], Float[Tensor, " b"]]:
    """p(z_t | steps 1 … t), and the logarithm of the whole sum, in float64.

    Args:
        scores: as in `chain_log_prob`.
        start, table: p(z_1) and p(z_t | z_{t−1}).
    """
    alpha = scores.double().exp()
    alpha[0] *= start.double()
    log_total = _propagate(alpha, table.double())
    return _shares(alpha), log_total


def backward_messages(scores: Float[Tensor, "t b k"], table: Float[Tensor, "k k"]) -> Float[Tensor, "t b k"]:
    """p(later steps | z_t) of every step up to a constant per step and chain, in float64."""
    # p(this and later steps | z_t) is a forward message from the end, along the transposed table.
    later, table = scores.double().exp().flip(0), table.double().mT.contiguous()
    _propagate(later, table)
    beta = torch.ones_like(later)
    torch.matmul(later[:-1], table, out=beta[1:])
    return _shares(beta).flip(0)


def smoothed_states(alpha: Float[Tensor, "t b k"], beta: Float[Tensor, "t b k"]) -> Float[Tensor, "t b k"]:
    """p(z_t | all steps)."""
    return _shares(alpha * beta)


def _propagate(messages: Float[Tensor, "t b k"], table: Float[Tensor, "k k"]) -> Float[Tensor, " b"]:
    """Multiplies every row by (row before)·table, in place, and returns the logarithm of the last sum."""
    log_total = messages.new_zeros(messages.shape[1])
    last = len(messages) - 1
    # NumPy's calls take half the time of torch's.
    on_cpu = messages.device.type == "cpu"
    rows: Any = messages.numpy() if on_cpu else messages
    factor: Any = table.numpy() if on_cpu else table
    for t in range(last + 1):
        if t:
            rows[t] *= rows[t - 1] @ factor
        if t % _STRIDE == 0 or t == last:
            total = messages[t].sum(-1, keepdim=True)
            messages[t] /= total.clamp_min(_TINY)
            log_total += total.log().squeeze(-1)
    return log_total


def _shares(messages: Float[Tensor, "t b k"]) -> Float[Tensor, "t b k"]:
    """Divided by their sums, in place; 0 for evidence of probability zero."""
    return messages.div_(messages.sum(-1, keepdim=True).clamp_min(_TINY))


class _ChainLogProb(torch.autograd.Function):
    """`chain_log_prob`: its gradients are posterior probabilities of states and of pairs of neighbours."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, log_start: Tensor, log_table: Tensor) -> Tensor:
        table = log_table.double().exp()
        alpha, log_total = filtered_states(scores, log_start.double().exp(), table)
        ctx.save_for_backward(scores, log_start, log_table, alpha)
        return log_total.to(scores.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores, log_start, log_table, alpha = ctx.saved_tensors
        table = log_table.double().exp()
        beta = backward_messages(scores, table)
        gamma = smoothed_states(alpha, beta) * gradient.double().unsqueeze(-1)
        # p(z_t, z_{t+1} | all steps) = α_t·table·ε_{t+1} over its sum, with ε = exp(scores)·β.
        later = scores[1:].double().exp() * beta[1:]
        reached = torch.matmul(alpha[:-1], table)
        share = gradient.double() / (reached * later).sum(-1).clamp_min(_TINY)
        pairs = torch.einsum("tbi,tbj->ij", alpha[:-1] * share.unsqueeze(-1), later)
        dtype = scores.dtype
        return gamma.to(dtype), gamma[0].sum(0).to(log_start.dtype), (pairs * table).to(log_table.dtype)
