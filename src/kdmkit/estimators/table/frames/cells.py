"""The cells of a column of texts as numbers, times and missing cells, as its storage says.

Markers are texts that stand for a missing cell, such as `NA`, `-` and `\\N`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from kdmkit.estimators.table.frames.read import RawFrame
from kdmkit.estimators.table.frames.storage import BASES, RawColumn, Storage

#: Texts that stand for a missing cell in every column; blank texts do, too.
_MARKERS = frozenset(
    {"\\n", "na", "n/a", "n.a.", "#n/a", "#na", "nan", "null", "<na>", "nil", "?", "-", "--", "—", "–", "*"}
    | {"…", "...", ".", ".."}
)
#: Texts that stand for a missing cell among numbers and dates; elsewhere they are levels.
WORDS = frozenset({"none", "unknown", "unk", "missing", "not available", "not known", "tbd", "tba", "(null)"})
_TWO_LETTERS = re.compile(r"[A-Z]{2}")
# Postal codes of states and provinces in North America. Among codes of which nearly all are these, NA is no
# country but a missing cell.
_STATES = frozenset(
    {
        *("AL", "AK", "AZ", "AR", "CA", "CO", "CT", "DE", "FL", "GA", "HI", "ID", "IL"),
        *("IN", "IA", "KS", "KY", "LA", "ME", "MD", "MA", "MI", "MN", "MS", "MO", "MT"),
        *("NE", "NV", "NH", "NJ", "NM", "NY", "NC", "ND", "OH", "OK", "OR", "PA", "RI"),
        *("SC", "SD", "TN", "TX", "UT", "VT", "VA", "WA", "WV", "WI", "WY", "DC", "AS"),
        *("GU", "MP", "PR", "VI", "AB", "BC", "MB", "NB", "NL", "NS", "NT", "NU", "ON"),
        *("PE", "QC", "SK", "YT"),
    }
)
_LEAST_STATES, _FEWEST_STATES = 0.9, 10
# Levels that remain beside the markers: of fewer, a marker is one of the levels.
_FEWEST_LEVELS = 2


def markers_of_numbers(texts: Iterable[str]) -> set[str]:
    """The texts that stand for missing cells in a column of numbers, dates or times."""
    return {
        text for text in texts if _folded(text) in _MARKERS or _folded(text) in WORDS or not _folded(text)
    }


def markers_of_levels(texts: Collection[str]) -> set[str]:
    """The texts that stand for missing cells in a column of other texts.

    `NA` is a level among codes of two letters (Namibia) that are not those of states, `-` beside `+`.

    >>> sorted(markers_of_levels({"a", "b", "-", " "})), sorted(markers_of_levels({"+", "-"}))
    ([' ', '-'], [])
    """
    markers = {text for text in texts if _folded(text) in _MARKERS or not _folded(text)}
    others = set(texts) - markers
    if "+" in {text.strip() for text in others}:
        markers = {text for text in markers if text.strip() not in ("-", "–", "—")}
    if are_two_letters(others) and not _are_states(others):
        markers = {text for text in markers if text.strip() != "NA"}
    return markers if len(set(texts) - markers) >= _FEWEST_LEVELS else set()


def are_two_letters(texts: Collection[str]) -> bool:
    """Whether there are texts, and all are two capital letters."""
    return bool(texts) and all(_TWO_LETTERS.fullmatch(text.strip()) for text in texts)


def _are_states(texts: Collection[str]) -> bool:
    count = sum(text.strip() in _STATES for text in texts)
    return count >= max(_FEWEST_STATES, _LEAST_STATES * len(texts))


def _folded(text: str) -> str:
    return text.strip().lower()


def is_marked(values: np.ndarray, markers: Collection[str]) -> np.ndarray:
    """Which cells of a column of objects are markers; blank texts are, if some marker is blank."""
    if not markers:
        return np.zeros(len(values), dtype=bool)
    blank = any(not marker.strip() for marker in markers)
    return np.fromiter(
        (isinstance(v, str) and (v in markers or (blank and not v.strip())) for v in values),
        bool,
        len(values),
    )


#: The level of a column of texts for cells that hold a number.
A_NUMBER = "(a number)"
_SHOWN = 3


def marked_frame(raw: RawFrame, storages: Mapping[str, Storage]) -> RawFrame:
    """The frame with texts that stand for missing cells taken for missing."""
    columns = {name: _marked(column, storages.get(name)) for name, column in raw.columns.items()}
    return replace(raw, columns=columns)


def _marked(column: RawColumn, storage: Storage | None) -> RawColumn:
    if storage is None or not storage.markers or column.storage.base != "string":
        return column
    return replace(column, missing=column.missing | is_marked(column.values, storage.markers))


def read_cells(raw: RawFrame, storages: Mapping[str, Storage]) -> RawFrame:
    """A marked frame with the numbers and times that its texts write.

    A column with other texts, too, is followed by a column of these texts, in which numbers are one level.
    """
    columns: dict[str, RawColumn] = {}
    for name, column in raw.columns.items():
        storage = storages.get(name)
        if storage is None or storage.writing is None or column.storage.base != "string":
            columns[name] = column
            continue
        values, is_other = _read(column, storage)
        columns[name] = RawColumn(name, values, column.missing | is_other, storage)
        if storage.texts:
            columns[storage.texts] = _texts(storage.texts, column, is_other)
        elif is_other.any():
            _warn_of_others(column, is_other, storage)
    return replace(raw, columns=columns)


def _read(column: RawColumn, storage: Storage) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of a column, and which present cells have none."""
    assert storage.writing is not None
    read = {text: storage.writing.read(text) for text in set(column.present.tolist())}
    numbers = [None if gone else read[t] for t, gone in zip(column.values, column.missing, strict=True)]
    is_other = np.array([number is None for number in numbers], dtype=bool) & ~column.missing
    return np.array([number or 0 for number in numbers], dtype=BASES[storage.base]), is_other


def _texts(name: str, column: RawColumn, is_other: np.ndarray) -> RawColumn:
    texts = np.where(is_other, column.values, A_NUMBER).astype(object)
    return RawColumn(name, texts, column.missing, Storage("string"))


def _warn_of_others(column: RawColumn, is_other: np.ndarray, storage: Storage) -> None:
    examples = ", ".join(map(repr, dict.fromkeys(column.values[is_other].tolist()[:_SHOWN])))
    wanted = "times of day" if storage.base == "time" else "numbers"
    count = int(is_other.sum())
    text = f"column {column.name!r}: {count} cells are no {wanted} and taken for missing: {examples}"
    warnings.warn(text, stacklevel=5)


def joined(columns: Sequence[RawColumn], texts: Mapping[str, str]) -> list[RawColumn]:
    """Columns as the frame has them: numbers and the texts of other cells are one column.

    Args:
        texts: by column of numbers, the column of its texts.
    """
    by_name = {column.name: column for column in columns}
    for name, other in texts.items():
        if name in by_name and other in by_name:
            by_name[name] = _joined(by_name[name], by_name.pop(other))
    return list(by_name.values())


def _joined(numbers: RawColumn, texts: RawColumn) -> RawColumn:
    """Numbers as they are written, and texts in the cells where these are no numbers."""
    writing = numbers.storage.writing
    assert writing is not None
    written = np.array([writing.write(number) for number in numbers.values.tolist()], dtype=object)
    storage = replace(numbers.storage, base="string", writing=None)
    cells = np.where(texts.values == A_NUMBER, written, texts.values)
    return RawColumn(numbers.name, cells, texts.missing, storage)
