"""The distribution of a column of dates or times of day, whose digits are variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit.distributions import KDM
from kdmkit.distributions.event_inference import EventEvidence
from kdmkit.distributions.events import Box
from kdmkit.estimators.common.arrays import Array
from kdmkit.estimators.table.answering.digit_quantiles import (
    digit_given,
    first_digit,
    first_reached,
    narrowed,
)
from kdmkit.estimators.table.answering.posterior import Posterior, half_open, tails
from kdmkit.estimators.table.answering.variable_posterior import place_event
from kdmkit.estimators.table.codecs.dates import DateCodec
from kdmkit.estimators.table.codecs.times import TimeCodec
from kdmkit.estimators.table.column import Column
from kdmkit.estimators.table.presence import PRESENT
from kdmkit.kernels import Interval, Region
from kdmkit.kernels.regions import WHOLE, OneOf, intersection

if TYPE_CHECKING:
    from kdmkit.estimators.table.answering.engine import TableEngine

# The mode is searched between these quantiles: among all units up to a number of them, else in some days.
_TAIL, _MOST_UNITS, _DAYS = 1e-4, 20_000, 16
# A day with more units is searched on a grid of fewer points, with a finer grid near the best of them.
_MOST_IN_DAY, _GRID, _BEST = 86_400, 4096, 16
# Units whose densities are computed together.
_BLOCK = 1 << 14

#: The distribution of some variables, `target=`, given others by name.
Ask = Callable[..., Any]


class Source(NamedTuple):
    """A distribution of the digits, of which a region counts.

    Attributes:
        region: outcomes of the column.
        rho: the distribution of its variables given conditions on other columns.
        log_weight: the log-probability of those conditions.
    """

    region: Region
    rho: Any
    log_weight: float


class DigitsPosterior(Posterior):
    """The distribution of a column of dates or of times of day.

    Args:
        engine: the fitted table.
        column: the column.
        rho: the joint distribution of its variables.
        ask: the distribution of one variable (`target=`) given others of the column, from the whole model
            with all evidence; None: `rho.infer`, which is slower, since it adds evidence to evidence.
        sources: several distributions, of each of which a region counts, instead of `rho`.
        boxes: of the event that the sources stand for.
    """

    def __init__(
        self,
        engine: TableEngine,
        column: Column,
        rho: Any,
        ask: Ask | None = None,
        sources: Sequence[Source] = (),
        boxes: Sequence[Box] = (),
    ) -> None:
        assert isinstance(column.codec, DateCodec | TimeCodec)
        self.column, self.codec, self.rho, self.dates = column, column.codec, rho, column.codec
        self._engine, self._boxes = engine, boxes
        self._ask: Any = getattr(rho, "infer", None) if ask is None else ask
        self._sources = tuple(sources) or (Source(WHOLE, rho, 0.0),)
        self._is_restricted = bool(sources)
        self._log_total = 0.0
        if sources:
            masses = [self._mass_of(source.rho, [source.region])[0] for source in sources]
            with np.errstate(divide="ignore"):
                logs = [s.log_weight + np.log(mass) for s, mass in zip(sources, masses, strict=True)]
            self.log_evidence = self._log_total = float(np.logaddexp.reduce(logs))

    @classmethod
    def given(cls, engine: TableEngine, column: Column, boxes: Sequence[Box]) -> DigitsPosterior:
        """The distribution given an event, which may have conditions on the column itself."""
        groups: dict[Region, list[Box]] = {}
        there = {} if column.presence is None else {column.name: PRESENT}
        for box in boxes:
            rest = {name: region for name, region in box.items() if name != column.name}
            region = box.get(column.name, WHOLE)
            groups.setdefault(WHOLE if region == PRESENT else region, []).append({**rest, **there})
        answers = {region: _answer(engine, column, rest) for region, rest in groups.items()}
        if set(groups) == {WHOLE}:
            rho, log_evidence, ask = answers[WHOLE]
            posterior = cls(engine, column, rho, ask)
            posterior.log_evidence = log_evidence
            return posterior
        sources = [Source(region, rho, log_weight) for region, (rho, log_weight, _) in answers.items()]
        return cls(engine, column, sources[0].rho, None, sources, boxes)

    @property
    def batch(self) -> tuple[int, ...]:
        return tuple(self.rho.batch_shape)

    # ---- probabilities

    def _masses(self, regions: Sequence[Region]) -> Array:
        if not self._is_restricted:
            return self._mass_of(self.rho, regions)
        total = np.zeros(len(regions))
        for source in self._sources:
            inside = [intersection([region, source.region]) for region in regions]
            total += self._mass_of(source.rho, inside) * np.exp(source.log_weight - self._log_total)
        return total

    def _mass_of(self, rho: Any, regions: Sequence[Region]) -> Array:
        """The probabilities of regions under one distribution, `(n, *batch)`."""
        return self._mass_of_boxes(rho, [self._digit_boxes(region) for region in regions])

    def _mass_of_boxes(self, rho: Any, boxes: Sequence[Sequence[dict[str, Region]]]) -> Array:
        """The probabilities of unions of disjoint boxes of digits, `(n, *batch)`."""
        total = np.zeros((len(boxes), *rho.batch_shape))
        every = [(i, box) for i, several in enumerate(boxes) for box in several]
        if every:
            masses = log_masses(rho, self.column.variables, [box for _, box in every]).exp()
            np.add.at(total, [i for i, _ in every], masses.cpu().numpy())
        return total

    def _digit_boxes(self, region: Region) -> list[dict[str, Region]]:
        names = self.column.variables
        return [{names[i]: part for i, part in box.items()} for box in self.codec.boxes(region)]

    def histogram(self, bins: tuple[tuple[Any, Any], ...]) -> Array:
        """The probabilities of ranges, `(n, *batch)`; their boxes of digits are kept for the next answer."""
        regions, boxes = self._engine.caches[self.column.variables[0]].kept(bins, lambda: self._ranges(bins))
        masses = self._masses(regions) if self._is_restricted else self._mass_of_boxes(self.rho, boxes)
        return np.clip(masses, 0.0, 1.0)

    def _ranges(self, bins: Sequence[tuple[Any, Any]]) -> tuple[list[Region], list[list[dict[str, Region]]]]:
        regions = [self.outcomes(given) for given in half_open(bins)]
        return regions, [self._digit_boxes(region) for region in regions]

    def _log_prob(self, events: Sequence[Tensor]) -> Array:
        return self._log_prob_under(self.rho, events)

    def _log_prob_under(self, rho: Any, events: Sequence[Tensor]) -> Array:
        components = {self.column.variables[0]: rho.components} if isinstance(rho, KDM) else rho.components
        placed = {
            name: place_event(event, components[name])
            for name, event in zip(self.column.variables, events, strict=True)
        }
        log_prob = rho.log_prob(*placed.values()) if isinstance(rho, KDM) else rho.log_prob(**placed)
        return np.asarray(log_prob.double().cpu())

    def density(self, values: Any) -> Array:
        if self.batch:
            return super().density(values)
        return self.probabilities([OneOf([value]) for value in values])

    def _probs_of_units(self, units: np.ndarray) -> np.ndarray:
        """The probabilities of units of the column."""
        total = np.zeros(len(units))
        for source in self._sources:
            share = np.exp(source.log_weight - self._log_total)
            total += share * np.where(
                source.region.contains(units), self._probs_under(source.rho, units), 0.0
            )
        return total

    def _probs_under(self, rho: Any, units: np.ndarray) -> np.ndarray:
        if isinstance(self.codec, TimeCodec) and self.codec.units_per_day <= _MOST_IN_DAY:
            turn = self._engine.caches[self.column.variables[0]].turn
            return turn.probs(rho.log_weights).cpu().numpy()[np.asarray(units, dtype=np.int64)]
        cells = self.codec.encode(self.codec.raw(list(self.dates.from_units(units))))
        return np.where(np.asarray(cells.observed), np.exp(self._log_prob_under(rho, cells.parts)), 0.0)

    # ---- quantiles

    def quantile(self, q: float | Sequence[float]) -> Array:
        """The first date with F(date) ≥ q, `(*batch,)`; `(n, *batch)` for n levels q."""
        levels = np.asarray(q, dtype=np.float64)
        units = self._quantile_units(levels)
        return np.asarray(self.dates.from_units(units.reshape(-1))).reshape(units.shape)

    def _quantile_units(self, levels: np.ndarray) -> np.ndarray:
        shape = (*levels.shape, *self.batch)
        if 0 in self.batch:
            return np.zeros(shape)
        search = self._in_region if self._is_restricted else self._by_digits
        return np.stack([search(float(level)) for level in levels.reshape(-1)]).reshape(shape)

    def interval(self, coverage: float) -> Array:
        """The central one: dates are many."""
        return self.quantile(tails(coverage).tolist())

    def _in_region(self, q: float) -> np.ndarray:
        """The quantile of dates inside regions: digit by digit, by halving the range of each."""
        names, parts = self.column.variables, self.dates.parts
        cases = [(s.log_weight, s.rho, self._digit_boxes(s.region)) for s in self._sources]
        low, high = self.dates.digit_range()
        digits: list[np.ndarray] = []
        for place, (name, part) in enumerate(zip(names, parts, strict=True)):
            answers = [digit_given(weight, rho, name, boxes) for weight, rho, boxes in cases]
            total = sum(weight for weight, _ in answers)
            if place:
                low, high = 0, part.support_size - 1
            digit, below, upto = first_reached(part, answers, q * total, low, high)
            q = float(np.clip((q * total - below) / max(upto - below, 1e-300), 1e-12, 1.0))
            digits.append(np.array([float(digit)]))
            here = part.trimmed(part.outcomes(OneOf([digit])))
            cases = [
                (weight, rho, narrowed(boxes, name, part.kernel_region(here))) for weight, rho, boxes in cases
            ]
        return self.dates.units_of(digits).reshape(())

    def _by_digits(self, q: float) -> np.ndarray:
        rest = torch.full(self.batch, q, dtype=torch.float64, device=self._device)
        digits: list[np.ndarray] = []
        earlier: dict[str, Tensor | Region] = {}
        for name, part in zip(self.column.variables, self.dates.parts, strict=True):
            rho = self._ask(target=name, **earlier) if earlier else self._first_digit(name)
            digit, rest, earlier[name] = first_digit(part, rho, self._engine.caches[name], rest)
            digits.append(digit.cpu().numpy())
        return self.dates.units_of([np.atleast_1d(digit) for digit in digits]).reshape(self.batch)

    def _first_digit(self, name: str) -> KDM:
        rho: KDM = self.rho if isinstance(self.rho, KDM) else self.rho.marginal(name)
        return rho

    # ---- draws and modes

    @property
    def _device(self) -> torch.device:
        rho = self.rho
        like = rho.components if isinstance(rho, KDM) else next(iter(rho.components.values()))
        device: torch.device = like.device
        return device

    def sample(self, n: int, generator: torch.Generator | None) -> Array:
        names = self.column.variables
        if self._is_restricted:
            drawn = self._engine.evidence(self._boxes).sample(n, generator, names)
        else:
            drawn = self.rho.sample((n,), generator=generator)
            drawn = {names[0]: drawn} if isinstance(drawn, Tensor) else drawn
        shapes = self.codec.shapes
        lead = drawn[names[0]].shape[: drawn[names[0]].ndim - len(shapes[0])]
        flat = [drawn[name].cpu().reshape(-1, *shape) for name, shape in zip(names, shapes, strict=True)]
        return np.asarray(self.codec.values(*flat)).reshape(tuple(lead))

    def typical(self) -> Array:
        return self.dates.decoded(self._quantile_units(np.asarray(0.5)))

    def mode(self) -> Array:
        """The most probable date or time; of date-times, the most probable one in the 16 likeliest days."""
        size = self.dates.units_per_day
        low, high = 0, size - 1
        if isinstance(self.codec, DateCodec):
            low, high = (int(self._quantile_units(np.asarray(level))) for level in (_TAIL, 1 - _TAIL))
        units = np.arange(low, high + 1) if high - low < max(_MOST_UNITS, min(size, _MOST_IN_DAY)) else None
        if units is None:
            days = np.arange(low // size, high // size + 1)
            ranges: list[Region] = [
                Interval(day * size - 0.5, (day + 1) * size - 0.5, "left") for day in days.tolist()
            ]
            days = days[np.argsort(-self._masses(ranges))[:_DAYS], None] * size
            units = self._near_peaks(days) if size > _MOST_IN_DAY else days + np.arange(size)
        return np.asarray(self.dates.from_units(units.reshape(-1)[[self._heights(units).argmax()]]))[0]

    def _heights(self, units: np.ndarray) -> np.ndarray:
        parts = np.array_split(units.reshape(-1), -(-units.size // _BLOCK))
        return np.concatenate([self._probs_of_units(part) for part in parts])

    def _near_peaks(self, days: np.ndarray) -> np.ndarray:
        """Units near the most probable ones of some days that begin with the units `days`."""
        size = self.dates.units_per_day
        step = -(-size // _GRID)
        centres = self.codec.parts[-1].decode(self._engine.caches[self.column.variables[-1]].modes)
        cuts = [cut[1] for source in self._sources for span in source.region.spans for cut in span]
        ends = np.array([cut + side for cut in cuts for side in (-0.5, 0.5)])
        units = np.unique(
            np.concatenate([(days + np.arange(0, size, step)).ravel(), (days + centres).ravel(), ends])
        )
        while step > 1:
            best = units[np.argsort(-self._heights(units))[:_BEST]]
            near = best[:, None] + np.round(np.linspace(-step, step, 2 * _BEST + 1))
            units, step = np.unique(np.append(near, best)), -(-step // _BEST)
        return units


def _answer(engine: TableEngine, column: Column, boxes: Sequence[Box]) -> tuple[Any, float, Ask | None]:
    """The distribution of the digits given other columns, log p of those, and how to ask for one digit."""
    names = column.variables
    evidence = engine.evidence(boxes)
    if {} in evidence.boxes:
        return engine.joint.marginal(*names), 0.0, None
    rho = evidence.infer(list(names))
    return rho, float(rho.log_evidence), evidence.ask


def log_masses(
    rho: Any, names: Sequence[str], boxes: Sequence[dict[str, Region]]
) -> Float[Tensor, "n *batch"]:
    """The log-probability of every box of digits."""
    if not isinstance(rho, KDM):
        return EventEvidence(rho, boxes).log_masses()
    (name,) = names
    return rho.log_mass([box.get(name, WHOLE) for box in boxes]).double()
