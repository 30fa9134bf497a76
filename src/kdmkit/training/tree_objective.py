"""The loss of a tree of joint KDMs: a penalised likelihood, with conditional likelihoods of targets.

`LevelPenalty` adds pseudo-counts for components of discrete kernels: without them, levels that a component
lacks vanish. Chains use it, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kdmkit._core.checks import bad_argument, check_number
from kdmkit._core.tensors import effective_rows
from kdmkit.nn import DrawingModule, KDMLayer, TreeLayer
from kdmkit.nn.tree_cells import TreeCells
from kdmkit.nn.tree_scores import TreeScores
from kdmkit.training.fit_arguments import Rows
from kdmkit.training.packing import Packing


@dataclass(frozen=True)
class TreeRecipe:
    """Defaults of `fit_tree` and `tree_options`, chosen on five binary tables: `results/binary-notes.md`.

    Args:
        steps, batch_size, learning_rate: of the loop.
        averaging: horizon of the averaged weights, as a share of all steps.
        patience: epochs without a better validation loss before stopping, as a share of all epochs.
        shrinkage: pseudo-counts of every edge row are this times √k/n, with k states and n rows.
        most_shrinkage: the largest number of pseudo-counts.
        smoothing: pseudo-counts of every component of a discrete kernel.
        masking: the share of hidden cells.
        fading: the power of 1 − t/T that penalties and hidden cells follow.
    """

    steps: int = 1500
    batch_size: int = 256
    learning_rate: float = 0.1
    averaging: float = 0.03
    patience: float = 0.35
    shrinkage: float = 450.0
    most_shrinkage: float = 2.5
    smoothing: float = 0.5
    masking: float = 0.2
    fading: float = 2.0

    def pseudo_counts(self, n_rows: float, n_components: int) -> float:
        """Pseudo-counts of every edge row before they fade."""
        return min(self.most_shrinkage, self.shrinkage * math.sqrt(n_components) / n_rows)


TREE_RECIPE = TreeRecipe()
# The largest factor of a step of a centre.
_MOST_STEP = 0.5


class Targets:
    """log p(x) + w·Σ_t log p(x_t | other cells of the row): a joint likelihood, and those of targets t.

    p(x) is one distribution, and all questions stay consistent.

    Args:
        groups: the variables to predict, in groups that are predicted together: parts of one column.
        weight: w.

    >>> Targets([["price"]], weight=2.0).weight
    2.0
    """

    def __init__(self, groups: Iterable[Sequence[str]] = (), weight: float = 1.0) -> None:
        self.groups = [tuple(group) for group in groups]
        self.weight = check_number("weight", weight, "a finite number ≥ 0")

    def __bool__(self) -> bool:
        return bool(self.groups)

    @property
    def names(self) -> set[str]:
        """All variables to predict."""
        return {name for group in self.groups for name in group}

    @property
    def scale(self) -> float:
        """The weight of a row, 1 + w for every group. Penalties have the same weight."""
        return 1.0 + self.weight * len(self.groups)

    def check(self, layer: TreeLayer) -> None:
        """Raises a ValueError if a target is no variable of the layer."""
        unknown = sorted(self.names - set(layer.variables))
        if unknown:
            raise ValueError(bad_argument("targets", f"variables among {list(layer.variables)}", unknown))

    def config(self) -> dict[str, Any]:
        """Groups and weight in the types of JSON."""
        return {"groups": self.groups, "weight": self.weight}

    def row_log_likelihood(
        self, layer: TreeLayer, scores: TreeScores, edges: Float[Tensor, "n_edges k k"]
    ) -> Float[Tensor, " n"]:
        """The sum of a row's log-likelihoods.

        Args:
            scores, edges: as in `TreeLayer.row_log_prob`.
        """
        pairs = [_log_probs(layer, scores, group, edges) for group in self.groups]
        # Every pass gives the same log p(row).
        total: Tensor = pairs[0][0] + self.weight * sum(conditional for _, conditional in pairs)
        return total


def _log_probs(
    layer: TreeLayer, scores: TreeScores, group: Sequence[str], edges: Tensor
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """log p(row) and log p(group | rest of the row)."""
    if len(group) == 1:
        return layer.row_log_conditional(scores, group[0], edges=edges)
    together = layer.row_log_prob(scores, edges=edges)
    return together, together - layer.row_log_prob(scores.without(group), edges=edges)


class TreeObjective(DrawingModule):
    """−log p(observed part of a row) of a tree, with two penalties, and cells that are hidden.

    At step t of T, with u = (1 − t/T)^φ:

    - edges: α·u pseudo-counts of each row of p(z_v | z_parent) are distributed as p(z_v). The
      penalty is −α·u/n · Σ_v Σ_i Σ_j p(z_v = j)·log p(z_v = j | z_parent = i).
    - components of discrete kernels: β·u pseudo-counts of each are distributed as the column. The penalty is
      −β·u/n · Σ_v Σ_i Σ_x share(x)·log f̂_v(x | c_i).
    - cells: a cell is hidden with probability r·(1 − t/T)^ψ, and integrated out.

    With targets, `Targets` takes the place of log p, penalties have the weight of rows, and cells of targets
    are not hidden.

    With φ = 2 early stopping chooses how much regularisation remains. With φ = 0 the penalties remain, as a
    prior does: weights of the last steps overfit less.

    Args:
        layer: the tree.
        packing: how the columns are encoded in the tensors of a batch.
        rows: the training rows, for the number of rows n (the effective one, (Σw)²/Σw², with weights) and for
            the shares of levels.
        n_steps: T.
        shrinkage: α; None is min(2.5, 450·√k/n): few rows and many states need more. A mapping has α by
            variable, of the edge to its parent.
        smoothing: β.
        masking: r.
        fading: φ, of the penalties.
        masking_fading: ψ, of hidden cells.
        has_missing: whether validation rows have missing cells.
        targets: variables that will be predicted.
        centre_step: as in `fit_tree`.
    """

    step: Tensor
    is_target: Tensor

    def __init__(
        self,
        layer: TreeLayer,
        packing: Packing,
        rows: Rows,
        *,
        n_steps: int,
        shrinkage: float | Mapping[str, float] | None = None,
        smoothing: float = TREE_RECIPE.smoothing,
        masking: float = TREE_RECIPE.masking,
        fading: float = TREE_RECIPE.fading,
        masking_fading: float = TREE_RECIPE.fading,
        has_missing: bool = False,
        targets: Targets | None = None,
        centre_step: float | None = None,
    ) -> None:
        super().__init__()
        targets = Targets() if targets is None else targets
        targets.check(layer)
        n = float(len(rows)) if rows.weights is None else effective_rows(rows.weights)
        if shrinkage is None:
            shrinkage = TREE_RECIPE.pseudo_counts(n, layer.n_components)
        if centre_step is not None:
            check_number("centre_step", centre_step, "a finite number > 0", positive=True)
        self.centre_step = centre_step
        self.n_steps = max(1, n_steps)
        self.masking = check_number("masking", masking, "0 ≤ masking < 1", below=1)
        self.fading = check_number("fading", fading, "a finite number ≥ 0")
        self.masking_fading = check_number("masking_fading", masking_fading, "a finite number ≥ 0")
        self.has_missing = has_missing or bool(targets) or not bool(rows.tensors[2].all())
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        by_edge = _by_edge(layer, shrinkage)
        smoothing = check_number("smoothing", smoothing, "a finite number ≥ 0")
        is_target = torch.tensor([name in targets.names for name in packing.cells.names])
        self.register_buffer("is_target", is_target, persistent=False)
        self.losses = _PenalisedLosses(
            layer, packing, rows, n, targets, shrinkage=by_edge, smoothing=smoothing
        )

    @property
    def layer(self) -> TreeLayer:
        """The tree that is trained."""
        return self.losses.layer

    def step_factors(self) -> list[tuple[Tensor, Tensor]]:
        """Centres of numbers, and the factors of their steps (`Steps`)."""
        if self.centre_step is None:
            return []
        layer, factor = self.layer, self.centre_step
        return [
            (
                layer.components[name].detach()[:, -1:],
                (factor * layer.kernel(name).learned_bandwidth.value.detach()).clamp_max(_MOST_STEP),
            )
            for name in self.losses.cells.centred
        ]

    def forward(
        self, codes: Int[Tensor, "n c"], numbers: Float[Tensor, "n f"], seen: Bool[Tensor, "n v"]
    ) -> Float[Tensor, " n"]:
        if not self.training:
            return self.losses.without_penalty(codes, numbers, seen if self.has_missing else None)
        left = 1 - self.step.double() / self.n_steps
        self.step += 1
        if self.masking:
            shown = self.uniform(seen) >= self.masking * left**self.masking_fading
            seen = seen & (shown | self.is_target)
        losses: Tensor = self.losses(codes, numbers, seen, left**self.fading)
        return losses


class _PenalisedLosses(nn.Module):
    """The losses of rows whose hidden cells and whose strength of regularisation are given."""

    shrinkage: Tensor

    def __init__(
        self,
        layer: TreeLayer,
        packing: Packing,
        rows: Rows,
        n_rows: float,
        targets: Targets,
        *,
        shrinkage: list[float],
        smoothing: float,
    ) -> None:
        super().__init__()
        self.layer, self.cells, self.n_rows = layer, packing.cells, n_rows
        self.shrinks, self.smoothing, self.targets = any(shrinkage), smoothing, targets
        dtype = layer.weight_logits.dtype
        self.register_buffer("shrinkage", torch.tensor(shrinkage, dtype=dtype), persistent=False)
        self.levels = LevelPenalty(layer, packing.cells, rows)

    def forward(self, codes: Tensor, numbers: Tensor, seen: Tensor, strength: Tensor) -> Float[Tensor, " n"]:
        edges, tables = self.layer.edge_probs(), self.cells.levels.tables(self.layer.components)
        losses = self.log_losses(codes, numbers, seen, edges, tables)
        share = strength * self.targets.scale / self.n_rows
        return losses + share.to(losses.dtype) * self._penalty(edges, tables)

    def without_penalty(self, codes: Tensor, numbers: Tensor, seen: Tensor | None) -> Float[Tensor, " n"]:
        edges, tables = self.layer.edge_probs(), self.cells.levels.tables(self.layer.components)
        return self.log_losses(codes, numbers, seen, edges, tables)

    def log_losses(
        self,
        codes: Tensor,
        numbers: Tensor,
        seen: Tensor | None,
        edges: Float[Tensor, "e k k"],
        tables: Sequence[Float[Tensor, "..."]],
    ) -> Float[Tensor, " n"]:
        """Losses without penalty, given p(z_v | z_parent) and the tables of levels."""
        scores = self.cells(self.layer, codes, numbers, seen, tables)
        if self.targets:
            return -self.targets.row_log_likelihood(self.layer, scores, edges)
        return -self.layer.row_log_prob(scores, edges=edges)

    def _penalty(
        self, edges: Float[Tensor, "e k k"], tables: Sequence[Float[Tensor, "..."]]
    ) -> Float[Tensor, ""]:
        total = edges.new_zeros(())
        if self.shrinks:
            with torch.no_grad():
                weights = self.shrinkage.unsqueeze(-1) * self.layer.state_probs(edges)[1:]
            total = total - (weights * edges.log().sum(-2)).sum()
        if self.smoothing:
            total = total + self.smoothing * self.levels(self.layer, tables)
        return total


def _by_edge(layer: TreeLayer, shrinkage: float | Mapping[str, float]) -> list[float]:
    """Pseudo-counts of every edge, in the order of `edge_probs`."""
    children = list(layer.parents)[1:]
    if not isinstance(shrinkage, Mapping):
        return [check_number("shrinkage", shrinkage, "a finite number ≥ 0")] * len(children)
    if set(shrinkage) != set(children):
        raise ValueError(bad_argument("shrinkage", f"a number for each of {children}", list(shrinkage)))
    return [check_number(f"shrinkage[{name!r}]", shrinkage[name], "a finite number ≥ 0") for name in children]


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
