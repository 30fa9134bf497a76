"""The distribution of a column of dates. Its digits are variables; quantiles are searched digit by digit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit.distributions import KDM
from kdmkit.distributions.univariate import Univariate
from kdmkit.estimators.common.arrays import Array
from kdmkit.estimators.table.answering.component_cache import ComponentCache, Turn
from kdmkit.estimators.table.answering.posterior import ComponentPosterior, tails
from kdmkit.estimators.table.answering.variable_posterior import (
    VariablePosterior,
    as_region,
    merge_boxes,
    place_event,
    spread,
)
from kdmkit.estimators.table.codecs.base import PartEvidence
from kdmkit.estimators.table.codecs.dates import CirclePart, DateCodec
from kdmkit.estimators.table.codecs.parts import NumberPart, Part
from kdmkit.estimators.table.schema import Column
from kdmkit.kernels.regions import Interval, Region

#: The digit of a quantile for every row, the level of the quantile among the dates with this digit, and the
#: digit as evidence.
Digit = tuple[Tensor, Float[Tensor, "*rows"], Tensor | Region]


def first_digit(part: Part, rho: KDM, cache: ComponentCache, level: Float[Tensor, "*rows"]) -> Digit:
    """The smallest digit d with P(digit ≤ d) ≥ level.

    Args:
        part: how the digit is an event.
        rho: the distribution of the digit.
    """
    if part.values is not None:
        return _among_codes(rho, cache, part.values, level)
    if isinstance(part, CirclePart):
        return _on_circle(rho, cache.turn, level)
    assert isinstance(part, NumberPart)
    mixture = Univariate(rho.kernel, rho.components, rho.log_weights, cache.knots)
    return _on_line(mixture, part, level)


def _among_codes(rho: KDM, cache: ComponentCache, values: Any, level: Tensor) -> Digit:
    probs = rho.log_weights.double().exp() @ cache.probs
    reached = (probs / probs.sum(-1, keepdim=True)).cumsum(-1).clamp_max(1.0)
    reached[..., -1] = 1.0
    code = (reached < level.unsqueeze(-1)).sum(-1, keepdim=True)
    above = reached.gather(-1, code).squeeze(-1)
    below = torch.where(code > 0, reached.gather(-1, (code - 1).clamp_min(0)), 0.0).squeeze(-1)
    numbers = torch.tensor(values, dtype=torch.float64, device=level.device)
    code = code.squeeze(-1)
    return numbers[code], _within(level, below, above), code


def _on_line(mixture: Univariate, part: NumberPart, level: Tensor) -> Digit:
    """Whole numbers. If they have densities, a number stands for those half a step around it."""
    step = part.step / part.scale
    reached = mixture.reach(level)
    # The first number whose cell ends at x or later.
    event = reached.x if part.masses else reached.x - 1e-9 * step
    number = torch.as_tensor(part.decode(event.unsqueeze(-1))).to(level)
    event = (number - part.shift) / part.scale
    if part.masses:
        evidence = event.to(mixture.components.dtype).unsqueeze(-1)
        return number, _within(level, reached.below, reached.upto), evidence
    ends = torch.stack([event - 0.5 * step, event + 0.5 * step])
    below, above = mixture.cdf(ends).double()
    return number, _within(level, below, above), Interval(*ends.unsqueeze(-1))


def _on_circle(rho: KDM, turn: Turn, level: Tensor) -> Digit:
    """A number d has the arc from d − ½ to d + ½; that of 0 begins at the end of the circle."""
    code, below, above = turn.first_of(rho.log_weights, level)
    number = code.double()
    evidence = Interval((number - 0.5).unsqueeze(-1), (number + 0.5).unsqueeze(-1))
    return number, _within(level, below, above), evidence


def _within(level: Tensor, below: Tensor, above: Tensor) -> Tensor:
    """The level inside of a digit; strictly between 0 and 1."""
    return ((level - below) / (above - below).clamp_min(1e-300)).clamp(1e-12, 1 - 1e-12)


#: The distribution of some variables, `target=`, given others by name.
Ask = Callable[..., Any]


def posterior_of(
    column: Column,
    rho: Any,
    log_share: Float[Tensor, " boxes"] | None = None,
    caches: Mapping[str, ComponentCache] | None = None,
    ask: Ask | None = None,
) -> ComponentPosterior:
    """The posterior of a column; for boxes of evidence, their mixture.

    Args:
        rho, log_share, caches, ask: as in `DatePosterior`.
    """
    if not isinstance(rho, KDM):
        return DatePosterior(column, rho, log_share, caches, ask)
    cache = None if caches is None else caches[column.variables[0]]
    return VariablePosterior(column, rho if log_share is None else merge_boxes(rho, log_share), cache)


class DatePosterior(ComponentPosterior):
    """The distribution of a column of dates.

    Args:
        column: the column.
        rho: the joint distribution of its variables.
        log_share: the log-weights of boxes of evidence, if the batch of `rho` counts boxes.
        caches: by variable, of its components.
        ask: the distribution of one variable (`target=`) given others of the column, from the whole model
            with all evidence. Without it, `rho.infer`, which is slower: it adds evidence to evidence.
    """

    def __init__(
        self,
        column: Column,
        rho: Any,
        log_share: Tensor | None,
        caches: Mapping[str, ComponentCache] | None = None,
        ask: Ask | None = None,
    ) -> None:
        self.column, self.rho = column, rho
        self._ask: Ask = rho.infer if ask is None else ask
        # Added to the log-evidence of `ask`, it gives the log-weights of boxes.
        self._log_prior = log_share if ask is None else 0.0
        assert isinstance(column.codec, DateCodec)
        self.dates, self.log_share = column.codec, log_share
        self._caches = caches or {
            name: ComponentCache(rho.kernels[name], rho.components[name]) for name in column.variables
        }

    @property
    def batch(self) -> tuple[int, ...]:
        return () if self.log_share is not None else tuple(self.rho.batch_shape)

    # ---- probabilities

    def histogram(self, bins: tuple[tuple[Any, Any], ...]) -> Array:
        """The probabilities of ranges, `(n, *batch)`; their boxes of digits are kept for the next answer."""
        first = self._caches[self.column.variables[0]]
        return self._summed(len(bins), first.kept(bins, lambda: self._boxes(bins)))

    def _masses(self, n: int, regions: Sequence[PartEvidence]) -> Array:
        given = {
            name: spread(as_region(self.rho.kernels[name], region), len(self.rho.batch_shape))
            for name, region in zip(self.column.variables, regions, strict=True)
            if region is not None
        }
        if not given:
            return np.ones((n, *self.batch))
        return np.asarray(np.exp(self._mixed(self._joint_log_prob(given))))

    def _joint_log_prob(self, values: Mapping[str, Tensor | Region]) -> Tensor:
        rho = self.rho if len(values) == len(self.rho.kernels) else self.rho.marginal(*values)
        if len(values) > 1:
            log_prob: Tensor = rho.log_prob(**values)
            return log_prob
        (value,) = values.values()
        log_prob = rho.log_mass(value) if isinstance(value, Region) else rho.log_prob(value)
        return log_prob

    def _mixed(self, log_prob: Tensor) -> Array:
        """Log-probabilities, averaged over boxes of evidence."""
        log_prob = log_prob.double()
        if self.log_share is not None:
            log_prob = torch.logsumexp(log_prob + self.log_share, -1)
        return np.asarray(log_prob.cpu())

    def _log_prob(self, events: Sequence[Tensor]) -> Array:
        placed = {
            name: place_event(event, self.rho.components[name])
            for name, event in zip(self.column.variables, events, strict=True)
        }
        if self.log_share is not None:  # boxes come last
            ranks = dict(zip(placed, map(len, self.codec.shapes), strict=True))
            placed = {name: e.unsqueeze(e.ndim - ranks[name]) for name, e in placed.items()}
        return self._mixed(self._joint_log_prob(placed))

    # ---- quantiles

    def quantile(self, q: float | Sequence[float]) -> Array:
        """The first date with F(date) ≥ q, `(*batch,)`; `(n, *batch)` for n levels q."""
        levels = np.asarray(q, dtype=np.float64)
        if 0 in self.batch:
            return np.empty((*levels.shape, *self.batch), "datetime64[us]")
        dates = [self._quantile(float(level)) for level in levels.reshape(-1)]
        return np.stack(dates).reshape((*levels.shape, *self.batch))

    def interval(self, coverage: float) -> Array:
        """The central one: dates are many."""
        return self.quantile(tails(coverage).tolist())

    def _quantile(self, q: float) -> Array:
        rest = torch.full(self.batch, q, dtype=torch.float64, device=self._device)
        digits: list[np.ndarray] = []
        earlier: dict[str, Tensor | Region] = {}
        for name, part in zip(self.column.variables, self.dates.parts, strict=True):
            rho = self._ask(target=name, **earlier) if earlier else self.rho.marginal(name)
            if self.log_share is not None:
                share = self._log_prior + rho.log_evidence.double() if earlier else self.log_share
                rho = merge_boxes(rho, torch.log_softmax(share, -1))
            digit, rest, earlier[name] = first_digit(part, rho, self._caches[name], rest)
            digits.append(digit.cpu().numpy())
        dates = self.dates.calendar.join([np.atleast_1d(digit) for digit in digits])
        return np.asarray(dates).reshape(self.batch)

    # ---- draws

    @property
    def _device(self) -> torch.device:
        device: torch.device = next(iter(self.rho.components.values())).device
        return device

    def sample(self, n: int, generator: torch.Generator | None) -> Array:
        drawn = self.rho.sample((n,), generator=generator)
        parts = [drawn[name].cpu() for name in self.column.variables]
        if self.log_share is not None:
            share = self.log_share.exp().to(self._device)
            box = torch.multinomial(share, n, replacement=True, generator=generator).cpu()
            parts = [part[torch.arange(n), box] for part in parts]
        shapes = self.codec.shapes
        lead = parts[0].shape[: parts[0].ndim - len(shapes[0])]
        flat = [part.reshape(-1, *shape) for part, shape in zip(parts, shapes, strict=True)]
        return np.asarray(self.codec.numbers(*flat)).reshape(tuple(lead))

    def typical(self) -> Array:
        return self.dates.written(self.quantile(0.5))

    def mode(self) -> Array:
        """The median stands for the most probable date."""
        return self.quantile(0.5)
