"""How usual evidence is: the share of rows that are at most as probable as it, in the same columns."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kdmkit._core.checks import bad_argument, warn_user
from kdmkit.distributions.component_scores import relative_scores
from kdmkit.distributions.event_text import Pair
from kdmkit.distributions.events import Box, Event
from kdmkit.distributions.mixing import Entry
from kdmkit.kernels import Interval, Region
from kdmkit.kernels.regions import WHOLE, shared_spans
from kdmkit.training import Table

if TYPE_CHECKING:
    from kdmkit.estimators.table.answering.engine import TableEngine
    from kdmkit.estimators.table.column import Column

# Evidence is unlike the data below this support.
_UNUSUAL = 1e-4
# Draws with the evidence: a few show that it is usual.
_SOME_DRAWS, _MANY_DRAWS = 50, 200
# Drawn rows that are moved inside of evidence.
_MOVED = 16
# Rows that are drawn of the model; more of them while no row is as unusual. Support below the share _RARE is
# measured with all of them, of which two are to be as unusual as evidence that is like the data.
_N_ROWS, _RARE = (100, 1000, 5000, 20_000), 1e-3
# Rows whose log p is computed together; sets of columns whose rows are kept; rounding of log p.
_BLOCK, _MOST_SETS, _ROUNDING = 4096, 100, 1e-5
# A value of a density counts with a neighbourhood: this share of the interquartile range of its column.
_NEIGHBOURHOOD = 0.02
# Margins: rows and draws that are compared, fewer of them in wide tables; the share of them that is less
# probable; how many sets of two and of three columns are compared; a difference in nats that may be chance.
_N_COMPARED, _FEWEST_COMPARED, _N_CELLS = 2000, 200, 60_000
_LEAST, _N_SETS, _CHANCE = 1e-3, 24, 1.0


@dataclass
class Margins:
    """How much lower log p is for rows of the data than for draws: the value that one in 1,000 lacks.

    A model that has learned little finds some of the data less probable than all that it would draw.

    Args:
        single: by column, this log p of draws, and that of rows of the data where it is lower.
        joint: the difference for several columns, beside those of single ones, per further column.
        rows: rows of the data, until they are compared.
    """

    single: dict[str, tuple[float, float]] = field(default_factory=dict)
    joint: float = 0.0
    rows: Table | None = None

    @classmethod
    def by(cls, rows: Table, seed: int) -> Margins:
        """Margins that are measured by some of the rows when they are first needed."""
        n = min(_N_COMPARED, max(_FEWEST_COMPARED, _N_CELLS // max(1, len(rows.columns))))
        index = np.random.default_rng(seed).permutation(len(rows))[:n]
        return cls(rows=rows.take(torch.from_numpy(index)))


class Support:
    """How usual evidence is for the model of an engine.

    Values of densities count with neighbourhoods, so that they compare with masses in any unit.
    """

    def __init__(self, engine: TableEngine, margins: Margins) -> None:
        self.engine, self.margins = engine, margins
        self._log_probs: dict[tuple[str, ...], Tensor] = {}
        self._widths: dict[str, float] = {}
        self._kept_scores: dict[str, tuple[Tensor, Tensor]] = {}
        self._last: tuple[Event | None, bool] = None, False

    def share(self, given: Event) -> float:
        """The share of rows that are at most as probable as the evidence, in the same columns."""
        boxes = self.engine.boxes(given)
        variables = self._variables_of(boxes)
        if not variables or self._are_outside(boxes):
            return 0.0 if variables else 1.0
        most_usual = self._most_usual(boxes, variables, _MANY_DRAWS)
        share = self._share_up_to(most_usual, variables, _N_ROWS[-2])
        return share if share >= _RARE else self._share_up_to(most_usual, variables, _N_ROWS[-1])

    def is_unusual(self, given: Event, log_evidence: float | None = None) -> bool:
        """Whether the evidence is unlike the data: its support is below 1 in 10,000. The last result is kept.

        Args:
            log_evidence: log p(given), if it was computed.
        """
        if self._last[0] is not given:
            boxes = self.engine.boxes(given)
            # Most evidence needs no draws: the support is at least its probability.
            log_p = self._log_probability(boxes, log_evidence)
            is_usual = log_p >= math.log(_UNUSUAL)
            self._last = given, self._are_outside(boxes) or not (is_usual or self._is_drawn(given, log_p))
        return self._last[1]

    def _is_drawn(self, given: Event, log_p: float) -> bool:
        """Whether draws show that evidence of some log-probability is like the data."""
        boxes = self.engine.boxes(given)
        variables = self._variables_of(boxes)
        if not variables:
            return True
        if self._share_up_to(self._attained(boxes, variables, log_p), variables, _N_ROWS[0]) > 0:
            return True
        most_usual = self._most_usual(boxes, variables, _SOME_DRAWS)
        if any(self._share_up_to(most_usual, variables, n) > 0 for n in _N_ROWS[:2]):
            return True
        if self.share(given) >= _UNUSUAL:
            return True
        margins, names = self.measure(), self._roots_of(boxes)
        allowed = float(self._with_margins(self._draws(boxes, variables, _SOME_DRAWS), names).amax())
        allowed += margins.joint * (len(names) - 1)
        return self._share_up_to(allowed, variables, _N_ROWS[-1]) >= _UNUSUAL

    def warn(self, given: Event, log_evidence: float | None = None) -> None:
        """A warning if evidence is unlike the data."""
        if not self.is_unusual(given, log_evidence):
            return
        wanted, reason = "values like those of the data", "fewer than 1 in 10,000 rows are as unusual, and "
        if self._are_outside(self.engine.boxes(given)):
            wanted, reason = "values between the least and the greatest of the data", ""
        got = bad_argument("given", wanted, given)
        warn_user(f"{got}; {reason}the answer rests on the tails of the model")

    def _roots_of(self, boxes: Sequence[Box]) -> list[str]:
        """The conditioned columns, or those that they are functions of."""
        names = sorted({str(key) for box in boxes for key in box if not isinstance(key, Pair)})
        return list(dict.fromkeys(self.engine.root(self.engine.columns[name]).name for name in names))

    def _variables_of(self, boxes: Sequence[Box]) -> tuple[str, ...]:
        """The variables of conditioned columns, and those that say whether their cells are there."""
        return self._variables(self._roots_of(boxes))

    def _variables(self, names: Sequence[str]) -> tuple[str, ...]:
        roots = [self.engine.columns[name] for name in names]
        there = [name for column in roots if column.presence for name in column.presence.there]
        return tuple(dict.fromkeys([*there, *(name for column in roots for name in column.variables)]))

    def _are_outside(self, boxes: Sequence[Box]) -> bool:
        """Whether every box has a condition without values between the least and the greatest of the data."""
        return bool(boxes) and all(map(self._is_outside, boxes))

    def _is_outside(self, box: Box) -> bool:
        for name, region in box.items():
            seen = WHOLE if isinstance(name, Pair) else self.engine.columns[name].seen
            if not (region.has_missing and seen.has_missing) and not shared_spans([region.spans, seen.spans]):
                return True
        return False

    # ---- margins

    @torch.no_grad()
    def measure(self) -> Margins:
        """The margins, measured by the rows of the data that wait for it."""
        margins, choose = self.margins, random.Random(0)
        if (rows := margins.rows) is None:
            return margins
        names, n = list(self.engine.schema.roots), max(len(rows), _FEWEST_COMPARED)
        drawn = self.engine.evidence([{}]).sample(n, self._generator(2), self._variables(names))
        for name in names:
            of_draws, of_rows = self._least([name], drawn), self._least([name], self._present([name], rows))
            margins.single[name] = of_draws, of_rows if of_draws - of_rows > _CHANCE else of_draws
        for size in (2, 3):
            for _ in range(_N_SETS if len(names) >= size else 0):
                some = choose.sample(names, size)
                difference = self._least(some, drawn) - self._least(some, self._present(some, rows))
                if difference > _CHANCE:
                    margins.joint = max(margins.joint, difference / (size - 1))
        margins.rows = None
        return margins

    def _present(self, names: Sequence[str], rows: Table) -> dict[str, Tensor]:
        """The rows in which cells of some columns are there or are known to be missing."""
        variables = self._variables(names)
        there = [rows.observed[name] for name in variables if name in rows.observed]
        kept = torch.stack(there).all(0) if there else slice(None)
        device = self._generator(0).device
        return {name: rows.columns[name][kept].to(device) for name in variables}

    def _least(self, names: Sequence[str], rows: Mapping[str, Tensor]) -> float:
        """The log p of columns that one row in 1,000 lacks, with margins of single ones; ∞ without rows."""
        scores = self._with_margins(rows, names)
        scores = scores[scores.isfinite()].sort().values
        return float(scores[int(_LEAST * len(scores))]) if len(scores) else math.inf

    def _with_margins(self, rows: Mapping[str, Tensor], names: Sequence[str]) -> Float[Tensor, " rows"]:
        """log p of some columns, higher where the data have cells that the model would hardly draw."""
        total = self._log_prob_of({n: rows[n] for n in self._variables(names)}, self._variables(names))
        for name in names:
            if name in self.margins.single:
                least, of_rows = self.margins.single[name]
                variables = self._variables([name])
                alone = self._log_prob_of({n: rows[n] for n in variables}, variables)
                total = total + (least - alone).clamp(0.0, least - of_rows)
        return total

    # ---- draws

    def _log_probability(self, boxes: Sequence[Box], log_evidence: float | None) -> float:
        """log P of evidence whose values of densities stand for their neighbourhoods; −∞ if they are not
        those of one set of columns.
        """
        points = {case.points for case in self.engine.evidence(_without_pairs(boxes)).cases}
        if len(points) != 1:
            return -math.inf
        log_p = self.engine.measure(boxes)[1] if log_evidence is None else log_evidence
        return log_p + sum(map(self._log_width, points.pop()))

    def _attained(self, boxes: Sequence[Box], variables: Sequence[str], log_p: float) -> float:
        """A log p that rows with the evidence attain: of a few drawn rows that are moved inside of it.

        It costs less than draws with the evidence. −∞ for several boxes, dates and missing cells.
        """
        box, rows, are_single = boxes[0], dict[str, Tensor](), []
        if len(boxes) > 1 or any(isinstance(key, Pair) or not region.spans for key, region in box.items()):
            return -math.inf
        for name, region in box.items():
            column = self.engine.columns[str(name)]
            cells = None if column.source else self._cells_inside(column, region)
            if cells is None:
                return -math.inf
            there = {} if column.presence is None else column.presence.there
            rows |= {key: torch.full_like(self._rows[key][:_MOVED], code) for key, code in there.items()}
            rows[column.variables[0]] = cells.to(self._rows[column.variables[0]])
            are_single.append(_is_one_value(column, region))
        return log_p if all(are_single) else float(self._log_prob_of(rows, variables).amax())

    def _cells_inside(self, column: Column, region: Region) -> Tensor | None:
        part, levels = column.codec.number_part, column.codec.levels
        place = np.arange(_MOVED)
        if part is not None:
            ends = np.array([_ends(piece) for piece in region.pieces])[place % len(region.pieces)]
            low, high = ends[:, 0] + 0.5 * part.step, ends[:, 1] - 0.5 * part.step
            numbers = part.decode(self._rows[column.variables[0]][:_MOVED])
            return part.encode(np.clip(numbers, low, np.maximum(low, high))).values
        if levels is None:
            return None
        inside = [
            level
            for level, holds in zip(levels, region.contains(np.arange(len(levels))), strict=True)
            if holds
        ]
        return column.codec.encode(column.codec.raw([inside[i % len(inside)] for i in place])).parts[0]

    def _most_usual(self, boxes: Sequence[Box], variables: Sequence[str], n: int) -> float:
        """The largest log p among draws with the evidence."""
        return float(self._log_prob_of(self._draws(boxes, variables, n), variables).amax())

    def _draws(self, boxes: Sequence[Box], variables: Sequence[str], n: int) -> dict[str, Tensor]:
        return self.engine.evidence(_without_pairs(boxes)).sample(n, self._generator(0), variables)

    def _share_up_to(self, log_prob: float, variables: tuple[str, ...], n: int) -> float:
        """The share of n rows that are at most as probable."""
        kept = self._log_probs.pop(variables, torch.empty(0, dtype=torch.float64))
        for size in _N_ROWS:
            if len(kept) < size <= n:
                kept = torch.cat([kept, self._drawn(size - len(kept), variables, size)])
        self._log_probs[variables] = kept  # the latest at the end
        if len(self._log_probs) > _MOST_SETS:
            del self._log_probs[next(iter(self._log_probs))]
        return float((kept[:n] <= log_prob + _ROUNDING).double().mean())

    def _drawn(self, n: int, variables: tuple[str, ...], seed: int) -> Float[Tensor, " n"]:
        """log p of some variables in rows that are drawn."""
        if seed == _N_ROWS[0]:  # the same rows for all variables
            return (
                self.engine.joint._log_mass({name: self._scores_of_rows(name) for name in variables})
                .double()
                .cpu()
            )
        generator, everything = self._generator(seed), self.engine.evidence([{}])
        sizes = [min(_BLOCK, n - start) for start in range(0, n, _BLOCK)]
        rows = (everything.sample(size, generator, variables) for size in sizes)
        return torch.cat([self._log_prob_of(block, variables).cpu() for block in rows])

    @cached_property
    def _rows(self) -> dict[str, Tensor]:
        """Some whole rows that are drawn."""
        names = self._variables(list(self.engine.schema.roots))
        return self.engine.evidence([{}]).sample(_N_ROWS[0], self._generator(_N_ROWS[0]), names)

    def _scores_of_rows(self, name: str) -> tuple[Tensor, Tensor]:
        """log p of a variable in `_rows` by component, with neighbourhoods, in two parts to be added."""
        if name not in self._kept_scores:
            joint, rows = self.engine.joint, self._rows[name]
            missing = [
                column.presence.is_missing(self._rows)
                for column in self.engine.schema.roots.values()
                if column.presence is not None and name in column.variables
            ]
            keep = ~missing[0] if missing else None
            entry = Entry(joint.kernels[name], rows, joint.components[name], "density", keep)
            relative, tops = relative_scores([entry])
            if not (joint.kernels[name].discrete or joint.kernels[name].only_atoms):
                counts = self._has_density(name, rows) & (True if keep is None else keep)
                tops = tops + counts * self._log_width(name)
            self._kept_scores[name] = relative, tops
        return self._kept_scores[name]

    def _generator(self, seed: int) -> torch.Generator:
        components = next(iter(self.engine.joint.components.values()))
        return torch.Generator(components.device).manual_seed(seed)

    def _log_prob_of(self, rows: Mapping[str, Tensor], variables: Sequence[str]) -> Float[Tensor, " rows"]:
        """log p of some variables; values of densities count with their neighbourhoods."""
        joint, observed = self.engine.joint, dict[str, Tensor]()
        if len(variables) == 1:
            log_prob = joint.marginal(variables[0]).log_prob(rows[variables[0]])
        else:
            observed = {
                name: ~column.presence.is_missing(rows)
                for column in self.engine.columns.values()
                if column.presence is not None and column.presence.there.keys() <= set(variables)
                for name in column.variables
                if name in variables
            }
            log_prob = joint.marginal(*variables).log_prob(observed=observed, **rows)
        log_prob = log_prob.double()
        for name in variables:
            kernel = joint.kernels[name]
            if not (kernel.discrete or kernel.only_atoms):
                counts = self._has_density(name, rows[name])
                counts = counts & observed[name] if name in observed else counts
                log_prob = log_prob + counts * self._log_width(name)
        return log_prob

    def _has_density(self, name: str, events: Tensor) -> Bool[Tensor, " rows"]:
        """Which events of a continuous variable are no atoms."""
        kernel = self.engine.joint.kernels[name]
        if not kernel.has_atoms:
            return torch.ones(len(events), dtype=torch.bool, device=events.device)
        return ~(kernel.nearest_atom(events) == events).flatten(1).all(-1)

    def _log_width(self, name: str) -> float:
        """The logarithm of the width of a neighbourhood of values of a density."""
        if name not in self._widths:
            shape = (_N_ROWS[-2],)
            events = self.engine.joint.marginal(name).sample(shape, generator=self._generator(1))
            events = events[self._has_density(name, events)].double().flatten()
            low, high = torch.quantile(events, torch.tensor([0.25, 0.75]).to(events)).tolist()
            self._widths[name] = math.log(_NEIGHBOURHOOD * (high - low))
        return self._widths[name]


def _without_pairs(boxes: Sequence[Box]) -> Sequence[Box]:
    """Boxes without the comparisons of two columns."""
    if not any(isinstance(key, Pair) for box in boxes for key in box):
        return boxes
    return [{key: region for key, region in box.items() if not isinstance(key, Pair)} for box in boxes]


def _ends(piece: Interval) -> tuple[float, float]:
    return -math.inf if piece.low is None else piece.low, math.inf if piece.high is None else piece.high


def _is_one_value(column: Column, region: Region) -> bool:
    """Whether a region of numbers or levels is a single value."""
    (low, high), part = _ends(region.pieces[0]), column.codec.number_part
    step = 1.0 if part is None else part.step
    has_cells = part is None or part.masses or not part.step
    return has_cells and len(region.pieces) == 1 and high - low <= 1.001 * step
