"""The fit of a memory of residuals."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit.estimators.common.memory import left_out, search_memory
from kdmkit.nn import ResidualMemory
from kdmkit.nn.trend import with_background

# Rows per block of the final answers.
_BLOCK = 2000


@torch.no_grad()
def fit_memory(
    x: Float[Tensor, "n d"],
    r: Float[Tensor, "n outputs"],
    weights: Float[Tensor, " n"] | None,
    generator: torch.Generator,
) -> tuple[ResidualMemory | None, Float[Tensor, "n outputs"], Float[Tensor, "n 1"]]:
    """The memory with the smallest leave-one-out squared error, or None where none lowers it significantly.

    Returns:
        The memory; the residuals minus its answers, and its coverage, both computed without the row itself.
    """

    def losses(rows: Tensor, answers: Tensor, _: Tensor) -> Tensor:
        return (r[rows] - answers).double().square().mean(1)

    memory, kept = search_memory(x, r, weights, generator, losses)
    if memory is None:
        return None, r, r.new_zeros(len(x), 1)
    answers, coverage = torch.empty_like(r), r.new_empty(len(x), 1)
    outside = torch.ones(len(x), dtype=torch.bool, device=x.device)
    outside[kept] = False
    answers[outside], coverage[outside] = memory(x[outside])
    for block in torch.arange(len(kept), device=x.device).split(_BLOCK):
        found = with_background(*left_out(memory, float(memory.sigma), block), memory.background)
        answers[kept[block]], coverage[kept[block]] = found
    return memory, r - answers, coverage
