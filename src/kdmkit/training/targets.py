"""Learning to predict some columns of a table: conditional likelihoods beside the joint one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kdmkit._core.checks import bad_argument, check_instance, check_number
from kdmkit.nn import DrawingModule, TreeLayer
from kdmkit.training.graphs import Graphed, expected_streams
from kdmkit.training.loop import fit
from kdmkit.training.options import FitOptions
from kdmkit.training.rows import Rows
from kdmkit.training.table import Packing, Table, packed_rows

# Rows per forward pass without gradients.
_EVALUATION_ROWS = 4096


class TargetObjective(DrawingModule):
    """−log p(x_S, x_T) − w·Σ_t log p(x_t | x_S, x_{T∖t}): a joint likelihood, and those of targets T.

    S are the observed cells of the other columns, less those that are hidden. In every training step one half
    of the rows hides none; a row of the other half hides each cell with a probability of its own, uniform
    between 0 and `masking`. So the targets are learned given all others and given many subsets of them. p(x)
    is one distribution, and all questions stay consistent.

    Args:
        layer: the tree.
        packing: how rows lie in the tensors of a batch.
        targets: the variables to predict, in groups that are predicted together: parts of one column.
        weight: w.
        masking: the largest share of hidden cells.
    """

    is_target: Tensor

    def __init__(
        self,
        layer: TreeLayer,
        packing: Packing,
        targets: Sequence[Sequence[str]],
        *,
        weight: float = 1.0,
        masking: float = 0.5,
    ) -> None:
        super().__init__()
        unknown = [name for group in targets for name in group if name not in layer.variables]
        if unknown or not targets:
            raise ValueError(bad_argument("targets", f"variables among {list(layer.variables)}", unknown))
        self.targets = [tuple(group) for group in targets]
        self.weight = check_number("weight", weight, "a finite number ≥ 0")
        self.masking = check_number("masking", masking, "0 ≤ masking < 1", below=1)
        named = {name for group in self.targets for name in group}
        is_target = torch.tensor([name in named for name in packing.places])
        self.register_buffer("is_target", is_target, persistent=False)
        self.losses = _TargetLosses(layer, packing, self.targets, self.weight)
        # Not a submodule: it has no state of its own.
        self._training_losses = Graphed(self.losses)

    def forward(
        self, codes: Int[Tensor, "n c"], numbers: Float[Tensor, "n f"], seen: Bool[Tensor, "n v"]
    ) -> Float[Tensor, " n"]:
        if not self.training:
            found: Tensor = self.losses(codes, numbers, seen)
            return found
        if self.masking:
            share = self.masking * (2 * self.uniform(seen[:, :1]) - 1).clamp_min(0)
            seen = seen & ((self.uniform(seen) >= share) | self.is_target)
        found = self._training_losses(codes, numbers, seen)
        return found


class _TargetLosses(nn.Module):
    """The losses of rows whose hidden cells are given."""

    def __init__(
        self, layer: TreeLayer, packing: Packing, targets: Sequence[tuple[str, ...]], weight: float
    ) -> None:
        super().__init__()
        self.layer, self.packing, self.targets, self.weight = layer, packing, targets, weight
        self._groups = layer.equal_kernels()

    def forward(self, codes: Tensor, numbers: Tensor, seen: Tensor) -> Float[Tensor, " n"]:
        edges = self.layer.edge_probs()
        found = [self._log_probs(codes, numbers, seen, group, edges) for group in self.targets]
        # Every target's pass finds log p(row): the same number.
        return -found[0][0] - self.weight * sum(conditional for _, conditional in found)

    def _log_probs(
        self, codes: Tensor, numbers: Tensor, seen: Tensor, group: Sequence[str], edges: Tensor
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """log p(row) and log p(group | rest of the row)."""
        values, masks = self.packing.unpack(codes, numbers, seen)
        assert masks is not None
        shared: dict[str, Any] = {"groups": self._groups, "edges": edges}
        if len(group) == 1:
            return self.layer.row_log_conditional(values, masks, group[0], **shared)
        together = self.layer.row_log_prob(values, masks, **shared)
        hidden = {name: torch.zeros_like(masks[name]) for name in group}
        return together, together - self.layer.row_log_prob(values, {**masks, **hidden}, **shared)


def fit_targets(
    layer: TreeLayer,
    targets: Sequence[Sequence[str]],
    train: Table,
    validation: Table | None = None,
    *,
    options: FitOptions,
    weight: float = 1.0,
    masking: float = 0.5,
    identity: dict[str, Any] | None = None,
) -> list[dict[str, float]]:
    """Trains a fitted tree further, so that it predicts some of its variables better.

    Args:
        layer: changed in place.
        targets: groups of variables, see `TargetObjective`.
        train: rows to learn from.
        validation: rows that decide when to stop and which weights are best, those at the start among them.
        options: settings of the loop.
        weight, masking: see `TargetObjective`.
        identity: what else a checkpoint depends on.

    Returns:
        The history, one entry per epoch.
    """
    check_instance("layer", layer, TreeLayer, "a kdmkit.nn.TreeLayer")
    packing, rows, held = packed_rows(layer, train, validation)
    objective = TargetObjective(layer, packing, targets, weight=weight, masking=masking)
    described = {"targets": objective.targets, "weight": weight, "masking": masking, **(identity or {})}
    start = {name: value.clone() for name, value in objective.state_dict().items()}
    try:
        with expected_streams():
            history = fit(objective, rows, held, options=options, identity=described, description="targets")
        if held is not None:
            _keep_better(objective, start, held)
        return history
    finally:
        objective.zero_grad(set_to_none=True)


@torch.no_grad()
def _keep_better(objective: TargetObjective, start: dict[str, Tensor], held: Rows) -> None:
    """Puts the first weights back where the loss of the held-out rows is not lower than with them."""
    held = held.to(next(objective.parameters()).device)
    found = {name: value.clone() for name, value in objective.state_dict().items()}
    loss = _mean_loss(objective, held)
    objective.load_state_dict(start)
    if loss < _mean_loss(objective, held):
        objective.load_state_dict(found)


def _mean_loss(objective: TargetObjective, rows: Rows) -> float:
    objective.eval()
    total = 0.0
    for index in torch.arange(len(rows), device=rows.tensors[0].device).split(_EVALUATION_ROWS):
        tensors, weights = rows.take(index)
        losses = objective(*tensors).double()
        total += float(losses.sum() if weights is None else (losses * weights).sum())
    return total / float(rows.weight())
