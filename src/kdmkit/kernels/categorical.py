"""Kernels of finitely many outcomes, and the smoothed identity on integer codes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, SupportsIndex

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn
from torch.distributions import constraints
from torch.distributions.constraints import Constraint

from kdmkit._core.checks import (
    as_tensor,
    bad_argument,
    check_label,
    check_number,
    is_integer,
)
from kdmkit._core.logspace import log_add, log_normalize, safe_logsumexp
from kdmkit._core.tensors import broadcast
from kdmkit.kernels.bandwidth import requires_gradient
from kdmkit.kernels.base import Kernel
from kdmkit.kernels.feature_map import FeatureMap, positive_inner_products
from kdmkit.kernels.region_forms import first_occurrences, pack_codes
from kdmkit.kernels.regions import NOTHING, WHOLE, OneOf, Region
from kdmkit.ops import Lookup, Score, Term

# Codes of more categories are compared one by one: the table of a lookup has a column for each.
_LARGEST_TABLE = 1 << 16
# Numbers of (region, component, code) that exist at once in masses of sets.
_NUMBERS = 1 << 22


class Coded(Kernel, ABC):
    """A kernel of finitely many outcomes, which have the codes 0 … n − 1.

    >>> import kdmkit as kdm
    >>> isinstance(kdm.Levels(3), Coded), isinstance(kdm.RBF(1.0), Coded)
    (True, False)
    """

    discrete: ClassVar[bool] = True
    has_atoms: bool = True

    @abstractmethod
    def n_codes(self, event_shape: torch.Size) -> int:
        """The number of outcomes."""

    @abstractmethod
    def log_table(self, components: Tensor) -> Float[Tensor, "*batch m n"]:
        """The log-probability of every code under each component."""

    def pack(
        self, argument: str, region: Region, event_shape: torch.Size, device: torch.device | None = None
    ) -> Int[Tensor, "*lead k"]:
        n = self.n_codes(event_shape)
        if isinstance(region, OneOf):
            values = region.values
            codes = values if region.is_batch else as_tensor(argument, [v for v in values if v is not None])
            if codes.numel():
                check_codes(argument, codes, n)
        return pack_codes(argument, region, n, device)

    def region_term(self, packed: Int[Tensor, "*lead n k"], components: Tensor) -> Term:
        return Score(set_masses, packed, self.log_table(components))

    def trimmed(self, region: Region, event_shape: torch.Size) -> Region:
        if region.is_batch:
            return region
        codes = pack_codes("region", region, self.n_codes(event_shape))
        if len(codes) == self.n_codes(event_shape):
            return WHOLE
        return NOTHING if int(codes[0]) < 0 else region

    def mixed(
        self, log_shares: Float[Tensor, "m k"], parts: Sequence[tuple[Kernel, Tensor]]
    ) -> tuple[Kernel, Tensor]:
        tables = [kernel.log_table(c) for kernel, c in parts if isinstance(kernel, Coded)]
        # Components without a share have any distribution.
        log_shares = torch.where(torch.isneginf(log_shares).all(-1, keepdim=True), 0.0, log_shares)
        every = torch.stack(torch.broadcast_tensors(*tables), -1) + log_shares.unsqueeze(-2)
        return self.from_log_table(log_normalize(safe_logsumexp(every)))

    def from_log_table(self, table: Float[Tensor, "m n"]) -> tuple[Kernel, Tensor]:
        """A kernel and components with these log-probabilities."""
        from kdmkit.kernels.levels import Levels  # not above: that module imports this one

        return Levels(table.shape[-1]), table

    def restricted(self, region: Region, components: Tensor) -> tuple[Kernel, Tensor]:
        return self.from_log_table(self.log_table_inside(region, components))

    def log_table_inside(self, region: Region, components: Tensor) -> Float[Tensor, "m n"]:
        """The log-probabilities given that the outcome lies in a region; rows without mass stay."""
        table = self.log_table(components)
        codes = pack_codes("region", region, table.shape[-1], table.device)
        inside = torch.full_like(table, -math.inf)
        inside[..., codes] = table[..., codes]
        dead = torch.isneginf(inside).all(-1, keepdim=True)
        return torch.where(dead, table, log_normalize(inside))


class Categorical(Coded, FeatureMap):
    """k²(x, c) = 1 if x = c, else s, on codes 0 … n−1.

    The smoothing s is the probability of another code relative to the component's; 0 is the identity.

    Args:
        n: the number of categories.
        smoothing: s, in [0, 1), without gradients.
        trainable: whether s is trained (it must be positive then).

    >>> Categorical(3, smoothing=0.5).probs(torch.tensor([0]))
    tensor([[0.5000, 0.2500, 0.2500]])
    """

    components_trainable: ClassVar[bool] = False
    event_dim: int = 0
    component_dim: int = 0
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

    inner_products = positive_inner_products

    def log_norm(self, components: Tensor) -> Float[Tensor, ""]:
        return -torch.log1p((self.n - 1) * self.smoothing)

    def probs(self, components: Tensor) -> Float[Tensor, "*batch n"]:
        return (self._table(components) + self.log_norm(components)).exp()

    def n_codes(self, event_shape: torch.Size) -> int:
        return self.n

    def log_table(self, components: Tensor) -> Float[Tensor, "*batch m n"]:
        return self._table(components) + self.log_norm(components)

    def region_term(self, packed: Int[Tensor, "*lead n k"], components: Tensor) -> Term:
        smoothing = (self.smoothing.to(components.device), self._log_smoothing(components.device))
        return Score(self._set_block, packed, components.unsqueeze(-1), smoothing)

    def _set_block(self, values: Tensor, components: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        """A set of k codes has the odds 1 + (k − 1)s if it holds the component's code, and ks otherwise."""
        smoothing, log_smoothing = parameters
        ordered, new = first_occurrences(values)
        k = (new & (ordered >= 0)).sum(-1, keepdim=True).to(smoothing.dtype)
        lead = broadcast(ordered.shape[:-1], (*components.shape[:-2], 1))
        codes = components.mT.expand(*lead, components.shape[-2]).contiguous().to(ordered.dtype)
        ordered = ordered.expand(*lead, ordered.shape[-1]).contiguous()
        place = torch.searchsorted(ordered, codes).clamp_max(ordered.shape[-1] - 1)
        total = 1 + (self.n - 1) * smoothing
        # The complement of the mass outside of the set, so that the set of all codes has the mass 1.
        inside = torch.log1p(-(self.n - k) * smoothing / total)
        return torch.where(ordered.gather(-1, place) == codes, inside, k.log() + log_smoothing - total.log())

    def mode(self, components: Tensor) -> Tensor:
        return components

    def sample(
        self, components: Tensor, index: Int[Tensor, "*lead"], generator: torch.Generator | None = None
    ) -> Tensor:
        probs = self.probs(components.reshape(-1)).detach()
        return torch.multinomial(probs, 1, generator=generator).view(components.shape)

    def check_events(self, argument: str, value: Tensor, event_shape: torch.Size) -> None:
        check_codes(argument, value, self.n)

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


