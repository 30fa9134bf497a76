"""Log-probabilities on a tree, given evidence or without."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.logspace import finite_max
from kdmkit._core.runtime import only_reverse_mode
from kdmkit.distributions.tree.states import AnyScores, Scores, States


def log_total(states: States, scores: AnyScores, tops: Any) -> Float[Tensor, "*lead"]:
    """log p(all that is known), where `tops` has to be added to the scores of every row."""
    total, shift = states.log_total(scores)
    return with_shift(total, shift + tops)


def with_shift(total: Float[Tensor, "..."], shift: Tensor) -> Float[Tensor, "..."]:
    """The sum, −∞ where the total is −∞, whatever was taken out of it."""
    return total + torch.where(torch.isneginf(total), 0.0, shift.to(total.dtype))


def log_conditional(states: States, given: Scores, scores: Scores, tops: Any) -> Float[Tensor, "*lead"]:
    """log p(values | evidence), the prior's log p(values) where the evidence has probability zero.

    Not the difference of two rounded sums: the maxima of the messages that the evidence sends are taken out
    of both.

    Args:
        given: log p(evidence | z) by node.
        scores: log p(values | z) by node.
        tops: what has to be added to the scores of the values, for every row.
    """
    relative = _without_maxima(states, possible(states, given))
    alone, shift = states.log_total(relative)
    total, more = states.log_total([sum_known(a, b) for a, b in zip(relative, scores, strict=True)])
    difference = torch.where(torch.isneginf(total), 0.0, more - shift + tops - alone)
    return total + difference.to(total.dtype)


def possible(states: States, factors: Scores) -> list[Float[Tensor, "..."] | None]:
    """The factors of evidence, 0 where all of it together has probability zero."""
    with torch.no_grad():
        impossible = torch.isneginf(states.log_total(factors)[0]).unsqueeze(-1)
    if not may_hold(impossible):
        return list(factors)
    return [None if f is None else torch.where(impossible, torch.zeros_like(f), f) for f in factors]


def _without_maxima(states: States, factors: Scores) -> list[Float[Tensor, "..."] | None]:
    """The factors, less the largest sum of factor and messages that each node has: a constant for autograd.

    Their messages then have maxima of 0.
    """
    with torch.no_grad():
        found = states.messages(states.with_root(factors))
    relative: list[Tensor | None] = []
    for factor, beta in zip(factors, found, strict=True):
        if beta is None:
            relative.append(factor)
            continue
        top = finite_max(beta)
        relative.append(-top.expand_as(beta) if factor is None else factor - top)
    return relative


def may_hold(mask: Tensor) -> bool:
    """Whether a mask is True somewhere; True where that cannot be read."""
    return not only_reverse_mode() or bool(mask.any())


def sum_known(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """The sum of two scores; None stands for 0."""
    if a is None or b is None:
        return b if a is None else a
    return a + b.to(a.dtype)
