"""Bounds of rounding errors, from the number and the size of what is added: they hold on every CPU.

Processors and numbers of threads differ in the order of sums and in fused operations. What they share is the
unit roundoff u = ε/2 of the dtype, and:

- A sum of n terms in any order has an error of at most n·u·Σ|terms|, to first order in u (Higham, Accuracy
  and Stability of Numerical Algorithms, 2002, section 4.2). Errors of many terms cancel: with probability
  1 − 2·exp(−λ²/2) the error is at most λ·√n·u·Σ|terms| (Higham and Mary, 2019). λ = 6 leaves 3e-8.
- A squared distance that is expanded about a centre adds ‖x‖² − 2 x·c + ‖c‖². The absolute values of its
  terms sum to at most (‖x‖ + ‖c‖)², the *spread*. Every term takes part in d sums and at most eight other
  roundings: centring and scaling of both points (4), halves of operands and what their product leaves out
  (3), and the sum of the three parts (1).
- Scores s_j with errors e_j change the logsumexp by at most log Σ_j p_j·exp|e_j|, where p = softmax(s).
"""

import math

import torch
from torch import Tensor


def rounding(n: int, dtype: torch.dtype = torch.float32) -> float:
    """The error of a sum of n terms, relative to the sum of their absolute values."""
    return min(n, 6 * math.sqrt(n)) * torch.finfo(dtype).eps / 2


def distance_error(d: int, spread: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The error of squared distances in d dimensions; absolute values of their terms sum to `spread`."""
    return rounding(d + 8, dtype) * spread


def spread_about(centre: Tensor, x: Tensor, c: Tensor) -> Tensor:
    """(‖x_i‖ + ‖c_j‖)² about a centre, of shape `(n, m)`; points in units of the bandwidth."""
    return ((x - centre).norm(dim=-1).unsqueeze(-1) + (c - centre).norm(dim=-1)).square()


def log_mix_error(scores: Tensor, error: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The error of logsumexp_j(scores_ij), for scores with errors of at most `error`.

    The sum over m exponentials, an exponential and a logarithm add (m + 4)·u; the result is rounded twice.
    """
    lse = scores.logsumexp(-1)
    from_scores = (scores + error).logsumexp(-1) - lse
    return from_scores + rounding(scores.shape[-1] + 4, dtype) + rounding(2, dtype) * lse.abs()


def average_error(
    scores: Tensor, error: Tensor, values: Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The error of Σ_j softmax_j(scores_ij)·values_j, of shape `(n, 1)`.

    A probability p_j is p_j·exp(e_j) over a sum that changes by at most the error of the logsumexp.
    """
    lse = scores.logsumexp(-1, keepdim=True)
    of_sum = (scores + error).logsumexp(-1, keepdim=True) - lse
    of_probabilities = ((scores - lse).exp() * torch.expm1(error + of_sum)).sum(-1, keepdim=True)
    return (of_probabilities + 2 * rounding(scores.shape[-1] + 4, dtype)) * values.abs().max()
