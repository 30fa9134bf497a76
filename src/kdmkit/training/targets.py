"""Variables of a tree that will be predicted: their conditional likelihoods beside the joint one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kdmkit._core.checks import bad_argument, check_number
from kdmkit.nn import TreeLayer


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
        """How often the rows count: 1 + w for every group. Penalties count as often."""
        return 1.0 + self.weight * len(self.groups)

    def check(self, layer: TreeLayer) -> None:
        """Raises a ValueError where a target is no variable of the layer."""
        unknown = sorted(self.names - set(layer.variables))
        if unknown:
            raise ValueError(bad_argument("targets", f"variables among {list(layer.variables)}", unknown))

    def config(self) -> dict[str, Any]:
        """Groups and weight in the types of JSON."""
        return {"groups": self.groups, "weight": self.weight}

    def row_log_likelihood(
        self,
        layer: TreeLayer,
        values: Mapping[str, Tensor],
        masks: Mapping[str, Bool[Tensor, " n"]],
        **shared: Any,
    ) -> Float[Tensor, " n"]:
        """The sum of a row's log-likelihoods.

        Args:
            values, masks, shared: as in `TreeLayer.row_log_prob`.
        """
        found = [_log_probs(layer, values, masks, group, **shared) for group in self.groups]
        # Every target's pass finds log p(row): the same number.
        total: Tensor = found[0][0] + self.weight * sum(conditional for _, conditional in found)
        return total


def _log_probs(
    layer: TreeLayer,
    values: Mapping[str, Tensor],
    masks: Mapping[str, Tensor],
    group: Sequence[str],
    **shared: Any,
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """log p(row) and log p(group | rest of the row)."""
    if len(group) == 1:
        return layer.row_log_conditional(values, masks, group[0], **shared)
    together = layer.row_log_prob(values, masks, **shared)
    hidden = {name: torch.zeros_like(masks[name]) for name in group}
    return together, together - layer.row_log_prob(values, {**masks, **hidden}, **shared)
