"""The start of a tree: which tree connects the columns, and which rows become components.

The tree is a maximum spanning tree of pairwise mutual information. Components are rows of the data, and
neighbours in the tree start in agreement about the row.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kdmkit.nn.layer import Variable
from kdmkit.nn.pair_information import PairInformation, pair_information

# The share of a starting component's mass that is spread over the values of the column, if the kernel can.
_BACKGROUND = 0.3
# p(z_v = i | z_parent = i) at the start is about s/(s + 1.6): neighbours mostly come from the same row.
_AGREEMENT = 30.0


# Among equal edges those of well-connected columns: this share of their information is added.
_TIE = 1e-9


class LearnedTree(NamedTuple):
    """A tree of columns.

    Attributes:
        parents: by variable, its parent; None for the root.
        information: of all pairs of variables, in the order of `parents`; more may follow.
    """

    parents: Mapping[str, str | None]
    information: PairInformation

    @property
    def independent(self) -> frozenset[str]:
        """Variables that may be independent of their parents, by the floor of the information."""
        return self._below(self.information.value)

    @property
    def doubtful(self) -> frozenset[str]:
        """Those of them whose parents predict them a little better than chance would on average."""
        return self.independent - self._below(self.information.estimate)

    def _below(self, information: Float[Tensor, "v v"]) -> frozenset[str]:
        place = {name: i for i, name in enumerate(self.parents)}
        return frozenset(
            name
            for name, up in self.parents.items()
            if up is not None and not bool(information[place[name], place[up]])
        )


def learn_tree(
    variables: Sequence[Variable],
    data: Mapping[str, Tensor],
    observed: Mapping[str, Bool[Tensor, " n"]],
    weights: Float[Tensor, " n"] | None = None,
    *,
    targets: Collection[str] = (),
    preference: float = 1.0,
    others: Sequence[Variable] = (),
    attached: Collection[str] = (),
) -> LearnedTree:
    """A maximum spanning tree of pairwise mutual information (`pair_information`).

    The root is a centre of the tree, so that paths are short.

    Args:
        variables: the nodes.
        data: by variable, `(n, *event)`, or labels `(n,)`.
        observed: by variable, False if the value is missing; a variable without a mask has all values.
        weights: of the rows.
        targets: variables that will be predicted.
        preference: information between a target and another variable counts this many times. Then more
            variables are neighbours of a target, and their information need not pass through others.
        others: variables that are no nodes; the information has them behind the nodes.
        attached: variables that are attached to the tree of the other ones: they do not come between two of
            these that tell about each other.
    """
    every = pair_information([*variables, *others], data, observed, weights)
    information = PairInformation(*(part[: len(variables), : len(variables)] for part in every))
    names = [variable.name for variable in variables]
    is_target = torch.tensor([name in targets for name in names])
    at_target = is_target.unsqueeze(0) | is_target.unsqueeze(1)
    strength = information.value.sum(1)
    weight = torch.where(at_target, preference, 1.0) * information.estimate
    weight = weight + _TIE * (strength.unsqueeze(0) + strength.unsqueeze(1))
    is_first = torch.tensor([name not in attached for name in names])
    before = is_first.unsqueeze(0) & is_first.unsqueeze(1) & (information.value > 0)
    above = spanning_tree(weight + torch.where(before, float(weight.max()) + 1, 0.0))
    parents = {name: None if up < 0 else names[up] for name, up in zip(names, above, strict=True)}
    return LearnedTree(parents, every)


# ---- spanning trees


def spanning_tree(information: Float[Tensor, "v v"]) -> list[int]:
    """The parent of every node in a maximum spanning tree; −1 for the root, a centre of the tree.

    >>> spanning_tree(torch.tensor([[0.0, 0.5, 0.1], [0.5, 0.0, 0.4], [0.1, 0.4, 0.0]]))
    [1, -1, 1]
    """
    from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree

    v = len(information)
    if v == 1:
        return [-1]
    # Positive lengths: a length of 0 means no edge.
    length = (information.max() - information + 1.0).numpy()
    np.fill_diagonal(length, 0.0)
    tree = minimum_spanning_tree(length)
    links = ((tree + tree.T) > 0).astype(np.float64)
    _, parents = breadth_first_order(links, _centre(links), directed=False)
    return [int(parent) if parent >= 0 else -1 for parent in parents]


def _centre(links: object) -> int:
    """The middle of a longest path."""
    from scipy.sparse.csgraph import breadth_first_order

    order, _ = breadth_first_order(links, 0, directed=False)
    order, parents = breadth_first_order(links, int(order[-1]), directed=False)
    path = [int(order[-1])]
    while parents[path[-1]] >= 0:
        path.append(int(parents[path[-1]]))
    return path[math.floor(len(path) / 2)]


# ---- components and edges


def choose_rows(
    data: Mapping[str, Tensor],
    masks: Mapping[str, Bool[Tensor, " n"]],
    k: int,
    weights: Float[Tensor, " n"] | None,
    generator: torch.Generator | None,
) -> Int[Tensor, " k"]:
    """k rows at random, as different as there are; a row that occurs w times has the chance √w.

    Args:
        data: by variable, `(n, *event)` or labels `(n,)`.
        masks: by variable, False if the value is missing.
        weights: of the rows.
    """
    device = "cpu" if generator is None else generator.device
    _, group = _row_keys(data, masks).unique(return_inverse=True)
    n, groups = len(group), int(group.max()) + 1
    weights = torch.ones(n, dtype=torch.float64) if weights is None else weights.double().cpu()
    total = torch.zeros(groups, dtype=torch.float64).index_add_(0, group, weights)
    first = torch.full((groups,), n).scatter_reduce_(0, group, torch.arange(n), "amin")
    # In the order of the rows, not of their keys: then units play no part in the draw.
    first, order = first.sort()
    chance = total[order].sqrt()
    # The largest log(u)/chance are a weighted draw without replacement.
    noise = torch.rand(groups, dtype=torch.float64, device=device, generator=generator).cpu()
    keys = torch.where(chance > 0, noise.log() / chance, -math.inf)
    chosen = keys.topk(min(k, int((chance > 0).sum()))).indices
    again = torch.randint(len(chosen), (k - len(chosen),), device=device, generator=generator).cpu()
    return first[torch.cat([chosen, chosen[again]])]


def _row_keys(data: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> Int[Tensor, " n"]:
    """A number for every row, equal for equal rows: sums of products with random numbers, modulo 2^64."""
    generator = torch.Generator().manual_seed(0)
    total: Tensor | int = 0
    for name, value in data.items():
        flat = value.reshape(len(value), -1)
        numbers = flat.double().view(torch.int64) if flat.is_floating_point() else flat.long()
        if name in masks:
            numbers = torch.where(masks[name].unsqueeze(-1), numbers, -1)
        factors = torch.randint(-(2**62), 2**62, (numbers.shape[1],), generator=generator)
        # The shift brings the high bits of floating-point numbers down.
        total = total + ((numbers ^ (numbers >> 31)) * factors).sum(1)
    assert isinstance(total, Tensor)
    return total


def start_components(
    variable: Variable,
    value: Tensor,
    observed: Bool[Tensor, " n"] | None,
    rows: Int[Tensor, " k"],
) -> Tensor | None:
    """Components at the values of the chosen rows; None if the column has no value at all.

    A missing value is replaced by the value of another row, the next one that has it.
    """
    present = torch.arange(len(value)) if observed is None else observed.nonzero().squeeze(-1)
    if not len(present):
        return None
    place = torch.searchsorted(present, rows)
    chosen = value[present[place % len(present)]]
    seen = value if observed is None else value[present]
    return variable.kernel.smoothed_components(chosen, seen, variable.shape, _BACKGROUND)


def start_edges(
    children: Sequence[str], k: int, generator: torch.Generator | None, independent: Collection[str] = ()
) -> Float[Tensor, "n_edges k k"]:
    """Logits of p(z_v | z_parent): large on the diagonal, standard normal noise everywhere.

    Args:
        children: the variable of every edge.
        independent: variables whose states start independent of the parent's: with logits 0.
    """
    device = "cpu" if generator is None else generator.device
    noise = torch.randn(len(children), k, k, device=device, generator=generator)
    noise.diagonal(dim1=-2, dim2=-1).add_(math.log(_AGREEMENT * k))
    noise[[i for i, name in enumerate(children) if name in independent]] = 0.0
    return noise
