"""The weights of a mixture: given as numbers, or inferred and computed when they are first read."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import as_tensor, bad_argument, check_dtype, check_log_weights, check_weights
from kdmkit._core.logspace import safe_log
from kdmkit.distributions.features import Features, Values, as_numbers
from kdmkit.distributions.mixing import Entry, mix
from kdmkit.kernels import Kernel

# A product adds one term after the other: over a million of them float32 would keep two digits.
_BLOCK = 4096

#: Averages of values (None without any), and logsumexps.
Mixed = tuple[Float[Tensor, "*lead v"] | None, Float[Tensor, "*lead"]]
#: A function of tensors and of kernels that returns its argument's kind.
PartMap = Callable[[Any], Any]


class Weights(ABC):
    """A probability vector over m components for every element of a batch."""

    @property
    @abstractmethod
    def batch_shape(self) -> torch.Size: ...

    @property
    @abstractmethod
    def log_weights(self) -> Float[Tensor, "*batch m"]: ...

    @abstractmethod
    def average(self, values: Values) -> Float[Tensor, "*batch v"]:
        """Σ_j w_j v_j of values `(*own, m, v)`; their leading dimensions broadcast with the batch."""

    def mix(self, entries: Sequence[Entry], values: Values | None = None) -> Mixed:
        """log Σ_j w_j exp(scores_j), and averages of values under the weights w_j exp(scores_j)."""
        numbers = None if values is None else as_numbers(values)
        return mix(entries, self.log_weights, numbers)

    @abstractmethod
    def log_mix(self, entries: Sequence[Entry]) -> Float[Tensor, "*lead"]:
        """log Σ_j w_j exp(scores_j)."""

    @abstractmethod
    def mapped(self, function: PartMap) -> Weights:
        """The same weights made of `function`'s values of all tensors and kernels."""

    @abstractmethod
    def expand(self, batch_shape: torch.Size) -> Weights:
        """The same weights with more elements in the batch."""

    @property
    def log_evidence(self) -> Float[Tensor, "*batch"]:
        """The log-density of the evidence from which the weights were inferred."""
        raise AttributeError("log_evidence: only a KDM that `infer` returned has evidence")


class Given(Weights):
    """Weights that are known as numbers.

    Args:
        log_weights: their logarithms.
        source: the weights whose evidence they share, where they were computed from inferred ones.
    """

    def __init__(self, log_weights: Float[Tensor, "*batch m"], source: Weights | None = None) -> None:
        self._log_weights, self._source = log_weights, source

    @property
    def log_evidence(self) -> Float[Tensor, "*batch"]:
        return super().log_evidence if self._source is None else self._source.log_evidence

    @property
    def batch_shape(self) -> torch.Size:
        return self._log_weights.shape[:-1]

    @property
    def log_weights(self) -> Float[Tensor, "*batch m"]:
        return self._log_weights

    def average(self, values: Values) -> Float[Tensor, "*batch v"]:
        if isinstance(values, Features) and values.by_row and not self.batch_shape:
            parts = [_weighted_sum(self._log_weights[place], part) for place, part in values.blocks()]
            return torch.stack(parts).sum(0)
        return _weighted_sum(self._log_weights, as_numbers(values))

    def log_mix(self, entries: Sequence[Entry]) -> Float[Tensor, "*lead"]:
        return self.mix(entries)[1]

    def mapped(self, function: PartMap) -> Given:
        source = None if self._source is None else self._source.mapped(function)
        return Given(function(self._log_weights), source)

    def expand(self, batch_shape: torch.Size) -> Given:
        source = None if self._source is None else self._source.expand(batch_shape)
        return Given(self._log_weights.expand(*batch_shape, self._log_weights.shape[-1]), source)


def _weighted_sum(
    log_weights: Float[Tensor, "*batch m"], values: Float[Tensor, "*own m v"]
) -> Float[Tensor, "*lead v"]:
    weights = log_weights.to(values.dtype).exp()
    if values.ndim > 2:
        weights = weights.unsqueeze(-2)
    whole = len(weights) // _BLOCK * _BLOCK if weights.ndim == 1 else 0
    if whole:
        # All blocks in one call: a GPU would wait for thousands of small ones.
        products = weights[:whole].view(-1, 1, _BLOCK) @ values[:whole].reshape(-1, _BLOCK, values.shape[1])
        return products.sum(0).squeeze(0) + weights[whole:] @ values[whole:]
    blocks = zip(weights.split(_BLOCK, -1), values.split(_BLOCK, -2), strict=True)
    average = torch.stack([torch.matmul(w, v) for w, v in blocks]).sum(0)
    return average.squeeze(-2) if values.ndim > 2 else average


