"""What answers need of the components of a variable, whatever the evidence: computed once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import cached_property
from typing import Any, TypeVar, cast

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit.distributions.quantiles import Knots
from kdmkit.estimators.table.answers.turns import Turn
from kdmkit.kernels import Kernel, Periodic

# Lists of regions of which something is kept.
_KEPT = 4

Kept = TypeVar("Kept")


class Pieces:
    """Moments, modes, probabilities and distribution functions of single components.

    Evidence changes the weights of components only: with these an answer is an average.

    Args:
        kernel: of the variable.
        components: of the variable, without a batch.
    """

    def __init__(self, kernel: Kernel, components: Tensor) -> None:
        self.kernel, self.components = kernel, components
        self._kept: dict[Hashable, Any] = {}

    @cached_property
    def probs(self) -> Float[Tensor, "m n"]:
        """Of every level."""
        return self.kernel.probs(self.components).double()

    @cached_property
    def mean_features(self) -> Float[Tensor, "m v"]:
        return self.kernel.mean_features(self.components).double()

    @cached_property
    def moments(self) -> Float[Tensor, "m 2"]:
        """Mean and variance."""
        mean, variance = self.kernel.mean(self.components), self.kernel.variance(self.components)
        return torch.stack([mean.reshape(-1), variance.reshape(-1)], -1).double()

    @cached_property
    def modes(self) -> Tensor:
        return self.kernel.mode(self.components)

    @cached_property
    def knots(self) -> Knots:
        return Knots.of(self.kernel, self.components)

    @cached_property
    def turn(self) -> Turn:
        """Of digits that go round: the kernel has a period."""
        return Turn(cast(Periodic, self.kernel), self.components)

    def kept(self, regions: Hashable, compute: Callable[[], Kept]) -> Kept:
        """What is computed of a list of regions; once for each of the last lists."""
        if regions not in self._kept:
            self._kept = dict([*self._kept.items(), (regions, compute())][-_KEPT:])
        found: Kept = self._kept[regions]
        return found


def pieces_of(kernels: Mapping[str, Kernel], components: Mapping[str, Tensor]) -> dict[str, Pieces]:
    """By variable."""
    return {name: Pieces(kernel, components[name]) for name, kernel in kernels.items()}
