"""The fit of a memory of rows and labels: whether it helps, its bandwidth and its background."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kdmkit.estimators.common.leave_one_out import average_over_others
from kdmkit.estimators.regression.memory import (
    _BACKGROUNDS,
    _JUDGES,
    _LEAST_GAIN,
    _MOST_ROWS,
    _SIGMAS,
    _is_significant,
)
from kdmkit.kernels import RBF
from kdmkit.nn import ResidualMemory
from kdmkit.nn.memory import with_background


@torch.no_grad()
def fit_label_memory(
    x: Float[Tensor, "rows d"],
    labels: Int[Tensor, " rows"],
    probs: Float[Tensor, "rows n"],
    weights: Float[Tensor, " rows"] | None,
    generator: torch.Generator,
) -> ResidualMemory | None:
    """The memory with the smallest leave-one-out log-loss, or None where no memory lowers it significantly.

    Args:
        x, labels, weights: of the rows.
        probs: p(y|x) of a model that has not seen the row.
        generator: chooses the rows where there are many.
    """
    kept = torch.randperm(len(x), generator=generator)[:_MOST_ROWS]
    judges = torch.arange(min(_JUDGES, len(kept)))
    share = torch.ones(len(x), dtype=torch.float32) if weights is None else (weights / weights.mean()).float()
    one_hot = nn.functional.one_hot(labels, probs.shape[1]).float()
    memory = ResidualMemory(x[kept], one_hot[kept], share[kept].log())
    p, right, importance = (
        probs[kept][judges],
        labels[kept][judges].unsqueeze(1),
        share[kept][judges].double(),
    )

    def losses(answers: Tensor) -> Tensor:
        return -importance * answers.double().gather(1, right).squeeze(1).clamp_min(1e-30).log()

    before = losses(p)
    best, chosen = (1 - _LEAST_GAIN) * float(before.mean()), None
    for relative in _SIGMAS:
        sigma = relative * math.sqrt(x.shape[1])
        mean, log_overlap = average_over_others(
            RBF(sigma), memory.rows, memory.log_weights, memory.residuals, judges
        )
        for background in _BACKGROUNDS:
            remembered, coverage = with_background(mean, log_overlap, background)
            after = losses((1 - coverage) * p + remembered)
            if float(after.mean()) < best and _is_significant(before - after):
                best, chosen = float(after.mean()), (sigma, background)
    if chosen is None:
        return None
    memory.sigma.fill_(chosen[0])
    memory.background.fill_(chosen[1])
    return memory