class Composite(ABC):
    """What all distributions share: they are made of tensors and kernels."""

    batch_shape: torch.Size
    _set: Callable[..., None]

    @classmethod
    def _made(cls, *parts: Any) -> Self:
        """A distribution from checked parts, the arguments of `_set`, as inference and layers make them."""
        made = cls.__new__(cls)
        made._set(*parts)
        return made

    @abstractmethod
    def _mapped(self, function: PartMap) -> Self:
        """The distribution made of `function`'s values of all tensors and kernels."""

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """The same on another device or in another dtype; kernels are copied, never moved.

        What was inferred moves with its evidence and with the joint it was inferred from: it stays
        uncomputed, and keeps `log_evidence`.
        """
        return self._mapped(mover(*args, **kwargs))

    def __deepcopy__(self, memo: dict[Any, Any]) -> Self:
        return self._mapped(copier(memo))


class Mixture(Composite):
    """What KDM and JointKDM share: components with weights."""

    _weights: Weights

    @property
    @abstractmethod
    def n_components(self) -> int: ...

    @property
    def weights(self) -> Float[Tensor, "*batch m"]:
        """p, of shape `(*batch, m)`."""
        return self.log_weights.exp()

    @property
    def log_weights(self) -> Float[Tensor, "*batch m"]:
        """ℓ = log p, of shape `(*batch, m)`."""
        return self._weights.log_weights.expand(*self.batch_shape, self.n_components)

    @property
    def log_evidence(self) -> Float[Tensor, "*batch"]:
        """log Σ_l p_l f̂(x_l) of the evidence this was inferred from; −∞ where nothing overlaps it."""
        return self._weights.log_evidence.expand(self.batch_shape)


def given_weights(weights: Any, log_weights: Any, components: Tensor, m_dim: int, *, validate: bool) -> Given:
    """The mixture's weights from whichever form the user gave."""
    m = components.shape[m_dim]
    like = components if components.is_floating_point() else torch.zeros((), device=components.device)
    if weights is None and log_weights is None:
        return Given(torch.full((m,), -math.log(m), dtype=like.dtype, device=like.device))
    if weights is not None and log_weights is not None:
        raise ValueError(bad_argument("weights", "either weights or log_weights", "both"))
    argument = "weights" if log_weights is None else "log_weights"
    tensor = as_tensor(argument, weights if log_weights is None else log_weights, like=like)
    if tensor.ndim == 0 or tensor.shape[-1] != m:
        raise ValueError(bad_argument(argument, f"shape (..., {m}), one per component", tuple(tensor.shape)))
    if log_weights is None:
        if tensor.dtype == torch.bool:
            raise TypeError(bad_argument(argument, "numbers", tensor.dtype))
        if not tensor.is_floating_point():
            tensor = tensor.to(like.dtype)
        if validate:
            check_weights(argument, tensor)
        return Given(safe_log(tensor))
    if validate:
        check_log_weights(argument, tensor)
    return Given(tensor)


def mover(*args: Any, **kwargs: Any) -> PartMap:
    """What `to(*args, **kwargs)` does to a part of a KDM; integers and masks keep their dtype."""
    try:
        moved = torch.empty(0).to(*args, **kwargs)
    except (RuntimeError, TypeError, AssertionError) as error:
        got = ", ".join(map(repr, (*args, *kwargs.values())))
        raise ValueError(bad_argument("device, dtype", "a device of this machine or a dtype", got)) from error
    check_dtype("dtype", moved.dtype)

    def move(part: Any) -> Any:
        if isinstance(part, Kernel):
            return copy.deepcopy(part).to(*args, **kwargs)
        moved = part.to(*args, **kwargs)
        return moved if part.is_floating_point() else part.to(moved.device)

    return move


def copier(memo: dict[Any, Any]) -> PartMap:
    """What `copy.deepcopy` does to a part of a KDM.

    Data and parameters are copied as such. torch refuses to copy results of a computation that carry
    gradients: here their copies have storage of their own and stay in the graph.
    """

    def copied(part: Any) -> Any:
        result = isinstance(part, Tensor) and not part.is_leaf
        return part.clone() if result else copy.deepcopy(part, memo)

    return copied


def each(function: PartMap, parts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: function(part) for name, part in parts.items()}
