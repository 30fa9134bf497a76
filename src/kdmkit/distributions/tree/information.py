"""Mutual information between nodes and between variables of a tree."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import bad_argument, check_choice, check_count
from kdmkit.distributions.tree.condition import Conditioned
from kdmkit.distributions.tree.states import Scores, States, add_scores

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
