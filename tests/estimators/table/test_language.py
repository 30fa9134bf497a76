"""The query language: what queries mean, texts of events, and errors that point at the place."""

import random
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest

from estimators.table.random_queries import QueryWriter, enormous, mutated, random_columns
from helpers import count_calls
from kdmkit import col
from kdmkit.distributions.events import All, AnyOf, Condition, Event, Not
from kdmkit.estimators.table.language import ColumnSyntax, Query, QueryError, parse_event, parse_query
from kdmkit.estimators.table.literals import read_number, read_people_date, read_people_duration
from kdmkit.kernels import Interval, OneOf
from kdmkit.kernels.regions import Missing

QUALITY = ["low", "medium", "high"]
COLUMNS = {
    "price": ColumnSyntax(),
    "carat": ColumnSyntax(),
    "cut": ColumnSyntax("levels", ["Ideal", "Good", "Fair"]),
    "income": ColumnSyntax("levels", ["<=50K", ">50K"]),
    "hours-per-week": ColumnSyntax(),
    "price in $": ColumnSyntax(),
    "sold": ColumnSyntax("date", read=read_people_date),
    "bought": ColumnSyntax("date", read=read_people_date),
    "at": ColumnSyntax("time", read=lambda text: text),
    "insured": ColumnSyntax("levels", [False, True]),
    "quality": ColumnSyntax("levels", QUALITY, ordered=True),
    "Before": ColumnSyntax("levels", list(QUALITY), ordered=True),
    "high": ColumnSyntax("levels", list(QUALITY), ordered=True),
    "grade": ColumnSyntax("levels", ["a", "A", "10th"]),
    "rooms": ColumnSyntax("levels", [1, 2, 10], ordered=True),
    "state": ColumnSyntax("levels", ["OR", "IN", "New York"]),
    "month": ColumnSyntax(),
    "notes": ColumnSyntax("left out", reason="free text"),
}


def _is(name: str, *values: Any) -> Condition:
    return Condition(name, OneOf(values))


@pytest.mark.parametrize(
    ("text", "region"),
    [
        ("0.5 <= carat <= 1", Interval(0.5, 1)),
        ("0.5 < carat ≤ 1", Interval(0.5, 1, "right")),
        ("1 > carat >= -2e-1", Interval(-0.2, 1, "left")),
        ("carat < 1", Interval(None, 1, "neither")),
        ("1 < carat", Interval(1, None, "neither")),
        ("carat>=1", Interval(1, None)),
        ("carat = 1", OneOf([1])),
        ("1 == carat", OneOf([1])),
        ("carat in [0.5, 1)", Interval(0.5, 1, "left")),
        ("carat in (-inf, 1]", Interval(None, 1)),
        ("carat ∈ {1, 2, 1}", OneOf([1, 2])),
        ("carat between 1k and 20,000", Interval(1000, 20000)),
        ("carat in [1,200]", Interval(1, 200)),
        ("Carat is NULL", Missing),
        ("1 < carat < 1", Interval(1, 1, "neither")),
    ],
)
def test_conditions_on_numbers(text: str, region: Any) -> None:
    assert parse_event(text, COLUMNS) == Condition("carat", region)


