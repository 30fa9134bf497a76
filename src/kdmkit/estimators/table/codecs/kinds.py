"""The kind of a column, and the codec of every kind."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from kdmkit._core.checks import bad_argument, check_choice
from kdmkit.estimators.table.codecs.base import Codec, LeftOutCodec
from kdmkit.estimators.table.codecs.categories import LevelsCodec
from kdmkit.estimators.table.codecs.date_texts import date_formats
from kdmkit.estimators.table.codecs.dates import DateCodec
from kdmkit.estimators.table.codecs.functions import DerivedCodec
from kdmkit.estimators.table.codecs.numbers import NumberCodec
from kdmkit.estimators.table.codecs.parts import listed
from kdmkit.estimators.table.codecs.texts import TELEPHONE_NUMBERS, is_named_id, personal_content
from kdmkit.estimators.table.codecs.times import TimeCodec
from kdmkit.estimators.table.frames.storage import RawColumn, Storage
from kdmkit.estimators.table.frames.writing import NumberWriting

#: Kinds that `types` may name.
KINDS = (
    "float",
    "integer",
    "count",
    "duration",
    "boolean",
    "category",
    "ordinal",
    "date",
    "time",
    "constant",
    "identifier",
    "text",
)
# Whole numbers up to here are exact in float64.
_EXACT = 1 << 53
_LEFT_OUT = ("identifier", "text", "empty")
# With fewer rows, different values in all rows are no sign of an identifier.
_FEWEST_ROWS = 20
# Numbers are levels if at least half of the rows share their number with another row.
_MOST_SINGLE = 0.5
# A text is rare if at most this many rows have it. Texts are levels unless most of them are rare, and at
# least this share of the rows has a rare one.
_RARE, _MOST_RARE = 2, 1 / 3
# Different texts in all rows are names, no identifiers, if at least this share of them has a capital, small
# letters and no digit.
_LEAST_NAMES = 0.9
# More whole numbers than these are no labels of classes.
_MOST_CLASSES = 10
# Numbers in the order of the rows that mean a time.
_TIME_NAME = re.compile(
    r"(^|[\W_])(t|time|date|year|month|week|day|hour|minute|second|step|period|age)s?($|[\W_])", re.I
)
#: The kind of a column, and why.
Decision = tuple[str, str]


def decide(column: RawColumn, numbers: np.ndarray | None = None) -> Decision:
    """The kind of a column by its dtype and values.

    Args:
        numbers: the numbers of the rows in a larger table of which they are a sample; None: 0, 1, 2, …
    """
    kind, why = _decide(column, numbers)
    markers = column.storage.markers
    return kind, f"{why}; missing: {listed(list(map(repr, markers)), 4)}" if markers else why


def _decide(column: RawColumn, numbers: np.ndarray | None) -> Decision:
    storage, present = column.storage, column.present
    if not len(present):
        return "empty", "all cells are missing"
    if storage.base == "other":
        return "text", f"values of type {storage.objects or storage.native}"
    distinct = _distinct(present)
    if len(distinct) == 1:
        return "constant", "one value only"
    if storage.categories is not None:
        return "ordinal" if storage.ordered else "category", "a categorical dtype"
    match storage.base:
        case "boolean":
            return "boolean", "a boolean dtype"
        case "string":
            return _decide_text(column, distinct)
        case "datetime":
            return "date", "dates" if storage.unit == "D" else "date-times"
        case "time":
            return "time", "times of day"
        case "duration":
            return "duration", "durations"
    kind, why = _decide_number(column, distinct, numbers)
    return kind, why + _written(storage, present)


def _written(storage: Storage, present: np.ndarray) -> str:
    """How a column of texts writes its numbers, in words."""
    writing = storage.writing
    if writing is None:
        return ""
    largest = present[np.abs(present).argmax()]
    return f", written as {writing.write(largest)!r}"


def _distinct(present: np.ndarray) -> np.ndarray:
    if present.dtype == object:
        try:
            return np.array(list(set(present)), dtype=object)
        except TypeError:  # values without a hash
            return present
    return np.unique(present)


# ---- texts


def _decide_text(column: RawColumn, distinct: np.ndarray) -> Decision:
    present = column.present
    if len(date_formats(column)) == 1:
        return "date", "texts that are dates"
    if len(present) < _FEWEST_ROWS:
        return "category", f"{len(distinct)} different texts"
    is_unique, content = len(distinct) == len(present), personal_content(present)
    # Digits with hyphens under the name of an identifier are keys, no telephone numbers.
    is_key = is_unique and content == TELEPHONE_NUMBERS and is_named_id(column.name)
    if content and not is_key:
        return "text", content
    if is_unique and _are_names(present) and not is_named_id(column.name):
        return "text", "names or words, different ones in every row"
    if is_unique:
        return "identifier", "a different text in every row"
    counts = np.unique(present.astype(str), return_counts=True)[1]
    rare = counts <= _RARE
    if 2 * rare.sum() > len(counts) and counts[rare].sum() > _MOST_RARE * len(present):
        share = counts[rare].sum() / len(present)
        return "text", f"{share:.0%} of the rows have a text that at most {_RARE} rows have"
    return "category", f"{len(distinct)} different texts"


def _are_names(texts: np.ndarray) -> bool:
    """Whether nearly all texts are words with a capital, which codes and keys are not."""
    names = [
        text[:1].isupper() and any(map(str.islower, text)) and not any(map(str.isdigit, text))
        for text in texts
    ]
    return sum(names) >= _LEAST_NAMES * len(names)


def _rows_with_single_values(present: np.ndarray) -> float:
    """The share of rows whose value no other row has."""
    counts = np.unique(present, return_counts=True)[1]
    return float((counts == 1).sum()) / len(present)


# ---- numbers


def _decide_number(column: RawColumn, distinct: np.ndarray, numbers: np.ndarray | None) -> Decision:
    present = column.present
    if _is_inexact(column):
        return "identifier", "whole numbers beyond 2^53: as quantities they would lose digits"
    whole = column.storage.base == "integer" or bool((present == np.round(present)).all())
    if whole and set(distinct.tolist()) == {0, 1}:
        return "boolean", "0 and 1 only"
    if whole and len(present) >= _FEWEST_ROWS:
        reason = _identifies(column, distinct, numbers)
        if reason is not None:
            return reason
    if not whole:
        return "float", "numbers with fractions"
    if present.min() < 0:
        return "integer", "whole numbers"
    return "count", "whole numbers from 0 on"


def _is_inexact(column: RawColumn) -> bool:
    """Whether float64 cannot hold some of the whole numbers."""
    present = column.present
    return column.storage.base == "integer" and not -_EXACT <= present.min() <= present.max() <= _EXACT


def _identifies(column: RawColumn, distinct: np.ndarray, numbers: np.ndarray | None) -> Decision | None:
    """Whether whole numbers are names of rows or of things, not quantities."""
    present, unique = column.present, len(distinct) == len(column.present)
    named = is_named_id(column.name)
    writing = column.storage.writing
    if isinstance(writing, NumberWriting) and not writing.is_plain:
        return None
    if not _TIME_NAME.search(column.name) and _are_row_numbers(column, numbers):
        return "identifier", "numbers of rows"
    if unique and named:
        return "identifier", "a different number in every row, and its name"
    if named and _rows_with_single_values(present) > _MOST_SINGLE:
        return "identifier", "different numbers in most rows, and its name"
    return ("category", "its name: numbers of things") if named else None


def are_classes(column: RawColumn) -> bool:
    """Whether numbers are labels as scikit-learn has them: two numbers, or 0, 1, 2, … or 1, 2, 3, …"""
    if column.storage.base not in ("integer", "float") or column.storage.writing is not None:
        return False
    distinct = np.unique(column.present)
    if not 2 < len(distinct) <= _MOST_CLASSES:
        return len(distinct) == 2
    return bool(distinct[0] in (0, 1) and (np.diff(distinct) == 1).all())


def _are_row_numbers(column: RawColumn, numbers: np.ndarray | None) -> bool:
    """Whether numbers count the rows from 0 or 1 on. In another order they are ranks."""
    present = column.present
    rows = np.arange(len(present)) if numbers is None else numbers[~column.missing]
    return bool(present[0] - rows[0] in (0, 1) and (np.diff(present) == np.diff(rows)).all())


# ---- codecs


def fit_codec(column: RawColumn, kind: str, least_rows: int | None = None) -> Codec:
    """The codec of a column of a kind that was decided or asked for.

    Args:
        least_rows: texts with fewer rows are rare, as in `LevelsCodec.fit`.
    """
    if kind in _LEFT_OUT:
        return LeftOutCodec(column.name, kind)
    if not len(column.present):
        raise ValueError(bad_argument(f"column {column.name!r}", f"values for kind {kind}", "none"))
    if kind == "constant":
        return _fit_constant(column)
    if kind == "date":
        return DateCodec.fit(column)
    if kind == "time":
        return TimeCodec.fit(column)
    if kind in ("category", "ordinal", "boolean"):
        return _fit_levels(column, kind, least_rows)
    if _is_inexact(column):
        wanted = f"whole numbers up to 2^53 for kind {kind} (larger ones may be of kind category)"
        raise ValueError(bad_argument(f"column {column.name!r}", wanted, column.present.max()))
    return NumberCodec.fit(column, kind)


def _fit_constant(column: RawColumn) -> LeftOutCodec:
    distinct = _distinct(column.present)
    if len(distinct) > 1:
        got = f"{len(distinct)} values"
        raise ValueError(bad_argument(f"column {column.name!r}", "one value for kind constant", got))
    value = distinct[0]
    if column.storage.base == "datetime":
        value = str(np.datetime64(value, "us"))
    return LeftOutCodec(column.name, "constant", value.item() if isinstance(value, np.generic) else value)


def _fit_levels(column: RawColumn, kind: str, least_rows: int | None) -> Codec:
    storage = column.storage
    if kind == "boolean" and len(_distinct(column.present)) > 2:
        got = f"{len(_distinct(column.present))} values"
        raise ValueError(bad_argument(f"column {column.name!r}", "two values for kind boolean", got))
    if kind == "boolean" and storage.base in ("integer", "float"):
        return NumberCodec.fit(column, kind)
    if kind == "ordinal" and storage.categories is None and storage.base == "string":
        got = "texts without an order: use an ordered categorical dtype"
        raise ValueError(bad_argument(f"column {column.name!r}", "ordered values for kind ordinal", got))
    return LevelsCodec.fit(column, kind, least_rows)


def check_types(types: Mapping[str, str] | None, names: list[str]) -> dict[str, str]:
    """Kinds that the caller decides; unknown columns and kinds raise."""
    checked = dict(types or {})
    for name, kind in checked.items():
        if name not in names:
            raise ValueError(bad_argument("types", f"columns of the table ({', '.join(names)})", repr(name)))
        check_choice(f"types[{name!r}]", kind, KINDS)
    return checked


_CODECS: dict[str, Any] = {c.codec: c for c in (LeftOutCodec, LevelsCodec, NumberCodec, DateCodec, TimeCodec)}


def codec_from_config(config: Mapping[str, Any], storage: Storage | None = None) -> Codec:
    """The codec that `config` describes, of a column of that storage."""
    if config["codec"] == NumberCodec.codec:
        return NumberCodec.from_config(config, storage)
    if config["codec"] == DerivedCodec.codec:
        return DerivedCodec.unlinked(codec_from_config(config["inner"], storage), config)
    codec: Codec = _CODECS[config["codec"]].from_config(config)
    return codec
