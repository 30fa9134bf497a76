"""A distribution over levels for every component."""

from __future__ import annotations

import math
from typing import Any, ClassVar, SupportsIndex

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn
from torch.distributions import constraints
from torch.distributions.constraints import Constraint

from kdmkit._core.checks import (
    check_event,
    check_finite,
    check_floating,
)
from kdmkit._core.logspace import log_add, safe_log
from kdmkit._core.tensors import at_least_float32
from kdmkit.kernels.base import Kernel
from kdmkit.kernels.categorical import Coded, check_codes, check_size, read_codes, smoothing_logit
from kdmkit.kernels.cosine import LABEL_SMOOTHING
from kdmkit.ops import LogSum, Lookup, Sum, Term
from kdmkit.ops.terms import restricted

# Numbers of (draw, level) that exist at once in `sample`.
_NUMBERS = 1 << 22
_LEAST_SMOOTHING = 1e-30


class Levels(Coded):
    """p(x | c) = (1 − s)·softmax(c)_x + s/n on codes 0 … n−1: every component is a distribution.

    A component is a vector of n logits, an event is one code. Probabilities are read from a table of m × n
    numbers, so thousands of levels are fine. The smoothing s gives every level at least s/n under every
    component, even a level that the training rows lack.

    Args:
        n: the number of levels.
        smoothing: s, in [0, 1), without gradients.
        trainable: whether s is trained (it must be positive then); otherwise layers leave it as it is.

    >>> import kdmkit as kdm
    >>> kernel = Levels(3, smoothing=0.3)
    >>> kernel.probs(torch.tensor([[0.0, 0.0, -torch.inf]]))
    tensor([[0.4500, 0.4500, 0.1000]])
    >>> kernel.log_mass(kdm.OneOf([0, 2]), torch.zeros(1, 3)).exp()
    tensor([0.6667])
    """

    unit_norm: ClassVar[bool] = True
    components_are_events: bool = False
    event_dim: int = 0
    overlaps_everywhere: bool = True  # logits are finite
    support: Constraint = constraints.nonnegative_integer
    logit: Tensor

    def __init__(self, n: SupportsIndex, smoothing: float = 0.0, *, trainable: bool = False) -> None:
        super().__init__()
        self.n = check_size(n, "levels")
        logit = torch.tensor(smoothing_logit(smoothing, trainable=trainable), dtype=torch.float64)
        self._is_smoothed = bool(logit.isfinite())
        # Whether probabilities, which are at least s/n, cannot underflow.
        self._is_bounded = not trainable and smoothing > _LEAST_SMOOTHING * self.n
        if trainable:
            self.logit = nn.Parameter(logit)
        else:
            self.register_buffer("logit", logit)

    @property
    def smoothing(self) -> Float[Tensor, ""]:
        """s, between 0 and 1."""
        return self.logit.sigmoid()

    def event_shape(self, component_shape: torch.Size) -> torch.Size:
        return torch.Size()

    def component_shape(self, event_shape: torch.Size) -> torch.Size:
        return torch.Size([self.n])

    def log_probs(self, components: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
        """The log-probability of every level under each component."""
        components = at_least_float32(components)
        if not self._is_smoothed:
            return torch.log_softmax(components, -1)
        if self._is_bounded:
            free = torch.softmax(components, -1)
            return torch.lerp(free, free.new_full((), 1 / self.n), self.smoothing.to(free)).log()
        free = torch.log_softmax(components, -1)
        log_rest, log_share = self._log_shares(free)
        return log_add([log_rest + free, log_share])

    def _log_shares(self, like: Tensor) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """log(1 − s) and log(s/n)."""
        logit = self.logit.to(like)
        return nn.functional.logsigmoid(-logit), nn.functional.logsigmoid(logit) - math.log(self.n)

    def term(self, x: Tensor, components: Tensor) -> Term:
        if x.shape[-1] < self.n:
            return self._direct(x, at_least_float32(components))
        return Lookup(x.unsqueeze(-1), self.log_probs(components))

    def _direct(self, x: Tensor, components: Tensor) -> Term:
        """Without a table: logits are read one by one and then normalised, if levels outnumber queries."""
        codes, zeros = x.unsqueeze(-1), torch.zeros(x.shape[-1], 1, dtype=torch.long, device=x.device)

        def constant(value: Float[Tensor, "*batch_m"]) -> Term:
            return Lookup(zeros, value.expand(components.shape[:-1]).unsqueeze(-1))

        total = components.logsumexp(-1)
        if not self._is_smoothed:
            return Sum((Lookup(codes, components), constant(-total)))
        log_rest, log_share = self._log_shares(components)
        return LogSum((Sum((Lookup(codes, components), constant(log_rest - total))), constant(log_share)))

    def log_overlap(self, x: Tensor, components: Tensor) -> Float[Tensor, "*lead"]:
        return read_codes(self.log_probs(components), x)

    def log_norm(self, components: Tensor) -> Float[Tensor, ""]:
        return torch.zeros(())

    def probs(self, components: Tensor) -> Float[Tensor, "*batch n"]:
        return self.log_probs(components).exp()

    def mode(self, components: Tensor) -> Int[Tensor, "*batch"]:
        return components.argmax(-1)

    # ---- regions

    def n_codes(self, event_shape: torch.Size) -> int:
        return self.n

    def log_table(self, components: Tensor) -> Float[Tensor, "*batch m n"]:
        return self.log_probs(components)

    def region_term(self, packed: Int[Tensor, "*lead n k"], components: Tensor) -> Term:
        if packed.shape[-1] > 1:
            return super().region_term(packed, components)
        # One level each: its probability is read from the table.
        return restricted(self.term(packed.squeeze(-1).clamp_min(0), components), packed >= 0)

    # ---- draws

    def sample(
        self, components: Tensor, index: Int[Tensor, "*lead"], generator: torch.Generator | None = None
    ) -> Int[Tensor, "*lead"]:
        logits = components.detach().reshape(-1, self.n)
        uniform = torch.rand(len(logits), 1, dtype=torch.float64, device=logits.device, generator=generator)
        rows = max(1, _NUMBERS // self.n)
        parts = [
            _invert(self.probs(part), draw)
            for part, draw in zip(logits.split(rows), uniform.split(rows), strict=True)
        ]
        drawn = torch.cat(parts) if parts else torch.zeros(0, dtype=torch.long, device=logits.device)
        return drawn.reshape(components.shape[:-1])

    def draw(
        self, components: Tensor, index: Int[Tensor, "*lead"], generator: torch.Generator | None = None
    ) -> Int[Tensor, "*lead"]:
        """As `sample`, from one table of m × n numbers if all draws share the components."""
        if components.ndim > 2:
            return super().draw(components, index, generator)
        probs = self.probs(components.detach())
        uniform = torch.rand(index.shape, dtype=torch.float64, device=probs.device, generator=generator)
        order, drawn = index.flatten().argsort(), torch.zeros(index.numel(), dtype=torch.long)
        drawn = drawn.to(index.device)
        counts = torch.bincount(index.flatten(), minlength=len(probs)).tolist()
        for row, here in zip(probs, order.split(counts), strict=True):
            drawn[here] = _invert(row, uniform.flatten()[here])
        return drawn.reshape(index.shape)

    # ---- events and components

    def check_events(self, argument: str, value: Tensor, event_shape: torch.Size) -> None:
        check_codes(argument, value, self.n)

    def check_component_values(self, argument: str, components: Tensor, event_shape: torch.Size) -> None:
        check_floating(argument, components)
        check_event(argument, components, torch.Size([self.n]))
        check_finite(argument, components)

    def components_from(self, events: Integer[Tensor, "*batch"]) -> Float[Tensor, "*batch n"]:
        """Logits of distributions that have .99 at the code and share the rest among all levels.

        >>> Levels(2).probs(Levels(2).components_from(torch.tensor([1])))
        tensor([[0.0050, 0.9950]], dtype=torch.float64)
        """
        top = math.log1p(self.n * (1 - LABEL_SMOOTHING) / LABEL_SMOOTHING)
        logits = torch.zeros(*events.shape, self.n, dtype=torch.float64, device=events.device)
        return logits.scatter_(-1, events.long().unsqueeze(-1), top)

    def smoothed_components(
        self,
        chosen: Integer[Tensor, " m"],
        values: Integer[Tensor, " rows"],
        event_shape: torch.Size,
        share: float,
    ) -> Float[Tensor, "m n"]:
        """log((1 − share)·[x = chosen] + share·p(x)), p being smoothed shares of levels among `values`."""
        counts = torch.bincount(values.long(), minlength=self.n).double() + 0.5
        probs = share * (counts / counts.sum()).expand(len(chosen), -1)
        rest = torch.full((len(chosen), 1), 1 - share, dtype=torch.float64)
        return probs.scatter_add(-1, chosen.long().unsqueeze(-1), rest).log()

    def evidence_points(
        self, components: Float[Tensor, "*lead m n"], log_weights: Float[Tensor, "*batch m"]
    ) -> tuple[Int[Tensor, " n"], Float[Tensor, "*batch n"]]:
        """All levels, with their log-probabilities under the mixture."""
        probs = self.probs(components)
        mixed = torch.matmul(log_weights.to(probs).exp().unsqueeze(-2), probs).squeeze(-2)
        return torch.arange(self.n, device=components.device), safe_log(mixed)

    def same_family(self, other: Kernel) -> bool:
        return isinstance(other, Levels) and other.n == self.n

    # ---- description

    def config(self) -> dict[str, Any]:
        smoothing = self.logit.detach().double().sigmoid().item()
        trainable = isinstance(self.logit, nn.Parameter)
        return {"kernel": "Levels", "n": self.n, "smoothing": smoothing, "trainable": trainable}

    @classmethod
    def from_config(cls, config: dict[str, Any], *, encoder: nn.Module | None = None) -> Levels:
        return cls(config["n"], config["smoothing"], trainable=config["trainable"])

    def extra_repr(self) -> str:
        return f"n={self.n}, smoothing={self.smoothing.item():.4g}"


def _invert(probs: Float[Tensor, "*r n"], uniform: Float[Tensor, "*r k"]) -> Int[Tensor, "*r k"]:
    """The levels at which the cumulative probabilities exceed the draws; levels of probability 0 never."""
    cumulative = probs.double().cumsum(-1)
    total = cumulative[..., -1:]
    level = torch.searchsorted(cumulative, uniform * total, right=True)
    last = (cumulative < total).sum(-1, keepdim=True)
    return torch.minimum(level, last)