@pytest.mark.parametrize(
    ("text", "event"),
    [
        ("cut = Ideal", _is("cut", "Ideal")),
        ("Cut = ideal", _is("cut", "Ideal")),
        ("'Ideal' = cut", _is("cut", "Ideal")),
        ("cut in {Ideal, Good}", _is("cut", "Ideal", "Good")),
        ("cut in ('Ideal', \"Good\")", _is("cut", "Ideal", "Good")),
        ("cut != Ideal", Not(_is("cut", "Ideal"))),
        ("cut not in {Ideal, Fair}", Not(_is("cut", "Ideal", "Fair"))),
        ('income = ">50K"', _is("income", ">50K")),
        ("hours-per-week > 40", col("hours-per-week") > 40),
        ("`price in $` <= 5", col("price in $") <= 5),
        ("1 <= 'price in $' <= 5", col("price in $").between(1, 5)),
        ("carat != 3", Not(_is("carat", 3))),
        ("carat not between 1 and 2", Not(Condition("carat", Interval(1, 2)))),
        ("carat not in (1, inf)", Not(Condition("carat", Interval(1, None, "neither")))),
        ("carat in (-inf, inf)", Not(Condition("carat", Missing))),
        ("carat is not missing", Not(Condition("carat", Missing))),
        ("carat = 5%", _is("carat", 0.05)),
        ("insured = true", _is("insured", True)),
        ("insured = NO", _is("insured", False)),
        ("insured = 1", _is("insured", True)),
        ("quality >= medium", col("quality") >= "medium"),
        ("low < quality <= high", col("quality").between("low", "high", "right")),
        ("quality in [low, high]", col("quality").between("low", "high")),
        ("quality in {low, high}", _is("quality", "low", "high")),
        ("quality in [low, medium, high]", _is("quality", *QUALITY)),
        ("grade = A", _is("grade", "A")),
        ("grade = 10TH", _is("grade", "10th")),
        ("rooms >= 2.0", col("rooms") >= 2),
        ("state = or or state in {in, new york}", _is("state", "OR") | _is("state", "IN", "New York")),
        ("sold >= 2024-02-29", col("sold") >= "2024-02-29"),
        ("sold < 29.2.2024 12:30", col("sold") < "2024-02-29T12:30"),
        ("July 4, 2015 < sold", col("sold") > "2015-07-04"),
        ("sold in [4 July 2015, July 9, 2015)", col("sold").between("2015-07-04", "2015-07-09", "left")),
        ("month(sold) = July", col("sold").month == 7),
        ("weekday(sold) in {Sat, sun}", Condition(col("sold").weekday.key, OneOf([5, 6]))),
        ("6 <= month(`sold`) < 9", col("sold").month.between(6, 9, "left")),
        ("hour(at) between 9 and 17", col("at").hour.between(9, 17)),
        ("month = 7", _is("month", 7)),
        ("month in (1, 2]", col("month").between(1, 2, "right")),
        ("price <= carat", col("price") <= col("carat")),
        ("price ≠ `carat`", Not(col("price") == col("carat"))),
        ("sold < bought", col("sold") < col("bought")),
        ("quality < before", col("quality") < col("Before")),
        ("quality < high", col("quality") < "high"),
        ("quality < `high`", col("quality") < col("high")),
        ("0 < price < carat", All((col("price") > 0, col("price") < col("carat")))),
        ("price > 1, price < 0", (col("price") > 1) & (col("price") < 0)),
        ("true", All()),
        ("not false", Not(AnyOf())),
    ],
)
def test_events(text: str, event: Event) -> None:
    assert parse_event(text, COLUMNS) == event
    assert parse_event(str(event), COLUMNS) == event


