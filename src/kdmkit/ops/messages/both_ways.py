"""Sums of products over a tree for every node, by messages along every edge in both directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor

from kdmkit.ops.messages.schedule import Step
from kdmkit.ops.messages.summed import send
from kdmkit.ops.messages.tables import Tables


def pass_both_ways(
    parents: Sequence[int], steps: Sequence[Step], scores: Sequence[Any], tables: Tables
) -> tuple[list[Float[Tensor, "..."]], Float[Tensor, "..."]]:
    """By node, its scores plus the messages from all neighbours; and what was taken out of the root's.

    The message from a node to a child holds all that the node knows but from that child. It is the sum of the
    other messages: their difference from the whole would lose digits.

    Args:
        steps: to node 0, the root.
        scores: by node, `(r, k)`, `(1, k)` or None; the root's hold log p(z_root).
    """
    heard: list[dict[int, Tensor]] = [{} if score is None else {-1: score} for score in scores]
    below: list[Any] = list(scores)
    shift, weights = scores[0].new_zeros(1, 1), tables.weights
    for step in steps:
        messages, top, _ = send(step, below, tables.stacks[step.stack], weights[step.stack])
        shift = shift + top.sum(0)
        for message, source, target in zip(messages, step.sources, step.targets, strict=True):
            heard[target][source] = message
            below[target] = message if below[target] is None else below[target] + message
    for step in _downward(parents, tables):
        outgoing: list[Any] = [None] * len(parents)
        for child in step.targets:
            others = [message for source, message in heard[parents[child]].items() if source != child]
            outgoing[child] = sum(others[1:], others[0])
        messages, _, _ = send(step, outgoing, tables.stacks[step.stack], weights[step.stack])
        for message, child in zip(messages, step.targets, strict=True):
            heard[child][parents[child]] = message
    return [sum(list(own.values())[1:], next(iter(own.values()))) for own in heard], shift


def _downward(parents: Sequence[int], tables: Tables) -> list[Step]:
    """Messages from parents to children, level by level; a step's sources are the children's own places."""
    depth = [0] * len(parents)
    groups: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for node, parent in enumerate(parents):
        place = tables.places[node]
        if place is not None:
            depth[node] = depth[parent] + 1
            stack, slot = place
            groups.setdefault((depth[node], stack), []).append((node, slot))
    steps = []
    for (_, stack), edges in sorted(groups.items()):
        nodes, slots = (tuple(part) for part in zip(*edges, strict=True))
        steps.append(Step(nodes, nodes, stack, slots, downward=True, sharp=tables.sharp[stack]))
    return steps
