"""The search for a memory: whether one helps, its bandwidth and its background."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit.estimators.common.leave_one_out import average_over_others
from kdmkit.kernels import RBF
from kdmkit.nn import ResidualMemory
from kdmkit.nn.trend import with_background

# Bandwidths in units of √d, the typical distance between standardised rows, and weights of the background.
_SIGMAS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.45)
_BACKGROUNDS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
# A memory has to lower the mean loss by this share at least,
_LEAST_GAIN = 0.01
# and by this many standard errors of the mean gain: the best of 42 candidates is better by chance.
_STANDARD_ERRORS = 3.0
# At most this many rows in a memory, and to compare candidates by.
_MOST_ROWS, _JUDGES = 20_000, 2000
_BLOCK = 500

#: From row numbers, g(x) and the coverage of a memory without the row, to the loss of every row.
Losses = Callable[[Tensor, Tensor, Tensor], Tensor]


def search_memory(
    x: Float[Tensor, "n d"],
    values: Float[Tensor, "n v"],
    weights: Float[Tensor, " n"] | None,
    generator: torch.Generator,
    losses: Losses,
) -> tuple[ResidualMemory | None, Int[Tensor, " kept"]]:
    """The memory with the smallest leave-one-out loss, or None where no memory lowers it significantly.

    Args:
        x, values, weights: of the rows.
        generator: chooses the rows of the memory where there are many; of a CPU.
        losses: what is to be lowered.

    Returns:
        The memory, and the numbers of its rows, both sorted (`ResidualMemory.sort`).
    """
    kept = torch.randperm(len(x), generator=generator)[:_MOST_ROWS].to(x.device)
    share = x.new_ones(len(x)) if weights is None else (weights / weights.mean()).to(x)
    memory = ResidualMemory(x[kept], values[kept], share[kept].log())
    judges = torch.arange(min(_JUDGES, len(kept)), device=x.device)
    rows, importance = kept[judges], share[kept[judges]].double()
    before = importance * losses(rows, torch.zeros_like(values[rows]), values.new_zeros(len(rows), 1))
    best, chosen = (1 - _LEAST_GAIN) * float(before.mean()), None
    for relative in _SIGMAS:
        sigma = relative * math.sqrt(x.shape[1])
        mean, log_overlap = left_out(memory, sigma, judges)
        for background in _BACKGROUNDS:
            after = importance * losses(rows, *with_background(mean, log_overlap, background))
            if float(after.mean()) < best and _is_significant(before - after):
                best, chosen = float(after.mean()), (sigma, background)
    if chosen is None:
        return None, kept
    memory.sigma.fill_(chosen[0])
    memory.background.fill_(chosen[1])
    # Only now: the first rows are a random sample and judge the candidates.
    return memory, kept[memory.sort()]


def left_out(memory: ResidualMemory, sigma: float, rows: Int[Tensor, " q"]) -> tuple[Tensor, Tensor]:
    """The mean value of all other rows of the memory, and the log of their overlap, at some of its rows."""
    # On a GPU in blocks that are whole matrices: kernels for larger ones take seconds to compile.
    blocks = rows.split(len(rows) if rows.device.type == "cpu" else _BLOCK)
    given = (RBF(sigma), memory.rows, memory.log_weights, memory.residuals)
    parts = [average_over_others(*given, block) for block in blocks]
    means, log_overlaps = zip(*parts, strict=True)
    return torch.cat(means), torch.cat(log_overlaps)


def _is_significant(gains: Float[Tensor, " n"]) -> bool:
    """Whether the mean gain exceeds zero by several standard errors."""
    return float(gains.mean()) > _STANDARD_ERRORS * float(gains.std()) / math.sqrt(len(gains))