def test_precedence() -> None:
    a, b, c, d = (_is("price", value) for value in range(4))
    names = "price = 0", "price = 1", "price = 2", "price = 3"
    for text, event in {
        "{}, {} or {} and {}": All((a, AnyOf((b, All((c, d)))))),
        "{} and {} & {}, {}": All((a, b, c, d)),
        "not {} and ({} or {})": All((Not(a), AnyOf((b, c)))),
        "not ({}, {} or {})": Not(All((a, AnyOf((b, c))))),
        "not not {} or ({} or {})": AnyOf((a, b, c)),
    }.items():
        assert parse_event(text.format(*names), COLUMNS) == event


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("price", Query("price")),
        ("P(Price)", Query("price")),
        ("p( 'price in $' | cut = Good )", Query("price in $", given=_is("cut", "Good"))),
        ("price | carat > 1", Query("price", given=col("carat") > 1)),
        ("Pr(price > 5 | carat = 1)", Query(None, col("price") > 5, _is("carat", 1))),
        ("P(price > 5, cut = Good)", Query(None, (col("price") > 5) & _is("cut", "Good"))),
        ("(price > 5 or cut = Good) | true", Query(None, (col("price") > 5) | _is("cut", "Good"))),
        ("P(true)", Query(None)),
    ],
)
def test_queries(text: str, query: Query) -> None:
    assert parse_query(text, COLUMNS) == query


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("P(price | carrat > 1)", "carrat", "expected a column, got 'carrat' (did you mean 'carat'?)"),
        ("P(prize)", "prize", "did you mean 'price'?"),
        ("P(notes)", "notes", "got 'notes', which is left out (free text)"),
        (
            "P(price | cut = Idael)",
            "Idael",
            "got 'Idael' (did you mean 'Ideal'?); its levels: 'Ideal', 'Good'",
        ),
        ("P(price | cut < Ideal)", "Ideal", "whose levels have no order, got '<'"),
        ("P(price | cut between Ideal and Good)", "between", "whose levels have no order, got 'between'"),
        ("P(price | carat > big)", "big", "a number for 'carat', got 'big'"),
        ("P(price | carat > nan)", "nan", "a number for 'carat'"),
        ("P(price | carat = inf)", "inf", "a number for 'carat'"),
        ("P(price | carat > inf)", "inf", "-inf as a lower end"),
        ("P(price | carat > 1e308)", "1e308", "a number below 1e308 for 'carat'"),
        ("P(price | carat > 1" + "0" * 400 + ")", "1" + "0" * 400, "a number below 1e308"),
        ("P(price | sold > 2024-13)", "2024-13", "a date such as 2024-05-31"),
        ("P(price | sold > 07/04/2015)", "07/04/2015", "one reading, 2015-07-04 or 2015-04-07, for 'sold'"),
        ("P(price | 2 <= carat <= 1)", "2", "a lower end below the upper one"),
        ("P(price | carat in [2, 1])", "[2, 1]", "a lower end below the upper one, got '[2, 1]'"),
        ("P(price | carat in [1, 2, 3])", "[1, 2, 3]", "two ends in a range"),
        ("P(price | carat in {1, 2]", "]", "expected '}'"),
        ("P(price | 1 < carat > 2)", ">", "two comparisons in one direction"),
        ("P(price | carat < 1 < 2)", "< 2", "the column between its ends"),
        ("P(price | carat)", ")", "a comparison"),
        ("P(price | carat is big)", "big", "'missing'"),
        ("P(price | grade = B)", "B", "a level of 'grade'"),
        (
            "P(price | price < sold)",
            "price < sold",
            "or of the same ordered levels, got 'price' (number) and",
        ),
        ("P(price | weekday(price) = 1)", "price)", "a column that has a weekday, got 'price' (number)"),
        ("P(price | month(sold) = Jury)", "Jury", "a number for month(sold), got 'Jury'"),
        ("P(month(sold) | price > 1)", "month(sold)", "or a condition such as month(date) = 7"),
        ("P(price | ", "", "a condition"),
        ("P(price | carat > 1", "", "expected ',', 'and', 'or' or ')', got its end"),
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
    start = text.rindex(place) if place else len(text.rstrip())
    if len(text) < 100:
        assert shown == f"  {text}"
        assert marks.index("^") - 2 == start
    assert len(shown) < 200


@pytest.mark.parametrize("odd", ["\0", "\ud800", "(" * 61, "(not " * 61, "x" * 200_001, "price " * 12_501])
def test_odd_texts_are_refused_with_an_error_that_can_be_printed(odd: str) -> None:
    for text in (odd, f"price > {odd}", f"cut = '{odd}'", f"P(price | {odd}"):
        with pytest.raises(QueryError) as caught:
            parse_query(text, COLUMNS)
        assert len(str(caught.value).encode()) < 2_000


def test_text_of_an_event_means_the_event_again() -> None:
    rng = random.Random(0)
    trips = 0
    while trips < 3_000:
        columns = random_columns(rng)
        writer = QueryWriter(rng, columns)
        for _ in range(20):
            try:
                event = parse_event(writer.event(), columns)
            except QueryError:  # a range of no values, columns of two kinds
                continue
            assert parse_event(str(event), columns) == event
            trips += 1


def test_mutated_queries_are_events_or_query_errors() -> None:
    rng = random.Random(0)
    for _ in range(200):
        columns = random_columns(rng)
        writer = QueryWriter(rng, columns)
        for _ in range(20):
            try:
                query = parse_query(mutated(rng, f"P({writer.event(1)} | {writer.event(2)})"), columns)
            except QueryError as error:
                str(error).encode()
            else:
                assert parse_event(str(query.given), columns) == query.given


