"""The states of a tree: nodes and their links, p(z_root) and p(z_v | z_parent), and sums over all states."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import as_tensor, bad_argument, check_instance
from kdmkit._core.logspace import finite_max, log_normalize, safe_logsumexp
from kdmkit._core.runtime import only_reverse_mode
from kdmkit._core.tensors import broadcast
from kdmkit.distributions.arguments import BatchIndex, check_components, common_batch
from kdmkit.distributions.base import PartMap
from kdmkit.distributions.weights import as_log_weights
from kdmkit.kernels import Kernel
from kdmkit.ops.messages import Indexed, NodeScores, Tables, collect, collect_all, collect_everywhere

#: Scores by node, `(*lead, k)`, or None if there is no evidence on it.
Scores = Sequence[Float[Tensor, "..."] | None]
#: The same; for nodes with few distinct rows, their scores and which of them every row has.
AnyScores = Sequence[NodeScores | None]


@dataclass(frozen=True)
class Topology:
    """A rooted tree of nodes; variables of one node share its index of components.

    Args:
        nodes: names; the root first, parents before their children, by depth.
        parents: the position of every node's parent; −1 for the root.
        variables: the variables of every node; none for a latent node.

    >>> Topology.of({"b": "a", "a": None}).nodes
    ('a', 'b')
    """

    nodes: tuple[str, ...]
    parents: tuple[int, ...]
    variables: tuple[tuple[str, ...], ...]
    #: The position of a variable's node.
    node_of: dict[str, int] = field(init=False, repr=False, compare=False)

    @classmethod
    def of(
        cls, parents: Mapping[str, str | None], nodes: Mapping[str, Sequence[str]] | None = None
    ) -> Topology:
        """The tree that links every node to its parent; the root's is None.

        Args:
            nodes: by node, its variables; None: every node has the variable of the same name.
        """
        check_instance("parents", parents, Mapping, "a mapping from node to parent")
        variables = {node: (node,) for node in parents} if nodes is None else _check_nodes(nodes, parents)
        order = _by_depth(parents)
        position = {node: i for i, node in enumerate(order)}
        above = tuple(-1 if up is None else position[up] for up in (parents[node] for node in order))
        return cls(tuple(order), above, tuple(variables[node] for node in order))

    def __post_init__(self) -> None:
        places = {name: i for i, names in enumerate(self.variables) for name in names}
        object.__setattr__(self, "node_of", places)

    def pruned(self, kept: Collection[int], variables: Collection[str]) -> tuple[Topology, list[int]]:
        """The tree without leaves that are not kept, and the positions of its nodes in this tree.

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
        rest = tuple(tuple(name for name in self.variables[old] if name in variables) for old in order)
        above = tuple(position.get(self.parents[old], -1) for old in order)
        return Topology(tuple(self.nodes[old] for old in order), above, rest), order


def _check_nodes(nodes: Any, parents: Mapping[str, str | None]) -> dict[str, tuple[str, ...]]:
    check_instance("nodes", nodes, Mapping, "a mapping from node to its variables")
    if set(nodes) != set(parents):
        raise ValueError(bad_argument("nodes", f"the nodes of parents, {list(parents)}", list(nodes)))
    variables = {name: (part,) if isinstance(part, str) else tuple(part) for name, part in nodes.items()}
    everything = [variable for part in variables.values() for variable in part]
    if len(set(everything)) < len(everything):
        raise ValueError(bad_argument("nodes", "every variable in one node", everything))
    return variables


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


