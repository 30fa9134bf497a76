"""Draws from p(x|y) of a classifier with a trend, by rejection."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit.distributions import KDM, JointKDM
from kdmkit.nn import Predictor

# Proposals per round; the number of rounds after which so many must have been accepted in each, on average.
_PROPOSALS, _ROUNDS, _FEWEST = 4096, 64, 16
# Weighted proposals per draw.
_CANDIDATES = 8


def draw_given_label(
    model: Predictor,
    probs: Float[Tensor, " labels"],
    n: int,
    spread: float,
    generator: torch.Generator,
) -> Float[Tensor, "n d"]:
    """Draws of x: a label from `probs`, then x from p(x|y) ∝ p(x)·p(y|x).

    A proposal from p(x) is accepted with probability p(y|x): what is accepted has exactly this distribution.
    For a label that fewer than one in 256 proposals has, the rest is chosen by importance: proposals from the
    joint KDM's q(x|y), in proportion to p(y|x)/q(y|x).

    Args:
        spread: factor of the bandwidth of p(x).
    """
    joint = model.joint()
    labels = torch.multinomial(probs, n, replacement=True, generator=generator)
    drawn = torch.empty(n, *joint.marginal("x").event_shape, dtype=probs.dtype, device=probs.device)
    for label in labels.unique():
        places = torch.nonzero(labels == label).squeeze(1)
        found = _accepted(model, _spread(joint.marginal("x"), spread), label, len(places), generator)
        if len(found) < len(places):
            rest = len(places) - len(found)
            found = torch.cat([found, _weighted(model, joint, label, rest, spread, generator)])
        drawn[places] = found
    return drawn


def _spread(rho: KDM, spread: float) -> KDM:
    return rho.with_kernel(rho.kernel.scaled(spread))


def _accepted(model: Predictor, marginal: KDM, label: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """At most n draws, fewer where the label is rare."""
    found: list[Tensor] = []
    missing, rounds = n, 0
    while missing and not (rounds >= _ROUNDS and n - missing < _FEWEST * rounds):
        x = marginal.sample((_PROPOSALS,), generator=generator)
        share = model(x).probs[:, label]
        chance = torch.rand(share.shape, dtype=share.dtype, device=share.device, generator=generator)
        found.append(x[chance < share][:missing])
        missing, rounds = missing - len(found[-1]), rounds + 1
    return torch.cat(found)


def _weighted(
    model: Predictor, joint: JointKDM, label: Tensor, n: int, spread: float, generator: torch.Generator
) -> Tensor:
    """n of eight times as many proposals, by their importance."""
    proposals = _spread(joint.infer(y=label, target="x"), spread)
    x = proposals.sample((_CANDIDATES * n,), generator=generator)
    log_share = torch.cat([model(part).log_weights[:, label] for part in x.split(_PROPOSALS)])
    log_share = log_share - joint.infer(x=x, target="y").log_prob(label)
    chosen = torch.multinomial(log_share.softmax(0), n, replacement=True, generator=generator)
    return x[chosen]
