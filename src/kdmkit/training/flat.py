"""Learning a flat joint KDM of a table: its likelihood, with missing cells."""

from __future__ import annotations

from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kdmkit._core.checks import check_instance, check_number
from kdmkit.nn import DrawingModule, JointLayer
from kdmkit.training.loop import fit
from kdmkit.training.options import FitOptions
from kdmkit.training.packing import Packing, Table, packed_rows
from kdmkit.training.tree_fit import tree_options


class FlatObjective(DrawingModule):
    """−log p(observed part of a row) of a joint KDM; while training, cells are hidden at random.

    Args:
        layer: the joint.
        packing: how rows lie in the tensors of a batch.
        has_missing: whether cells are missing.
        masking: the probability that a cell is hidden, and integrated out.

    >>> import torch, kdmkit as kdm
    >>> layer = kdm.nn.JointLayer(1, 1, n_components=4)
    >>> table = kdm.training.Table({"x": torch.randn(9, 1), "y": torch.randn(9, 1)})
    >>> packing = Packing(layer, table)
    >>> objective = FlatObjective(layer, packing, has_missing=False, masking=0.0)
    >>> objective(*packing.rows(table).tensors).shape
    torch.Size([9])
    """

    def __init__(self, layer: JointLayer, packing: Packing, *, has_missing: bool, masking: float) -> None:
        super().__init__()
        self.has_missing = has_missing
        self.masking = check_number("masking", masking, "0 ≤ masking < 1", below=1)
        self.losses = _Losses(layer, packing)

    def forward(
        self, codes: Int[Tensor, "n c"], numbers: Float[Tensor, "n f"], seen: Bool[Tensor, "n v"]
    ) -> Float[Tensor, " n"]:
        hidden = self.training and self.masking > 0
        if hidden:
            seen = seen & (self.uniform(seen) >= self.masking)
        given = (codes, numbers, seen) if hidden or self.has_missing else (codes, numbers)
        found: Tensor = self.losses(*given)
        return found


class _Losses(nn.Module):
    def __init__(self, layer: JointLayer, packing: Packing) -> None:
        super().__init__()
        self.layer, self.packing = layer, packing

    def forward(self, codes: Tensor, numbers: Tensor, seen: Tensor | None = None) -> Float[Tensor, " n"]:
        values, masks = self.packing.unpack(codes, numbers, seen)
        return -self.layer.joint(validate_args=False).log_prob(observed=masks, **values)


def fit_joint(
    layer: JointLayer,
    train: Table,
    validation: Table | None = None,
    *,
    options: FitOptions | None = None,
    masking: float = 0.0,
    identity: dict[str, Any] | None = None,
) -> list[dict[str, float]]:
    """Maximises the likelihood of a table under a joint KDM that `initialize` has started.

    Args:
        layer: changed in place.
        train: the rows to learn from. Rows with missing cells count with their observed part.
        validation: the rows that decide when to stop and which weights are best.
        options: settings of the loop; None is `tree_options(len(rows))`.
        masking: the probability that a cell is hidden while training.
        identity: what else a checkpoint depends on.

    Returns:
        The history, one entry per epoch.

    >>> import torch, kdmkit as kdm
    >>> table = kdm.training.Table({"x": torch.randn(60, 1), "y": torch.randn(60, 1)})
    >>> layer = kdm.nn.JointLayer(1, 1, n_components=4).initialize(*table.columns.values())
    >>> len(fit_joint(layer, table, options=kdm.training.tree_options(60, steps=3)))
    3
    """
    check_instance("layer", layer, JointLayer, "a kdmkit.nn.JointLayer")
    packing, rows, held = packed_rows(layer, train, validation)
    parts = [rows] if held is None else [rows, held]
    has_missing = not all(bool(part.tensors[2].all()) for part in parts)
    objective = FlatObjective(layer, packing, has_missing=has_missing, masking=masking)
    options = tree_options(len(rows)) if options is None else options
    check_instance("options", options, FitOptions, "kdmkit.training.FitOptions")
    described = {"masking": masking, **(identity or {})}
    return fit(objective, rows, held, options=options, identity=described, description="joint")
