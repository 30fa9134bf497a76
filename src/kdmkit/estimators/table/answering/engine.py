"""The engine behind questions to a fitted table: events in, exact distributions of columns out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from kdmkit._core.checks import bad_argument
from kdmkit.distributions.event_inference import EventEvidence, ScoreCache
from kdmkit.distributions.event_text import Pair
from kdmkit.distributions.events import CERTAIN, Box, Condition, Event
from kdmkit.estimators.table.answering.component_cache import ComponentCache
from kdmkit.estimators.table.answering.digits_posterior import DigitsPosterior
from kdmkit.estimators.table.answering.pairs import Comparison
from kdmkit.estimators.table.answering.posterior import Posterior
from kdmkit.estimators.table.answering.row_answers import RowAnswers
from kdmkit.estimators.table.answering.support import Margins, Support
from kdmkit.estimators.table.answering.variable_posterior import DerivedPosterior, VariablePosterior
from kdmkit.estimators.table.codecs.functions import DerivedCodec
from kdmkit.estimators.table.column import Column
from kdmkit.estimators.table.outcomes import ColumnOutcomes
from kdmkit.estimators.table.presence import PRESENT
from kdmkit.estimators.table.schema import Schema
from kdmkit.kernels.regions import WHOLE, Missing, intersection

#: Rows that are answered together.
BLOCK = 4096


class ColumnMarginals(NamedTuple):
    """The distributions of columns given an event.

    Attributes:
        posteriors: of present values, by column.
        p_missing: probabilities that cells are missing, of columns for which they came from the same pass.
        log_evidence: log p(event).
    """

    posteriors: dict[str, Posterior]
    p_missing: dict[str, float]
    log_evidence: float


class TableEngine:
    """The columns of a table and the joint distribution of their variables.

    Args:
        schema: columns and their codecs.
        joint: the `TreeKDM` of the variables of the schema.
        module: the module that holds this distribution.
        margins: of evidence that is like the data, although the model would hardly draw it.
    """

    def __init__(
        self, schema: Schema, joint: Any, module: Any = None, margins: Margins | None = None
    ) -> None:
        self.schema, self.joint, self.module = schema, joint, module
        self._priors: dict[str, Posterior] = {}
        self._last_boxes: tuple[Event | None, list[Box]] = (None, [])
        self._last_evidence: tuple[Sequence[Box], EventEvidence | None] = ((), None)
        self._scores: ScoreCache = {}
        self.support = Support(self, Margins() if margins is None else margins)
        #: By compared variables, the shares of their orders for pairs of components.
        self.signs: dict[tuple[str | None, ...], Any] = {}

    @cached_property
    def caches(self) -> dict[str, ComponentCache]:
        """Quantities of the components, by variable."""
        return {
            n: ComponentCache(kernel, self.joint.components[n]) for n, kernel in self.joint.kernels.items()
        }

    @property
    def columns(self) -> dict[str, Column]:
        """The columns that the model holds."""
        return self.schema.modelled

    def root(self, column: Column) -> Column:
        """The column that has the variables of a column, as `root_of`."""
        return self.schema.columns[column.source or column.name]

    def column(self, argument: str, name: Any) -> Column:
        """A column of the model by its name."""
        return self.schema.modelled_column(argument, name)

    # ---- events

    def boxes(self, event: Event, argument: str = "given") -> list[Box]:
        """An event as disjoint boxes of outcomes of columns; those of the last event are kept."""
        last, boxes = self._last_boxes
        if last is not event:
            boxes = event.boxes(ColumnOutcomes(self.schema, argument))
            self._last_boxes = event, boxes
        return boxes

    def evidence(self, boxes: Sequence[Box]) -> EventEvidence:
        """Boxes of columns as evidence of the model's variables; that of the last boxes is kept."""
        last, evidence = self._last_evidence
        if last is not boxes or evidence is None:
            parts = [part for box in boxes for part in self.schema.boxes(box)]
            evidence = EventEvidence(self.joint, parts, self._scores)
            self._last_evidence = boxes, evidence
        return evidence

    def event(self, event: Event, given: Event) -> tuple[float, float]:
        """P(event | given), and log p(given)."""
        below, log_given = self.measure(self.boxes(given))
        if np.isneginf(log_given):
            raise impossible(given)
        above, log_both = self.measure(self.boxes(event & given, "event"))
        share = np.exp(log_both - log_given) if above == below else 0.0
        return float(np.clip(share, 0.0, 1.0)), log_given

    def measure(self, boxes: Sequence[Box]) -> tuple[int, float]:
        """How many single values of densities an event holds, and its log-density; 0 and log P if none."""
        compared = [box for box in boxes if any(isinstance(key, Pair) for key in box)]
        parts = [part for box in compared for part in self._compared(box)]
        parts.append(_measured(self.evidence([box for box in boxes if box not in compared])))
        possible = [part for part in parts if part[1] > -np.inf]
        least = min((n_densities for n_densities, _ in possible), default=0)
        logs = [log_density for n_densities, log_density in possible if n_densities == least]
        return least, float(np.logaddexp.reduce([-np.inf, *logs]))

    def _compared(self, box: Box) -> Iterator[tuple[int, float]]:
        """`measure` of the cases of a box in which two columns are compared."""
        pair, *others = [key for key in box if isinstance(key, Pair)]
        if others:
            wanted = "one comparison of two columns in each alternative"
            got = " and ".join(f"{left!r} with {right!r}" for left, right in [pair, *others])
            raise ValueError(bad_argument("event", wanted, got))
        left, right = (self.column("event", name) for name in pair)
        rest = {key: region for key, region in box.items() if key != pair}
        there, *missing = self._presence_of(rest, left, right)
        for evidence in (EventEvidence(self.joint, [case.regions]) for case in self.evidence(there).cases):
            n_densities, log_density = _measured(evidence)
            if log_density > -np.inf:
                rho = evidence.infer([*left.variables, *right.variables])
                share = Comparison(self, left, right, rho).probability(box[pair])
                yield n_densities, log_density + (math.log(share) if share else -np.inf)
        if box[pair].has_missing:
            yield from (_measured(self.evidence(boxes)) for boxes in missing)

    def _presence_of(self, rest: Box, left: Column, right: Column) -> Iterator[list[Box]]:
        """The part of a box in which both cells are there; then those in which the left one is missing, or
        the right one alone. Each is a list of one box, or of none.
        """
        for cells in ((PRESENT, PRESENT), (Missing, WHOLE), (PRESENT, Missing)):
            box = dict(rest)
            for column, region in zip((left, right), cells, strict=True):
                root, codec = self.root(column), column.codec
                part = codec.steps.preimage(region) if isinstance(codec, DerivedCodec) else region
                box[root.name] = root.trimmed(intersection([box.get(root.name, WHOLE), part]))
            is_possible = not any(region.is_empty for region in box.values())
            yield [{n: region for n, region in box.items() if not region.is_whole}] if is_possible else []

    # ---- one question

    def query(self, column: Column, given: Event) -> tuple[Posterior, float]:
        """The distribution of a present value of a column, and log p(given)."""
        boxes = self.boxes(given)
        if boxes == [{}]:
            return self.prior(column), 0.0
        if not boxes:
            raise impossible(given)
        check_plain(boxes)
        posterior = self._posterior_given(column, given)
        return posterior, posterior.log_evidence if not column.can_miss else self.measure(boxes)[1]

    def share_of_missing(self, column: Column, given: Event) -> float:
        """P(the cell is missing | given)."""
        return 0.0 if not column.can_miss else self.event(Condition(column.name, Missing), given)[0]

    def _posterior_given(
        self, column: Column, given: Event, evidence: EventEvidence | None = None
    ) -> Posterior:
        """The distribution of a present value given an event.

        Args:
            evidence: that of the event, if the column has no missing cells.
        """
        condition = given & ~Condition(column.name, Missing) if column.can_miss else given
        boxes = self.boxes(condition)
        if not boxes:
            raise impossible(condition)
        column = column.with_points(boxes)
        if self.has_digits(column):
            posterior: Posterior = DigitsPosterior.given(self, column, boxes)
        else:
            (name,) = column.variables
            try:
                rho = (self.evidence(boxes) if evidence is None else evidence).infer([name])
            except ValueError as error:
                raise impossible(condition) from error
            posterior = self.posterior_of(column, rho)
        if np.isneginf(posterior.log_evidence):
            raise impossible(condition)
        return posterior

    def has_digits(self, column: Column) -> bool:
        """Whether a column is one of dates, or of times of day too many for levels."""
        return column.kind in ("date", "time") and column.codec.levels is None

    def marginals(self, columns: Sequence[Column], given: Event) -> ColumnMarginals:
        """The distribution of every column: one pass of messages serves complete columns and presences."""
        boxes = self.boxes(given)
        if boxes == [{}]:
            return ColumnMarginals({column.name: self.prior(column) for column in columns}, {}, 0.0)
        if not boxes:
            raise impossible(given)
        check_plain(boxes)
        evidence = self.evidence(boxes)
        conditioned = {name for box in boxes for name in box}
        complete = [c for c in columns if not c.can_miss]
        free = [c for c in complete if self.root(c).name not in conditioned and not self.has_digits(c)]
        presences = self._free_presences(columns, evidence)
        wanted = list(dict.fromkeys([column.variables[0] for column in free] + list(presences.values())))
        posteriors: dict[str, Posterior] = {}
        p_missing: dict[str, float] = {}
        if len(wanted) > 1 and evidence.cases:
            every = evidence.infer(wanted).marginals(*wanted)
            for column in free:
                posteriors[column.name] = self.posterior_of(column, every[column.variables[0]])
                if np.isneginf(posteriors[column.name].log_evidence):
                    raise impossible(given)
            p_missing = {name: float(every[variable].probs[0]) for name, variable in presences.items()}
        for column in columns:
            if column.name not in posteriors:
                prepared = evidence if column in complete else None
                posteriors[column.name] = self._posterior_given(column, given, prepared)
        ordered = {column.name: posteriors[column.name] for column in columns}
        log_evidence = ordered[complete[0].name].log_evidence if complete else self.measure(boxes)[1]
        return ColumnMarginals(ordered, p_missing, log_evidence)

    def _free_presences(self, columns: Sequence[Column], evidence: EventEvidence) -> dict[str, str]:
        """The variables that alone say whether cells are there, by column: those without evidence."""
        conditioned = {variable for case in evidence.cases for variable in case.regions}
        names = {c.name: c.presence.name for c in columns if c.presence is not None and c.presence.name}
        return {name: variable for name, variable in names.items() if variable not in conditioned}

    def prior(self, column: Column) -> Posterior:
        """The distribution of a column without evidence; made once."""
        if column.name not in self._priors:
            self._priors[column.name] = (
                self.posterior_of(column, self.joint.marginal(*column.variables))
                if not column.can_miss
                else self._posterior_given(column, CERTAIN)
            )
        return self._priors[column.name]

    # ---- many rows

    @cached_property
    def rows(self) -> RowAnswers:
        """Answers about the cells of many rows."""
        return RowAnswers(self)

    def posterior_of(self, column: Column, rho: Any, ask: Any = None) -> Posterior:
        """The distribution of a column, from that of its variables."""
        if column.source:
            return DerivedPosterior(column, self.posterior_of(self.root(column), rho))
        if self.has_digits(column):
            return DigitsPosterior(self, column, rho, ask)
        (name,) = column.variables
        return VariablePosterior(
            column, rho, self.caches[name] if rho.kernel is self.joint.kernels[name] else None
        )


def _measured(evidence: EventEvidence) -> tuple[int, float]:
    """The number of densities in evidence, and its log-density."""
    if {} in evidence.boxes:
        return 0, 0.0
    answers = evidence.answers()
    if not answers:
        return 0, -np.inf
    n_densities = len(answers[0].cases[0].points)
    log_density = float(torch.cat([answer.log_evidence for answer in answers]).logsumexp(-1))
    return n_densities, log_density if n_densities else min(log_density, 0.0)


def check_plain(boxes: Sequence[Mapping[Any, Any]]) -> None:
    """Raises if columns are compared with each other in evidence."""
    pair = next((key for box in boxes for key in box if isinstance(key, Pair)), None)
    if pair is not None:
        wanted = "conditions on single columns: two columns can be compared in events, and in `sample`"
        raise ValueError(bad_argument("given", wanted, f"{pair.left!r} and {pair.right!r}"))


def impossible(given: Event) -> ValueError:
    """The error about evidence of probability 0."""
    return ValueError(bad_argument("given", "values that can occur together", f"probability 0 of {given}"))
