"""`KDMTable` with its defaults."""

from __future__ import annotations

import functools
import operator
from typing import Any

import numpy as np
import pandas as pd

import kdmkit as kdm
from kdmlab.peers.model import COVERAGE, Array, Box, Condition, Event, Peer, Rows


class Model(Peer):
    """The table model."""

    def fit(self, rows: Rows) -> None:
        self.table = kdm.KDMTable(random_state=self.seed, device="cpu").fit(_frame(rows))

    def log_prob(self, rows: Rows) -> Array:
        return self.table.score_samples(_frame(rows))

    def draw(self, n: int, given: Box | None = None) -> Rows:
        event = None if given is None else _event([given])
        drawn = self.table.sample(n, given=event, random_state=self.seed)
        return {name: np.asarray(drawn[name]) for name in self.rows}

    def mass(self, box: Box) -> float:
        return self.table.probability(_event([box]))

    def probability(self, event: Event, given: Event = ({},)) -> float:
        return self.table.probability(_event(event), _event(given))

    def levels(self, target: str, names: Any, given: Box) -> list[float]:
        answer = self.table.query(target, dict(given))
        return [float(answer.probability(name)) for name in names]

    def interval(self, column: str, given: Box) -> tuple[float, float]:
        low, high = self.table.marginals(dict(given), [column])[column].interval(COVERAGE)
        return float(low), float(high)

    def compare(self, larger: str, smaller: str) -> float:
        return self.table.probability(kdm.col(larger) > kdm.col(smaller))

    def impute(self, rows: Rows) -> Rows:
        filled = self.table.impute(_frame(rows))
        return {name: np.asarray(filled[name]) for name in rows}

    def likeliest(self, given: Box) -> Box:
        cells = {
            name: [given.get(name, None if c.dtype == object else np.nan)] for name, c in self.rows.items()
        }
        filled = self.table.impute(pd.DataFrame(cells), how="rows")
        return {name: filled[name].iloc[0] for name in self.rows}

    def information(self, first: str, second: str) -> float:
        return float(self.table.information(first)[second])


def _frame(rows: Rows) -> pd.DataFrame:
    return pd.DataFrame(rows)


def _event(event: Event) -> Any:
    """None for an event that always holds."""
    boxes = [functools.reduce(operator.and_, parts) for box in event if (parts := _conditions(box))]
    return functools.reduce(operator.or_, boxes) if len(boxes) == len(event) else None


def _conditions(box: Box) -> list[Any]:
    return [_condition(kdm.col(name), value) for name, value in box.items()]


def _condition(column: Any, value: Condition) -> Any:
    if isinstance(value, tuple):
        return (column >= value[0]) & (column <= value[1])
    return column.isin(value) if isinstance(value, list) else column == value
