"""The rows that a fit learns from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit._core.checks import bad_argument, check_finite


@dataclass(frozen=True)
class Rows:
    """Tensors with one entry per sample, and a weight for each (None: 1).

    Args:
        tensors: the arguments of an objective.
        weights: of the entries.
        sizes: the number of data rows that an entry stands for, for example those of a bag (None: 1). Noise
            is drawn per data row.

    >>> rows = Rows((torch.zeros(3, 2), torch.tensor([0, 1, 1])), weights=torch.tensor([1.0, 1.0, 2.0]))
    >>> len(rows)
    3
    """

    tensors: tuple[Tensor, ...]
    weights: Float[Tensor, " n"] | None = None
    sizes: Int[Tensor, " n"] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.tensors, Sequence) or not all(map(torch.is_tensor, self.tensors)):
            raise TypeError(bad_argument("rows", "a tuple of tensors", type(self.tensors).__name__))
        lengths = set(map(len, self.tensors))
        if len(lengths) != 1 or 0 in lengths:
            wanted = "one or more rows, as many in every tensor"
            raise ValueError(bad_argument("rows", wanted, sorted(lengths)))
        if self.weights is not None:
            self._check_weights(self.weights)

    def _check_weights(self, weights: Tensor) -> None:
        if weights.shape != (len(self),):
            raise ValueError(bad_argument("weights", f"shape ({len(self)},)", tuple(weights.shape)))
        check_finite("weights", weights)
        if bool((weights < 0).any()) or not bool((weights > 0).any()):
            wanted = "non-negative values, at least one of them positive"
            raise ValueError(bad_argument("weights", wanted, f"a smallest value of {float(weights.min()):g}"))

    def __len__(self) -> int:
        return len(self.tensors[0])

    def to(self, device: torch.device) -> Rows:
        """The same rows on a device."""
        others = [None if part is None else part.to(device) for part in (self.weights, self.sizes)]
        return Rows(tuple(tensor.to(device) for tensor in self.tensors), *others)

    def take(self, index: Tensor) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """The tensors and weights of some rows."""
        weights = None if self.weights is None else self.weights[index]
        return tuple(map(itemgetter(index), self.tensors)), weights

    @property
    def weight(self) -> float:
        """The sum of all weights."""
        return float(len(self) if self.weights is None else self.weights.double().sum())