@dataclass(frozen=True)
class States:
    """A distribution over the states of all nodes.

    Args:
        topology: the nodes and their links.
        log_root: log p(z_root), `(*batch, k_root)`.
        tables: log p(z_v | z_parent) of the other nodes, in their order.
    """

    topology: Topology
    log_root: Float[Tensor, "*batch k_root"]
    tables: Tables

    @property
    def batch_shape(self) -> torch.Size:
        return broadcast(self.log_root.shape[:-1], self.tables.batch_shape)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of states of every node."""
        rest = range(1, len(self.topology.nodes))
        return (self.log_root.shape[-1], *[self.tables.size(node) for node in rest])

    def with_root(self, scores: AnyScores) -> list[Any]:
        """The scores with log p(z_root) among those of the root."""
        first = scores[0]
        if first is None:
            return [self.log_root, *scores[1:]]
        first = first.to(self.log_root)
        together = first.plus(self.log_root) if isinstance(first, Indexed) else self.log_root + first
        return [together, *scores[1:]]

    def collect(self, scores: AnyScores, to: int = 0) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
        """log p(z_to, evidence) in two parts that have to be added; scores are log p(evidence | z)."""
        return collect(self.topology.parents, self.with_root(scores), self.tables, to)

    def collect_everywhere(
        self, scores: AnyScores
    ) -> tuple[list[Float[Tensor, "..."]], Float[Tensor, "..."]]:
        """log p(z, evidence) of every node up to a constant per row, and the root's one; no gradients."""
        return collect_everywhere(self.topology.parents, self.with_root(scores), self.tables)

    def messages(self, scores: Scores) -> list[Float[Tensor, "..."] | None]:
        """log p(evidence at and below a node | z) of every node, up to a constant per row; no gradients."""
        return collect_all(self.topology.parents, scores, self.tables)

    def log_total(self, scores: AnyScores) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
        """log p(evidence) in two parts that have to be added."""
        beta, shift = self.collect(scores)
        return safe_logsumexp(beta), shift

    def log_prior(self, node: int) -> Float[Tensor, "*batch k"]:
        """log p(z_node)."""
        nothing: list[Tensor | None] = [None] * len(self.topology.nodes)
        return log_normalize(self.collect(nothing, node)[0])

    def subtree(self, kept: Collection[int], variables: Collection[str]) -> tuple[States, list[int]]:
        """The tree without leaves that are not kept, and the positions of its nodes in this tree."""
        topology, order = self.topology.pruned(kept, variables)
        return States(topology, self.log_root, self.tables.restricted(order)), order

    def pruned(self, kept: Collection[int], variables: Collection[str]) -> States:
        """The tree without leaves that are not kept: the marginal distribution of the others."""
        return self.subtree(kept, variables)[0]

    def mapped(self, function: PartMap) -> States:
        return States(self.topology, function(self.log_root), self.tables.mapped(function))

    def at(self, index: BatchIndex) -> States:
        """Chosen elements of the batch."""
        tables = self.tables.mapped(lambda stack: index.choose_behind(stack, 2))
        return States(self.topology, index.choose(self.log_root, 1), tables)


def log_total(states: States, scores: AnyScores, tops: Any) -> Float[Tensor, "*lead"]:
    """log p(evidence), if `tops` has to be added to the scores of every row."""
    total, shift = states.log_total(scores)
    return with_shift(total, shift + tops)


def with_shift(total: Float[Tensor, "..."], shift: Tensor) -> Float[Tensor, "..."]:
    """The sum; −∞ where the total is −∞, whatever the shift."""
    return total + torch.where(torch.isneginf(total), 0.0, shift.to(total.dtype))


def log_conditional(states: States, given: Scores, scores: Scores, tops: Any) -> Float[Tensor, "*lead"]:
    """log p(values | evidence); log p(values) if the evidence has probability zero.

    It is not the difference of two rounded sums: the maxima of the messages that the evidence sends are taken
    out of both first.

    Args:
        given: log p(evidence | z) by node.
        scores: log p(values | z) by node.
        tops: what has to be added to the scores of the values, for every row.
    """
    relative = _without_maxima(states, possible(states, given))
    alone, shift = states.log_total(relative)
    total, more = states.log_total([add_scores(a, b) for a, b in zip(relative, scores, strict=True)])
    difference = torch.where(torch.isneginf(total), 0.0, more - shift + tops - alone)
    return total + difference.to(total.dtype)


def possible(states: States, factors: Scores) -> list[Float[Tensor, "..."] | None]:
    """The log-factors of the evidence, 0 where all of it together has probability zero."""
    with torch.no_grad():
        impossible = torch.isneginf(states.log_total(factors)[0]).unsqueeze(-1)
    if not may_be_true(impossible):
        return list(factors)
    return [None if f is None else torch.where(impossible, torch.zeros_like(f), f) for f in factors]


def _without_maxima(states: States, factors: Scores) -> list[Float[Tensor, "..."] | None]:
    """The factors of every node minus its largest sum of factor and messages: then messages have maxima of 0.

    The subtracted maxima are constants for autograd.
    """
    with torch.no_grad():
        messages = states.messages(states.with_root(factors))
    relative: list[Tensor | None] = []
    for factor, beta in zip(factors, messages, strict=True):
        if beta is None:
            relative.append(factor)
            continue
        top = finite_max(beta)
        relative.append(-top.expand_as(beta) if factor is None else factor - top)
    return relative


def may_be_true(mask: Tensor) -> bool:
    """Whether a mask is True somewhere; also True if it cannot be read (compiled, vmapped)."""
    return not only_reverse_mode() or bool(mask.any())


