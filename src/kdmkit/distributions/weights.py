"""The weights of a mixture: given as numbers, or inferred and computed only when somebody asks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit.distributions.mixing import Entry, mix


class Weights(ABC):
    """A probability vector over m components for every element of a batch."""

    @property
    @abstractmethod
    def batch_shape(self) -> torch.Size: ...

    @property
    @abstractmethod
    def log_weights(self) -> Float[Tensor, "*batch m"]: ...

    @abstractmethod
    def average(self, values: Float[Tensor, "*batch m v"]) -> Float[Tensor, "*batch v"]:
        """Σ_j w_j v_j."""

    @abstractmethod
    def log_mix(self, entries: Sequence[Entry]) -> Float[Tensor, "*lead"]:
        """log Σ_j w_j exp(scores_j)."""

    @abstractmethod
    def to(self, *args: object, **kwargs: object) -> Weights:
        """The same weights on another device or in another dtype."""


class Given(Weights):
    """Weights that are there."""

    def __init__(self, log_weights: Float[Tensor, "*batch m"]) -> None:
        self._log_weights = log_weights

    @property
    def batch_shape(self) -> torch.Size:
        return self._log_weights.shape[:-1]

    @property
    def log_weights(self) -> Float[Tensor, "*batch m"]:
        return self._log_weights

    def average(self, values: Float[Tensor, "*batch m v"]) -> Float[Tensor, "*batch v"]:
        weights = self._log_weights.to(values.dtype).exp()
        if values.ndim == 2:
            return torch.matmul(weights, values)
        return torch.matmul(weights.unsqueeze(-2), values).squeeze(-2)

    def log_mix(self, entries: Sequence[Entry]) -> Float[Tensor, "*lead"]:
        return mix(entries, self._log_weights)[1]

    def to(self, *args: object, **kwargs: object) -> Given:
        return Given(self._log_weights.to(*args, **kwargs))  # type: ignore[call-overload]