def test_enormous_queries_are_read_or_refused_quickly() -> None:
    """Calls are proportional to the text, at most 10 for each character, and memory is bounded."""
    rng = random.Random(1)
    columns = {"level": ColumnSyntax("levels", [f"level {i}" for i in range(900)], True)}
    for _ in range(15):
        text = enormous(rng, "level", f"'level {rng.randrange(900)}'")
        calls = count_calls(lambda text=text: _read_or_refused(text, columns))
        assert calls < 10_000 + 30 * len(text)
        tracemalloc.start()
        _read_or_refused(text, columns)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < 10_000_000


def _read_or_refused(text: str, columns: dict[str, ColumnSyntax]) -> None:
    with suppress(QueryError):
        parse_query(text, columns)


def test_calls_grow_with_the_text_and_not_with_the_levels() -> None:
    columns = {"c": ColumnSyntax("levels", [f"level {i}" for i in range(900)], True)}

    def calls(n: int) -> int:
        text = " and ".join(f"c != 'level {i % 900}'" for i in range(n))
        return count_calls(lambda: parse_event(text, columns))

    calls(1)
    assert calls(3_000) < 10.5 * calls(300)


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        *(
            (iso, iso)
            for iso in ("2024", "2024-05", "2024-05-31", "2024-05-31 18:30", "2024-05-31T18:30:15Z")
        ),
        *(
            (text, "2024-05-31")
            for text in ("31.05.2024", "31/05/2024", "5/31/2024", "2024/5/31", "20240531")
        ),
        *(
            (text, "2024-05-31")
            for text in ("31-May-2024", "31 may 2024", "May 31st, 2024", "31st May, 2024")
        ),
        *((text, "2015-07-04") for text in ("4.7.2015", "4 July 2015", "July 4, 2015", "Jul. 4 2015")),
        *((text, "2015-07") for text in ("Jul 2015", "July, 2015", "Jul-2015")),
        ("4/4/2015", "2015-04-04"),
        ("4.7.2015 18:30:15", "2015-07-04T18:30:15"),
        ("July 4, 2015, 6:05 pm", "2015-07-04T18:05"),
        ("2015-07-04 12:05 am", "2015-07-04T00:05"),
    ],
)
def test_dates_as_people_write_them(text: str, iso: str) -> None:
    assert read_people_date(text) == read_people_date(text, day_first=True) == iso
    assert read_people_date(iso) == iso


def test_order_of_day_and_month() -> None:
    assert read_people_date("07/04/2015", day_first=True) == "2015-04-07"
    assert read_people_date("07/04/2015", day_first=False) == "2015-07-04"
    assert read_people_date("31/05/2015", day_first=False) == "2015-05-31"
    with pytest.raises(ValueError, match="2015-07-04 or 2015-04-07"):
        read_people_date("07/04/2015")


@pytest.mark.parametrize(
    "text", ["", "soon", "31.02.2024", "5/31/24", "13/13/2024", "May", "Jul 2015 9:00", "4.7.2015 25:00"]
)
def test_no_dates(text: str) -> None:
    with pytest.raises(ValueError, match=r"^a (date|time) such as"):
        read_people_date(text)


def test_numbers_stay_exact() -> None:
    assert [read_number(text) for text in ("9007199254740993", "−20 €", "14.07%", "0.1M")] == [
        *(9007199254740993, -20, 0.1407, 100000.0)
    ]
    for text in ("", ".", "1,00", "1_", "e5", "0x10", "1e", "²", "5 apples"):
        with pytest.raises(ValueError, match=r"^a number$"):
            read_number(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("30h", 108_000),
        ("1 day 6 hours", 108_000),
        ("2h 30min", 9_000),
        ("-1.5 days", -129_600.0),
    ],
)
def test_durations_as_people_write_them(text: str, seconds: float) -> None:
    assert read_people_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "3 parsecs", "1 day 2", "2 2h", "1 day, or 3h", "nan", "1..5h"])
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match=r"number|duration"):
        read_people_duration(text)
