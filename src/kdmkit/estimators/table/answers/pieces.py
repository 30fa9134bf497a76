"""What answers need of the components of a variable, whatever the evidence: computed once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import cached_property
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit.distributions.quantiles import Knots
from kdmkit.estimators.table.answers.turns import Turn
from kdmkit.kernels import Kernel, Periodic

# Lists of regions whose masses are kept.
_KEPT = 4


class Pieces:
    """Moments, modes, probabilities and distribution functions of single components.

    Evidence changes the weights of components only: with these an answer is an average.

    Args:
        kernel: of the variable.
        components: of the variable, without a batch.
    """

    def __init__(self, kernel: Kernel, components: Tensor) -> None:
        self.kernel, self.components = kernel, components
        self._masses: dict[Hashable, Tensor] = {}

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

    def masses(self, regions: Hashable, compute: Callable[[], Float[Tensor, "n m"]]) -> Float[Tensor, "n m"]:
        """Of n regions; computed once for each of the last lists of regions."""
        found = self._masses.get(regions)
        if found is None:
            found = compute()
            self._masses = dict([*self._masses.items(), (regions, found)][-_KEPT:])
        return found


def pieces_of(kernels: Mapping[str, Kernel], components: Mapping[str, Tensor]) -> dict[str, Pieces]:
    """By variable."""
    return {name: Pieces(kernel, components[name]) for name, kernel in kernels.items()}
