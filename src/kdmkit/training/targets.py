"""Learning to predict some columns of a table: conditional likelihoods beside the joint one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kdmkit._core.checks import bad_argument, check_instance, check_number
from kdmkit.nn import DrawingModule, TreeLayer
from kdmkit.training.loop import fit
from kdmkit.training.options import FitOptions
from kdmkit.training.table import Packing, Table, packed_rows


class TargetObjective(DrawingModule):
    """−log p(x) − w·Σ_t log p(x_t | x_S): the joint likelihood, and that of targets given other columns.

    S are the observed cells of the other columns, less those that are hidden: in every training step a row
    hides each cell with a probability of its own, uniform between 0 and `masking`. So the targets are learned
    given many subsets of the others. p(x) is the same distribution as before, and all questions stay
    consistent.

    Args:
        layer: the tree.
        packing: how rows lie in the tensors of a batch.
        targets: the variables to predict, in groups that are predicted together: parts of one column.
        weight: w.
        masking: the largest share of hidden cells.
    """

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
        self.layer, self.packing = layer, packing
        self.targets = [tuple(group) for group in targets]
        self.weight = check_number("weight", weight, "a finite number ≥ 0")
        self.masking = check_number("masking", masking, "0 ≤ masking < 1", below=1)
        self._groups = layer.equal_kernels()

    def forward(
        self, codes: Int[Tensor, "n c"], numbers: Float[Tensor, "n f"], seen: Bool[Tensor, "n v"]
    ) -> Float[Tensor, " n"]:
        edges = self.layer.edge_probs()
        losses = -self._log_prob(codes, numbers, seen, edges)
        if self.training and self.masking:
            share = self.masking * self.uniform(seen[:, :1])
            seen = seen & ((self.uniform(seen) >= share) | self._is_target(seen))
        for group in self.targets:
            places = [list(self.packing.places).index(name) for name in group]
            without = seen.clone()
            without[:, places] = False
            together = self._log_prob(codes, numbers, seen, edges)
            losses = losses - self.weight * (together - self._log_prob(codes, numbers, without, edges))
        return losses

    def _is_target(self, seen: Bool[Tensor, "n v"]) -> Bool[Tensor, " v"]:
        named = {name for group in self.targets for name in group}
        return torch.tensor([name in named for name in self.packing.places], device=seen.device)

    def _log_prob(
        self, codes: Tensor, numbers: Tensor, seen: Tensor, edges: Float[Tensor, "e k k"]
    ) -> Float[Tensor, " n"]:
        values, masks = self.packing.unpack(codes, numbers, seen)
        return self.layer.row_log_prob(values, masks, groups=self._groups, edges=edges)


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
        train, validation: rows to learn from, and rows that decide when to stop and which weights are best.
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
    try:
        return fit(objective, rows, held, options=options, identity=described, description="targets")
    finally:
        objective.zero_grad(set_to_none=True)
