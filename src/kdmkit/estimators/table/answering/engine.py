"""The engine behind questions to a fitted table: events in, exact distributions of columns out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.distributions.event_inference import EventEvidence
from kdmkit.distributions.event_text import Pair
from kdmkit.distributions.events import CERTAIN, Box, Condition, Event
from kdmkit.estimators.table.answering.component_cache import ComponentCache
from kdmkit.estimators.table.answering.digits_posterior import DigitsPosterior
from kdmkit.estimators.table.answering.pairs import pair_share
from kdmkit.estimators.table.answering.posterior import Posterior
from kdmkit.estimators.table.answering.variable_posterior import VariablePosterior
from kdmkit.estimators.table.column import Column
from kdmkit.estimators.table.outcomes import ColumnOutcomes
from kdmkit.estimators.table.schema import Schema
from kdmkit.kernels.regions import Missing, intersection
from kdmkit.training import Table

#: Rows that are answered together.
BLOCK = 4096
# Tails that a comparison of two columns leaves out.
_LEAST = 1e-9
# Rows that tell how usual evidence is: with the evidence, and of all; differences of log p that are rounding.
_FEW_ROWS, _MANY_ROWS, _ROUNDING = 200, 5000, 1e-5
# Evidence is unlike the data below this support.
_UNUSUAL = 1e-4


class TableEngine:
    """The columns of a table and the joint distribution of their variables.

    Args:
        schema: columns and their codecs.
        joint: the `TreeKDM` of the variables of the schema.
        module: the module that holds this distribution.
    """

    def __init__(self, schema: Schema, joint: Any, module: Any = None) -> None:
        self.schema, self.joint, self.module = schema, joint, module
        self._priors: dict[str, Posterior] = {}
        self._last_boxes: tuple[Event | None, list[Box]] = (None, [])
        self._log_probs_of_draws: dict[tuple[str, ...], Tensor] = {}

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
        """Boxes of columns as evidence of the model's variables."""
        return EventEvidence(self.joint, [part for box in boxes for part in self.schema.boxes(box)])

    def event(self, event: Event, given: Event) -> tuple[float, float]:
        """P(event | given), and log p(given)."""
        both, log_given = event & given, 0.0
        condition = self.boxes(given)
        if condition != [{}]:
            log_given = self._log_density(condition, given)
        boxes = self.boxes(both, "event")
        if condition and _has_densities(self.evidence(condition)):
            return self._share_of_density(boxes, condition), log_given
        return float(np.clip(np.exp(self.log_prob(boxes) - log_given), 0.0, 1.0)), log_given

    def log_prob(self, boxes: Sequence[Box]) -> float:
        """log P of disjoint boxes, also of pairs of columns that are compared."""
        plain = [box for box in boxes if not any(isinstance(key, Pair) for key in box)]
        total = float(self.evidence(plain).log_prob())
        compared = [self._log_prob_of_pair(box) for box in boxes if box not in plain]
        return float(np.logaddexp.reduce([total, *compared]))

    def conditional(self, boxes: Sequence[Box], rest: Box) -> np.ndarray:
        """P(box | rest) of boxes that all contain the conditions `rest`."""
        parts = [(i, one) for i, box in enumerate(boxes) for one in self._parts_of(box)]
        total = np.zeros(len(boxes))
        if parts:
            logs = EventEvidence(self.joint, [one for _, one in parts]).log_masses().cpu().numpy()
            np.add.at(total, [i for i, _ in parts], np.exp(logs - float(self.evidence([rest]).log_prob())))
        return total

    def _parts_of(self, box: Box) -> list[Box]:
        """Boxes of variables; none if the box has an empty region."""
        trimmed = {name: self.columns[name].trimmed(region) for name, region in box.items()}
        if any(region.is_empty for region in trimmed.values()):
            return []
        return self.schema.boxes({name: region for name, region in trimmed.items() if not region.is_whole})

    def extremes(self, column: Column) -> tuple[Any, Any]:
        """Quantiles of a column between which nearly all of its probability lies."""
        low, high = self._prior(column).quantile([_LEAST, 1 - _LEAST])
        return low, high

    def edges(self, column: Column, n: int) -> np.ndarray:
        """Quantiles of a column at n − 1 equal steps of probability."""
        return np.asarray(self._prior(column).quantile((np.arange(1, n) / n).tolist()), dtype=np.float64)

    def _log_prob_of_pair(self, box: Box) -> float:
        pairs = [key for key in box if isinstance(key, Pair)]
        if len(pairs) > 1:
            wanted = "one comparison of two columns in each alternative"
            raise ValueError(bad_argument("event", wanted, " and ".join(map(str, pairs))))
        rest = {key: region for key, region in box.items() if key not in pairs}
        evidence = self.evidence([rest])
        log_rest = float(evidence.log_prob())
        if np.isneginf(log_rest):
            return log_rest
        share = pair_share(self, pairs[0], box[pairs[0]], rest)
        return log_rest + float(np.log(share)) if share > 0 else -np.inf

    def _share_of_density(self, boxes: Sequence[Box], condition: Sequence[Box]) -> float:
        """P(event | given) if single values of densities are given: the share of the same kind of cases."""
        given, both = self.evidence(condition), self.evidence(boxes)
        below, above = (self._log_densities(one) for one in (given, both))
        if above[0] > below[0]:
            return 0.0
        return float(np.clip(np.exp(above[1] - below[1]), 0.0, 1.0))

    def _log_densities(self, evidence: EventEvidence) -> tuple[int, float]:
        """The number of densities in the evidence, and its log-density."""
        if {} in evidence.boxes:
            return 0, 0.0
        answers = evidence.answers(self.joint.variables[:1])
        if not answers:
            return 10**6, -np.inf
        log_evidence = torch.cat([answer.log_evidence for answer in answers])
        return len(answers[0].cases[0].points), float(torch.logsumexp(log_evidence, -1))

    def _log_density(self, condition: Sequence[Box], given: Event) -> float:
        log_density = (
            self.log_prob(condition)
            if any(isinstance(key, Pair) for box in condition for key in box)
            else self._log_densities(self.evidence(condition))[1]
        )
        if np.isneginf(log_density):
            raise impossible(given)
        return log_density

    # ---- one question

    def query(self, column: Column, given: Event) -> tuple[Posterior, float]:
        """The distribution of the present values of a column, and log p(given)."""
        boxes = self.boxes(given)
        if boxes == [{}]:
            return self._prior(column), 0.0
        if not boxes:
            raise impossible(given)
        check_plain(boxes)
        posterior = self._posterior_given(column, given)
        return posterior, posterior.log_evidence if column.presence is None else self._log_density(
            boxes, given
        )

    def share_of_missing(self, column: Column, given: Event) -> float:
        """P(the cell is missing | given)."""
        return 0.0 if column.presence is None else self.event(Condition(column.name, Missing), given)[0]

    def _posterior_given(
        self, column: Column, given: Event, evidence: EventEvidence | None = None
    ) -> Posterior:
        """The distribution of present values given an event.

        Args:
            evidence: that of the event, if the column has no missing cells.
        """
        condition = given if column.presence is None else given & ~Condition(column.name, Missing)
        boxes = self.boxes(condition)
        if not boxes:
            raise impossible(condition)
        if self._has_digits(column):
            posterior: Posterior = DigitsPosterior.given(self, column, boxes)
        else:
            (name,) = column.variables
            try:
                rho = (self.evidence(boxes) if evidence is None else evidence).infer([name])
            except ValueError as error:
                raise impossible(condition) from error
            cache = self.caches[name] if rho.kernel is self.joint.kernels[name] else None
            posterior = VariablePosterior(column, rho, cache)
        if np.isneginf(posterior.log_evidence):
            raise impossible(condition)
        return posterior

    def _has_digits(self, column: Column) -> bool:
        """Whether a column is one of dates, or of times of day too many for levels."""
        return column.kind in ("date", "time") and column.codec.levels is None

    def marginals(self, columns: Sequence[Column], given: Event) -> tuple[dict[str, Posterior], float]:
        """The distribution of every column, and log p(given): complete columns share one pass of messages."""
        boxes = self.boxes(given)
        if boxes == [{}]:
            return {column.name: self._prior(column) for column in columns}, 0.0
        if not boxes:
            raise impossible(given)
        check_plain(boxes)
        evidence = self.evidence(boxes)
        conditioned = {name for box in boxes for name in box}
        free = [
            c for c in columns if c.name not in conditioned and c.presence is None and not self._has_digits(c)
        ]
        posteriors: dict[str, Posterior] = {}
        if len(free) > 1 and evidence.cases:
            wanted = [column.variables[0] for column in free]
            joint = evidence.infer(wanted)
            for column, rho in zip(free, joint.marginals(*wanted).values(), strict=True):
                posteriors[column.name] = VariablePosterior(column, rho, self.caches[column.variables[0]])
                if np.isneginf(posteriors[column.name].log_evidence):
                    raise impossible(given)
        for column in columns:
            if column.name not in posteriors:
                known = evidence if column.presence is None else None
                posteriors[column.name] = self._posterior_given(column, given, known)
        ordered = {column.name: posteriors[column.name] for column in columns}
        complete = [ordered[column.name] for column in columns if column.presence is None]
        return ordered, complete[0].log_evidence if complete else self._log_density(boxes, given)

    def _prior(self, column: Column) -> Posterior:
        """The distribution of a column without evidence; made once."""
        if column.name not in self._priors:
            if column.presence is None:
                rho = self.joint.marginal(*column.variables)
                self._priors[column.name] = self._posterior_of(column, rho)
            else:
                self._priors[column.name] = self._posterior_given(column, CERTAIN)
        return self._priors[column.name]

    # ---- how usual evidence is

    def support(self, given: Event) -> float:
        """The share of rows that are at most as probable as the evidence, in the same columns."""
        boxes = self.boxes(given)
        names = sorted({str(key) for box in boxes for key in box if not isinstance(key, Pair)})
        if not names:
            return 1.0
        if self._are_outside(boxes):
            return 0.0
        plain = [{key: region for key, region in box.items() if not isinstance(key, Pair)} for box in boxes]
        variables = tuple(name for column in names for name in self.columns[column].all_variables)
        generator = torch.Generator(next(iter(self.joint.components.values())).device).manual_seed(0)
        rows = self.evidence(plain).sample(_FEW_ROWS, generator, variables)
        most_usual = self._log_prob_of(rows, variables).amax()
        return float((self._usual(variables) <= most_usual + _ROUNDING).double().mean())

    def is_unusual(self, given: Event) -> bool:
        """Whether the evidence is unlike the data: its support is below 1 in 10,000."""
        boxes = self.boxes(given)
        # The support is at least the probability, which needs no draws.
        return self._are_outside(boxes) or (
            self.log_prob(boxes) < math.log(_UNUSUAL) and self.support(given) < _UNUSUAL
        )

    def is_outside(self, given: Event) -> bool:
        """Whether the evidence lies outside of the data."""
        return self._are_outside(self.boxes(given))

    def _are_outside(self, boxes: Sequence[Box]) -> bool:
        return bool(boxes) and all(self._is_outside(box) for box in boxes)

    def _is_outside(self, box: Box) -> bool:
        """Whether a condition has none of the values between the least and the greatest one of the data."""
        seen = {name: self.columns[name].seen for name in box if not isinstance(name, Pair)}
        return any(intersection([box[name], region]).is_empty for name, region in seen.items())

    def _usual(self, variables: tuple[str, ...]) -> Float[Tensor, " rows"]:
        """log p of some variables in rows that are drawn."""
        if variables not in self._log_probs_of_draws:
            generator = torch.Generator(next(iter(self.joint.components.values())).device).manual_seed(1)
            rows = self.evidence([{}]).sample(_MANY_ROWS, generator, variables)
            self._log_probs_of_draws[variables] = self._log_prob_of(rows, variables)
        return self._log_probs_of_draws[variables]

    def _log_prob_of(self, rows: Mapping[str, Tensor], variables: Sequence[str]) -> Float[Tensor, " rows"]:
        if len(variables) == 1:
            log_prob = self.joint.marginal(variables[0]).log_prob(rows[variables[0]])
        else:
            observed = {
                name: ~column.presence.is_missing(rows)
                for column in self.columns.values()
                if column.presence is not None and column.presence.name in variables
                for name in column.variables
            }
            log_prob = self.joint.marginal(*variables).log_prob(observed=observed, **rows)
        return log_prob.double()

    # ---- many rows

    def posterior(self, column: Column, rows: Table) -> Any:
        """The distribution of a present value given the other columns of every row, `(rows,)`."""
        evidence, observed = _others(rows, column)
        if not evidence:
            return self._posterior_of(column, self.joint.marginal(*column.variables).expand((len(rows),)))
        ask = partial(self.joint.infer, observed=observed, **evidence)
        names = column.variables
        return self._posterior_of(column, ask(target=names[0] if len(names) == 1 else names), ask)

    def p_missing(self, column: Column, row: Table) -> float:
        """P(the cell is missing | other cells) of one row."""
        if column.presence is None:
            return 0.0
        evidence, observed = _others(row, column)
        del evidence[column.presence.name], observed[column.presence.name]
        name = column.presence.name
        rho = (
            self.joint.infer(observed=observed, target=name, **evidence)
            if evidence
            else self.joint.marginal(name)
        )
        return float(rho.probs.reshape(-1, 2)[0, 0])

    def _posterior_of(self, column: Column, rho: Any, ask: Any = None) -> Posterior:
        if self._has_digits(column):
            return DigitsPosterior(self, column, rho, ask)
        return VariablePosterior(column, rho, self.caches[column.variables[0]])

    def log_prob_of_rows(self, rows: Table) -> Float[Tensor, " rows"]:
        """log p of the observed part of every row, in the user's units."""
        log_prob: Tensor = self.joint.log_prob(observed=rows.observed, **rows.columns)
        return log_prob.double().cpu() + rows.log_offset.double()


