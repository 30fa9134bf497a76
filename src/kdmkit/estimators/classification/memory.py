"""The fit of a memory of rows and their labels."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kdmkit.estimators.common.memory import search_memory
from kdmkit.nn import ResidualMemory

_TINY = torch.finfo(torch.float64).tiny


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
        generator: chooses the rows where there are many; of a CPU.
    """
    one_hot = nn.functional.one_hot(labels, probs.shape[1]).to(x.dtype)

    def losses(rows: Tensor, remembered: Tensor, coverage: Tensor) -> Tensor:
        answers = ((1 - coverage) * probs[rows] + remembered).double()
        # A label that was impossible counts 708 nats: means stay finite.
        return -answers.gather(1, labels[rows].unsqueeze(1)).squeeze(1).clamp_min(_TINY).log()

    return search_memory(x, one_hot, weights, generator, losses)[0]
