"""Pseudo-counts for components of discrete kernels: without them, levels that a component lacks vanish."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kdmkit.nn import KDMLayer
from kdmkit.nn.tree_cells import TreeCells
from kdmkit.training.fit_arguments import Rows


class LevelPenalty(nn.Module):
    """−Σ_v Σ_i Σ_x share(x)·log f̂_v(x | c_i) of discrete variables v: one pseudo-count for each component.

    Args:
        layer: with the components.
        cells: the columns of the rows.
        rows: for the shares of levels; their first tensors are codes, numbers and the mask of observed cells.
    """

    def __init__(self, layer: KDMLayer, cells: TreeCells, rows: Rows) -> None:
        super().__init__()
        dtype = layer.weight_logits.dtype
        for i, group in enumerate(cells.levels.groups):
            shares = torch.zeros(len(group.names), group.n, dtype=dtype)
            for row, name in zip(shares, group.names, strict=True):
                counts = _shares(cells, rows, name, layer.components[name].shape[-1])
                row[: len(counts)] = counts
            self.register_buffer(f"shares_{i}", shares.unsqueeze(-1), persistent=False)
        self._others = [name for name in cells.others if _has_levels(layer, cells, name)]
        for name in self._others:
            n_levels = layer.kernel(name).probs(layer.components[name]).shape[-1]
            shares = _shares(cells, rows, name, n_levels).to(dtype)
            self.register_buffer(f"shares_of_{name}", shares, persistent=False)

    def forward(self, layer: KDMLayer, tables: Sequence[Float[Tensor, "..."]]) -> Float[Tensor, ""]:
        """The penalty of the present components; `tables` are those of `TreeCells.levels`."""
        total = layer.weight_logits.new_zeros(())
        for i, table in enumerate(tables):
            total = total - (self.get_buffer(f"shares_{i}") * table).sum()
        for name in self._others:
            log_probs = layer.kernel(name).probs(layer.components[name]).log()
            total = total - (self.get_buffer(f"shares_of_{name}") * log_probs).sum()
        return total


def _has_levels(layer: KDMLayer, cells: TreeCells, name: str) -> bool:
    """Whether a variable has codes, and components that are distributions over them."""
    place = cells.places[name]
    is_code = place.codes.start < place.codes.stop
    return is_code and layer.kernel(name).discrete and layer.components[name].is_floating_point()


def _shares(cells: TreeCells, rows: Rows, name: str, n: int) -> Float[Tensor, " n"]:
    """The share of every level among the observed cells of a column; uniform if there are none."""
    codes, _, seen = rows.tensors
    weights = torch.ones(len(rows), dtype=torch.float64) if rows.weights is None else rows.weights.double()
    weights = torch.where(seen[:, cells.names.index(name)], weights, 0.0)
    if not bool((weights > 0).any()):
        return torch.full((n,), 1 / n, dtype=torch.float64)
    column = codes[:, cells.places[name].codes.start]
    counts = torch.zeros(n, dtype=torch.float64).index_add_(0, column, weights)
    return counts / counts.sum()
