"""The fit of a `ResidualMemory`: whether it helps, its bandwidth and its background."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit.estimators.common.leave_one_out import average_over_others
from kdmkit.kernels import RBF
from kdmkit.nn import ResidualMemory
from kdmkit.nn.memory import with_background

# Bandwidths in units of √d, the typical distance between standardised rows, and weights of the background.
_SIGMAS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.45)
_BACKGROUNDS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
# A memory has to lower the squared error by this share at least,
_LEAST_GAIN = 0.01
# and by this many standard errors of the mean gain: the best of 42 candidates is better by chance.
_STANDARD_ERRORS = 3.0
# At most this many rows in a memory, to compare candidates by, and per block of the final answers.
_MOST_ROWS, _JUDGES, _BLOCK = 20_000, 2000, 2000


@torch.no_grad()
def fit_memory(
    x: Float[Tensor, "n d"],
    r: Float[Tensor, "n outputs"],
    weights: Float[Tensor, " n"] | None,
    generator: torch.Generator,
) -> tuple[ResidualMemory | None, Float[Tensor, "n outputs"], Float[Tensor, "n 1"]]:
    """The memory with the smallest leave-one-out error, or None where no memory lowers it significantly.

    Returns:
        The memory; the residuals minus its answers, and its coverage, both computed without the row itself.
    """
    order = torch.randperm(len(x), generator=generator)
    kept, judges = order[:_MOST_ROWS], torch.arange(min(_JUDGES, len(x), _MOST_ROWS))
    share = x.new_ones(len(x)) if weights is None else (weights / weights.mean()).float()
    memory = ResidualMemory(x[kept], r[kept], share[kept].log())
    target, importance = memory.residuals[judges], share[kept][judges]
    before = _errors(target, importance)
    best, chosen = (1 - _LEAST_GAIN) * float(before.mean()), None
    for relative in _SIGMAS:
        sigma = relative * math.sqrt(x.shape[1])
        mean, log_overlap = _left_out(memory, sigma, judges)
        for background in _BACKGROUNDS:
            after = _errors(target - with_background(mean, log_overlap, background)[0], importance)
            if float(after.mean()) < best and _is_significant(before - after):
                best, chosen = float(after.mean()), (sigma, background)
    if chosen is None:
        return None, r, r.new_zeros(len(x), 1)
    memory.sigma.fill_(chosen[0])
    memory.background.fill_(chosen[1])
    answers, coverage = torch.empty_like(r), r.new_empty(len(x), 1)
    outside = order[_MOST_ROWS:]
    answers[outside], coverage[outside] = memory(x[outside])
    for block in torch.arange(len(kept)).split(_BLOCK):
        found = with_background(*_left_out(memory, chosen[0], block), chosen[1])
        answers[kept[block]], coverage[kept[block]] = found
    return memory, r - answers, coverage


def _left_out(memory: ResidualMemory, sigma: float, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The mean residual of all other rows of the memory, and the log of their overlap, at some rows."""
    return average_over_others(RBF(sigma), memory.rows, memory.log_weights, memory.residuals, rows)


def _errors(r: Float[Tensor, "n outputs"], importance: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """The weighted squared error of every row, mean over outputs."""
    return importance * r.double().square().mean(1)


def _is_significant(gains: Float[Tensor, " n"]) -> bool:
    """Whether the mean gain exceeds zero by several standard errors."""
    return float(gains.mean()) > _STANDARD_ERRORS * float(gains.std()) / math.sqrt(len(gains))
