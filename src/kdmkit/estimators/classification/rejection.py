"""Draws from p(x|y) of a classifier with a trend, by rejection."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit.distributions import KDM
from kdmkit.nn import Predictor

# Proposals per round, and rounds without enough accepted ones before the last proposals are weighted instead.
_PROPOSALS, _ROUNDS = 4096, 64


def draw_given_label(
    model: Predictor,
    probs: Float[Tensor, " labels"],
    n: int,
    spread: float,
    generator: torch.Generator,
) -> Float[Tensor, "n d"]:
    """Draws of x: a label from `probs`, then x from p(x|y) ∝ p(x)·p(y|x).

    A proposal from p(x) is accepted with probability p(y|x): what is accepted has exactly this distribution.
    For a label that hardly any proposal has, the rest is chosen among proposals in proportion to p(y|x).

    Args:
        spread: factor of the bandwidth of p(x).
    """
    marginal = model.joint().marginal("x")
    marginal = marginal.with_kernel(marginal.kernel.scaled(spread))
    labels = torch.multinomial(probs, n, replacement=True, generator=generator)
    drawn = torch.empty(n, *marginal.event_shape, dtype=probs.dtype, device=probs.device)
    for label in labels.unique():
        places = torch.nonzero(labels == label).squeeze(1)
        drawn[places] = _draws(model, marginal, int(label), len(places), generator)
    return drawn


def _draws(model: Predictor, marginal: KDM, label: int, n: int, generator: torch.Generator) -> Tensor:
    found: list[Tensor] = []
    missing = n
    for _ in range(_ROUNDS):
        x = marginal.sample((_PROPOSALS,), generator=generator)
        share = model(x).probs[:, label]
        chance = torch.rand(share.shape, dtype=share.dtype, device=share.device, generator=generator)
        found.append(x[chance < share][:missing])
        missing -= len(found[-1])
        if missing == 0:
            return torch.cat(found)
    chosen = torch.multinomial(share, missing, replacement=True, generator=generator)
    return torch.cat([*found, x[chosen]])
