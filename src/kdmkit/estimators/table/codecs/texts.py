"""What the texts of a column write: numbers, times, dates or levels; which stand for missing cells."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from kdmkit.estimators.table.codecs.date_texts import date_formats
from kdmkit.estimators.table.frames.cells import (
    WORDS,
    are_two_letters,
    is_marked,
    marked_frame,
    markers_of_levels,
    markers_of_numbers,
    read_cells,
)
from kdmkit.estimators.table.frames.read import RawFrame
from kdmkit.estimators.table.frames.storage import RawColumn, Storage
from kdmkit.estimators.table.frames.writing import NumberWriting, TimeWriting, Writing

NUMBER_KINDS = ("float", "integer", "count")
# A column is one of numbers if at least this share of its cells are; of fewer rows, all cells.
_LEAST_SHARE = 0.9
_FEWEST_ROWS = 20
# Whole numbers of this many digits and more, all of one length, are codes, such as those of areas.
_CODE_DIGITS = 5
# Plain whole numbers are levels if there are fewer.
_FEWEST_NUMBERS = 3
# At most so many numbers are levels if the other texts are open ends, such as "<5" and "10 or more".
_MOST_NUMBERS = 12
ID_NAME = re.compile(r"((^|[\W_])(ids?|uuid|guid|key|index|rownames?|rownum(ber)?)|^unnamed: 0)$", re.I)
CAMEL_ID = re.compile(r"[a-z]I[dD]$")
_CODE_NAME = re.compile(
    r"(^|[\W_])(zip|postal|postcode|code|phone|tel|fax|ssn|isbn|ean|upc|iban|account)", re.I
)
TELEPHONE_NUMBERS = "telephone numbers"
#: Content that belongs to single people or things, by its name; of these at least half of the cells are.
_PERSONAL = {
    "email addresses": re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+"),
    TELEPHONE_NUMBERS: re.compile(r"(?=(?:\D*\d){7,15}\D*$)\+?\(?\d[\d ().-]*[ ().-][\d ().-]*\d"),
    "addresses of pages": re.compile(r"(?:https?://|www\.)\S+"),
    "sentences": re.compile(r"\S+(?:\s+\S+){7,}"),
}
_LEAST_PERSONAL, _LOOKED_AT = 0.5, 1000
# Texts that are left out may be levels if fewer rows have a text of their own.
_MOST_SINGLE = 0.9
# Columns with fewer different texts have a list of levels, however long these are.
_FEWEST_PERSONAL = 20
_MIXED = re.compile(r"(?=.*\d)(?=.*[^\W\d_])")


def recognised(raw: RawFrame, types: Mapping[str, str], markers: Mapping[str, Sequence[str]]) -> RawFrame:
    """A frame with its texts read as numbers, times and missing cells, where they write these."""
    storages = {
        name: _storage(column, types.get(name), markers.get(name)) for name, column in raw.columns.items()
    }
    for name, storage in storages.items():
        texts = storage.texts
        while texts and texts in raw.columns:
            texts += "_"
        storages[name] = replace(storage, texts=texts)
    read = read_cells(marked_frame(raw, storages), storages)
    columns = {
        name: replace(column, storage=storages.get(name, column.storage))
        for name, column in read.columns.items()
    }
    labels = dict(zip(raw.columns, raw.labels, strict=True))
    return replace(read, columns=columns, labels=tuple(labels.get(name, name) for name in columns))


def doubt(column: RawColumn, kind: str) -> str:
    """What else a column of texts may be, and how to decide it; "" if its kind is certain."""
    storage, name = column.storage, column.name
    if storage.texts:
        return f'texts among numbers; types={{"{name}": "category"}}'
    words = [marker for marker in storage.markers if marker.strip().lower() in WORDS]
    if words:
        return f'{words[0]!r} may be a level; types={{"{name}": "category"}}'
    if storage.base != "string" or storage.categories is not None:
        return ""
    texts = Counter(column.present.tolist())
    if kind == "category" and "NA" in texts and are_two_letters(texts):
        return "'NA' is a level among codes of two letters; if it is a missing cell, leave it empty"
    if kind == "text":
        single = sum(count == 1 for count in texts.values())
        is_repeated = single < _MOST_SINGLE * len(column.present) and not personal_content(column.present)
        return f'left out, many texts are rare; types={{"{name}": "category"}}' if is_repeated else ""
    if kind not in ("category", "identifier"):
        return ""
    if len(date_formats(column)) == 2:
        return "dates of which day and month may swap: write them as 2024-05-31"
    writing = NumberWriting.of(texts) if len(texts) >= _FEWEST_NUMBERS else None
    if writing is not None and _covers(writing, texts):
        return f'texts that read as numbers; types={{"{name}": "count"}}'
    return ""


def is_named_id(name: str) -> bool:
    """Whether the name of a column says that it identifies rows or things."""
    return ID_NAME.search(name) is not None or CAMEL_ID.search(name) is not None


def personal_content(present: np.ndarray) -> str:
    """What texts of single people or things a column has, in words; "" if it has others."""
    distinct = list(dict.fromkeys(present.tolist()))[:_LOOKED_AT]
    if len(distinct) < _FEWEST_PERSONAL:
        return ""
    for content, pattern in _PERSONAL.items():
        if sum(bool(pattern.fullmatch(text.strip())) for text in distinct) > _LEAST_PERSONAL * len(distinct):
            return content
    return ""


def _storage(column: RawColumn, kind: str | None, decided: Sequence[str] | None) -> Storage:
    """The storage of a column, with the writing of its texts and the texts that stand for missing cells.

    Args:
        kind: the kind that the caller decides, None if it is to be recognised.
        decided: the texts that the caller takes for missing cells, None if they are to be recognised.
    """
    storage = column.storage
    if storage.base != "string" or storage.categories is not None or not len(column.present):
        return storage
    counts = Counter(column.present.tolist())
    markers = markers_of_numbers(counts) if decided is None else set(decided)
    texts = {text: count for text, count in counts.items() if text not in markers}
    if kind in (None, "time", *NUMBER_KINDS) and texts:
        writing = _writing(column.name, texts, kind)
        if writing is not None:
            others = any(writing.read(text) is None for text in texts)
            return replace(
                storage,
                base=writing.base,
                objects="str",
                markers=tuple(sorted(markers)),
                writing=writing,
                texts=f"{column.name}_text" if others else "",
            )
    if kind in (None, "date") and texts:
        marked = replace(column, missing=column.missing | is_marked(column.values, markers))
        if date_formats(marked):
            return replace(storage, markers=tuple(sorted(markers)))
    if kind in (None, "category", "boolean", "text"):
        markers = markers_of_levels(counts) if decided is None else markers
        return replace(storage, markers=tuple(sorted(markers)))
    return storage


def _writing(name: str, texts: Mapping[str, int], kind: str | None) -> Writing | None:
    """The writing of texts that are numbers or times, None if they are neither."""
    if kind in (None, "time"):
        times = TimeWriting.of(texts)
        if times is not None and _covers(times, texts):
            return times
    numbers = NumberWriting.of(texts) if kind != "time" else None
    if numbers is None or not _covers(numbers, texts):
        return None
    return None if kind is None and _are_codes(name, numbers, texts) else numbers


def _covers(writing: Writing, texts: Mapping[str, int]) -> bool:
    """Whether enough cells are in a writing."""
    total = sum(texts.values())
    read = sum(count for text, count in texts.items() if writing.read(text) is not None)
    return read == total or (total >= _FEWEST_ROWS and read >= _LEAST_SHARE * total)


def _are_codes(name: str, writing: NumberWriting, texts: Collection[str]) -> bool:
    """Whether whole numbers are levels, such as 6, 7, "8 or more", or plain ones name things.

    These are told by the name of the column, one length, or letters in other texts.
    """
    if writing.most_decimals:
        return False
    others = [text for text in texts if writing.read(text) is None]
    numbers = [text.strip() for text in texts if writing.read(text) is not None]
    if others and len(numbers) <= _MOST_NUMBERS and all(any(map(str.isdigit, text)) for text in others):
        return True
    if not writing.is_plain:
        return False
    lengths = {len(text) for text in numbers}
    return (
        len(numbers) < _FEWEST_NUMBERS
        or is_named_id(name)
        or _CODE_NAME.search(name) is not None
        or (len(lengths) == 1 and max(lengths) >= _CODE_DIGITS)
        or 2 * sum(bool(_MIXED.match(text)) for text in others) > max(1, len(others))
    )
