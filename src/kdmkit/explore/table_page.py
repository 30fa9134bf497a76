"""A table on the page: answers of `KDMTable` in the forms of `kdmkit.explore.endpoints`."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import math
import shlex
from collections import OrderedDict
from typing import Any

from kdmkit._core.checks import bad_argument
from kdmkit.distributions.events import CERTAIN, as_event, question_text
from kdmkit.estimators import KDMTable
from kdmkit.estimators.table import Answer
from kdmkit.estimators.table.display import plain
from kdmkit.estimators.table.display import shown as shown_value
from kdmkit.estimators.table.frames.read import read_frame
from kdmkit.estimators.table.frames.restore import to_objects
from kdmkit.explore.endpoints import (
    CsvRow,
    CsvRows,
    RowQuestion,
    TableQuestion,
    TextQuestion,
    WantedColumns,
)
from kdmkit.explore.row_bodies import (
    as_csv,
    as_stream,
    in_json,
    read_arrow,
    read_columns,
    read_csv,
    refused_types,
)
from kdmkit.kernels import Missing

# The largest number of bins, the largest number of ordered levels without bins, the tails outside the bins.
_BINS, _LISTED, _TAIL = 48, 12, 0.001
# The largest number of bins of an ordered column with levels.
_LEVEL_BINS = 128
# Columns of a view that have their distribution; those of others are asked for.
_WHOLE = 24
# The number of cached answers.
_CACHED = 256
# Cells are marked if at most this share of values would be as surprising.
_SURPRISING = 0.01
# The page shows the probability outside the bins if it is larger than this.
_BEYOND = 0.01


class TableModel:
    """A table with the methods that endpoints call.

    Args:
        name: the name on the page.
        table: a fitted table.
        path: the file that it comes from, for the text of commands; None: there is none.
        fit_command: the command that writes this file, if there may be none yet.
    """

    kind = "table"

    def __init__(self, name: str, table: KDMTable, path: str | None = None, fit_command: str = "") -> None:
        self.name, self.table, self.path, self.fit_command = name, table, path, fit_command
        self._cache: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._prior = table.marginals()
        self._bins: dict[str, tuple[tuple[Any, Any], ...] | None] = {}
        self._columns: dict[str, dict[str, Any]] = {}
        self._links: dict[str, Any] | None = None
        self._fill_caches()

    def _fill_caches(self) -> None:
        """Answers one question: copies of this process need not make again what all questions share."""
        name, prior = next(iter(self._prior.items()))
        others = [other for other in self._prior if other != name][:_WHOLE]
        for answer in self.table.marginals({name: prior.mode}, others).values():
            self._card(answer)

    # ---- views

    def view(self) -> dict[str, Any]:
        columns = self.table.schema_.columns
        return {
            "kind": self.kind,
            "name": self.name,
            "rows": int(self.table.n_samples_seen_),
            "columns": [
                self._column(name) if i < _WHOLE else self._brief(name) for i, name in enumerate(self._prior)
            ],
            "left_out": [name for name in columns if name not in self._prior],
            "targets": list(self.table.targets_),
            "rules": list(self._rules().values()),
        }

    def _rules(self) -> dict[str, dict[str, Any]]:
        """The rules by their text: one may be found and given."""
        return {
            str(rule): {"text": str(rule), "rows": rule.n_rows, "exceptions": rule.exceptions}
            for rule in self.table.rules_
        }

    def columns_view(self, question: WantedColumns) -> dict[str, Any]:
        """Some columns with their marginals: those of wide tables are made when they are asked for."""
        wanted = [self.table.schema_.modelled_column("columns", name).name for name in question.columns]
        return {"columns": [self._column(name) for name in wanted]}

    def bins_of(self, name: str) -> tuple[tuple[Any, Any], ...] | None:
        """The bins of a column; None if its levels are listed instead."""
        if name not in self._bins:
            self._bins[name] = _bins(self._prior[name])
        return self._bins[name]

    def _brief(self, name: str) -> dict[str, Any]:
        """A column without its distribution."""
        column = self.table.schema_.columns[name]
        levels = [] if column.codec.ordered else [plain(value) for value in column.codec.levels or ()]
        return {
            "name": name,
            "kind": column.kind,
            "details": column.details,
            "missing": f"{column.missing:.1%}",
            "can_be_missing": column.can_miss,
            "ordered": column.codec.ordered,
            "bins": None,
            "labels": [],
            "levels": levels or None,
            "prior": None,
        }

    def _column(self, name: str) -> dict[str, Any]:
        if name not in self._columns:
            bins, values = self.bins_of(name), self.table.schema_.columns[name].codec.levels or ()
            shown_bins = () if bins is None else _adjacent(bins)
            self._columns[name] = {
                **self._brief(name),
                "bins": None if bins is None else [[plain(low), plain(high)] for low, high in shown_bins],
                "labels": [as_text(v) for v in values] if bins is None else _labels(shown_bins),
                "levels": [plain(v) for v in values] if bins is None else None,
                "prior": self._card(self._prior[name]),
            }
        return self._columns[name]

    def _card(self, answer: Answer) -> dict[str, Any]:
        name, codec = answer.column, self.table.schema_.columns[answer.column].codec
        bins = self.bins_of(name)
        numbers = {
            "mean": shown(answer.mean) if codec.numeric else None,
            "interval": [shown(end) for end in answer.interval(0.9)] if codec.ordered else None,
            "missing": f"{answer.p_missing:.1%}" if name in self.table.schema_.can_miss else None,
        }
        if bins is not None:
            masses = answer.histogram(bins)
            beyond = 1.0 - float(masses.sum())
            outside = f"{beyond:.1%}" if beyond > _BEYOND else None
            return {**numbers, "probabilities": _rounded(masses), "shares": None, "beyond": outside}
        probs = [answer.probs[level] for level in codec.levels or ()]
        shares = [f"{p:.1%}" for p in probs]
        return {**numbers, "probabilities": _rounded(probs), "shares": shares, "beyond": None}

    # ---- questions

    def marginals(self, question: TableQuestion) -> dict[str, Any]:
        """Cards of the columns without a condition."""
        key = question.model_dump_json()
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        given = self._given(question)
        wanted = self._prior.keys() if question.columns is None else {*question.columns}
        free = [name for name in self._prior if name not in given and name in wanted]
        answers = self.table.marginals(given, free)
        answer = next(iter(answers.values())) if answers else self.table.query(CERTAIN, given)
        probability = (
            None if self._has_density(given) else share_text(math.exp(min(0.0, answer.log_evidence)))
        )
        reply: dict[str, Any] = {
            "log_evidence": shown(answer.log_evidence),
            "probability": probability,
            "unusual": answer.is_unusual,
            "cards": {name: self._card(answer) for name, answer in answers.items()},
            "texts": self._texts(question.target, given),
        }
        if not all(math.isfinite(p) for card in reply["cards"].values() for p in card["probabilities"]):
            raise ValueError(bad_argument("given", "values that can occur together", str(given)))
        self._cache[key] = reply
        while len(self._cache) > _CACHED:
            self._cache.popitem(last=False)
        return reply

    def conditioned(self, question: TableQuestion) -> dict[str, Any]:
        """Cards of the columns with a condition, except those that are fixed to one level."""
        given = {n: value for n, value in self._given(question).items() if value is not Missing}
        names = [name for name in self._prior if name in given]
        several = [n for n in names if self.bins_of(n) is not None or isinstance(given[n], tuple | list)]
        answers = self.table.marginals(self._given(question), several) if several else {}
        return {"cards": {name: self._card(answer) for name, answer in answers.items()}}

    def _given(self, question: TableQuestion) -> dict[str, Any]:
        """Conditions by column; a missing cell of a column that was complete is unknown."""
        can_miss = self.table.schema_.can_miss
        conditions = question.conditions().items()
        return {name: value for name, value in conditions if value is not Missing or name in can_miss}

    def _has_density(self, given: dict[str, Any]) -> bool:
        """Whether log p of the conditions is that of a density: single values of continuous columns."""
        columns = self.table.schema_.columns
        points = [n for n, value in given.items() if value is not Missing and not isinstance(value, tuple)]
        return any(columns[n].codec.levels is None for n in points) and not self.table.probability(given)

    def _texts(self, target: str | None, given: dict[str, Any]) -> dict[str, str]:
        if target is None or target not in self._prior:
            target = next((name for name in self._prior if name not in given), next(iter(self._prior)))
        question = question_text(target, as_event(given))
        python = {"python": f"table.query({json.dumps(question, ensure_ascii=False)})"}
        if self.path is None:
            return python
        ask = f"kdmkit ask {shlex.quote(self.path)} {shlex.quote(question)}"
        return {**python, "shell": f"{self.fit_command} && {ask}" if self.fit_command else ask}

    def links(self) -> dict[str, Any]:
        """The tree of columns."""
        if self._links is None:
            dependence = self.table.dependence()
            pairs = [
                {"columns": [a, b], "information": max(0.0, value), "interval": dependence.interval(a, b)}
                for a, b, value in self.table.links()
            ]
            self._links = {"columns": list(self._prior), "links": pairs}
        return self._links

    def next_columns(self, question: TableQuestion) -> dict[str, Any]:
        """The information of every other column about the target."""
        target = question.target
        if target is None:
            raise ValueError(bad_argument("target", "a column", None))
        given = {name: value for name, value in self._given(question).items() if name != target}
        information = self.table.information(target, given, n_samples=1000)
        columns = [
            {"column": name, "information": max(0.0, value), "interval": information.intervals[name]}
            for name, value in information.items()
        ]
        return {"target": target, "columns": columns}

    def draws(self, question: TableQuestion) -> dict[str, Any]:
        """Rows drawn given the conditions, as texts."""
        columns = self._drawn(question)
        rows = zip(*columns.values(), strict=True)
        return {"columns": list(columns), "rows": [[as_text(cell) for cell in row] for row in rows]}

    def draws_csv(self, question: TableQuestion) -> str:
        """The same rows as CSV, with all digits."""
        columns, text = self._drawn(question), io.StringIO()
        writer = csv.writer(text)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
        return text.getvalue()

    def _drawn(self, question: TableQuestion) -> dict[str, list[Any]]:
        drawn = self.table.sample(question.n, self._given(question), question.seed)
        frame = read_frame("rows", drawn)
        return {name: to_objects(column) for name, column in frame.columns.items()}

    def ask(self, question: TextQuestion) -> dict[str, Any]:
        """The answer to a question in the query language."""
        reply: dict[str, Any] = in_json(self.table.query(question.query).to_dict())
        return reply

    def rows(self, question: RowQuestion, content: bytes, arrow: bool) -> bytes | dict[str, list[Any]]:
        """Answers about rows, in the form of the rows: Arrow or columns of JSON."""
        rows = read_arrow(content) if arrow else read_columns(content)
        with refused_types():
            (answers,) = self.table.stream(question.what, [rows], **question.options())
        return as_stream(answers) if arrow else {n: in_json(v) for n, v in answers.to_pydict().items()}

    def explain(self, question: CsvRow) -> dict[str, Any]:
        """The cells of a row of CSV, the most surprising first."""
        rows = self._csv_rows(question.csv)
        if not 0 <= question.row < rows.num_rows:
            wanted = f"one of the {rows.num_rows} rows of the CSV"
            raise ValueError(bad_argument("row", wanted, f"row {question.row + 1}"))
        cells = self.table.explain(self._modelled(rows.slice(question.row, 1)))
        return {"n_rows": rows.num_rows, "cells": [_cell(cell) for cell in cells]}

    def completed_csv(self, question: CsvRows) -> str:
        """The rows with missing cells filled in, or with predictions of a column and their intervals."""
        rows = self._csv_rows(question.csv)
        options: dict[str, Any] = {}
        if question.target is not None:
            ordered = self.table.schema_.modelled_column("target", question.target).codec.ordered
            options = {"target": question.target} | ({"interval": 0.9} if ordered else {})
        what = "impute" if question.target is None else "predict"
        with refused_types():
            (answers,) = self.table.stream(what, [self._modelled(rows)], **options)
        columns = dict(zip(rows.column_names, rows.columns, strict=True))
        for name, column in zip(answers.column_names, answers.columns, strict=True):
            columns[f"predicted {name}" if what == "predict" else name] = column
        return as_csv(columns)

    def _csv_rows(self, text: str) -> Any:
        rows = read_csv(text)
        names = rows.column_names
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(bad_argument("csv", "columns of different names", f"{twice!r} twice"))
        if not any(name in self._prior for name in names):
            wanted = f"a header line with columns of the table ({', '.join(list(self._prior)[:4])}, …)"
            raise ValueError(bad_argument("csv", wanted, ", ".join(names)[:200]))
        return rows

    def _modelled(self, rows: Any) -> Any:
        return rows.select([name for name in rows.column_names if name in self._prior])


def _bins(answer: Answer) -> tuple[tuple[Any, Any], ...] | None:
    """The bins of a column; None if its levels are listed instead."""
    levels = answer.levels
    if levels is not None and (not answer.ordered or len(levels) <= _LISTED):
        return None
    return tuple(answer.bins(_BINS if levels is None else _LEVEL_BINS, _TAIL))


def _adjacent(bins: tuple[tuple[Any, Any], ...]) -> tuple[tuple[Any, Any], ...]:
    """Bins as they are shown: without a grid of values, each ends where the next one starts."""
    starts = [low for low, _ in bins[1:]]
    touching = all(
        isinstance(high, float) and start - high < 1e-3 * (high - low)
        for (low, high), start in zip(bins, starts, strict=False)
    )
    ends = [*starts, bins[-1][1]] if touching else [high for _, high in bins]
    return tuple((low, end) for (low, _), end in zip(bins, ends, strict=True))


def _labels(bins: tuple[tuple[Any, Any], ...]) -> list[str]:
    return [as_text(low) if low == high else f"{as_text(low)} – {as_text(high)}" for low, high in bins]


def _rounded(masses: Any) -> list[float]:
    return [round(float(mass), 7) for mass in masses]


def _cell(cell: Any) -> dict[str, Any]:
    return {
        "column": cell.column,
        "value": "missing" if cell.value is None else as_text(cell.value),
        "expected": "missing" if cell.expected is None else shown(cell.expected),
        "probability": cell.probability,
        "surprising": cell.probability <= _SURPRISING,
        "known": plain(cell.value),
    }


# ---- values as texts


def shown(value: Any) -> str:
    """A number of an answer as the library prints it; dates without a time of zero.

    >>> shown(0.123456), shown(dt.datetime(2024, 1, 31))
    ('0.1235', '2024-01-31')
    """
    return as_text(value) if isinstance(value, dt.datetime) else shown_value(value)


def as_text(value: Any) -> str:
    """A value as a person writes it: all digits of numbers, nothing for a missing one.

    >>> as_text(0.1), as_text(None), as_text(dt.datetime(2024, 1, 31, 23, 59, 59, 999999))
    ('0.1', '', '2024-01-31')
    """
    value = plain(value) if not isinstance(value, dt.datetime) else value
    if isinstance(value, dt.datetime):
        is_day = value.time() in (dt.time.min, dt.time.max)
        return str(value.date()) if is_day else value.isoformat(" ", "minutes")
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def share_text(p: float) -> str:
    """A probability as text; small ones as "1 in n".

    >>> share_text(0.254), share_text(0.0021), share_text(1e-12), share_text(0.0)
    ('25.4%', '1 in 476', '1 in 1e+12', '0')
    """
    if p >= 0.01:
        return f"{p:.1%}"
    if p <= 0:
        return "0"
    return f"1 in {1 / p:,.0f}" if p >= 1e-9 else f"1 in {1 / p:.0e}"