def add_scores(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """The sum of two scores; None stands for 0."""
    if a is None or b is None:
        return b if a is None else a
    return a + b.to(a.dtype)


# ---- from what users give


def count_states(
    topology: Topology, components: Mapping[str, Tensor], kernels: Mapping[str, Kernel]
) -> list[int | None]:
    """The number of components of every node; None for a latent node.

    Raises unless the nodes have exactly the variables of the kernels.
    """
    if set(topology.node_of) != set(kernels):
        wanted = f"the variables of components, {list(kernels)}"
        raise ValueError(bad_argument("parents, nodes", wanted, sorted(topology.node_of)))
    sizes: list[int | None] = []
    for node, variables in zip(topology.nodes, topology.variables, strict=True):
        counts = {}
        for name in variables:
            dim = check_components(f"components[{name!r}]", components[name], kernels[name])
            counts[name] = components[name].shape[dim]
        if len(set(counts.values())) > 1:
            wanted = f"the same number of components for all variables of node {node!r}"
            raise ValueError(bad_argument("components", wanted, counts))
        sizes.append(next(iter(counts.values()), None))
    return sizes


def build_states(
    topology: Topology,
    counts: list[int | None],
    root: tuple[Any, Any],
    edges: tuple[Any, Any],
    like: Tensor,
    *,
    validate: bool,
) -> States:
    """The tree of indices from weights or their logarithms.

    Args:
        counts: from `count_states`.
        root, edges: the weights, and their logarithms; one of each pair is None.
        like: a tensor with the dtype and device that plain numbers get.
    """
    argument, given, is_log = _either("edge_weights", *edges)
    given = {} if given is None else given
    check_instance(argument, given, Mapping, "a mapping from node to weights (k_parent, k_node)")
    if set(given) != set(topology.nodes[1:]):
        wanted = f"weights of every node but the root, {list(topology.nodes[1:])}"
        raise ValueError(bad_argument(argument, wanted, list(given)))
    tensors = {node: as_tensor(f"{argument}[{node!r}]", value, like=like) for node, value in given.items()}
    log_root = _root(topology, counts, root, like, validate)
    counts[0] = log_root.shape[-1]
    logs = []
    for i, node in enumerate(topology.nodes):
        if i:
            name, tensor = f"{argument}[{node!r}]", tensors[node]
            counts[i] = tensor.shape[-1] if counts[i] is None and tensor.ndim else counts[i]
            _check_shape(name, tensor, counts[topology.parents[i]], counts[i])
            logs.append(as_log_weights(name, tensor, is_log, like, validate))
    shapes = {f"{argument}[{n!r}]": log.shape[:-2] for n, log in zip(topology.nodes[1:], logs, strict=True)}
    common_batch({"root_weights": log_root.shape[:-1], **shapes})
    return States(topology, log_root, Tables.of(logs))


def _either(argument: str, weights: Any, log_weights: Any) -> tuple[str, Any, bool]:
    """The argument that the user gave: its name, its value, and whether it is the logarithm."""
    if weights is not None and log_weights is not None:
        raise ValueError(bad_argument(argument, f"either {argument} or log_{argument}", "both"))
    return (argument, weights, False) if log_weights is None else (f"log_{argument}", log_weights, True)


def _root(
    topology: Topology, counts: list[int | None], root: tuple[Any, Any], like: Tensor, validate: bool
) -> Tensor:
    argument, given, is_log = _either("root_weights", *root)
    k = counts[0]
    if given is None:
        if k is None:
            wanted = f"weights, since the root {topology.nodes[0]!r} holds no variable"
            raise ValueError(bad_argument(argument, wanted, None))
        return torch.full((k,), -math.log(k), dtype=like.dtype, device=like.device)
    tensor = as_tensor(argument, given, like=like)
    if tensor.ndim == 0 or tensor.shape[-1] == 0 or (k is not None and tensor.shape[-1] != k):
        wanted = f"shape (..., {'k' if k is None else k}), one per component of the root"
        raise ValueError(bad_argument(argument, wanted, tuple(tensor.shape)))
    return as_log_weights(argument, tensor, is_log, like, validate)


def _check_shape(argument: str, tensor: Tensor, k_parent: int | None, k: int | None) -> None:
    if tensor.ndim < 2 or tensor.shape[-2] != k_parent or tensor.shape[-1] != k or not k:
        wanted = f"shape (..., {k_parent}, {k}), a row per component of the parent"
        raise ValueError(bad_argument(argument, wanted, tuple(tensor.shape)))


def floating(components: Mapping[str, Tensor]) -> Tensor:
    """A tensor with the floating-point dtype and the device of the components."""
    for tensor in components.values():
        if tensor.is_floating_point():
            return tensor
    return torch.zeros((), device=next(iter(components.values())).device)
