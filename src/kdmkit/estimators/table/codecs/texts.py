"""Dates that a frame holds as texts."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

import numpy as np

from kdmkit._core.checks import bad_argument
from kdmkit.estimators.table.frames.storage import RawColumn

#: Ways to write dates, those of ISO 8601 first.
PATTERNS = (
    "%Y-%m-%d",
    "%Y-%m-%d %H:%M:%S",
    "%Y-%m-%dT%H:%M:%S",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%dT%H:%M",
    "%Y-%m-%d %H:%M:%S.%f",
    "%Y-%m-%dT%H:%M:%S.%f",
    "%Y-%m-%dT%H:%M:%SZ",
    "%Y-%m-%dT%H:%M:%S.%fZ",
    "%Y/%m/%d",
    "%Y/%m/%d %H:%M:%S",
    "%d.%m.%Y",
    "%d.%m.%Y %H:%M",
    "%m/%d/%Y",
    "%d/%m/%Y",
    "%m/%d/%Y %H:%M",
    "%d/%m/%Y %H:%M",
    "%d %b %Y",
    "%d-%b-%Y",
    "%b %d, %Y",
    "%B %d, %Y",
)
#: Pairs that read the same text as different dates.
_AMBIGUOUS = ({"%m/%d/%Y", "%d/%m/%Y"}, {"%m/%d/%Y %H:%M", "%d/%m/%Y %H:%M"})


@dataclass(frozen=True)
class DateFormat:
    """A way to write dates, in the signs of `strptime`."""

    pattern: str

    @classmethod
    def find(cls, column: RawColumn) -> DateFormat:
        """The format of all texts of a column. Raises a ValueError where there is none, or more than one."""
        found = cls.matching(column)
        if len(found) == 1:
            return found[0]
        if found:
            got = f"texts that are dates both as {found[0].pattern} and as {found[1].pattern}"
            raise ValueError(bad_argument(f"column {column.name!r}", "dates of one meaning", got))
        raise ValueError(bad_argument(f"column {column.name!r}", "dates", _first_that_is_none(column)))

    @classmethod
    def matching(cls, column: RawColumn) -> list[DateFormat]:
        """The formats in which all texts are written: one, none, or two where day and month may swap."""
        texts = list(dict.fromkeys(column.present.tolist()))
        found = [
            cls(pattern)
            for pattern in PATTERNS
            if all(cls(pattern).read_one(text) is not None for text in texts)
        ]
        ambiguous = {form.pattern for form in found} in _AMBIGUOUS
        return found if ambiguous else found[:1]

    def read_one(self, text: str) -> np.datetime64 | None:
        """The date of a text, None where it is written otherwise."""
        try:
            date = datetime.datetime.strptime(text.strip(), self.pattern)
        except ValueError:
            return None
        return np.datetime64(date, "us")

    def read(self, column: RawColumn) -> np.ndarray:
        """Dates of a column of texts. Raises a ValueError that names the first one that does not parse."""
        known: dict[str, np.datetime64] = {}
        dates = np.full(len(column.values), np.datetime64("NaT"), "datetime64[us]")
        for row in np.flatnonzero(~column.missing):
            text = column.values[row]
            if text not in known:
                date = self.read_one(text)
                if date is None:
                    wanted = f"dates written as {self.pattern}"
                    raise ValueError(
                        bad_argument(f"column {column.name!r}", wanted, f"{text!r} in row {row}")
                    )
                known[text] = date
            dates[row] = known[text]
        return dates

    def write(self, dates: np.ndarray) -> np.ndarray:
        """Texts of dates `datetime64[us]`."""
        texts = np.empty(len(dates), dtype=object)
        texts[:] = [date.strftime(self.pattern) for date in dates.astype("datetime64[us]").tolist()]
        return texts


def _first_that_is_none(column: RawColumn) -> str:
    """The first text that is no date in any format, or in that of the first text."""
    rows = np.flatnonzero(~column.missing)
    first = [p for p in PATTERNS if DateFormat(p).read_one(column.values[rows[0]]) is not None]
    for row in rows:
        if all(DateFormat(p).read_one(column.values[row]) is None for p in first or PATTERNS):
            return f"{column.values[row]!r} in row {row}"
    return "texts in several formats"
