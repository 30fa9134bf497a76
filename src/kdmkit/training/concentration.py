"""How much the columns of a tree depend on their parents: concentrations of Dirichlet distributions."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import as_tensor, check_instance
from kdmkit._core.weights import effective_rows
from kdmkit.nn import TreeLayer
from kdmkit.nn.tree_structure import bin_codes
from kdmkit.training.table import Table

# Concentrations that are compared: eight for every factor of ten.
_GRID = torch.logspace(-2, 4, 49, dtype=torch.float64)


def edge_concentrations(layer: TreeLayer, table: Table) -> dict[str, float]:
    """By variable, but the root: the concentration A of its distribution given its parent.

    Values are put into at most 16 bins. Rows of the table p(bin of v | bin of the parent) are taken for draws
    from a Dirichlet distribution with mean p(bin of v) and concentration A. The A found makes the counts of
    pairs of bins most probable, of values between .01 and 10,000. It is small where v depends strongly on its
    parent, and large where both are almost independent. Only rows that have both values count.

    Args:
        layer: a tree.
        table: rows of its variables.

    Returns:
        A by variable.

    >>> import kdmkit as kdm
    >>> variables = [kdm.nn.Variable(name, kdm.Categorical(2, 0.1), ()) for name in "abc"]
    >>> layer = kdm.nn.TreeLayer(variables, 4, parents={"a": None, "b": "a", "c": "a"})
    >>> a = torch.arange(400) % 2
    >>> table = kdm.training.Table({"a": a, "b": a, "c": torch.arange(400) % 4 // 2})
    >>> {name: round(found, 2) for name, found in edge_concentrations(layer, table).items()}
    {'b': 0.01, 'c': 10000.0}
    """
    check_instance("layer", layer, TreeLayer, "a kdmkit.nn.TreeLayer")
    masks = {name: torch.as_tensor(mask).cpu() for name, mask in (table.observed or {}).items()}
    bins = {
        name: bin_codes(variable, as_tensor(name, table.columns[name]).detach().cpu(), masks.get(name))
        for name, variable in layer.variables.items()
    }
    weights = None if table.weights is None else as_tensor("weights", table.weights).detach().cpu().double()
    return {
        name: _concentration(_counts(bins[above], bins[name], weights))
        for name, above in layer.parents.items()
        if above is not None
    }


def _counts(parent: Tensor, child: Tensor, weights: Float[Tensor, " n"] | None) -> Float[Tensor, "p c"]:
    """How many rows have a pair of bins; with weights as many as the effective number of rows, (Σw)²/Σw²."""
    both = (parent >= 0) & (child >= 0)
    parent, child = parent[both], child[both]
    if not len(child):
        return torch.zeros(1, 1, dtype=torch.float64)
    each = torch.ones(len(child), dtype=torch.float64) if weights is None else weights[both]
    if weights is not None:
        each = effective_rows(each) * each / each.sum().clamp_min(torch.finfo(each.dtype).tiny)
    width = int(child.max()) + 1
    counts = torch.bincount(parent * width + child, each, minlength=(int(parent.max()) + 1) * width)
    return counts.reshape(-1, width)


def _concentration(counts: Float[Tensor, "p c"]) -> float:
    """The A of `_GRID` with the largest Π_i Γ(A)/Γ(A + n_i) · Π_j Γ(A·q_j + n_ij)/Γ(A·q_j)."""
    counts = counts[:, counts.sum(0) > 0]
    if not counts.numel():
        return float(_GRID[-1])  # no row has both
    scale = _GRID.reshape(-1, 1, 1)
    prior = scale * counts.sum(0) / counts.sum()
    cells = (torch.lgamma(prior + counts) - torch.lgamma(prior)).sum((-1, -2))
    rows = (torch.lgamma(scale[..., 0]) - torch.lgamma(scale[..., 0] + counts.sum(1))).sum(-1)
    # Among equals the largest, as for columns with one value.
    likelihood = cells + rows
    return float(_GRID[likelihood >= likelihood.max() - 1e-9][-1])
