"""The order in which messages flow along the edges of a tree to one of its nodes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from kdmkit.ops.messages.tables import Tables


@dataclass(frozen=True)
class Step:
    """Messages that are computed together, one from each source to its target.

    Args:
        sources, targets: nodes, in pairs.
        stack, slots: which tables belong to the edges.
        downward: whether the sources are the parents: then tables are transposed.
        sharp: whether a table may have entries so small that sums of products underflow.
    """

    sources: tuple[int, ...]
    targets: tuple[int, ...]
    stack: int
    slots: tuple[int, ...]
    downward: bool
    sharp: bool


def schedule(
    parents: Sequence[int],
    tables: Tables,
    known: Collection[int],
    to: int,
    *,
    together: bool,
    distinct: Mapping[int, int] | None = None,
) -> tuple[Step, ...]:
    """The messages that node `to` needs, each after those that its source needs.

    A leaf without scores sends nothing to its parent: rows of probabilities sum to 1.

    Args:
        parents: by node, its parent; −1 for the root. Parents come before their children.
        known: nodes that have scores; the root must be among them where `to` is another node.
        together: whether messages of equal shape that are ready at the same time are one step.
        distinct: how many rows differ, of nodes with `Indexed` scores.
    """
    next_hop, distance = _directions(parents, to)
    farthest_first = sorted(next_hop, key=lambda node: (-distance[node], node))
    informed = set(known)
    receiving: set[int] = set()
    groups: dict[tuple[int, int, bool, int, int], list[tuple[int, int, int]]] = {}
    for source in farthest_first:
        target = next_hop[source]
        downward = parents[target] == source
        if source not in informed and not downward:
            continue
        informed.add(target)
        place = tables.places[target if downward else source]
        assert place is not None, "the root has no table"
        stack, slot = place
        # A node that receives messages has scores of all rows.
        rows = 0 if source in receiving else (distinct or {}).get(source, 0)
        receiving.add(target)
        key = (distance[source], stack, downward, rows, 0 if together else source)
        groups.setdefault(key, []).append((source, target, slot))
    return tuple(_step(key[1], key[2], tables, edges) for key, edges in groups.items())


def _step(stack: int, downward: bool, tables: Tables, edges: list[tuple[int, int, int]]) -> Step:
    sources, targets, slots = (tuple(part) for part in zip(*edges, strict=True))
    return Step(sources, targets, stack, slots, downward, tables.sharp[stack])


def _directions(parents: Sequence[int], to: int) -> tuple[dict[int, int], list[int]]:
    """By node other than `to`, the next one on its way there; and the distance of every node from `to`."""
    next_hop, distance = {}, [0] * len(parents)
    node = to
    while parents[node] >= 0:
        next_hop[parents[node]] = node
        distance[parents[node]] = distance[node] + 1
        node = parents[node]
    above = {to, *next_hop}
    for child, parent in enumerate(parents):
        if child not in above:
            next_hop[child] = parent
            distance[child] = distance[parent] + 1
    return next_hop, distance
