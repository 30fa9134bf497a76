"""Maximum likelihood of a flat joint KDM, whose columns share one index of components."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from kdmkit.nn import JointLayer
from kdmkit.training import FitOptions, Rows, fit


class FlatLikelihood(nn.Module):
    """−log p(row) under a joint KDM; the columns come in the order of its variables."""

    #: Steps may be replayed as CUDA graphs: nothing here happens in Python alone.
    replayable = True

    def __init__(self, layer: JointLayer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *columns: Tensor) -> Tensor:
        values: dict[str, Any] = dict(zip(self.layer.variables, columns, strict=True))
        return -self.layer.joint(validate_args=False).log_prob(**values)

    def rows(self, columns: Mapping[str, Tensor]) -> Rows:
        """Columns as rows; numbers in the dtype of the layer."""
        dtype = self.layer.weight_logits.dtype
        values = [columns[name] for name in self.layer.variables]
        return Rows(tuple(value.to(dtype) if value.is_floating_point() else value for value in values))


def fit_flat(
    layer: JointLayer, train: Mapping[str, Tensor], validation: Mapping[str, Tensor], options: FitOptions
) -> list[dict[str, float]]:
    """Fits a joint KDM that `initialize` has started; returns the history of the fit."""
    objective = FlatLikelihood(layer)
    return fit(objective, objective.rows(train), objective.rows(validation), options=options)
