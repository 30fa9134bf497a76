"""Texts that stand for a missing cell, such as `NA`, `-` and `\\N`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

import numpy as np

#: Texts that stand for a missing cell in every column; blank texts do, too.
_MARKERS = frozenset(
    {"\\n", "na", "n/a", "n.a.", "#n/a", "#na", "nan", "null", "<na>", "nil", "?", "-", "--", "—", "–", "*"}
    | {"…", "...", ".", ".."}
)
#: Texts that stand for a missing cell among numbers and dates; elsewhere they are levels.
WORDS = frozenset({"none", "unknown", "unk", "missing", "not available", "not known", "tbd", "tba", "(null)"})
_TWO_LETTERS = re.compile(r"[A-Z]{2}")
# Levels that remain beside the markers: of fewer, a marker is one of the levels.
_FEWEST_LEVELS = 2


def markers_of_numbers(texts: Iterable[str]) -> set[str]:
    """The texts that stand for missing cells in a column of numbers, dates or times."""
    return {
        text for text in texts if _folded(text) in _MARKERS or _folded(text) in WORDS or not _folded(text)
    }


def markers_of_levels(texts: Collection[str]) -> set[str]:
    """The texts that stand for missing cells in a column of other texts.

    `NA` is a level among codes of two letters (Namibia), `-` beside `+`.

    >>> sorted(markers_of_levels({"a", "b", "-", " "})), sorted(markers_of_levels({"+", "-"}))
    ([' ', '-'], [])
    """
    markers = {text for text in texts if _folded(text) in _MARKERS or not _folded(text)}
    others = set(texts) - markers
    if "+" in {text.strip() for text in others}:
        markers = {text for text in markers if text.strip() not in ("-", "–", "—")}
    if others and all(_TWO_LETTERS.fullmatch(text.strip()) for text in others):
        markers = {text for text in markers if text.strip() != "NA"}
    return markers if len(set(texts) - markers) >= _FEWEST_LEVELS else set()


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
