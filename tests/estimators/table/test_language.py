"""The query language: what queries mean, and errors that point at the place."""

import datetime as dt

import pytest

from kdmkit.estimators.table.conditions import Among, ColumnSyntax, Query, Range, both
from kdmkit.estimators.table.language import QueryError, parse_conditions, parse_query

COLUMNS = {
    "price": ColumnSyntax(),
    "carat": ColumnSyntax(),
    "cut": ColumnSyntax(levels=["Ideal", "Good", "Fair"]),
    "income": ColumnSyntax(levels=["<=50K", ">50K"]),
    "hours-per-week": ColumnSyntax(),
    "price in $": ColumnSyntax(),
    "sold": ColumnSyntax(read=dt.datetime.fromisoformat, wanted="a date"),
    "insured": ColumnSyntax(levels=[False, True]),
    "quality": ColumnSyntax(levels=["low", "medium", "high"], ordered=True),
    "grade": ColumnSyntax(levels=["a", "A", "10th"]),
}


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("0.5 <= carat <= 1", Range(0.5, 1.0)),
        ("0.5 < carat ≤ 1", Range(0.5, 1.0, above=True)),
        ("1 > carat >= -2e-1", Range(-0.2, 1.0, below=True)),
        ("carat < 1", Range(None, 1.0, below=True)),
        ("1 < carat", Range(1.0, None, above=True)),
        ("carat>=1", Range(1.0, None)),
        ("carat = 1", Among((1.0,))),
        ("1 == carat", Among((1.0,))),
        ("carat in [0.5, 1)", Range(0.5, 1.0, below=True)),
        ("carat in (-inf, 1]", Range(-float("inf"), 1.0, above=True)),
        ("carat ∈ {1, 2, 1}", Among((1.0, 2.0))),
        ("carat > 0.5, carat < 1", Range(0.5, 1.0, above=True, below=True)),
        ("carat > 0.5 and carat >= 0.5 & carat <= 1", Range(0.5, 1.0, above=True)),
        ("carat in {1, 2, 3} and carat > 1", Among((2.0, 3.0))),
        ("carat in {1, 2, 3} and carat in {5, 3}", Among((3.0,))),
    ],
)
def test_conditions_on_numbers(text: str, condition: object) -> None:
    assert parse_conditions(text, COLUMNS) == {"carat": condition}


