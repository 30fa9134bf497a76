"""A smoothed identity on integer codes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, SupportsIndex

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn
from torch.distributions import constraints
from torch.distributions.constraints import Constraint

from kdmkit._core.checks import as_tensor, bad_argument, check_label, check_number, is_integer
from kdmkit._core.tensors import broadcast
from kdmkit.kernels.base import Kernel
from kdmkit.kernels.masses import first_occurrences
from kdmkit.kernels.regions import OneOf, Region
from kdmkit.ops import Lookup, Score, Term

# Codes of more categories are compared one by one: the table of a lookup has a column for each.
_LARGEST_TABLE = 1 << 16


class Categorical(Kernel):
    """k²(x, c) = 1 if x = c, else s, on codes 0 … n−1.

    The smoothing s is the probability of another code relative to the component's own; 0 is the identity.

    Args:
        n: the number of categories.
        smoothing: s, in [0, 1).
        trainable: whether s is trained (it must be positive then).

    >>> Categorical(3, smoothing=0.5).probs(torch.tensor([0]))
    tensor([[0.5000, 0.2500, 0.2500]])
    """

    discrete: ClassVar[bool] = True
    has_atoms: bool = True
    components_trainable: ClassVar[bool] = False
    event_dim: int = 0
    support: Constraint = constraints.nonnegative_integer
    logit: Tensor

    def __init__(self, n: SupportsIndex, smoothing: float = 0.0, *, trainable: bool = False) -> None:
        super().__init__()
        self.n = check_size(n, "categories")
        logit = smoothing_logit(smoothing, trainable=trainable)
        self.logit = nn.Parameter(torch.tensor(logit), requires_grad=trainable)

    @property
    def smoothing(self) -> Float[Tensor, ""]:
        """s, between 0 and 1."""
        return self.logit.sigmoid()

    def _table(self, components: Integer[Tensor, "*batch"]) -> Float[Tensor, "*batch n"]:
        """log k² of each component with every code."""
        same = nn.functional.one_hot(components.long(), self.n).bool()
        return torch.where(same, torch.zeros((), device=same.device), self._log_smoothing(same.device))

    def _log_smoothing(self, device: torch.device) -> Tensor:
        finite = torch.isfinite(self.logit)
        safe = nn.functional.logsigmoid(torch.where(finite, self.logit, torch.zeros_like(self.logit)))
        return torch.where(finite, safe, torch.full_like(safe, -math.inf)).to(device)

    def term(self, x: Tensor, components: Tensor) -> Term:
        if self.n > _LARGEST_TABLE:
            return Score(
                _compare, x.unsqueeze(-1), components.unsqueeze(-1), (self._log_smoothing(x.device),)
            )
        return Lookup(x.unsqueeze(-1), self._table(components))

    def log_overlap(self, x: Tensor, components: Tensor) -> Float[Tensor, "*lead"]:
        same = x == components
        return torch.where(same, torch.zeros((), device=same.device), self._log_smoothing(same.device))

    def log_norm(self, components: Tensor) -> Float[Tensor, ""]:
        return -torch.log1p((self.n - 1) * self.smoothing)

    def probs(self, components: Tensor) -> Float[Tensor, "*batch n"]:
        return (self._table(components) + self.log_norm(components)).exp()

    def check_region(self, argument: str, region: Region, event_shape: torch.Size) -> None:
        self._accept(argument, region, OneOf)
        assert isinstance(region, OneOf)
        self.check_events(argument, region.values, event_shape)

    def region_term(self, region: Region, components: Tensor) -> Term:
        self._accept("region", region, OneOf)
        assert isinstance(region, OneOf)
        smoothing = (self.smoothing.to(components.device), self._log_smoothing(components.device))
        return Score(self._set_block, region.values, components.unsqueeze(-1), smoothing)

    def _set_block(self, values: Tensor, components: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        """A set of k codes has the odds 1 + (k − 1)s if it holds the component's own, and ks otherwise."""
        smoothing, log_smoothing = parameters
        ordered, new = first_occurrences(values)
        k = new.sum(-1, keepdim=True).to(smoothing.dtype)
        lead = broadcast(ordered.shape[:-1], (*components.shape[:-2], 1))
        codes = components.mT.expand(*lead, components.shape[-2]).contiguous().to(ordered.dtype)
        ordered = ordered.expand(*lead, ordered.shape[-1]).contiguous()
        place = torch.searchsorted(ordered, codes).clamp_max(ordered.shape[-1] - 1)
        total = 1 + (self.n - 1) * smoothing
        # What is outside the set, so that the set of all codes has the mass 1.
        own = torch.log1p(-(self.n - k) * smoothing / total)
        return torch.where(ordered.gather(-1, place) == codes, own, k.log() + log_smoothing - total.log())

    def mode(self, components: Tensor) -> Tensor:
        return components

    def sample(
        self, components: Tensor, index: Int[Tensor, "*lead"], generator: torch.Generator | None = None
    ) -> Tensor:
        probs = self.probs(components.reshape(-1)).detach()
        return torch.multinomial(probs, 1, generator=generator).view(components.shape)

    def as_events(self, argument: str, value: Any, event_shape: torch.Size, like: Tensor) -> Tensor:
        value = as_tensor(argument, value, like=like)
        return value.long() if is_integer(value) else value

    def check_events(self, argument: str, value: Tensor, event_shape: torch.Size) -> None:
        if not is_integer(value):
            raise TypeError(bad_argument(argument, "integer codes", value.dtype))
        check_label(argument, value, self.n)

    def config(self) -> dict[str, Any]:
        # In float64 a smoothing close to 1 stays below 1.
        smoothing = self.logit.detach().double().sigmoid().item()
        return {"kernel": "Categorical", "n": self.n, "smoothing": smoothing}

    @classmethod
    def from_config(cls, config: dict[str, Any], *, encoder: nn.Module | None = None) -> Categorical:
        return cls(config["n"], config["smoothing"])

    def same_family(self, other: Kernel) -> bool:
        return isinstance(other, Categorical) and other.n == self.n

    def extra_repr(self) -> str:
        return f"n={self.n}, smoothing={self.smoothing.item():.4g}"


def check_size(n: SupportsIndex, what: str) -> int:
    """A number of categories or levels, of any integer type."""
    size = n.__index__() if hasattr(n, "__index__") else 0
    if size < 1:
        raise ValueError(bad_argument("n", f"a number of {what} ≥ 1", n))
    return size


def smoothing_logit(smoothing: float, *, trainable: bool) -> float:
    """logit of a smoothing in [0, 1); a trainable one must be positive."""
    smoothing = check_number("smoothing", smoothing, "0 ≤ smoothing < 1", below=1)
    if trainable and smoothing == 0:
        raise ValueError(bad_argument("smoothing", "> 0 where it is trainable", smoothing))
    return -math.inf if smoothing == 0 else math.log(smoothing) - math.log1p(-smoothing)


def _compare(x: Tensor, components: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    return torch.where(x == components.mT, torch.zeros_like(parameters[0]), parameters[0])
