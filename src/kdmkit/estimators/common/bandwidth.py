"""Bandwidths of non-parametric KDMs: rules of thumb and leave-one-out likelihood."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit._core.logspace import safe_logsumexp
from kdmkit.estimators.common.checks import check_number
from kdmkit.kernels import RBF
from kdmkit.nn.scaler import normalized_weights

RULES = ("scott", "silverman", "loo")
# Leave-one-out looks at this many rows, against all components, so many pairs at a time.
_ROWS = 1024
_PAIRS = 1 << 22
# Factors of Scott's bandwidth that leave-one-out tries, and of the best of them that it tries next.
_FACTORS = torch.logspace(math.log10(0.05), math.log10(5.0), 25, dtype=torch.float64)
_REFINEMENT = 1.03 ** torch.arange(-6, 7, dtype=torch.float64)


def choose_sigma(
    sigma: Any,
    x: Float[Tensor, "n d"],
    weights: Float[Tensor, " n"] | None,
    labels: Int[Tensor, " n"] | None = None,
) -> float:
    """The paper's σ (√2 times a standard deviation) by a rule, or the number given.

    Sample weights count as repetitions. With labels, leave-one-out maximises the likelihood of the labels.
    """
    if not is_rule(sigma):
        return check_number("sigma", sigma, "a number > 0, 'scott', 'silverman' or 'loo'", positive=True)
    x = x.double()
    w = torch.ones(len(x), dtype=torch.float64) if weights is None else weights.double()
    n, d = _effective_size(w), x.shape[1]
    factor = (n * (d + 2) / 4 if sigma == "silverman" else n) ** (-1 / (d + 4))
    rule = math.sqrt(2) * _spread(x, w) * max(factor, 1e-3)
    return rule if sigma != "loo" else _leave_one_out(x, w, labels, rule)


def is_rule(sigma: Any) -> bool:
    return isinstance(sigma, str) and sigma in RULES


def _effective_size(w: Float[Tensor, " n"]) -> float:
    """The number of samples: the sum of weights that are repetitions, Kish's size of fractional ones."""
    return max(float(w.sum()), float(w.sum().square() / w.square().sum()))


def _spread(x: Tensor, w: Tensor) -> float:
    """The root mean variance of the columns; 1 where nothing varies."""
    share = normalized_weights(len(x), w)
    variance = float((share @ (x - share @ x).square()).mean())
    return math.sqrt(variance) if variance > 1e-24 * float(x.abs().max()) ** 2 else 1.0


def _leave_one_out(x: Tensor, w: Tensor, labels: Tensor | None, rule: float) -> float:
    """The best factor of a grid, then of a finer one around it."""
    if len(x) < 2:
        return rule
    rows = torch.arange(0, len(x), max(1, len(x) // _ROWS))
    for factors in (_FACTORS, _REFINEMENT):
        sigmas = rule * factors
        rule = float(sigmas[_held_out_losses(x, w, labels, rows, sigmas).argmin()])
    return rule


def _held_out_losses(
    x: Tensor, w: Tensor, labels: Tensor | None, rows: Tensor, sigmas: Float[Tensor, " k"]
) -> Float[Tensor, " k"]:
    """−Σ_i w_i log p of row i under the KDM of all the others, for every bandwidth."""
    losses = torch.zeros_like(sigmas)
    for block in rows.split(max(1, _PAIRS // len(x))):
        overlap = RBF(1.0).log_overlap_matrix(x[block], x)
        log_w = w.log().repeat(len(block), 1)
        # One repetition of the row itself leaves; the others stay.
        log_w[torch.arange(len(block)), block] = (w[block] - 1).clamp_min(0).log()
        for k, sigma in enumerate(sigmas.tolist()):
            log_density = _log_held_out(overlap / sigma**2 + log_w, labels, block)
            norm = -x.shape[1] * math.log(sigma) if labels is None else 0.0
            losses[k] -= (w[block] * (log_density + norm).clamp_min(-1e6)).sum()
    return losses


def _log_held_out(scores: Tensor, labels: Tensor | None, block: Tensor) -> Float[Tensor, " n"]:
    """log p(x) up to constants, or log p(y|x) where there are labels."""
    total = safe_logsumexp(scores)
    if labels is None:
        return total
    same = labels[block].unsqueeze(-1) == labels
    log_proba = safe_logsumexp(torch.where(same, scores, -torch.inf)) - total
    # A row whose class has no other member says nothing about the bandwidth.
    return torch.where(torch.isfinite(log_proba), log_proba, torch.zeros_like(log_proba))
