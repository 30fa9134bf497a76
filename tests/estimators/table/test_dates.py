"""Dates: digits, ranges of digits, texts."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import math
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest

import kdmkit as kdm
from kdmkit.estimators.table import Schema
from kdmkit.estimators.table.codecs.calendar import Calendar, parse_span
from kdmkit.estimators.table.codecs.dates import digit_boxes
from kdmkit.kernels import Interval

RNG = np.random.default_rng(0)


def dates(start: str, span: int, unit: str, n: int = 300) -> np.ndarray:
    steps = RNG.integers(0, span, n).astype(f"timedelta64[{unit}]")
    return (np.datetime64(start, unit) + steps).astype("datetime64[us]")


@pytest.mark.parametrize(
    ("values", "digits", "clock"),
    [
        (dates("2024-01-01", 30, "D"), ("day",), 0),
        (dates("2024-01-01", 300, "D"), ("week", "weekday"), 0),
        (dates("2014-01-01", 3000, "D"), ("season", "week", "weekday"), 0),
        (dates("1920-01-01", 30000, "D"), ("day",), 0),
        (dates("2010-01", 100, "M"), ("year", "month"), 0),
        (dates("1950", 70, "Y"), ("year",), 0),
        (np.arange("1974-01", "1984-01", 3, "datetime64[M]").astype("M8[us]"), ("year", "quarter"), 0),
        (dates("2024-01-01T00", 300 * 24, "h"), ("week", "weekday", "time"), 3_600_000_000),
        (dates("1969-01-01T00:00", 200 * 1440, "m"), ("week", "weekday", "time"), 60_000_000),
        (dates("2024-01-01T00:00:00", 20 * 86400, "s"), ("day", "time"), 1_000_000),
    ],
)
def test_digits(values: np.ndarray, digits: tuple[str, ...], clock: int) -> None:
    calendar = Calendar.fit(values)
    assert (calendar.digits, calendar.clock) == (digits, clock)
    split = calendar.split(values)
    np.testing.assert_array_equal(calendar.join(split), values)
    for digit, size in zip(split[1:], calendar.sizes[1:], strict=True):
        assert 0 <= digit.min()
        assert digit.max() < size
    order = np.lexsort(split[::-1])
    assert (np.diff(values[order]).astype(np.int64) >= 0).all()


def test_weekdays_start_on_monday() -> None:
    calendar = Calendar(("week", "weekday"), (0, 7), 0)
    assert calendar.split(np.array(["2024-05-06", "2024-05-12"], "datetime64[us]"))[1].tolist() == [0, 6]


@pytest.mark.parametrize("sizes", [(0,), (0, 3), (0, 2, 3)])
def test_ranges_of_digits_are_exact(sizes: tuple[int, ...]) -> None:
    """Every date of some ranges is in exactly one of the boxes, all other dates are in none."""
    rests = [range(size) for size in sizes[1:]]
    points = list(itertools.product(range(-1, 3), *rests))
    units = [sum(digit * math.prod(sizes[i + 1 :]) for i, digit in enumerate(point)) for point in points]
    ends = [None, *(unit - 0.5 for unit in units[::2]), units[-1] + 0.5]
    pairs = [(a, b) for a, b in itertools.product(ends, ends) if a is None or b is None or a < b]
    several = [(a, b) for a, b in zip(pairs, reversed(pairs), strict=True) if a[1] and b[0] and a[1] < b[0]]
    for ranges in [*([pair] for pair in pairs), *several]:
        boxes = digit_boxes(sizes, ranges)
        for point, unit in zip(points, units, strict=True):
            held = sum(all(point[place] in region for place, region in box.items()) for box in boxes)
            wanted = sum((a is None or a < unit) and (b is None or unit < b) for a, b in ranges)
            assert held == wanted, (ranges, point, boxes)


def test_a_range_of_whole_years_is_one_box() -> None:
    assert digit_boxes([0, 12], [(119.5, 155.5)]) == [{0: Interval(9.5, 12.5, "left")}]


@pytest.mark.parametrize(
    ("value", "first", "last"),
    [
        ("2024", "2024-01-01T00:00:00.000000", "2024-12-31T23:59:59.999999"),
        ("2024-02", "2024-02-01T00:00:00.000000", "2024-02-29T23:59:59.999999"),
        ("2024-02-29", "2024-02-29T00:00:00.000000", "2024-02-29T23:59:59.999999"),
        ("2024-02-29 18:30", "2024-02-29T18:30:00.000000", "2024-02-29T18:30:59.999999"),
        ("2024-02-29T18:30:15Z", "2024-02-29T18:30:15.000000", "2024-02-29T18:30:15.999999"),
        (dt.date(2024, 2, 29), "2024-02-29T00:00:00.000000", "2024-02-29T23:59:59.999999"),
        (dt.datetime(2024, 2, 29, 3), "2024-02-29T03:00:00.000000", "2024-02-29T03:00:00.000000"),
        (pd.Timestamp("2024-02-29 03:00"), "2024-02-29T03:00:00.000000", "2024-02-29T03:00:00.000000"),
        (np.datetime64("2024-02"), "2024-02-01T00:00:00.000000", "2024-02-29T23:59:59.999999"),
    ],
)
def test_what_a_date_means(value: Any, first: str, last: str) -> None:
    assert tuple(map(str, parse_span(value))) == (first, last)


@pytest.mark.parametrize(
    "value", ["soon", "2024-13-01", "2024-02-30", "24-02-01", 2024, None, np.datetime64("NaT")]
)
def test_what_is_no_date(value: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(str(value))):
        parse_span(value)


@pytest.mark.parametrize("pattern", ["%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%Y-%m-%d %H:%M", "%b %d, %Y"])
def test_dates_in_texts_come_back(pattern: str) -> None:
    values = dates("2021-01-01T00:00", 700 * 1440, "m") if "%H" in pattern else dates("2021-01-01", 700, "D")
    texts = [value.strftime(pattern) for value in values.tolist()]
    schema = Schema.from_frame({"day": [*texts, None]})
    assert schema.columns["day"].kind == "date"
    schema = Schema.from_config(json.loads(json.dumps(schema.config())))
    back = schema.decode(schema.encode({"day": texts}).columns)["day"]
    assert back.tolist() == texts
    with pytest.raises(ValueError, match=r"column 'day': expected dates written as .*, got 'x' in row 1"):
        schema.encode({"day": [texts[0], "x"]})


@pytest.mark.parametrize(
    "date", ["2021-03-04", "04.03.2021", dt.date(2021, 3, 4), np.datetime64("2021-03-04")]
)
def test_strict_ends_of_ranges(date: Any) -> None:
    texts = [value.strftime("%d.%m.%Y") for value in dates("2021-01-01", 100, "D").tolist()]
    codec = Schema.from_frame({"day": texts}).columns["day"].codec
    assert codec.read(Interval(date, None, "right")) == codec.read(Interval("2021-03-05", None))
    assert codec.read(Interval(None, date, "left")) == codec.read(Interval(None, "2021-03-03"))


def test_months_of_one_year() -> None:
    """The first digit of the calendar has one value then."""
    texts = [["Jan-2018", "Feb-2018", "Mar-2018"][i % 3] for i in range(60)]
    table = kdm.KDMTable(n_components=3, max_epochs=2, random_state=0).fit({"month": texts})
    assert table.columns_["month"].examples == ("Jan-2018", "Dec-2018")  # the range of whole years
    assert 0 < table.probability("month >= 2018-02") < 1
    assert table.probability("month = 2018") == pytest.approx(1)
    drawn = table.sample(50, given="month > 2018-01", random_state=0)["month"]
    assert "Jan-2018" not in set(drawn)
    assert all(text.endswith("-2018") for text in drawn)
