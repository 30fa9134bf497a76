"""The distribution of one column, in the user's units: for one question, or for many rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.distributions import KDM
from kdmkit.estimators.common.checks import Array
from kdmkit.estimators.table.codecs.base import Known
from kdmkit.estimators.table.frames.storage import RawColumn
from kdmkit.estimators.table.schema import Column
from kdmkit.kernels import Kernel
from kdmkit.kernels.regions import Interval, OneOf, Region


class Joint(Protocol):
    """A distribution of several variables: a `JointKDM` or a `TreeKDM`."""

    def infer(self, **options: Any) -> Any: ...
    def marginal(self, *names: str) -> Any: ...
    def log_prob(self, **options: Any) -> Tensor: ...
    def sample(self, sample_shape: Any, *, generator: Any) -> dict[str, Tensor]: ...


def infer(
    joint: Joint,
    variables: Sequence[str],
    evidence: Mapping[str, Tensor | Region],
    observed: Mapping[str, Tensor] | None = None,
) -> tuple[Any, Tensor | None]:
    """The distribution of some variables given evidence, and log p(evidence); None where there is none."""
    if not evidence:
        return joint.marginal(*variables), None
    target = variables[0] if len(variables) == 1 else tuple(variables)
    rho = joint.infer(target=target, observed=observed, **evidence)
    return rho, rho.log_evidence


def merge_boxes(rho: KDM, log_share: Float[Tensor, " boxes"]) -> KDM:
    """The mixture of the KDMs of a batch: they share components, so only weights are averaged.

    Args:
        rho: of batch shape `(boxes,)`.
        log_share: log-weights of the mixture.
    """
    log_weights = torch.logsumexp(rho.log_weights + log_share.to(rho.log_weights).unsqueeze(-1), 0)
    return KDM(rho.components, None, rho.kernel, log_weights=log_weights, validate_args=False)


class Posterior:
    """The distribution of a column, for every element of a batch; `DatePosterior` is for dates.

    Args:
        column: the column.
        rho: the distribution of its variable.
    """

    def __init__(self, column: Column, rho: Any) -> None:
        self.column, self.rho, self.codec = column, rho, column.codec

    @property
    def has_levels(self) -> bool:
        return self.codec.levels is not None

    def _check(self, condition: bool, what: str, wanted: str) -> None:
        if not condition:
            name = f"{what} of {self.column.name!r}"
            raise TypeError(bad_argument(name, f"{wanted} column", f"one of kind {self.column.kind}"))

    # ---- summaries

    def probs(self) -> Array:
        """The probability of every level, `(*batch, levels)`."""
        self._check(self.has_levels, "probs", "a")
        probs = self.rho.probs.double().cpu().numpy()
        return np.asarray(probs / probs.sum(-1, keepdims=True))

    def mean(self) -> Array:
        self._check(self.codec.numeric, "mean", "a numeric")
        if self.has_levels:
            return np.asarray(self.probs() @ np.asarray(self.codec.levels, dtype=np.float64))
        return self._each(self.codec.numbers, self.rho.mean)

    def std(self) -> Array:
        self._check(self.codec.numeric, "std", "a numeric")
        if self.has_levels:
            values, probs = np.asarray(self.codec.levels, dtype=np.float64), self.probs()
            mean = (probs @ values)[..., None]
            return np.sqrt((probs * (values - mean) ** 2).sum(-1))
        deviation = self.rho.variance.sqrt()
        # Numbers are a shift and a scale away from events.
        zero = self._each(self.codec.numbers, torch.zeros_like(deviation))
        return np.asarray(self._each(self.codec.numbers, deviation) - zero)

    def quantile(self, q: float) -> Array:
        """The smallest value with F(value) ≥ q, `(*batch,)`."""
        self._check(self.codec.ordered, "quantiles", "an ordered")
        if self.has_levels:
            reached = np.cumsum(self.probs(), -1) >= min(q, 1 - 1e-12)
            return self._levels(reached.argmax(-1))
        levels = torch.full(self.rho.batch_shape, q, dtype=self.rho.components.dtype)
        return self._each(self.codec.values, self.rho.icdf(levels.to(self.rho.components.device)))

    def _each(self, function: Callable[[Tensor], Array], events: Tensor) -> Array:
        """`function` of events `(*lead, *event)`, which takes them in rows."""
        lead = events.shape[: events.ndim - len(self.rho.event_shape)]
        found = function(events.detach().cpu().reshape(-1, *self.rho.event_shape))
        return np.asarray(found).reshape(tuple(lead))

    def mode(self) -> Array:
        """The most probable value: of levels, or among the modes of the components."""
        if self.has_levels:
            return self._levels(self.probs().argmax(-1))
        kernel, components = self.rho.kernel, self.rho.components
        candidates = kernel.mode(components)
        lead = candidates.shape[0]
        shape = (lead, *([1] * len(self.rho.batch_shape)), *self.rho.event_shape)
        best = self.rho.log_prob(candidates.reshape(shape)).argmax(0)
        return self._each(self.codec.values, candidates[best])

    def expected(self) -> Array:
        """The mean of numbers, the median of other ordered values without levels, else the mode."""
        if self.codec.numeric:
            return self.mean()
        return self.quantile(0.5) if self.codec.ordered and not self.has_levels else self.mode()

    def typical(self) -> Array:
        """`expected` as a value that the column can have: rounded, or the nearest level."""
        if not self.codec.numeric:
            return self.expected()
        if self.has_levels:
            values = np.asarray(self.codec.levels, dtype=np.float64)
            return self._levels(np.abs(self.mean()[..., None] - values).argmin(-1))
        return self._each(self.codec.decode, self.rho.mean)

    def _levels(self, index: Any) -> Array:
        assert self.codec.levels is not None
        levels = np.empty(len(self.codec.levels), dtype=object)
        levels[:] = list(self.codec.levels)
        chosen = np.asarray(levels[index])
        return chosen.astype(np.asarray(self.codec.levels).dtype) if self.codec.numeric else chosen

    # ---- probabilities

    def log_density(self, value: Any) -> Array:
        """log p of one value in the units of the codec: a density, or a probability of values with mass."""
        (event,) = self.codec.event(value)
        found = self.rho.log_prob(self._placed(event)).double().cpu()
        return np.asarray(found + self._log_offset(event))

    def _placed(self, event: Tensor) -> Tensor:
        like = self.rho.components
        return event.to(like.device, like.dtype if event.is_floating_point() else None)

    def _log_offset(self, *events: Tensor) -> float:
        """What log p of a value in the user's units has more than that of its event."""
        values = self.codec.decode(*(event.unsqueeze(0) for event in events))
        cells = RawColumn(self.column.name, values, np.zeros(1, dtype=bool), self.column.storage)
        return float(self.codec.encode(cells).log_offset)

    def probability(self, given: Any) -> Array:
        """How probable a value, a range or a set is."""
        total: Any = 0.0
        for (known,) in self.codec.region(given):
            total = total + (1.0 if known is None else self._mass(known))
        return np.asarray(np.minimum(total, 1.0), dtype=np.float64)

    def _mass(self, known: Known) -> Array:
        region = as_region(self.rho.kernel, known)
        return np.asarray(self.rho.log_mass(region).double().exp().cpu())

    def sample(self, n: int, generator: torch.Generator | None) -> Array:
        """Draws `(n, *batch)` as values of the column."""
        return self._each(self.codec.decode, self.rho.sample((n,), generator=generator))


def as_region(kernel: Kernel, known: Any) -> Region:
    """Points as regions that hold nothing else: they have a mass where values have probabilities."""
    if isinstance(known, Region):
        return known
    return OneOf(known.unsqueeze(-1)) if kernel.discrete else Interval(known, known)
