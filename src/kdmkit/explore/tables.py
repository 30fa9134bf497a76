"""What the page shows of a table: answers of `KDMTable` in the form of `kdmkit.explore.requests`."""

from __future__ import annotations

import csv
import io
import json
import math
import shlex
from collections import OrderedDict
from importlib import import_module
from typing import Any

from kdmkit._core.checks import bad_argument
from kdmkit.estimators import KDMTable
from kdmkit.estimators.table import Answer
from kdmkit.estimators.table.answering.questions import describe
from kdmkit.estimators.table.frames.read import read_frame
from kdmkit.estimators.table.frames.restore import to_objects
from kdmkit.explore import requests as r
from kdmkit.explore.values import as_text, plain, share_text, shown

# Bins of a card, at most; levels of an ordered column that are listed one by one; the tails outside of bins.
_BINS, _LISTED, _TAIL = 48, 12, 0.001
# Levels of an ordered column that have a bar each, at most.
_LEVEL_BARS = 128
# Answers that are kept, by question.
_KEPT = 256
# Cells are marked where at most this share of values would be as surprising.
_SURPRISING = 0.01
# More probability than this outside of the bins is told.
_BEYOND = 0.01


class TableModel:
    """One table, as the page asks it.

    Args:
        name: what the page calls it.
        table: a fitted table.
        path: the file that it comes from, for the text of commands.
    """

    kind = "table"

    def __init__(self, name: str, table: KDMTable, path: str | None = None) -> None:
        self.name, self.table, self.path = name, table, path
        self._kept: OrderedDict[str, dict[str, Any]] = OrderedDict()
        prior = table.marginals()
        self.bins = {name: _bins(answer) for name, answer in prior.items()}
        self._prior = {name: self._card(answer) for name, answer in prior.items()}
        self._links: dict[str, Any] | None = None

    # ---- views

    def view(self) -> dict[str, Any]:
        columns = self.table.schema_.columns
        return {
            "kind": self.kind,
            "name": self.name,
            "rows": int(self.table.n_samples_seen_),
            "columns": [self._column(name) for name in self._prior],
            "left_out": [name for name in columns if name not in self._prior],
            "targets": [str(name) for name in self.table.targets or ()],
        }

    def _column(self, name: str) -> dict[str, Any]:
        column, bins = self.table.schema_.columns[name], self.bins[name]
        values = column.codec.levels or ()
        shown_bins = () if bins is None else _adjacent(bins)
        return {
            "name": name,
            "kind": column.kind,
            "details": column.details,
            "missing": f"{column.missing:.1%}",
            "ordered": column.codec.ordered,
            "bins": None if bins is None else [[plain(low), plain(high)] for low, high in shown_bins],
            "labels": [as_text(v) for v in values] if bins is None else _labels(shown_bins),
            "levels": [plain(v) for v in values] if bins is None else None,
            "prior": self._prior[name],
        }

    def _card(self, answer: Answer) -> dict[str, Any]:
        name, codec = answer.column, self.table.schema_.columns[answer.column].codec
        bins = self.bins[name]
        numbers = {
            "mean": shown(answer.mean) if codec.numeric else None,
            "interval": [shown(end) for end in answer.interval(0.9)] if codec.ordered else None,
        }
        if bins is not None:
            masses = answer.histogram(bins)
            beyond = 1.0 - float(masses.sum())
            told = f"{beyond:.1%}" if beyond > _BEYOND else None
            return {**numbers, "probabilities": _rounded(masses), "shares": None, "beyond": told}
        probs = [answer.probs[level] for level in codec.levels or ()]
        shares = [f"{p:.1%}" for p in probs]
        return {**numbers, "probabilities": _rounded(probs), "shares": shares, "beyond": None}

    # ---- questions

    def marginals(self, asked: r.Evidence) -> dict[str, Any]:
        """Cards of the columns of which nothing is known."""
        key = asked.model_dump_json()
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        given = asked.known()
        free = [name for name in self._prior if given.get(name) is None]
        answers = self.table.marginals(given, free)
        found = {
            **self._usual(self._log_evidence(given, answers), self._has_density(given)),
            "cards": {name: self._card(answer) for name, answer in answers.items()},
            "texts": self._texts(asked.target, given),
        }
        if not all(math.isfinite(p) for card in found["cards"].values() for p in card["probabilities"]):
            raise ValueError(bad_argument("given", "values that can occur together", str(given)))
        self._kept[key] = found
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return found

    def held(self, asked: r.Evidence) -> dict[str, Any]:
        """Cards of the columns of which something is known, except of those that are held to one level."""
        given = asked.known()
        known = [name for name in self._prior if given.get(name) is not None]
        several = [n for n in known if self.bins[n] is not None or isinstance(given[n], tuple | list)]
        answers = self.table.marginals(given, several) if several else {}
        return {"cards": {name: self._card(answer) for name, answer in answers.items()}}

    def _log_evidence(self, given: dict[str, Any], answers: dict[str, Answer]) -> float:
        if answers:
            return next(iter(answers.values())).log_evidence
        return float(self.table.query(next(iter(given)), given).log_evidence)

    def _usual(self, log_evidence: float, density: bool) -> dict[str, Any]:
        probability = None if density else math.exp(min(0.0, log_evidence))
        return {
            "log_evidence": shown(log_evidence),
            "probability": None if probability is None else share_text(probability),
        }

    def _has_density(self, given: dict[str, Any]) -> bool:
        """Whether log p of what is given is a density: single values of continuous columns."""
        points = (n for n, value in given.items() if value is not None and not isinstance(value, tuple))
        kernels = (kernel for n in points for kernel in self.table.schema_.columns[n].codec.kernels())
        return not all(kernel.discrete for kernel in kernels)

    def _texts(self, target: str | None, given: dict[str, Any]) -> dict[str, str]:
        known = {name: value for name, value in given.items() if value is not None}
        if target is None or target not in self._prior:
            target = next((name for name in self._prior if name not in known), next(iter(self._prior)))
        question = describe(target, known)
        command = f"kdmkit ask {shlex.quote(self.path or self.name)} {shlex.quote(question)}"
        return {"python": f"table.query({json.dumps(question, ensure_ascii=False)})", "shell": command}

    def links(self) -> dict[str, Any]:
        """The tree of columns."""
        if self._links is None:
            found = self.table.links()
            pairs = [{"columns": [a, b], "information": max(0.0, value)} for a, b, value in found]
            self._links = {"columns": list(self._prior), "links": pairs}
        return self._links

    def next_columns(self, asked: r.Target) -> dict[str, Any]:
        """Which column would tell most about the target."""
        given = {name: value for name, value in asked.known().items() if name != asked.target}
        found = self.table.information(asked.target, given, n_samples=1000)
        return {"target": asked.target, "columns": [[name, max(0.0, v)] for name, v in found.items()]}

    def draws(self, asked: r.Draws) -> dict[str, Any]:
        """Rows under the evidence, as texts."""
        columns = self._drawn(asked)
        rows = zip(*columns.values(), strict=True)
        return {"columns": list(columns), "rows": [[as_text(cell) for cell in row] for row in rows]}

    def draws_csv(self, asked: r.Draws) -> str:
        """The same rows as CSV, with all digits."""
        columns, text = self._drawn(asked), io.StringIO()
        writer = csv.writer(text)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
        return text.getvalue()

    def _drawn(self, asked: r.Draws) -> dict[str, list[Any]]:
        frame = read_frame("rows", self.table.sample(asked.n, asked.known(), asked.seed))
        return {name: to_objects(column) for name, column in frame.columns.items()}

    def explain(self, asked: r.Row) -> dict[str, Any]:
        """The cells of a row of CSV, the most surprising first."""
        rows = _read_csv(asked.csv)
        if not 0 <= asked.row < rows.num_rows:
            wanted = f"one of the {rows.num_rows} rows of the CSV"
            raise ValueError(bad_argument("row", wanted, f"row {asked.row + 1}"))
        names = rows.column_names
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(bad_argument("csv", "columns of different names", f"{twice!r} twice"))
        known = [name for name in names if name in self._prior]
        if not known:
            wanted = f"a header line with columns of the table ({', '.join(list(self._prior)[:4])}, …)"
            raise ValueError(bad_argument("csv", wanted, ", ".join(names)[:200]))
        cells = self.table.explain(rows.slice(asked.row, 1).select(known))
        return {"n_rows": rows.num_rows, "cells": [_cell(cell) for cell in cells]}


