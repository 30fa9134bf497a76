"""Laws of regions, against the membership of single values."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kdmkit as kdm
from kdmkit.kernels.regions import NOTHING, WHOLE, Region, intersection, union

NUMBERS = [
    0,
    1,
    2,
    -1,
    0.5,
    0.1,
    2**53,
    2**53 + 1,
    2**60 + 3,
    -(10**400),
    10**400,
    1e-300,
    1e308,
    Decimal("0.1"),
]
FAMILIES: dict[str, list[Any]] = {
    "numbers": NUMBERS,
    "texts": ["", "a", "B", "ab", " ", "\N{SNOWMAN}"],
    "dates": [dt.date(2000, 1, d) for d in (1, 2, 3)],
    "date-times": [dt.datetime(2000, 1, d) for d in (1, 2)],
    "with a zone": [dt.datetime(2000, 1, d, tzinfo=dt.UTC) for d in (1, 2)],
    "times": [dt.time(h) for h in (0, 9, 23)],
    "durations": [dt.timedelta(days=d) for d in (-1, 0, 400)],
}
VALUES = st.sampled_from([value for family in FAMILIES.values() for value in family])
CLOSED = st.sampled_from(["both", "left", "right", "neither"])
PROBES = [*(value for family in FAMILIES.values() for value in family), 1.5, -7, "zz", None, math.nan]


@st.composite
def intervals(draw: st.DrawFn) -> Region:
    family = draw(st.sampled_from(list(FAMILIES.values())))
    ends = sorted(draw(st.lists(st.sampled_from(family), min_size=2, max_size=2)))
    low, high = (None if draw(st.integers(0, 3)) == 0 else end for end in ends)
    return kdm.Interval(low, high, draw(CLOSED))


SIMPLE = st.one_of(
    intervals(),
    st.lists(st.one_of(VALUES, st.none()), min_size=1, max_size=4).map(kdm.OneOf),
    st.just(kdm.Missing),
)
REGIONS = st.recursive(
    SIMPLE,
    lambda inner: st.one_of(
        inner.map(lambda r: ~r),
        st.tuples(inner, inner).map(lambda p: p[0] & p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] | p[1]),
        st.lists(inner, max_size=3).map(kdm.Union),
    ),
    max_leaves=6,
)
laws = settings(max_examples=300, deadline=None)


@laws
@given(REGIONS, REGIONS, REGIONS)
def test_the_laws_of_sets(a: Region, b: Region, c: Region) -> None:
    assert ~~a == a
    assert ~(a & b) == ~a | ~b
    assert ~(a | b) == ~a & ~b
    assert a & (b | c) == (a & b) | (a & c)
    assert a & b == b & a
    assert (a & ~a).is_empty
    assert (a | ~a).is_whole
    assert a & a == a | a == a
    assert (a & WHOLE, a | NOTHING, a & NOTHING) == (a, a, NOTHING)
    assert union([a, b, c]) == a | b | c
    assert intersection([a, b, c]) == a & b & c


@laws
@given(REGIONS, REGIONS)
def test_operations_agree_with_membership(a: Region, b: Region) -> None:
    for value in PROBES:
        assert (value in a & b) == (value in a and value in b)
        assert (value in a | b) == (value in a or value in b)
        assert (value in ~a) == (value not in a)


@laws
@given(REGIONS)
def test_the_normal_form(region: Region) -> None:
    cuts = [cut for span in region.spans for cut in span]
    assert all(first < second for first, second in pairwise(cuts))
    again = union([*region.pieces, *([kdm.Missing] if region.has_missing else [])])
    assert again == region
    assert hash(again) == hash(region)
    assert region.is_empty == (region == NOTHING)


@laws
@given(REGIONS)
def test_what_is_printed_makes_the_region(region: Region) -> None:
    names = {"Interval": kdm.Interval, "OneOf": kdm.OneOf, "Union": kdm.Union, "Missing": kdm.Missing}
    assert eval(repr(region), {**names, "datetime": dt, "Decimal": Decimal}) == region


def test_certain_and_impossible_regions() -> None:
    assert intersection([]) == WHOLE
    assert union([]) == NOTHING
    assert kdm.OneOf([None]) == kdm.Missing
    assert kdm.Interval(1, 1, "left").is_empty
    assert kdm.OneOf([1, 1.0, True]) == kdm.OneOf([1])
    assert 2**53 not in kdm.Interval(2**53 + 1, None)
    assert kdm.Interval(None, None) | kdm.Missing == WHOLE


def test_bad_input() -> None:
    for low in (math.nan, [0.0, math.nan]):
        with pytest.raises(ValueError, match=r"^low: expected a number, ±∞ or None, got NaN$"):
            kdm.Interval(low, None)
    with pytest.raises(ValueError, match=r"^closed: expected"):
        kdm.Interval(0, 1, "open")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^values: expected finite values, got inf"):
        kdm.OneOf([math.inf])
    with pytest.raises(TypeError, match=r"^region: expected one interval for a set operation"):
        ~kdm.Interval([0.0, 1.0], 2.0)
    assert kdm.Interval(0, 1).__and__(3) is NotImplemented