def _others(rows: Table, column: Column) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Values and masks of the variables of other columns that at least one row has; at least one variable.

    The cell of the column is there, if the column has missing cells.
    """
    is_seen = {n: bool(mask.any()) for n, mask in rows.observed.items() if n not in column.all_variables}
    names = [name for name, seen in is_seen.items() if seen] or list(is_seen)[:1]
    values, observed = {n: rows.columns[n] for n in names}, {n: rows.observed[n] for n in names}
    if column.presence is not None:
        there = torch.ones(len(rows), dtype=torch.bool)
        values[column.presence.name], observed[column.presence.name] = there.long(), there
    return values, observed


def _has_densities(evidence: EventEvidence) -> bool:
    return any(case.points for case in evidence.cases)


def check_plain(boxes: Sequence[Mapping[Any, Any]]) -> None:
    """Raises if columns are compared with each other in evidence."""
    pair = next((key for box in boxes for key in box if isinstance(key, Pair)), None)
    if pair is not None:
        wanted = "conditions on single columns: two columns can be compared in events, and in `sample`"
        raise ValueError(bad_argument("given", wanted, f"{pair.left!r} and {pair.right!r}"))


def impossible(given: Event) -> ValueError:
    """The error about evidence of probability 0."""
    return ValueError(bad_argument("given", "values that can occur together", f"probability 0 of {given}"))