def _bins(answer: Answer) -> tuple[tuple[Any, Any], ...] | None:
    """The bins of a column; None where its levels are listed."""
    levels = answer.levels
    if levels is not None and (not answer.ordered or len(levels) <= _LISTED):
        return None
    return tuple(answer.bins(_BINS if levels is None else _LEVEL_BARS, _TAIL))


def _adjacent(bins: tuple[tuple[Any, Any], ...]) -> tuple[tuple[Any, Any], ...]:
    """Bins as they are shown: of numbers without a grid, each ends where the next one starts."""
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
        "value": as_text(cell.value),
        "expected": shown(cell.expected),
        "probability": cell.probability,
        "surprising": cell.probability <= _SURPRISING,
        "known": plain(cell.value),
    }


def _read_csv(text: str) -> Any:
    try:
        arrow, reader = import_module("pyarrow"), import_module("pyarrow.csv")
    except ImportError as error:
        raise ValueError("rows of CSV need: pip install 'kdmkit[table]'") from error
    options = reader.ReadOptions(use_threads=False, block_size=1 << 20)
    try:
        rows = reader.read_csv(io.BytesIO(text.encode()), read_options=options)
    except arrow.ArrowInvalid as error:
        raise ValueError(bad_argument("csv", "a header line and rows", str(error)[:200])) from error
    if not rows.num_rows:
        raise ValueError(bad_argument("csv", "a header line and at least one row", "no row"))
    if rows.num_rows > r.MOST_ROWS:
        raise ValueError(bad_argument("csv", f"at most {r.MOST_ROWS:,} rows", f"{rows.num_rows:,}"))
    return rows
