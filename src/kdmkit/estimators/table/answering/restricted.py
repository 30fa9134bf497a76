"""The distribution of a column given a condition on the column itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.distributions import KDM
from kdmkit.estimators.common.arrays import Array
from kdmkit.estimators.table.answering.date_posterior import DatePosterior
from kdmkit.estimators.table.answering.posterior import Posterior
from kdmkit.estimators.table.answering.questions import codes_of, in_common
from kdmkit.estimators.table.conditions import Range
from kdmkit.estimators.table.schema import Column
from kdmkit.kernels import Interval, Levels, OneOf, cut

# Rejected draws before draws are made one by one from their quantiles.
_ROUNDS = 50


def restrict(posterior: Posterior, own: Any) -> tuple[Posterior, float]:
    """The distribution of the values that satisfy a condition, and log P(condition).

    Args:
        posterior: of one question.
        own: a value, a range or a set, as in `given`.
    """
    boxes = posterior.codec.region(own)
    known = [part for box in boxes for part in box]
    if all(part is None for part in known):
        return posterior, 0.0
    if isinstance(posterior, DatePosterior):
        within = Dates(posterior, own)
        return within, _log(within.mass, own)
    if posterior.has_levels:
        return _among_levels(posterior, own)
    if posterior.goes_round:
        return _times(posterior, known, own)
    if isinstance(known[0], Interval) and float(known[0].low) < float(known[0].high):
        return _between(posterior, known[0], own)
    return _listed(posterior, known)


def _log(mass: float, own: Any) -> float:
    if not mass > 0:
        raise ValueError(bad_argument("given", "values that can occur together", f"probability 0 of {own!r}"))
    return float(np.log(mass))


def _among_levels(posterior: Posterior, own: Any) -> tuple[Posterior, float]:
    """Levels outside have no probability; a mixture of one component is left."""
    assert posterior.levels is not None
    probs, codec = posterior.probs(), posterior.codec
    held = np.zeros(len(probs), dtype=bool)
    held[list(codes_of(codec, own))] = True
    mass = float(probs[held].sum())
    log_mass = _log(mass, own)
    with np.errstate(divide="ignore"):
        logits = torch.from_numpy(np.log(np.where(held, probs / mass, 0.0)))
    kernel = Levels(len(probs))
    rho = KDM(logits.unsqueeze(0), None, kernel, log_weights=torch.zeros(1).double(), validate_args=False)
    return Posterior(posterior.column, rho), log_mass


def _between(posterior: Posterior, region: Interval, own: Any) -> tuple[Posterior, float]:
    """Components that are cut off, with weights in proportion to their masses in the interval."""
    rho = posterior.rho
    masses = rho.kernel.log_mass(region, rho.components).double().reshape(-1)
    joint = torch.log(posterior._weights) + masses
    log_mass = float(torch.logsumexp(joint, -1))
    _log(float(np.exp(log_mass)) or float(np.isfinite(log_mass)), own)
    kernel, components = cut(rho.kernel, region, rho.components)
    weights = (joint - log_mass).to(rho.log_weights.dtype)
    cut_off = KDM(components, None, kernel, log_weights=weights, validate_args=False)
    return Posterior(posterior.column, cut_off), log_mass


def _times(posterior: Posterior, known: Sequence[Any], own: Any) -> tuple[Posterior, float]:
    """Times of day: each unit of the clock has its probability; a range may go over midnight."""
    rho = posterior.rho
    digits = torch.arange(round(rho.kernel.period), dtype=torch.float64)
    held = _among(digits, known)
    probs = posterior.pieces.turn.probs(rho.log_weights.reshape(-1)).cpu()[held].numpy()
    log_mass = _log(probs.sum(), own)
    return Times(posterior.column, digits[held], probs / probs.sum()), log_mass


def _among(digits: Tensor, known: Sequence[Any]) -> Tensor:
    """Which digits are in one of some intervals and points; None stands for all of them."""
    if any(part is None for part in known):
        return torch.ones(len(digits), dtype=torch.bool)
    held = torch.zeros(len(digits), dtype=torch.bool)
    for part in known:
        low, high = (part.low, part.high) if isinstance(part, Interval) else (part, part)
        held |= (digits >= low.double()) & (digits <= high.double())
    return held


def _listed(posterior: Posterior, known: Sequence[Any]) -> tuple[Posterior, float]:
    """Some numbers, each with its probability or its density."""
    events = [part.values if isinstance(part, OneOf) else _point(part) for part in known]
    flat = torch.cat([event.reshape(-1).double() for event in events]).unique()
    shaped = flat.reshape(-1, *posterior.rho.event_shape)
    values = np.asarray(posterior.codec.values(shaped))
    weights = posterior.density(posterior.codec.decode(shaped))
    log_total = _log(weights.sum(), values)  # raises where none of them can occur
    return Listed(posterior.column, values.tolist(), weights / weights.sum()), log_total


def _point(part: Any) -> Tensor:
    point: Tensor = part.low if isinstance(part, Interval) else part
    return point


class Listed(Posterior):
    """Finitely many values of a column of numbers.

    Args:
        values: ascending.
        weights: their probabilities.
    """

    def __init__(self, column: Column, values: list[Any], weights: Array) -> None:
        super().__init__(column, None)
        self._listed, self._probs = values, np.asarray(weights, dtype=np.float64)

    @property
    def levels(self) -> Sequence[Any]:
        return self._listed

    @property
    def _rows(self) -> tuple[int, ...]:
        return ()

    def probs(self) -> Array:
        return self._probs

    def density(self, values: Any) -> Array:
        at = np.asarray(values)[:, None] == np.asarray(self._listed)
        return np.asarray((at * self._probs).sum(-1))

    def log_density(self, value: Any) -> Array:
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.density([value])[0]))

    def probabilities(self, givens: Sequence[Any]) -> Array:
        held = np.array([[_holds(given, value) for value in self._listed] for given in givens])
        return np.asarray(held @ self._probs)

    def sample(self, n: int, generator: torch.Generator | None) -> Array:
        weights = torch.from_numpy(self._probs)
        device = "cpu" if generator is None else generator.device
        index = torch.multinomial(weights.to(device), n, replacement=True, generator=generator)
        return np.asarray(self._listed)[index.cpu().numpy()]


class Times(Listed):
    """Some times of day.

    Args:
        digits: units of the clock since midnight, ascending.
        weights: their probabilities.
    """

    def __init__(self, column: Column, digits: Tensor, weights: Array) -> None:
        super().__init__(column, column.codec.values(digits.unsqueeze(-1)).tolist(), weights)
        self._digits = digits

    def probabilities(self, givens: Sequence[Any]) -> Array:
        return np.array([self._probs[self._within(given)].sum() for given in givens])

    def _within(self, given: Any) -> np.ndarray:
        boxes = self.codec.region((None, None) if given is None else given)
        return np.asarray(_among(self._digits, [part for box in boxes for part in box]))


def _holds(given: Any, value: Any) -> bool:
    if isinstance(given, tuple):
        return value in Range(*given)
    if isinstance(given, list | set | frozenset | np.ndarray):
        return any(_holds(one, value) for one in given)
    return given is None or bool(value == given)


class Dates(Posterior):
    """Dates within some spans of time.

    The level of a quantile is that of the same date among all dates. Where the spans have little
    probability, levels are as exact as probabilities in single precision: to about 1e-6.

    Args:
        whole: the distribution of all dates.
        own: the condition.
    """

    def __init__(self, whole: DatePosterior, own: Any) -> None:
        super().__init__(whole.column, whole.rho)
        self._whole, self._own, self._spans = whole, own, whole.dates.spans(own)
        self._masses_of_spans = whole.probabilities(self._spans)
        self.mass = float(self._masses_of_spans.sum())

    @property
    def _rows(self) -> tuple[int, ...]:
        return ()

    def quantile(self, q: float | Sequence[float]) -> Array:
        levels = np.asarray(q, dtype=np.float64)
        reached = np.cumsum(self._masses_of_spans)
        found = []
        for level in levels.reshape(-1) * self.mass:
            place = min(int(np.searchsorted(reached, level)), len(reached) - 1)
            first, last = self._spans[place]
            before = 0.0 if first is None else 1 - float(self._whole.probability((first, None)))
            rest = level - (reached[place - 1] if place else 0.0)
            date: Any = self._whole.quantile(float(np.clip(before + rest, 1e-12, 1 - 1e-12)))[()]
            date = date if first is None else max(date, self._whole.dates.calendar.ceiling(first))
            found.append(date if last is None else min(date, last))
        return np.asarray(found, dtype="datetime64[us]").reshape(levels.shape)

    def interval(self, coverage: float) -> Array:
        """The central one: dates are many."""
        return self.quantile(((1 - coverage) / 2, (1 + coverage) / 2))

    def probabilities(self, givens: Sequence[Any]) -> Array:
        return np.array([self._share(given) for given in givens])

    def _share(self, given: Any) -> float:
        inside = in_common(self.codec, self._own, (None, None) if given is None else given)
        return min(1.0, float(self._whole.probabilities(inside).sum()) / self.mass) if inside else 0.0

    def log_density(self, value: Any) -> Array:
        return np.asarray(self._whole.log_density(value) - np.log(self.mass))

    def density(self, values: Any) -> Array:
        return np.asarray(self._whole.density(values) / self.mass)

    def sample(self, n: int, generator: torch.Generator | None) -> Array:
        """Draws of all dates, of which those within the spans are kept; where they are rare, by quantiles."""
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