def check_codes(argument: str, value: Tensor, n: int) -> None:
    """Raises if `value` holds anything but integers in 0 … n−1."""
    if not is_integer(value):
        raise TypeError(bad_argument(argument, "integer codes", value.dtype))
    check_label(argument, value, n)


def smoothing_logit(smoothing: float, *, trainable: bool) -> float:
    """logit of a smoothing in [0, 1); a trainable one must be positive."""
    if requires_gradient(smoothing) and not trainable:
        wanted = "a number or a tensor without gradients (trainable=True trains the smoothing)"
        raise ValueError(bad_argument("smoothing", wanted, "a tensor that requires them"))
    smoothing = check_number("smoothing", smoothing, "0 ≤ smoothing < 1", below=1)
    if trainable and smoothing == 0:
        raise ValueError(bad_argument("smoothing", "> 0 if it is trainable", smoothing))
    return -math.inf if smoothing == 0 else math.log(smoothing) - math.log1p(-smoothing)


def read_codes(table: Float[Tensor, "*batch n"], codes: Tensor) -> Float[Tensor, "*lead"]:
    """The entries of a table at codes; leading dimensions broadcast against each other."""
    lead = broadcast(codes.shape, table.shape[:-1])
    index = codes.long().expand(lead).unsqueeze(-1)
    return table.expand(*lead, table.shape[-1]).gather(-1, index).squeeze(-1)


def set_masses(values: Tensor, table: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """log Σ_k exp(table[j, code_ik]) over the distinct codes of each set, in blocks of k; −1 is no code."""
    codes, new = first_occurrences(values.long())
    columns, n, m = table.mT, codes.shape[-2], table.shape[-2]
    lead = broadcast(codes.shape[:-2], table.shape[:-2])
    columns = columns.expand(*lead, *columns.shape[-2:])
    step = max(1, _NUMBERS // max(1, math.prod(lead) * n * m))
    parts = []
    for some, kept in zip(codes.split(step, -1), new.split(step, -1), strict=True):
        index = some.clamp_min(0).reshape(*some.shape[:-2], -1, 1).expand(*lead, n * some.shape[-1], m)
        scores = columns.gather(-2, index).unflatten(-2, (n, some.shape[-1]))
        parts.append(safe_logsumexp(torch.where((kept & (some >= 0)).unsqueeze(-1), scores, -math.inf).mT))
    return log_add(parts)


def _compare(x: Tensor, components: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    return torch.where(x == components.mT, torch.zeros_like(parameters[0]), parameters[0])
