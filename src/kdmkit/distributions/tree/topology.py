"""Which nodes a tree has, how they are linked, and which variables each of them holds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kdmkit._core.checks import bad_argument, check_instance


@dataclass(frozen=True)
class Topology:
    """A rooted tree of nodes; variables of one node share its index of components.

    Args:
        nodes: names; the root first, parents before their children, by depth.
        parents: by node, the position of its parent; −1 for the root.
        variables: by node, the variables that it holds; none for a latent node.

    >>> Topology.of({"b": "a", "a": None}).nodes
    ('a', 'b')
    """

    nodes: tuple[str, ...]
    parents: tuple[int, ...]
    variables: tuple[tuple[str, ...], ...]
    #: The position of the node that holds a variable.
    node_of: dict[str, int] = field(init=False, repr=False, compare=False)

    @classmethod
    def of(
        cls, parents: Mapping[str, str | None], nodes: Mapping[str, Sequence[str]] | None = None
    ) -> Topology:
        """The tree that links every node to its parent; the root's is None.

        Args:
            nodes: by node, its variables; None: every node holds the variable of its own name.
        """
        check_instance("parents", parents, Mapping, "a mapping from node to parent")
        held = {node: (node,) for node in parents} if nodes is None else _check_nodes(nodes, parents)
        order = _by_depth(parents)
        position = {node: i for i, node in enumerate(order)}
        above = tuple(-1 if up is None else position[up] for up in (parents[node] for node in order))
        return cls(tuple(order), above, tuple(held[node] for node in order))

    def __post_init__(self) -> None:
        places = {name: i for i, held in enumerate(self.variables) for name in held}
        object.__setattr__(self, "node_of", places)

    def pruned(self, kept: Collection[int], variables: Collection[str]) -> tuple[Topology, list[int]]:
        """The tree without leaves that hold nothing, and the positions of its nodes in this tree.

        Args:
            kept: nodes that stay, with all nodes above them.
            variables: those that stay.
        """
        staying = {0}
        for node in kept:
            while node not in staying:
                staying.add(node)
                node = self.parents[node]
        order = sorted(staying)
        position = {old: new for new, old in enumerate(order)}
        held = tuple(tuple(name for name in self.variables[old] if name in variables) for old in order)
        above = tuple(position.get(self.parents[old], -1) for old in order)
        return Topology(tuple(self.nodes[old] for old in order), above, held), order

    def path(self, node: int) -> list[int]:
        """From a node up to the root."""
        found = [node]
        while self.parents[found[-1]] >= 0:
            found.append(self.parents[found[-1]])
        return found


def _check_nodes(nodes: Any, parents: Mapping[str, str | None]) -> dict[str, tuple[str, ...]]:
    check_instance("nodes", nodes, Mapping, "a mapping from node to its variables")
    if set(nodes) != set(parents):
        raise ValueError(bad_argument("nodes", f"the nodes of parents, {list(parents)}", list(nodes)))
    held = {name: (part,) if isinstance(part, str) else tuple(part) for name, part in nodes.items()}
    everything = [variable for part in held.values() for variable in part]
    if len(set(everything)) < len(everything):
        raise ValueError(bad_argument("nodes", "every variable in one node", everything))
    return held


def _by_depth(parents: Mapping[str, str | None]) -> list[str]:
    """The nodes, the root first, by depth."""
    bad = [node for node in parents if not isinstance(node, str)]
    if bad or not parents:
        raise ValueError(bad_argument("parents", "one or more nodes with names", bad or "none"))
    unknown = sorted({repr(up) for up in parents.values() if up is not None and up not in parents})
    if unknown:
        raise ValueError(bad_argument("parents", f"parents among {list(parents)}", ", ".join(unknown)))
    roots = [node for node, up in parents.items() if up is None]
    if len(roots) > 1:
        raise ValueError(bad_argument("parents", "one root (a node whose parent is None)", roots))
    children: dict[str | None, list[str]] = {}
    for node, up in parents.items():
        children.setdefault(up, []).append(node)
    order: list[str] = []
    level = roots
    while level:
        order += level
        level = [child for node in level for child in children.get(node, [])]
    if len(order) < len(parents):
        cycle = [node for node in parents if node not in order]
        raise ValueError(bad_argument("parents", "a tree", f"a cycle among {cycle}"))
    return order
