"""Mutual information between nodes and between variables of a tree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import bad_argument, check_choice, check_count
from kdmkit.distributions.event_inference import CaseScores
from kdmkit.distributions.tree.condition import Conditioned
from kdmkit.distributions.tree.states import Scores, States, add_scores
from kdmkit.ops.blocks import slices

if TYPE_CHECKING:
    from kdmkit.distributions.tree.tree_kdm import TreeKDM

#: Tables of probabilities with at most this many entries are enumerated.
_ENTRIES = 1 << 22


@dataclass(frozen=True)
class MutualInformation:
    """I(a; b) in nats, and how it was computed. `TreeKDM.mutual_information` returns it.

    Attributes:
        value: the mutual information, or its estimate.
        standard_error: of the estimate; 0 if it is exact.
        method: `"exact"`, a sum over all pairs of values or states; `"monte carlo"`, an average over draws.

    >>> import kdmkit as kdm
    >>> import torch
    >>> codes = {"a": torch.tensor([0, 1]), "b": torch.tensor([0, 1])}
    >>> joint = kdm.JointKDM(codes, None, {"a": kdm.Categorical(2), "b": kdm.Categorical(2)})
    >>> information = kdm.TreeKDM.from_joint(joint).mutual_information("a", "b")
    >>> round(information.value, 3), information.method
    (0.693, 'exact')
    """

    value: float
    standard_error: float
    method: Literal["exact", "monte carlo"]


def between_variables(
    tree: TreeKDM, a: str, b: str, of: str, n_samples: int, generator: torch.Generator | None
) -> MutualInformation:
    """As `TreeKDM.mutual_information`."""
    check_choice("of", of, ("variables", "indices"))
    check_count("n_samples", n_samples, least=2)
    if a == b:
        raise ValueError(bad_argument("a, b", "two variables", repr(a)))
    with torch.no_grad():
        if of == "indices":
            places = tree._states.topology.node_of
            return _of_table(log_pairs(tree._tree, places[a], places[b]).double().exp())
        table = _value_pairs(tree, a, b)
        return _of_draws(tree, a, b, n_samples, generator) if table is None else _of_table(table)


def log_pairs(tree: States | Conditioned, a: int, b: int) -> Float[Tensor, "k_a k_b"]:
    """log p(z_a, z_b), given the evidence of the tree, if any; a mixture over its pieces."""
    if isinstance(tree, States):
        return _log_pairs(tree, [None] * len(tree.topology.nodes), a, b)
    weights = tree.pieces.log_weights
    n = 1 if weights is None else weights.shape[-1]
    parts = []
    for piece in range(n):
        given = [None if f is None else f[min(piece, len(f) - 1)].unsqueeze(0) for f in tree.factors]
        pairs = _log_pairs(tree.states, given, a, b)
        pairs = pairs - torch.logsumexp(pairs.flatten(), 0)
        parts.append(pairs if weights is None else pairs + weights[..., piece].to(pairs))
    return torch.stack(parts).logsumexp(0)


def _log_pairs(states: States, given: Scores, a: int, b: int) -> Float[Tensor, "k_a k_b"]:
    """log p(z_a, z_b, evidence): every state of a in turn is the evidence on it."""
    k = states.sizes[a]
    each_state = torch.full((k, k), -math.inf, dtype=states.log_root.dtype, device=states.log_root.device)
    each_state = each_state.fill_diagonal_(0.0)
    if a == b:
        return states.collect(given, a)[0].reshape(k, 1) + each_state
    scores = list(given)
    scores[a] = add_scores(each_state, scores[a])
    beta, shift = states.collect(scores, b)
    return beta + shift.unsqueeze(-1)


def summed_pairs(tree: States | Conditioned, a: str, b: str, scores: CaseScores) -> Float[Tensor, "k_a k_b"]:
    """Σ_i p(z_a, z_b, case i) of the nodes of two variables, given the evidence of the tree, if any.

    Sums are of products in float64: cases without probability but for underflow do not count.
    """
    states = tree if isinstance(tree, States) else tree.states
    node_of = states.topology.node_of
    factors: list[Any] = [None] * len(states.topology.nodes)
    for name, (relative, tops) in scores.items():
        factor = (relative.double() + tops.double().unsqueeze(-1)).exp()
        factors[node_of[name]] = _product(factors[node_of[name]], factor)
    return _given_evidence(tree, node_of[a], node_of[b], factors)


def _product(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """The product of two factors; None stands for 1."""
    return b if a is None else a if b is None else a * b


def _given_evidence(
    tree: States | Conditioned, a: int, b: int, factors: Sequence[Float[Tensor, "n k"] | None]
) -> Float[Tensor, "k_a k_b"]:
    if isinstance(tree, States):
        return _summed_pairs(tree, a, b, factors)
    states, weights = tree.states, tree.pieces.log_weights
    shares = [1.0] if weights is None else weights.double().exp().tolist()
    total = torch.zeros_like(states.log_root[:1]).double()
    for piece, share in enumerate(shares):
        given = [None if f is None else f[[min(piece, len(f) - 1)]].double().exp() for f in tree.factors]
        both = [_product(f, g) for f, g in zip(factors, given, strict=True)]
        evidence = _upto(states, 0, [], given).sum()
        total = total + share / evidence * _summed_pairs(states, a, b, both)
    return total


def _summed_pairs(
    states: States, a: int, b: int, factors: Sequence[Tensor | None]
) -> Float[Tensor, "k_a k_b"]:
    path = _path(states.topology.parents, a, b)
    # Everything beside the path, by its nodes.
    beside = [_upto(states, node, path, factors) for node in path]
    tables = [_table(states, *edge) for edge in pairwise(path)]
    if len(path) == 1:
        return torch.diag(beside[0].sum(0))
    rows, k = max(len(part) for part in beside), max(states.sizes)
    beside = [part.expand(rows, -1) for part in beside]
    total = torch.zeros_like(states.log_root[:1]).double()
    for part in slices(rows, max(1, _ENTRIES // k**2)):
        # p(z_a, z of the last node but one, case), and then the sum over cases.
        first, *between, last = (one[part] for one in beside)
        if not between:
            total = total + first.mT @ last * tables[0]
            continue
        reached = first.unsqueeze(-1) * tables[0] * between[0].unsqueeze(-2)
        for table, factor in zip(tables[1:-1], between[1:], strict=True):
            reached = reached @ table * factor.unsqueeze(-2)
        total = total + torch.einsum("nij,nk,jk->ik", reached, last, tables[-1])
    return total


def _path(parents: Sequence[int], a: int, b: int) -> list[int]:
    """The nodes from a to b."""
    above = [[node] for node in (a, b)]
    for nodes in above:
        while parents[nodes[-1]] >= 0:
            nodes.append(parents[nodes[-1]])
    first, second = above
    shared = set(first) & set(second)
    meeting = next(node for node in first if node in shared)
    return [*first[: first.index(meeting) + 1], *second[: second.index(meeting)][::-1]]


def _table(states: States, source: int, target: int) -> Float[Tensor, "k_source k_target"]:
    """The factor of an edge, from one of its nodes to the other."""
    if states.topology.parents[target] == source:
        return states.tables.log_table(target).double().exp()
    return states.tables.log_table(source).double().exp().mT


def _upto(
    states: States, node: int, without: Sequence[int], factors: Sequence[Tensor | None]
) -> Float[Tensor, "n k"]:
    """p(z_node, cases) of a part of the tree: that which is reached from a node not through others."""
    parents, factor = states.topology.parents, factors[node]
    belief = states.log_root.double().exp() if node == 0 else torch.ones(()).to(states.log_root).double()
    belief = belief.expand(1, states.sizes[node]) if factor is None else belief * factor
    around = [child for child, parent in enumerate(parents) if parent == node] + [parents[node]]
    for other in around:
        if other >= 0 and other not in without:
            belief = belief * (_upto(states, other, [node], factors) @ _table(states, other, node))
    return belief


def _value_pairs(tree: TreeKDM, a: str, b: str) -> Float[Tensor, "n_a n_b"] | None:
    """p(x_a, x_b) of all pairs of labels; None unless both variables are discrete with few labels."""
    tables = []
    for name in (a, b):
        kernel, components = tree.kernels[name], tree.components[name]
        if not kernel.discrete or not kernel.has_density:
            return None
        try:
            tables.append(kernel.probs(components).double())
        except (TypeError, NotImplementedError):  # a countable set without a table
            return None
    if tables[0].shape[-1] * tables[1].shape[-1] > _ENTRIES:
        return None
    places = tree._states.topology.node_of
    pairs = log_pairs(tree._tree, places[a], places[b]).double().exp()
    return tables[0].mT @ pairs @ tables[1]


def _of_table(table: Float[Tensor, "n m"]) -> MutualInformation:
    """Σ p(i, j) log(p(i, j)/(p(i) p(j)))."""
    table = table / table.sum()
    independent = table.sum(1, keepdim=True) * table.sum(0, keepdim=True)
    ratio = torch.where(table > 0, table / torch.where(independent > 0, independent, 1.0), 1.0)
    return MutualInformation(max(0.0, float((table * ratio.log()).sum())), 0.0, "exact")


def _of_draws(tree: TreeKDM, a: str, b: str, n: int, generator: torch.Generator | None) -> MutualInformation:
    """The mean of log p(x_a, x_b) − log p(x_a) − log p(x_b) over draws, with its standard error."""
    both = tree.marginal(a, b)
    drawn: Any = both.sample((n,), generator=generator)
    ratio = both.log_prob(**drawn)
    ratio = ratio - tree.marginal(a).log_prob(drawn[a]) - tree.marginal(b).log_prob(drawn[b])
    ratio = ratio.double()
    error = float(ratio.std() / math.sqrt(n))
    return MutualInformation(float(ratio.mean()), error, "monte carlo")
