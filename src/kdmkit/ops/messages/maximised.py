"""Maxima of products over a tree, and the states that attain them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit.ops.blocks import slices
from kdmkit.ops.messages.schedule import Step

# Numbers that exist at once.
_NUMBERS = 1 << 22


def max_product(
    steps: Sequence[Step],
    scores: Sequence[Float[Tensor, "..."] | None],
    logs: Sequence[Float[Tensor, "..."]],
) -> tuple[Float[Tensor, " r"], list[Int[Tensor, " r"]]]:
    """The largest sum of scores and edges over all states of a tree, and the states that attain it.

    Args:
        steps: to node 0, the root, from all other nodes.
    """
    beta: list[Any] = list(scores)
    best: dict[int, tuple[int, Tensor]] = {}
    for step in steps:
        for source, target, slot in zip(step.sources, step.targets, step.slots, strict=True):
            message, states = _largest(beta[source], logs[step.stack][slot])
            best[source] = target, states
            beta[target] = message if beta[target] is None else beta[target] + message
    value, state = beta[0].max(-1)
    found = {0: state}
    for node in range(1, len(scores)):  # parents come first
        parent, states = best[node]
        row = torch.arange(len(states), device=states.device)
        found[node] = states[row, found[parent]]
    return value, [found[node] for node in range(len(scores))]


def _largest(
    b: Float[Tensor, "r k"], table: Float[Tensor, "k_parent k"]
) -> tuple[Float[Tensor, "r k_parent"], Int[Tensor, "r k_parent"]]:
    """max_j(b_j + log M_ij) and its j, for blocks of rows."""
    step = max(1, _NUMBERS // table.numel())
    found = [(b[part].unsqueeze(-2) + table).max(-1) for part in slices(len(b), step)]
    values, states = zip(*found, strict=True)
    return torch.cat(values), torch.cat(states)