@pytest.mark.parametrize(
    ("text", "name", "condition"),
    [
        ("cut = Ideal", "cut", Among(("Ideal",))),
        ("cut = ideal", "cut", Among(("Ideal",))),
        ("'Ideal' = cut", "cut", Among(("Ideal",))),
        ("cut in {Ideal, Good}", "cut", Among(("Ideal", "Good"))),
        ("cut in ('Ideal', \"Good\")", "cut", Among(("Ideal", "Good"))),
        ("cut != Ideal", "cut", Among(("Good", "Fair"))),
        ("cut not in {Ideal, Fair}", "cut", Among(("Good",))),
        ('income = ">50K"', "income", Among((">50K",))),
        ("hours-per-week > 40", "hours-per-week", Range(40.0, None, above=True)),
        ("`price in $` <= 5", "price in $", Range(None, 5.0)),
        ("'price in $' in [1, 5]", "price in $", Range(1.0, 5.0)),
        ("sold >= 2024-02-29", "sold", Range(dt.datetime(2024, 2, 29), None)),
        ("sold < 2024-02-29T12:30", "sold", Range(None, dt.datetime(2024, 2, 29, 12, 30), below=True)),
        ("insured = true", "insured", Among((True,))),
        ("quality >= medium", "quality", Among(("medium", "high"))),
        ("low < quality < high", "quality", Among(("medium",))),
        ("grade = A", "grade", Among(("A",))),
        ("grade = 10th", "grade", Among(("10th",))),
    ],
)
def test_levels_dates_and_quoted_names(text: str, name: str, condition: object) -> None:
    assert parse_conditions(text, COLUMNS) == {name: condition}


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("price", Query("price")),
        ("P(price)", Query("price")),
        ("p( 'price in $' | cut = Good )", Query("price in $", {}, {"cut": Among(("Good",))})),
        ("price | carat > 1", Query("price", {}, {"carat": Range(1.0, None, above=True)})),
        (
            "P(price > 5 | carat = 1)",
            Query(None, {"price": Range(5.0, above=True)}, {"carat": Among((1.0,))}),
        ),
        (
            "P(price > 5 and cut = Good)",
            Query(None, {"price": Range(5.0, above=True), "cut": Among(("Good",))}),
        ),
    ],
)
def test_queries(text: str, query: Query) -> None:
    assert parse_query(text, COLUMNS) == query


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("P(price | carrat > 1)", "carrat", "expected a column, got 'carrat' (did you mean 'carat'?)"),
        ("P(prize)", "prize", "did you mean 'price'?"),
        ("P(price | cut = Idael)", "Idael", "a level of 'cut', got 'Idael' (did you mean 'Ideal'?)"),
        ("P(price | cut < Ideal)", "Ideal", "whose levels have no order, got '<'"),
        ("P(price | quality > high)", "high", "a level of 'quality' that is left"),
        ("P(price | carat > big)", "big", "a number for 'carat', got 'big'"),
        ("P(price | carat > nan)", "nan", "a number for 'carat'"),
        ("P(price | sold > 2024-02-31)", "2024-02-31", "a date for 'sold'"),
        ("P(price | 2 <= carat <= 1)", "2", "a lower end below the upper one"),
        ("P(price | carat in [2, 1])", "[2, 1]", "a lower end below the upper one, got [2.0, 1.0]"),
        ("P(price | carat in [1, 2, 3])", "[1, 2, 3]", "two ends in a range"),
        ("P(price | carat in {1, 2]", "]", "expected '}'"),
        ("P(price | carat > 1, carat < 0)", "carat < 0", "conditions on 'carat' that a value can satisfy"),
        ("P(price | 1 < carat > 2)", ">", "two comparisons in one direction"),
        ("P(price | carat < 1 < 2)", "< 2", "the column between its ends"),
        ("P(price | carat)", ")", "a comparison"),
        ("P(price | carat != 3)", "3", "a range: 'carat' has no levels"),
        ("P(price | cut not in {Ideal, Good, Fair})", "{", "a level of 'cut' that is left"),
        ("P(price | grade = B)", "B", "a level of 'grade'"),
        ("P(price | ", "", "a condition"),
        ("P(price | carat > 1", "", "expected ',', 'and' or ')', got its end"),
        ("P(price", "", "expected '|' or ')', got its end"),
        ("P(price) cut", "cut", "the end of the query"),
        ("P(price, cut)", ", cut", "one column, or conditions"),
        ("price; cut", ";", "a name, a value or a sign, got ';'"),
        ("P(price | cut = 'Ideal)", "'Ideal)", "a closing quote"),
        ("P(price | cut = )", ")", "a value or a column"),
        ("", "", "got its end"),
    ],
)
def test_errors_point_at_the_place(text: str, place: str, message: str) -> None:
    with pytest.raises(QueryError) as caught:
        parse_query(text, COLUMNS)
    told, shown, marks = str(caught.value).split("\n")
    assert message in told
    assert shown == f"  {text}"
    start = text.rindex(place) if place else len(text.rstrip())
    assert marks.index("^") - 2 == start


def test_conditions_of_ranges_and_sets() -> None:
    assert both(Range(0, 1), Range(1, 2)) == Range(1, 1)
    assert both(Range(0, 1, below=True), Range(1, 2)) is None
    assert both(Range(0, 2), Among((1, 3))) == Among((1,))
    assert both(Among(("a",)), Among(("b",))) is None
    assert 1 in Range(0, 1)
    assert 1 not in Range(0, 1, below=True)
    assert 0 not in Range(0, 1, above=True)
