"""Bandwidths of non-parametric KDMs: rules of thumb and leave-one-out likelihood."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit._core.checks import check_number
from kdmkit._core.tensors import effective_rows
from kdmkit.estimators.common.leave_one_out import log_overlap_with_others
from kdmkit.kernels import RBF
from kdmkit.nn.scaler import normalized_weights
from kdmkit.ops import log_mix

RULES = ("scott", "silverman", "loo")
# Leave-one-out looks at about this many rows, against all components.
_ROWS = 1024
# With more pairs than this, every sixteenth of these rows makes a first choice from the grid.
_PAIRS, _FEWER = 1 << 22, 16
# Factors of Scott's bandwidth that leave-one-out tries, and of the best of them that it tries next.
_FACTORS = torch.logspace(math.log10(0.05), math.log10(5.0), 25, dtype=torch.float64).tolist()
_REFINEMENT = (1.03 ** torch.arange(-6, 7, dtype=torch.float64)).tolist()
# A lower bound on the log-likelihood of a row: a single row far from all others must not decide.
_LEAST = -1e6


def choose_sigma(
    sigma: Any,
    x: Float[Tensor, "n d"],
    w: Float[Tensor, " n"],
    labels: Int[Tensor, " n"] | None = None,
) -> float:
    """σ = √2·s·n^(−1/(d+4)) by Scott's rule with the spread s of x, by another rule, or the number given.

    n is Kish's effective size (Σw)²/Σw². Silverman's rule has n·(d+2)/4 in place of it. `"loo"` maximises
    Σ_i w_i·log p(x_i) under the KDM of all other rows, or with labels Σ_i w_i·log p(y_i|x_i).

    Args:
        sigma: a rule or a number.
        x, w: distinct rows and their weights, as `merge_rows` gives them.
        labels: of the rows; here rows may differ in their labels alone.
    """
    if not is_rule(sigma):
        return check_number(
            "sigma", sigma, "'auto', a number > 0, 'scott', 'silverman' or 'loo'", positive=True
        )
    x = x.double()
    n, d = effective_rows(w), x.shape[1]
    factor = (n * (d + 2) / 4 if sigma == "silverman" else n) ** (-1 / (d + 4))
    rule = math.sqrt(2) * _spread(x, w) * max(factor, 1e-3)
    return rule if sigma != "loo" else rule * _best_factor((x - x.mean(0)) / rule, w, labels)


def is_rule(sigma: Any) -> bool:
    return isinstance(sigma, str) and sigma in RULES


def _spread(x: Tensor, w: Tensor) -> float:
    """The root mean variance of the columns; 1 where nothing varies."""
    share = normalized_weights(len(x), w)
    # Squares are taken of numbers up to 2: those of 1e200 would be infinite. A power of 2 rounds nothing.
    unit = 2.0 ** (math.frexp(float(x.abs().max()))[1] - 1)
    x = x / unit
    variance = float((share @ (x - share @ x).square()).mean())
    return unit * math.sqrt(variance) if variance > 1e-24 * float(x.abs().max()) ** 2 else 1.0


def _best_factor(x: Float[Tensor, "n d"], w: Tensor, labels: Tensor | None) -> float:
    """The leave-one-out bandwidth of rows in units of the rule's: from a grid, then from a finer one."""
    if len(x) < 2:
        return 1.0
    # Grid points are 3 % apart: float32 tells them apart.
    x = x.float()
    rows = torch.arange(0, len(x), max(1, len(x) // _ROWS))

    def loss(factor: float) -> float:
        return _held_out_loss(x, w, labels, rows, factor)

    if len(rows) * len(x) <= _PAIRS:
        factor = min(_FACTORS, key=loss)
        return min((factor * step for step in _REFINEMENT), key=loss)
    first = min(_FACTORS, key=lambda factor: _held_out_loss(x, w, labels, rows[::_FEWER], factor))
    factor = _FACTORS[_descend(lambda i: loss(_FACTORS[i]), _FACTORS.index(first), len(_FACTORS))]
    middle = len(_REFINEMENT) // 2
    return factor * _REFINEMENT[_descend(lambda i: loss(factor * _REFINEMENT[i]), middle, len(_REFINEMENT))]


def _descend(loss: Callable[[int], float], start: int, n: int) -> int:
    """From a point of a grid, neighbour by neighbour, to one whose neighbours are no better."""
    loss, best = cache(loss), start
    while True:
        better = min((i for i in (best - 1, best, best + 1) if 0 <= i < n), key=loss)
        if loss(better) >= loss(best):
            return best
        best = better


def _held_out_loss(
    x: Tensor, w: Tensor, labels: Tensor | None, rows: Int[Tensor, " q"], sigma: float
) -> float:
    """−Σ_i w_i·log p of some rows under the KDM of all other rows, up to constants."""
    log_likelihood = (
        _log_density(x, w, rows, sigma) if labels is None else _log_proba(x, w, labels, rows, sigma)
    )
    return -float((w[rows] * log_likelihood.double().clamp_min(_LEAST)).sum())


def _log_density(x: Tensor, w: Tensor, rows: Int[Tensor, " q"], sigma: float) -> Float[Tensor, " q"]:
    """log p(x_i), up to a constant."""
    overlap = log_overlap_with_others(RBF(sigma), x, w.log().float(), rows)
    return overlap - x.shape[1] * math.log(sigma)


def _log_proba(
    x: Tensor, w: Tensor, labels: Int[Tensor, " n"], rows: Int[Tensor, " q"], sigma: float
) -> Float[Tensor, " q"]:
    """log p(y_i|x_i) = −log(1 + Σ_{other labels}/Σ_{same label}); 0 where no other row has the label.

    A row that is the only one with its label says nothing about the bandwidth.
    """
    log_proba = torch.zeros(len(rows), dtype=torch.float32)
    for label in torch.unique(labels[rows]).tolist():
        same, asked = labels == label, labels[rows] == label
        place = torch.cumsum(same, 0)[rows[asked]] - 1
        inside = _log_density(x[same], w[same], place, sigma) + x.shape[1] * math.log(sigma)
        term = RBF(sigma).term(x[rows[asked]], x[~same])
        found = -torch.nn.functional.softplus(log_mix(term, w[~same].log().float()) - inside)
        log_proba[asked] = torch.where(torch.isneginf(inside), torch.zeros_like(found), found)
    return log_proba
