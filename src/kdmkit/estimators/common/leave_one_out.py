"""Leave-one-out: sums over all rows but one, and the bandwidths and memories that they choose."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit._core.checks import check_number
from kdmkit._core.logspace import LOG2_E
from kdmkit._core.tensors import effective_rows
from kdmkit.nn import ResidualMemory
from kdmkit.nn.scaler import normalized_weights
from kdmkit.nn.trend import with_background
from kdmkit.ops import SquaredDistance, log_mix
from kdmkit.ops.scaled_points import narrow_product


def log_overlap_with_others(
    sigma: float,
    x: Float[Tensor, "n d"],
    log_weights: Float[Tensor, " n"],
    rows: Int[Tensor, " q"],
) -> Float[Tensor, " q"]:
    """log Σ_{j≠i} w_j·k²(x_i, x_j) of some rows i.

    Args:
        sigma: of the kernel `RBF` k.
        x, log_weights: of all rows.
        rows: indices of the rows to leave out one at a time, each once.
    """

    # Two sums, since a difference would lose digits: over the rows without the diagonal, and over all others.
    diagonal = log_weights.new_full((len(rows),), -torch.inf)
    weights = log_weights[rows].repeat(len(rows), 1).diagonal_scatter(diagonal)
    inside = log_mix(_log_kernel(x[rows], x[rows], sigma), weights)
    is_outside = torch.ones_like(log_weights, dtype=torch.bool)
    is_outside[rows] = False
    outside = torch.nonzero(is_outside).squeeze(-1)
    if not len(outside):
        return inside
    others = log_mix(_log_kernel(x[rows], x[outside], sigma), log_weights[outside])
    return torch.logaddexp(inside, others)


def _log_kernel(x: Tensor, components: Tensor, sigma: float) -> SquaredDistance:
    """log k² of `RBF(sigma)`."""
    return SquaredDistance(x, components, torch.tensor([[sigma]], dtype=x.dtype).reciprocal().to(x.device))


# ---- bandwidths

#: The values of a parameter `sigma`, for error messages.
SIGMA = "'auto', a number > 0, 'scott', 'silverman' or 'loo'"
# About this many rows are left out, one at a time.
_ROWS = 1024
# One in this many rows makes the first choice from the grid, if rows are many.
_FEWER = 16
# Factors of Scott's bandwidth to try first, and factors of the best of them to try next.
_FACTORS = torch.logspace(math.log10(0.05), math.log10(5.0), 25, dtype=torch.float64).tolist()
_REFINEMENT = (1.03 ** torch.arange(-6, 7, dtype=torch.float64)).tolist()
# A lower bound on the log-likelihood of a row: a single row far from all others must not decide.
_LEAST = -1e6


def choose_sigma(
    sigma: Any,
    x: Float[Tensor, "n d"],
    w: Float[Tensor, " n"],
    labels: Int[Tensor, " n"] | None = None,
    *,
    most_pairs: int = 1 << 22,
) -> float:
    """σ = √2·s·n^(−1/(d+4)) by Scott's rule with the spread s of x, by another rule, or the number given.

    n is Kish's effective size (Σw)²/Σw². Silverman's rule has n·(d+2)/4 in place of it. `"loo"` maximises
    Σ_i w_i·log p(x_i) under the KDM of all other rows, or with labels Σ_i w_i·log p(y_i|x_i).

    Args:
        sigma: a rule or a number.
        x, w: distinct rows and their weights, as `merge_rows` gives them.
        labels: of the rows; here rows may differ in their labels alone.
        most_pairs: with more pairs of rows, every sixteenth row makes a first choice from the grid.
    """
    if not is_rule(sigma):
        return check_number("sigma", sigma, SIGMA, positive=True)
    x = x.double()
    n, d = effective_rows(w), x.shape[1]
    factor = (n * (d + 2) / 4 if sigma == "silverman" else n) ** (-1 / (d + 4))
    rule = math.sqrt(2) * _spread(x, w) * max(factor, 1e-3)
    return rule if sigma != "loo" else rule * _best_factor((x - x.mean(0)) / rule, w, labels, most_pairs)


def is_rule(sigma: Any) -> bool:
    """Whether a parameter names a rule."""
    return isinstance(sigma, str) and sigma in ("scott", "silverman", "loo")


def _spread(x: Tensor, w: Tensor) -> float:
    """The root mean variance of the columns; 1 if nothing varies."""
    share = normalized_weights(len(x), w)
    # Squares are taken of numbers up to 2: those of 1e200 would be infinite. A power of 2 rounds nothing.
    unit = 2.0 ** (math.frexp(float(x.abs().max()))[1] - 1)
    x = x / unit
    variance = float((share @ (x - share @ x).square()).mean())
    return unit * math.sqrt(variance) if variance > 1e-24 * float(x.abs().max()) ** 2 else 1.0


def _best_factor(x: Float[Tensor, "n d"], w: Tensor, labels: Tensor | None, most_pairs: int) -> float:
    """The leave-one-out bandwidth of rows in units of the rule's: from a grid, then from a finer one."""
    if len(x) < 2:
        return 1.0
    # Grid points are 3 % apart: float32 is precise enough.
    x = x.float()
    rows = torch.arange(0, len(x), max(1, len(x) // _ROWS))

    def loss(factor: float) -> float:
        return held_out_loss(x, w, labels, rows, factor)

    if len(rows) * len(x) <= most_pairs:
        factor = min(_FACTORS, key=loss)
        return min((factor * step for step in _REFINEMENT), key=loss)
    first = min(_FACTORS, key=lambda factor: held_out_loss(x, w, labels, rows[::_FEWER], factor))
    factor = _FACTORS[_descend(lambda i: loss(_FACTORS[i]), _FACTORS.index(first), len(_FACTORS))]
    middle = len(_REFINEMENT) // 2
    return factor * _REFINEMENT[_descend(lambda i: loss(factor * _REFINEMENT[i]), middle, len(_REFINEMENT))]


def _descend(loss: Callable[[int], float], start: int, n: int) -> int:
    """The local minimum that steps to the better neighbour reach from a point of a grid."""
    loss, best = cache(loss), start
    while True:
        better = min((i for i in (best - 1, best, best + 1) if 0 <= i < n), key=loss)
        if loss(better) >= loss(best):
            return best
        best = better


def held_out_loss(
    x: Tensor, w: Tensor, labels: Tensor | None, rows: Int[Tensor, " q"], sigma: float
) -> float:
    """−Σ_i w_i·log p of some rows under the KDM of all other rows, up to constants."""
    log_likelihood = (
        _log_density(x, w, rows, sigma) if labels is None else _log_proba(x, w, labels, rows, sigma)
    )
    return -float((w[rows] * log_likelihood.double().clamp_min(_LEAST)).sum())


def _log_density(x: Tensor, w: Tensor, rows: Int[Tensor, " q"], sigma: float) -> Float[Tensor, " q"]:
    """log p(x_i), up to a constant."""
    overlap = log_overlap_with_others(sigma, x, w.log().float(), rows)
    return overlap - x.shape[1] * math.log(sigma)


def _log_proba(
    x: Tensor, w: Tensor, labels: Int[Tensor, " n"], rows: Int[Tensor, " q"], sigma: float
) -> Float[Tensor, " q"]:
    """log p(y_i|x_i) = −log(1 + Σ_{other labels}/Σ_{same label}); 0 if no other row has the label.

    A row that is the only one with its label says nothing about the bandwidth.
    """
    log_proba = torch.zeros(len(rows), dtype=torch.float32)
    for label in torch.unique(labels[rows]).tolist():
        same, asked = labels == label, labels[rows] == label
        place = torch.cumsum(same, 0)[rows[asked]] - 1
        inside = _log_density(x[same], w[same], place, sigma) + x.shape[1] * math.log(sigma)
        term = _log_kernel(x[rows[asked]], x[~same], sigma)
        others = -torch.nn.functional.softplus(log_mix(term, w[~same].log().float()) - inside)
        log_proba[asked] = torch.where(torch.isneginf(inside), torch.zeros_like(others), others)
    return log_proba


# ---- memories

# Bandwidths in units of √d, the typical distance between standardised rows, and weights of the background.
_SIGMAS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.45)
_BACKGROUNDS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
# A memory has to lower the mean loss by this share at least,
_LEAST_GAIN = 0.01
# and by this many standard errors of the mean gain: the best of 42 candidates is better by chance.
_STANDARD_ERRORS = 3.0
# The number of rows to compare candidates by.
_JUDGES = 2000
# Pairs of rows whose distances are computed at once, on a CPU, in its caches, and on other devices.
_PAIRS_ON_CPU, _PAIRS_ELSEWHERE = 1 << 19, 1 << 25
_TINY = 1e-30

#: From row numbers, g(x) `(*lead, rows, values)` and the coverage `(*lead, rows, 1)` of memories without the
#: row, to the loss of every row `(*lead, rows)`.
Losses = Callable[[Tensor, Tensor, Tensor], Tensor]


def search_memory(
    x: Float[Tensor, "n d"],
    values: Float[Tensor, "n v"],
    weights: Float[Tensor, " n"] | None,
    generator: torch.Generator,
    losses: Losses,
    *,
    most_rows: int = 20_000,
) -> tuple[ResidualMemory | None, Int[Tensor, " kept"]]:
    """The memory with the smallest leave-one-out loss, or None if no memory lowers it significantly.

    Args:
        x, values, weights: of the rows.
        generator: of a CPU; chooses the rows of the memory if there are many.
        losses: to be lowered.
        most_rows: of the memory.

    Returns:
        The memory, and the numbers of its rows, both in the order of `ResidualMemory.sort`.
    """
    kept = torch.randperm(len(x), generator=generator)[:most_rows].to(x.device)
    share = x.new_ones(len(x)) if weights is None else (weights / weights.mean()).to(x)
    memory = ResidualMemory(x[kept], values[kept], share[kept].log())
    judges = torch.arange(min(_JUDGES, len(kept)), device=x.device)
    rows, importance = kept[judges], share[kept[judges]].double()
    before = importance * losses(rows, torch.zeros_like(values[rows]), values.new_zeros(len(rows), 1))
    best, chosen = (1 - _LEAST_GAIN) * float(before.mean()), None
    backgrounds = torch.tensor(_BACKGROUNDS, device=x.device).unsqueeze(1)
    sigmas = [relative * math.sqrt(x.shape[1]) for relative in _SIGMAS]
    for sigma, means, log_overlaps in zip(sigmas, *answers_without_row(memory, sigmas, judges), strict=True):
        answers = with_background(means, log_overlaps, backgrounds)
        for background, after in zip(_BACKGROUNDS, importance * losses(rows, *answers), strict=True):
            if float(after.mean()) < best and _is_significant(before - after):
                best, chosen = float(after.mean()), (sigma, background)
    if chosen is None:
        return None, kept
    memory.sigma.fill_(chosen[0])
    memory.background.fill_(chosen[1])
    # Only now: the first rows are a random sample and judge the candidates.
    return memory, kept[memory.sort()]


def answers_without_row(
    memory: ResidualMemory, sigmas: Sequence[float], rows: Int[Tensor, " q"]
) -> tuple[Float[Tensor, "s q v"], Float[Tensor, "s q"]]:
    """With every bandwidth, the mean value of all other rows of a memory, Σ_{j≠i} p_j·v_j of some rows i with
    p_j ∝ w_j·k²(x_i, x_j), and log Σ_{j≠i} w_j·k²(x_i, x_j).

    Distances are computed once, block by block, in float64 and relative to the nearest other row.
    """
    x, values, weights = memory.rows.double(), memory.residuals, memory.log_weights.exp().unsqueeze(1)
    squares, weighted = x.square().sum(1), torch.cat([weights * values, weights], 1)
    sums = values.new_empty(len(sigmas), len(rows), values.shape[1] + 1)
    log_nearest = values.new_empty(sums.shape[:-1])
    pairs = _PAIRS_ON_CPU if x.device.type == "cpu" else _PAIRS_ELSEWHERE
    for block in torch.arange(len(rows), device=x.device).split(max(1, pairs // len(x))):
        left_out = rows[block]
        distances = torch.addmm(squares[left_out].unsqueeze(1) + squares, x[left_out], x.mT, alpha=-2)
        distances.scatter_(1, left_out.unsqueeze(1), torch.inf)
        nearest = distances.amin(1, keepdim=True)
        beyond = (distances - nearest).to(values.dtype)
        for i, sigma in enumerate(sigmas):
            # Powers of two: on a CPU `torch.exp` is many times slower if results underflow.
            overlaps = torch.mul(beyond, -LOG2_E / sigma**2).exp2_()
            sums[i, block] = narrow_product(overlaps, weighted)
            log_nearest[i, block] = -nearest.squeeze(1).to(values.dtype) / sigma**2
    total = sums[..., -1].clamp_min(_TINY)
    return sums[..., :-1] / total.unsqueeze(-1), total.log() + log_nearest


def _is_significant(gains: Float[Tensor, " n"]) -> bool:
    """Whether the mean gain exceeds zero by several standard errors."""
    return float(gains.mean()) > _STANDARD_ERRORS * float(gains.std()) / math.sqrt(len(gains))
