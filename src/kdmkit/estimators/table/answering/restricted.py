"""The distribution of a column given a condition on the column itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.distributions import KDM
from kdmkit.estimators.common.arrays import Array
from kdmkit.estimators.table.answering.date_posterior import DatePosterior
from kdmkit.estimators.table.answering.posterior import Posterior, tails
from kdmkit.estimators.table.answering.questions import codes_of, in_common
from kdmkit.estimators.table.answering.variable_posterior import VariablePosterior
from kdmkit.estimators.table.conditions import Range
from kdmkit.estimators.table.schema import Column
from kdmkit.kernels import Interval, Levels, OneOf, cut

# Rejected draws before draws are made one by one from their quantiles.
_ROUNDS = 50


def restrict(posterior: Posterior, condition: Any) -> tuple[Posterior, float]:
    """The distribution of the values that satisfy a condition, and log P(condition).

    Args:
        posterior: of one question.
        condition: a value, a range or a set, as in `given`.
    """
    regions = [region for box in posterior.codec.region(condition) for region in box]
    if all(region is None for region in regions):
        return posterior, 0.0
    if isinstance(posterior, DatePosterior):
        within = SpanPosterior(posterior, condition)
        return within, _log(within.mass, condition)
    assert isinstance(posterior, VariablePosterior)
    if posterior.has_levels:
        return _among_levels(posterior, condition)
    if posterior.goes_round:
        return _times(posterior, regions, condition)
    if isinstance(regions[0], Interval) and float(regions[0].low) < float(regions[0].high):
        return _between(posterior, regions[0], condition)
    return _listed(posterior, regions)


def _log(mass: float, condition: Any) -> float:
    if not mass > 0:
        got = f"probability 0 of {condition!r}"
        raise ValueError(bad_argument("given", "values that can occur together", got))
    return float(np.log(mass))


def _among_levels(posterior: VariablePosterior, condition: Any) -> tuple[Posterior, float]:
    """Levels outside have no probability; a mixture of one component is left."""
    probs = posterior.probs()
    inside = np.zeros(len(probs), dtype=bool)
    inside[list(codes_of(posterior.codec, condition))] = True
    mass = float(probs[inside].sum())
    log_mass = _log(mass, condition)
    with np.errstate(divide="ignore"):
        logits = torch.from_numpy(np.log(np.where(inside, probs / mass, 0.0)))
    kernel = Levels(len(probs))
    rho = KDM(logits.unsqueeze(0), None, kernel, log_weights=torch.zeros(1).double(), validate_args=False)
    return VariablePosterior(posterior.column, rho), log_mass


def _between(posterior: VariablePosterior, region: Interval, condition: Any) -> tuple[Posterior, float]:
    """Components that are cut off, with weights in proportion to their masses in the interval."""
    rho = posterior.rho
    masses = rho.kernel.log_mass(region, rho.components).double().reshape(-1)
    joint = torch.log(posterior.weights) + masses
    log_mass = float(torch.logsumexp(joint, -1))
    _log(float(np.exp(log_mass)) or float(np.isfinite(log_mass)), condition)
    kernel, components = cut(rho.kernel, region, rho.components)
    weights = (joint - log_mass).to(rho.log_weights.dtype)
    cut_off = KDM(components, None, kernel, log_weights=weights, validate_args=False)
    return VariablePosterior(posterior.column, cut_off), log_mass


def _times(posterior: VariablePosterior, regions: Sequence[Any], condition: Any) -> tuple[Posterior, float]:
    """Times of day: each unit of the clock has its probability; a range may go over midnight."""
    rho, codec = posterior.rho, posterior.codec
    digits = torch.arange(round(rho.kernel.period), dtype=torch.float64)
    inside = _inside_any(digits, regions)
    probs = posterior.cache.turn.probs(rho.log_weights.reshape(-1)).cpu()[inside].numpy()
    log_mass = _log(probs.sum(), condition)
    digits = digits[inside]

    def satisfies(given: Any) -> np.ndarray:
        boxes = codec.region((None, None) if given is None else given)
        return np.asarray(_inside_any(digits, [region for box in boxes for region in box]))

    times = codec.values(digits.unsqueeze(-1)).tolist()
    return ListedPosterior(posterior.column, times, probs / probs.sum(), satisfies), log_mass


def _inside_any(digits: Tensor, regions: Sequence[Any]) -> Tensor:
    """Which digits are in one of some intervals and points; None stands for all of them."""
    if any(region is None for region in regions):
        return torch.ones(len(digits), dtype=torch.bool)
    inside = torch.zeros(len(digits), dtype=torch.bool)
    for region in regions:
        low, high = (region.low, region.high) if isinstance(region, Interval) else (region, region)
        inside |= (digits >= low.double()) & (digits <= high.double())
    return inside


def _listed(posterior: VariablePosterior, regions: Sequence[Any]) -> tuple[Posterior, float]:
    """Some numbers, each with its probability or its density."""
    events = [region.values if isinstance(region, OneOf) else _point(region) for region in regions]
    flat = torch.cat([event.reshape(-1).double() for event in events]).unique()
    shaped = flat.reshape(-1, *posterior.rho.event_shape)
    values = np.asarray(posterior.codec.values(shaped))
    weights = posterior.density(posterior.codec.decode(shaped))
    log_total = _log(weights.sum(), values)  # raises if none of them can occur
    numbers = values.tolist()

    def satisfies(given: Any) -> np.ndarray:
        return np.array([_holds(given, number) for number in numbers])

    return ListedPosterior(posterior.column, numbers, weights / weights.sum(), satisfies), log_total


def _point(region: Any) -> Tensor:
    point: Tensor = region.low if isinstance(region, Interval) else region
    return point


class ListedPosterior(Posterior):
    """Finitely many values of a column of numbers or of times of day, for one question.

    Args:
        column: the column.
        values: ascending.
        probs: their probabilities.
        satisfies: which of the values satisfy a condition, as a mask.
    """

    def __init__(
        self, column: Column, values: list[Any], probs: Array, satisfies: Callable[[Any], np.ndarray]
    ) -> None:
        self.column, self._values, self._satisfies = column, values, satisfies
        self._probs = np.asarray(probs, dtype=np.float64)

    @property
    def batch(self) -> tuple[int, ...]:
        return ()

    @property
    def levels(self) -> Sequence[Any]:
        return self._values

    def probs(self) -> Array:
        return self._probs

    def density(self, values: Any) -> Array:
        equal = np.asarray(values)[:, None] == np.asarray(self._values)
        return np.asarray((equal * self._probs).sum(-1))

    def log_density(self, value: Any) -> Array:
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.density([value])[0]))

    def probabilities(self, givens: Sequence[Any]) -> Array:
        return np.array([self._probs[self._satisfies(given)].sum() for given in givens])

    def sample(self, n: int, generator: torch.Generator | None) -> Array:
        probs = torch.from_numpy(self._probs)
        device = "cpu" if generator is None else generator.device
        index = torch.multinomial(probs.to(device), n, replacement=True, generator=generator)
        return np.asarray(self._values)[index.cpu().numpy()]


def _holds(given: Any, value: Any) -> bool:
    """Whether a number satisfies a condition."""
    if isinstance(given, tuple):
        return value in Range(*given)
    if isinstance(given, list | set | frozenset | np.ndarray):
        return any(_holds(one, value) for one in given)
    return given is None or bool(value == given)


class SpanPosterior(Posterior):
    """Dates within some spans of time, for one question.

    A quantile is that of the same date among all dates. If the spans have little probability, levels are as
    exact as probabilities in single precision: to about 1e-6.

    Args:
        whole: the distribution of all dates.
        condition: the spans, as in `given`.
    """

    def __init__(self, whole: DatePosterior, condition: Any) -> None:
        self.column = whole.column
        self._whole, self._condition, self._spans = whole, condition, whole.dates.spans(condition)
        self._masses_of_spans = whole.probabilities(self._spans)
        self.mass = float(self._masses_of_spans.sum())

    @property
    def batch(self) -> tuple[int, ...]:
        return ()

    def quantile(self, q: float | Sequence[float]) -> Array:
        levels = np.asarray(q, dtype=np.float64)
        reached = np.cumsum(self._masses_of_spans)
        dates = []
        for level in levels.reshape(-1) * self.mass:
            place = min(int(np.searchsorted(reached, level)), len(reached) - 1)
            first, last = self._spans[place]
            before = 0.0 if first is None else 1 - float(self._whole.probability((first, None)))
            rest = level - (reached[place - 1] if place else 0.0)
            date: Any = self._whole.quantile(float(np.clip(before + rest, 1e-12, 1 - 1e-12)))[()]
            date = date if first is None else max(date, self._whole.dates.calendar.ceiling(first))
            dates.append(date if last is None else min(date, last))
        return np.asarray(dates, dtype="datetime64[us]").reshape(levels.shape)

    def interval(self, coverage: float) -> Array:
        """The central one: dates are many."""
        return self.quantile(tails(coverage).tolist())

    def probabilities(self, givens: Sequence[Any]) -> Array:
        return np.array([self._share(given) for given in givens])

    def _share(self, given: Any) -> float:
        inside = in_common(self.codec, self._condition, (None, None) if given is None else given)
        return min(1.0, float(self._whole.probabilities(inside).sum()) / self.mass) if inside else 0.0

    def log_density(self, value: Any) -> Array:
        return np.asarray(self._whole.log_density(value) - np.log(self.mass))

    def density(self, values: Any) -> Array:
        return np.asarray(self._whole.density(values) / self.mass)

    def sample(self, n: int, generator: torch.Generator | None) -> Array:
        """Draws of all dates, of which those within the spans are kept; rare dates are drawn by quantiles."""
        kept = np.array([], dtype="datetime64[us]")
        for _ in range(_ROUNDS):
            drawn = self._whole.sample(max(64, 2 * n), generator)
            inside = [any(date in Range(*span) for span in self._spans) for date in drawn]
            kept = np.concatenate([kept, drawn[inside]])
            if len(kept) >= n:
                return kept[:n]
        device = "cpu" if generator is None else generator.device
        uniform = torch.rand(n, generator=generator, device=device, dtype=torch.float64)
        return self.quantile(uniform.clamp(1e-9, 1 - 1e-9).tolist())

    def mode(self) -> Array:
        return self.quantile(0.5)
