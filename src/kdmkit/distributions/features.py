"""Numbers of every component to average over a mixture: probabilities of labels, and parts of means."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit.kernels import Kernel

# Components whose numbers are computed at a time, to bound memory.
_STEP = 1 << 18


@dataclass(frozen=True, eq=False)
class Features:
    """A kernel's numbers of components, computed when they are needed.

    Args:
        name: the kernel's method that computes them.
    """

    kernel: Kernel
    components: Tensor
    name: Literal["probs", "mean_features"]

    @property
    def ndim(self) -> int:
        """The number of dimensions of `numbers()`."""
        return self.components.ndim - self.kernel.component_dim + 1

    @property
    def by_row(self) -> bool:
        """Whether components have no batch, and their numbers can be computed for some of them."""
        return self.ndim == 2 and not self.kernel.per_component

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that the numbers are computed from."""
        return [self.components, *self.kernel.parameters(), *self.kernel.buffers()]

    def rows(self, index: Int[Tensor, " k"] | slice) -> Float[Tensor, "k v"]:
        """The numbers of some components; needs `by_row`."""
        values: Tensor = getattr(self.kernel, self.name)(self.components[index])
        return values

    def blocks(self) -> Iterator[tuple[slice, Float[Tensor, "k v"]]]:
        """The numbers of all components, some at a time; needs `by_row`."""
        for start in range(0, len(self.components), _STEP):
            place = slice(start, start + _STEP)
            yield place, self.rows(place)

    def numbers(self) -> Float[Tensor, "*batch m v"]:
        """The numbers of all components."""
        many = self.by_row and len(self.components) > _STEP
        if not many or (torch.is_grad_enabled() and any(x.requires_grad for x in self.tensors)):
            values: Tensor = getattr(self.kernel, self.name)(self.components)
            return values
        # Kernels take several times the memory of the result.
        few = self.rows(slice(0, 1))
        total = few.new_empty(len(self.components), few.shape[1])
        for place, block in self.blocks():
            total[place] = block
        return total


#: Numbers of every component, given or to be computed.
Values = Tensor | Features


def as_numbers(values: Values) -> Float[Tensor, "*batch m v"]:
    return values.numbers() if isinstance(values, Features) else values
