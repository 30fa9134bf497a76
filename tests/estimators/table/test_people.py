"""Numbers, times, dates and missing cells as people write them."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

import kdmkit as kdm
from kdmkit.estimators.table.decisions import described
from kdmkit.estimators.table.frames.cells import A_NUMBER
from kdmkit.estimators.table.frames.writing import NumberWriting, TimeWriting, writing_from_config
from kdmkit.estimators.table.schema import Schema

N = 240
RNG = np.random.default_rng(0)
PRICES = np.round(RNG.gamma(3, 20_000, N), 2)


def random_writing(rng: random.Random) -> NumberWriting:
    """Any writing that people use."""
    thousands, point = rng.choice([("", "."), (",", "."), (".", ","), (" ", ","), ("'", "."), ("", ",")])
    money = rng.choice(["", "$", "€ ", "USD ", "A$"])
    least = rng.choice([0, 0, 2])
    return NumberWriting(
        prefix=money,
        suffix="" if money else rng.choice(["", "%", " %", " km", "kg", " €"]),
        thousands=thousands,
        point=point,
        least_decimals=least,
        most_decimals=rng.choice([least, 2, 3]) if least else rng.choice([0, 1, 3]),
        negative=rng.choice(["before", "after", "behind", "brackets"]) if money else "before",  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("seed", range(40))
def test_what_is_written_is_read(seed: int) -> None:
    """Any numbers in any writing: the writing that is recognised gives the numbers, and the texts back."""
    rng = random.Random(seed)
    writing = random_writing(rng)
    size = rng.choice([10.0, 1e4, 1e7])
    numbers = [round(rng.uniform(-1, 1) * size, writing.most_decimals) for _ in range(60)]
    texts = [writing.write(number) for number in numbers]
    recognised = NumberWriting.of(texts)
    assert recognised is not None
    assert [recognised.read(text) for text in texts] == pytest.approx(numbers, abs=1e-12)
    assert [recognised.write(number) for number in numbers] == texts
    assert writing_from_config(recognised.config()) == recognised


@pytest.mark.parametrize(
    ("texts", "numbers"),
    [
        (["$90,000.00", "($1,250.50)", "$7.00"], [90_000, -1250.5, 7]),
        (["14.07%", "5.32%"], [14.07, 5.32]),
        (["1.234,56", "0,50", "12.000,00"], [1234.56, 0.5, 12_000]),
        (["1.234 €", "12.500 €"], [1234, 12_500]),
        (["1.234", "12.505"], [1.234, 12.505]),
        (["12 km", "3.5 km"], [12, 3.5]),
        (["1.5k", "20K", "2M", "300"], [1500, 20_000, 2e6, 300]),
        (["$2.5B", "$300m"], [2.5e9, 3e8]),
        (["5m", "12m"], [5, 12]),
        (["+1.5%", "-2.0%"], [1.5, -2]),
        ([".305", ".287"], [0.305, 0.287]),
        (["1e5", "2.5E-3"], [1e5, 0.0025]),
        (["1 234", "56"], [1234, 56]),
    ],
)
def test_numbers_of_people(texts: list[str], numbers: list[float]) -> None:
    writing = NumberWriting.of(texts)
    assert writing is not None
    assert [writing.read(text) for text in texts] == pytest.approx(numbers)


@pytest.mark.parametrize(
    "text", ["5'11", "1st", "<5", "10+", "12-15", "1/2", "10.0.0.1", "0171-55", "00123", "A5"]
)
def test_other_texts_are_no_numbers(text: str) -> None:
    assert NumberWriting().read(text) is None


@pytest.mark.parametrize("texts", [["9:05", "13:30"], ["09:05", "13:30"], ["09:05:30", "23:59:59"]])
def test_times_are_written_as_they_were(texts: list[str]) -> None:
    writing = TimeWriting.of(texts)
    assert writing is not None
    assert [writing.write(writing.read(text) or 0) for text in texts] == texts
    assert writing.read("24:00") is None
    assert writing_from_config(writing.config()) == writing


# ---- columns


def kinds(frame: Any) -> dict[str, str]:
    return {name: column.kind for name, column in Schema.from_frame(frame).columns.items()}


def test_half_of_a_column_is_no_number() -> None:
    texts = [f"{i % 7}.5 km" if i % 2 else "far" for i in range(N)]
    assert kinds({"x": texts}) == {"x": "category"}


@pytest.mark.parametrize(
    "texts",
    [
        ["98108", "98117", "10001", "60601"],  # codes of areas
        ["100", "101", "136A", "7B", "12C"],  # houses
        ["00123", "00124", "10000"],
        ["1st", "2nd", "3rd"],
        ["<5", "5", "6", "7+"],
        ["1", "2"],
        ["6", "7", "8", "9", "<5", "10+"],  # levels with open ends
        ["7 hours", "8 hours", "9 hours", "10 or more hours"],
    ],
)
def test_names_of_things_are_levels(texts: list[str]) -> None:
    assert kinds({"x": [texts[i % len(texts)] for i in range(N)]}) == {"x": "category"}


@pytest.mark.parametrize("marker", ["\\N", "n/a", "-", "?", "…", "*", ".", " "])
def test_markers_are_missing_cells(marker: str) -> None:
    texts = [marker if i % 4 == 0 else f"{i % 9}.5%" for i in range(N)]
    days = [marker if i % 4 == 0 else f"2020-03-{i % 28 + 1:02}" for i in range(N)]
    levels = [marker if i % 4 == 0 else "ab"[i % 2] for i in range(N)]
    schema = Schema.from_frame({"number": texts, "day": days, "level": levels})
    assert {name: column.kind for name, column in schema.columns.items()} == {
        "number": "float",
        "day": "date",
        "level": "category",
    }
    for column in schema.columns.values():
        assert column.missing == 0.25
        assert repr(marker) in column.why
    assert schema.columns["level"].codec.levels == ["a", "b"]


@pytest.mark.parametrize(
    "levels", [["+", "-"], ["NA", "DE", "FR"], ["none", "mild", "severe"], ["unknown", "known"], ["-", "x"]]
)
def test_levels_are_no_markers(levels: list[str]) -> None:
    schema = Schema.from_frame({"x": [levels[i % len(levels)] for i in range(N)]})
    assert sorted(schema.columns["x"].codec.levels or ()) == sorted(levels)


@pytest.mark.parametrize(
    "texts",
    [
        ["Jan-2018", "Mar-2018", "Dec-2017"],
        ["2002 Jan", "2002 Feb", "2003 Dec"],
        ["March 2018", "April 2018", "May 2019"],
        ["1/6/2006", "12/16/2005", "3/30/2006"],
        ["25/11/63", "5/11/63", "12/2/64"],
        ["8/6/20 18:57", "7/31/20 9:50", "12/31/20 0:05"],
        ["June 22, 2018", "July 6, 2018"],
        ["6-Aug-09", "17-Aug-09"],
        ["Jan-1-1995", "Feb-1-1995", "Dec-31-1996"],
        ["2021-Mar-04", "2021-Dec-31"],
        ["1974Q1", "1974Q4", "1975Q2"],
        ["Q3 2020", "Q1 2021"],
    ],
)
def test_dates_come_back_as_they_were_written(texts: list[str]) -> None:
    frame = pd.DataFrame({"day": [texts[i % len(texts)] for i in range(30)]})
    schema = Schema.from_frame(frame)
    assert schema.columns["day"].kind == "date"
    pd.testing.assert_frame_equal(schema.decode(schema.encode(frame).columns), frame)


def test_years_of_two_digits_are_of_the_last_hundred() -> None:
    schema = Schema.from_frame({"day": ["25/11/63", "5/11/63", "12/2/64"] * 10})
    assert schema.columns["day"].codec.numbers is not None
    assert "1963" in str(schema.columns["day"].codec.read_text("25/11/63"))


def test_quarters() -> None:
    """A quarter is one of four digits of a year: no draw and no question knows months."""
    texts = [f"{year}Q{quarter}" for year in range(1974, 1990) for quarter in (1, 2, 3, 4)] * 2
    table = kdm.KDMTable(n_components=4, max_epochs=3, random_state=0).fit({"period": texts})
    codec = table.columns_["period"].codec
    assert codec.describe() == "year + quarter"
    assert codec.read_text("1974q2") == "1974-04-01"
    parts = [table.probability(f"period = 1980Q{quarter}") for quarter in (1, 2, 3, 4)]
    assert sum(parts) == pytest.approx(table.probability("period = 1980"), abs=1e-7)
    assert table.probability("period > 1980Q1 and period < 1980Q4") == pytest.approx(
        sum(parts[1:3]), abs=1e-7
    )
    drawn = table.sample(100, random_state=0)["period"]
    assert all(re.fullmatch(r"\d{4}Q[1-4]", text) for text in drawn)
    loaded = Schema.from_config(json.loads(json.dumps(table.schema_.config())))
    assert loaded.columns["period"].codec.describe() == "year + quarter"


@pytest.mark.parametrize("text", ["1974Q5", "1974Q04", "1974Q", "Q1"])
def test_what_is_no_quarter(text: str) -> None:
    assert kinds({"x": ["1974Q1", "1974Q2", text] * 10}) == {"x": "category"}


def test_names_are_texts_and_keys_are_not() -> None:
    """New identifiers in draws would be names that nobody has."""
    names = ["".join(rng) for rng in (RNG.choice(list("aeiourstln"), (N, 7)))]
    frame = {
        "first_name": [f"{name.title()} {name[0].upper()}." for name in names],
        "hash": names,
        "sku": [f"AB-{i:04}" for i in range(N)],
        "user_id": [name.title() for name in names],
    }
    taken = {"first_name": "text", "hash": "identifier", "sku": "identifier", "user_id": "identifier"}
    assert kinds(frame) == taken


def test_missing_states_and_the_country_na() -> None:
    """Among codes of states NA is a missing cell; among those of countries a level, which a warning names."""
    states = ["AK", "AL", "AZ", "CA", "CO", "DC", "FL", "MA", "NY", "PR", "TX", "WA", "NA"]
    countries = ["AR", "CA", "CN", "DE", "FR", "GB", "IN", "JP", "KE", "US", "ZA", "NA"]
    schema = Schema.from_frame({"state": states * 10})
    assert schema.columns["state"].storage.markers == ("NA",)
    with pytest.warns(UserWarning, match="'NA' is a level among codes of two letters"):
        table = kdm.KDMTable(n_components=2, max_epochs=1, random_state=0).fit({"country": countries * 10})
    assert "NA" in table.levels("country")


def test_sixteen_digits_come_back() -> None:
    texts = ["8.187000000000001", "3.4530000000000003", "5.5710000000000015", "0.00012345678901234567"]
    writing = NumberWriting.of(texts)
    assert writing is not None
    assert [writing.read(writing.write(float(text))) for text in texts] == [float(text) for text in texts]


def test_seasons_are_no_months() -> None:
    assert kinds({"x": ["2003-04", "2004-05", "2005-06"] * 10}) == {"x": "category"}


# ---- a table of such columns


def people_frame() -> Any:
    heights = [("tall" if i % 20 == 0 else f"{h:.1f}") for i, h in enumerate(RNG.normal(70, 3, N))]
    return pd.DataFrame(
        {
            "price": [f"${p:,.2f}" for p in PRICES],
            "rate": [f"{r:.2f}%" for r in PRICES / 10_000],
            "height": heights,
            "note": RNG.choice(["a", "b", "\\N"], N),
            "clock": [
                f"{h}:{m:02}" for h, m in zip(RNG.integers(0, 24, N), RNG.integers(0, 60, N), strict=True)
            ],
        }
    )


DECIDED = {"height": "float"}  # or a warning asks whether texts among numbers are meant


@pytest.fixture(scope="module")
def frame() -> Any:
    return people_frame()


@pytest.fixture(scope="module")
def table(frame: Any) -> kdm.KDMTable:
    return kdm.KDMTable(types=DECIDED, n_components=6, max_epochs=30, random_state=0).fit(frame)


def is_written(frame: Any) -> None:
    assert frame["price"].str.fullmatch(r"\$\d{1,3}(,\d{3})*\.\d\d").all()
    assert frame["rate"].str.fullmatch(r"\d+\.\d\d%").all()
    assert frame["height"].str.fullmatch(r"tall|\d+\.\d").all()
    assert frame["clock"].str.fullmatch(r"\d{1,2}:\d\d").all()


def test_draws_are_in_the_writing_of_the_column(table: kdm.KDMTable, frame: Any) -> None:
    drawn = table.sample(500, random_state=0)
    assert list(drawn) == list(frame)
    is_written(drawn.dropna())
    assert set(drawn["note"].dropna()) == {"a", "b"}


def test_texts_among_numbers_are_drawn_as_often_as_they_are(table: kdm.KDMTable) -> None:
    drawn = table.sample(4000, random_state=0)["height"]
    assert (drawn == "tall").mean() == pytest.approx(0.05, abs=0.015)
    assert table.columns_["height_text"].codec.levels == [A_NUMBER, "tall"]
    assert table.query("P(height_text = tall)").mean == pytest.approx(0.05, abs=0.015)


def test_a_cell_is_a_number_or_a_text(table: kdm.KDMTable) -> None:
    c = table.columns
    both = (c.height > 0) & (c.height_text == "tall")
    assert table.probability(both) == 0
    assert table.probability(c.height.is_missing(), c.height_text == A_NUMBER) == 0
    is_tall = table.probability(c.height_text == "tall")
    assert table.probability(c.height.is_missing()) == pytest.approx(is_tall, abs=1e-9)
    assert table.query("height", "clock > 12:00").p_missing == pytest.approx(
        table.probability("height_text = tall", "clock > 12:00"), abs=1e-9
    )
    drawn = table.sample(500, given="height <= 70", random_state=0)["height"]
    assert (pd.to_numeric(drawn) <= 70).all()
    assert set(table.sample(50, given="height is missing", random_state=0)["height"]) == {"tall"}


def test_texts_among_numbers_that_follow_from_another_column() -> None:
    keys = np.array([f"z{i}" for i in RNG.integers(0, 30, N)])
    cells = np.where(keys == "z3", "absent", [f"{x:.1f}" for x in RNG.gamma(2, 5, N)])
    options: dict[str, Any] = {"types": {"x": "float"}, "n_components": 2, "max_epochs": 1, "random_state": 0}
    table = kdm.KDMTable(**options).fit({"key": keys, "x": cells})
    assert table.probability("x > 0 and x_text = absent") == 0
    assert "absent" not in set(table.sample(200, given="x > 3", random_state=0)["x"])
    with pytest.raises(ValueError, match="a column of the frame after the arrow, got 'x_text'"):
        kdm.KDMTable(rules=["key -> x_text"], **options).fit({"key": keys, "x": cells})


def test_plain_numbers_in_questions_are_those_of_python() -> None:
    frame = {"x": [f"{x:,.2f}".translate({44: ".", 46: ","}) for x in PRICES]}
    table = kdm.KDMTable(n_components=2, max_epochs=1, random_state=0).fit(frame)
    assert table.columns_["x"].codec.written(1234.5) == "1.234,50"
    for event in (kdm.col("x") < 60_000, kdm.col("x") < 60.123):
        question = table.query(event).question
        assert table.query(question).mean == pytest.approx(table.probability(event), abs=1e-9)
    assert table.probability("x < '60.000,00'") == table.probability("x < 60000") > 0.01
    assert table.probability({"x": (None, "60.000,00")}) == table.probability("x <= 60000")


@pytest.mark.parametrize("how", ["cells", "rows", "draws"])
def test_cells_are_filled_in_the_writing_of_the_column(table: kdm.KDMTable, frame: Any, how: str) -> None:
    gaps = frame.head(8).copy()
    for i, name in enumerate(frame):
        gaps.loc[i + 1, name] = None
    whole = table.impute(gaps, n=1, random_state=0)[0] if how == "draws" else table.impute(gaps, how=how)  # type: ignore[arg-type]
    assert not whole.isna().any(axis=None)
    is_written(whole)
    present = gaps.notna() & (gaps != "\\N")
    assert (whole[present].fillna("") == gaps[present].fillna("")).all(axis=None)
    assert "\\N" not in set(whole["note"])  # a marker is a missing cell


@pytest.mark.parametrize("backend", ["polars", "arrow", "mapping"])
def test_frames_of_every_library(frame: Any, backend: str) -> None:
    makers = {
        "polars": pl.DataFrame,
        "arrow": lambda columns: pa.table(columns),
        "mapping": lambda columns: {name: np.array(cells) for name, cells in columns.items()},
    }
    native = makers[backend]({name: list(cells) for name, cells in frame.items()})
    schema = Schema.from_frame(native)
    back = schema.decode(schema.encode(native, dtype=torch.float64).columns)
    got = {name: np.asarray(back[name]).tolist() for name in frame if name != "note"}
    assert got == {name: list(frame[name]) for name in frame if name != "note"}


def test_questions_accept_both_writings(table: kdm.KDMTable) -> None:
    for text, plain in [("price > $60,000.00", "price > 60000"), ("rate < 5%", "rate < 5")]:
        assert table.probability(text) == table.probability(plain)
    assert table.probability({"price": ("$60,000.00", None)}) == table.probability({"price": (60_000, None)})
    with pytest.raises(ValueError, match=r"column 'price': expected a number such as \$1,234\.50, got"):
        table.probability({"price": ("much", None)})


def test_answers_are_printed_in_the_writing_of_the_column(table: kdm.KDMTable) -> None:
    answer = table.query("price", given="rate > 5%")
    assert isinstance(answer.mean, float)
    assert "median: $" in repr(answer)
    assert all(label.startswith("$") for label in answer.bars())


def test_new_texts_among_numbers_are_missing_with_a_warning(table: kdm.KDMTable, frame: Any) -> None:
    rows = frame.head(2).copy()
    rows.loc[1, "price"] = "much"
    with pytest.warns(UserWarning, match="1 cells are no numbers and taken for missing: 'much'"):
        encoded = table.schema_.encode(rows)
    assert encoded.observed["c0"].tolist() == [True, False]


def test_saved_tables_write_the_same(table: kdm.KDMTable, tmp_path: Path) -> None:
    kdm.save(table, tmp_path / "model")
    drawn = kdm.load(tmp_path / "model").sample(20, random_state=1)
    pd.testing.assert_frame_equal(drawn, table.sample(20, random_state=1))


def test_kinds_that_are_asked_for(frame: Any) -> None:
    assert Schema.from_frame(frame, {"price": "category"}).columns["price"].kind == "category"
    texts = ["1", "2"] * 20
    assert Schema.from_frame({"x": texts}, {"x": "count"}).columns["x"].codec.numeric


def test_chunks_are_read_as_the_first(frame: Any) -> None:
    table = kdm.KDMTable(types=DECIDED, n_components=4, max_epochs=1, random_state=0)
    table.partial_fit(frame[:150])
    table.partial_fit(frame[150:])
    assert list(table.feature_names_in_) == list(frame)
    is_written(table.sample(50, random_state=0).dropna())


# ---- rare levels and texts of single people


def staff(n: int = 600) -> Any:
    """Titles of which many are seen once, and notes of single people."""
    titles = [f"title {i}" if i % 10 == 0 else ["clerk", "nurse", "cook"][i % 3] for i in range(n)]
    notes = [f"came in {i} and left again after a while" if i % 2 else "none of the above" for i in range(n)]
    return pd.DataFrame({"title": titles, "note": notes, "pay": RNG.gamma(3, 10, n)})


@pytest.fixture(scope="module")
def people() -> Any:
    return staff()


@pytest.fixture(scope="module")
def staff_table(people: Any) -> kdm.KDMTable:
    return kdm.KDMTable(n_components=6, max_epochs=10, random_state=0).fit(people)


def once(drawn: Any, data: Any) -> set[str]:
    """Drawn texts that occur once in the data."""
    counts = data.value_counts()
    return set(drawn) & set(counts.index[counts == 1])


def test_no_drawn_text_occurs_once_in_the_data(staff_table: kdm.KDMTable, people: Any) -> None:
    drawn = staff_table.sample(2000, random_state=0)
    assert list(drawn) == ["title", "pay"]  # notes are left out
    assert not once(drawn["title"], people["title"])
    assert set(drawn["title"]) == {"clerk", "nurse", "cook", "(other)"}
    assert (drawn["title"] == "(other)").mean() == pytest.approx(0.1, abs=0.04)
    assert "60 with fewer than 3 rows are drawn as (other)" in staff_table.columns_["title"].details
    assert staff_table.columns_["note"].kind == "text"


def test_rare_levels_can_be_asked_about(staff_table: kdm.KDMTable) -> None:
    assert 0 < staff_table.probability('title = "title 10"') < 0.01
    drawn = staff_table.sample(5, given={"title": "title 10"}, random_state=0)
    assert set(drawn["title"]) == {"title 10"}


def test_the_caller_decides_about_rare_texts(people: Any) -> None:
    def drawn(**options: Any) -> Any:
        table = kdm.KDMTable(n_components=4, max_epochs=2, random_state=0, **options).fit(people)
        return table.sample(1000, random_state=0)

    pooled = drawn(texts="pooled")
    assert not once(pooled["note"], people["note"])
    assert set(pooled["note"]) == {"none of the above", "(other)"}
    assert once(drawn(texts="drawn")["note"], people["note"])
    assert once(drawn(min_level_rows=1)["title"], people["title"])
    assert set(drawn(min_level_rows=250)["title"]) == {"(other)"}
    for options in ({"texts": "some"}, {"min_level_rows": 0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            drawn(**options)


def test_categorical_dtypes_get_a_level_for_rare_ones(people: Any) -> None:
    for frame in (
        people.astype({"title": "category"}),
        pl.from_pandas(people).cast({"title": pl.Categorical}),
    ):
        table = kdm.KDMTable(n_components=4, max_epochs=2, random_state=0).fit(frame)
        drawn = table.sample(300, random_state=0)["title"]
        assert "(other)" in set(np.asarray(drawn).tolist())
        assert not once(pd.Series(np.asarray(drawn).tolist()), people["title"])


def test_unseen_levels_are_counted_in_one_warning(staff_table: kdm.KDMTable, people: Any) -> None:
    rows = people.head(4).assign(title=["king", "queen", "cook", "pope"])
    with pytest.warns(UserWarning, match="3 in 'title' \\('king', 'queen', 'pope'\\)"):
        staff_table.score_samples(rows)


def test_saved_tables_pool_rare_levels(staff_table: kdm.KDMTable, tmp_path: Path) -> None:
    kdm.save(staff_table, tmp_path / "model")
    drawn = kdm.load(tmp_path / "model").sample(100, random_state=3)
    pd.testing.assert_frame_equal(drawn, staff_table.sample(100, random_state=3))


# ---- what was decided is seen


UNSURE = {
    "zip": [["98108", "98117", "10001", "60601"][i % 4] for i in range(N)],
    "day": [["01/02/2020", "03/04/2020", "05/06/2021"][i % 3] for i in range(N)],
    "height": ["tall" if i % 30 == 0 else f"{60 + i % 17}.5" for i in range(N)],
    "dose": ["none" if i % 4 == 0 else f"{i % 5}.5 mg" for i in range(N)],
    "size": [["S", "L"][i % 2] for i in range(N)],
}


def test_one_warning_lists_what_is_unsure() -> None:
    with pytest.warns(UserWarning, match="kinds of columns that are not certain") as caught:
        table = kdm.KDMTable(n_components=2, max_epochs=1, random_state=0).fit(UNSURE)
    (message,) = [str(warning.message) for warning in caught]
    for name, column in table.columns_.items():
        certain = name in ("size", "height_text")
        assert (f"{name!r} (" in message) != certain
        assert bool(column.unsure) != certain
        assert certain or "unsure: " in column.line[-1]
    assert 'types={"zip": "count"}' in message


def test_texts_that_may_be_levels_are_told() -> None:
    codes = [f"s{i // 2}" for i in range(N)]
    with pytest.warns(
        UserWarning, match=r"'station' \(text: left out, .* types=\{\"station\": \"category\"\}\)"
    ):
        kdm.KDMTable(n_components=2, max_epochs=1).fit({"station": codes, "x": PRICES})


def test_few_rows_are_told(people: Any) -> None:
    few = kdm.KDMTable(n_components=2, max_epochs=1, random_state=0)
    with pytest.warns(
        UserWarning, match="X: expected 20 rows or more to learn from, got 8; answers are vague"
    ):
        few.fit(people[["pay"]].head(8))


def test_decided_columns_are_certain(recwarn: pytest.WarningsRecorder) -> None:
    types = {"zip": "category", "day": "category", "height": "float", "dose": "category"}
    table = kdm.KDMTable(types=types, n_components=2, max_epochs=1, random_state=0).fit(UNSURE)
    assert [column.kind for name, column in table.columns_.items() if name in types] == list(types.values())
    assert not recwarn.list


def test_a_schema_is_written_edited_and_read(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    text = json.dumps(described(Schema.from_frame(UNSURE).columns))
    schema = json.loads(text)
    assert {name: entry["kind"] for name, entry in schema["columns"].items()} == {
        **{"zip": "category", "day": "category", "height": "float"},
        **{"dose": "float", "size": "category"},
    }
    assert schema["columns"]["dose"]["missing"] == ["none"]
    assert schema["columns"]["dose"]["examples"] == [f"{i}.5 mg" for i in range(5)]
    schema["columns"]["zip"]["kind"] = "count"
    schema["columns"]["dose"] |= {"kind": "category", "missing": ["0.5 mg"]}
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(schema))
    for given in (schema, path, str(path)):
        table = kdm.KDMTable(schema=given, n_components=2, max_epochs=1, random_state=0).fit(UNSURE)
        assert table.columns_["zip"].kind == "count"
        assert table.levels("dose") == ["1.5 mg", "2.5 mg", "3.5 mg", "4.5 mg", "none"]
    kdm.save(table, tmp_path / "model")
    assert kdm.load(tmp_path / "model").columns_["zip"].kind == "count"
    assert not recwarn.list


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"columns": {"x": {"kind": "number"}}}, "types\\['x'\\]: expected one of"),
        ({"columns": {"y": {"kind": "float"}}}, "expected columns of the table"),
        ({"columns": {"x": "float"}}, "schema: 'x': expected an object"),
        ({"columns": {"x": {"missing": "-"}}}, "schema: 'x': expected a list of texts"),
        ({"x": "float"}, "schema: expected a schema"),
        (3, "schema: expected a schema"),
        ("/nowhere/schema.json", "no such file"),
    ],
)
def test_bad_schemas(schema: Any, text: str) -> None:
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=text):
        kdm.KDMTable(schema=schema).fit({"x": [1.5, 2.5, 3.0]})


def test_examples_are_no_rare_texts(staff_table: kdm.KDMTable) -> None:
    assert staff_table.columns_["title"].examples == ("clerk", "cook", "nurse")
    assert staff_table.columns_["note"].examples == ()


# ---- identifiers are new keys


KEYS = {
    "row": list(range(1, N + 1)),
    "customer_id": (10_000 + 7 * np.random.default_rng(2).permutation(N)).tolist(),
    "order": [f"ID-{i:06}/x" for i in np.random.default_rng(3).permutation(N)],
    "plain": [f"c{i}" for i in range(N)],
    "uuid": [f"{random.Random(i).getrandbits(128):032x}" for i in range(N)],
    "name": [f"{'abcdefgh'[i % 8] * (3 + i % 11)} {i % 7}th of {i}" for i in range(N)],
    "size": (np.arange(N) % 3).tolist(),
}
FORMS = {
    **{"row": r"\d{3}", "customer_id": r"1\d{4}", "order": r"ID-000\d{3}/x", "plain": r"c\d+"},
    "uuid": "[0-9a-f]{32}",
}


@pytest.mark.parametrize("backend", ["pandas", "polars", "arrow", "mapping"])
def test_identifiers_are_new_keys_of_the_same_form(backend: str, tmp_path: Path) -> None:
    makers: dict[str, Any] = {
        "pandas": pd.DataFrame,
        "polars": pl.DataFrame,
        "arrow": pa.table,
        "mapping": dict,
    }
    table = kdm.KDMTable(n_components=2, max_epochs=1, random_state=0).fit(makers[backend](KEYS))
    assert {table.columns_[name].kind for name in FORMS} == {"identifier"}
    kdm.save(table, tmp_path / "model")
    for model in (table, kdm.load(tmp_path / "model")):
        drawn = model.sample(300, random_state=0)
        batches = list(model.stream("sample", n=300, batch_size=70, random_state=1))
        for name, form in FORMS.items():
            keys = [str(key) for key in np.asarray(drawn[name]).tolist()]
            assert all(re.fullmatch(form, key) for key in keys)
            assert len(set(keys)) == 300
            assert not set(keys) & set(map(str, KEYS[name]))
            assert [str(key) for batch in batches for key in batch[name].to_pylist()] == keys
        assert np.asarray(drawn["row"]).tolist() == list(range(N + 1, N + 301))
        assert list(model.sample(1, frame="pandas")) == [*FORMS, "size"]  # names have no form


@pytest.mark.parametrize(
    "texts",
    [
        [f"u{i}@x.org" for i in range(N)],
        [f"+1 555 {i:04}" for i in range(N)],
        [f"https://x.org/{i}" for i in range(N)],
    ],
)
def test_no_addresses_and_telephone_numbers_are_made_up(texts: list[str]) -> None:
    frame = pd.DataFrame({"contact": texts, "size": np.arange(N) % 3})
    table = kdm.KDMTable(n_components=2, max_epochs=1, random_state=0).fit(frame)
    assert table.columns_["contact"].kind == "text"
    assert list(table.sample(3, random_state=0)) == ["size"]


def test_keys_with_hyphens_are_no_telephone_numbers_under_the_name_of_an_identifier() -> None:
    keys = [f"2024-{i:05}" for i in range(N)]
    assert kinds({"order_id": keys, "calls": keys}) == {"order_id": "identifier", "calls": "text"}


def test_identifiers_are_left_out_if_asked_for() -> None:
    table = kdm.KDMTable(identifiers="left out", n_components=2, max_epochs=1, random_state=0).fit(KEYS)
    assert list(table.sample(3)) == ["size"]
    with pytest.raises(ValueError, match="identifiers: expected one of"):
        kdm.KDMTable(identifiers="old").fit(KEYS)  # type: ignore[arg-type]


def test_keys_go_on_after_those_of_all_rows() -> None:
    table = kdm.KDMTable(n_components=2, max_epochs=1, random_state=0)
    rows = pd.DataFrame(
        {"id": range(100, 200), "order": [f"A{i}" for i in range(100)], "x": RNG.normal(size=100)}
    )
    table.partial_fit(rows)
    table.partial_fit(rows.assign(id=rows["id"] + 500, order=[f"A{i}" for i in range(700, 800)]))
    drawn = table.sample(2, first_key=3)
    assert drawn["id"].tolist() == [703, 704]
    assert drawn["order"].tolist() == ["A803", "A804"]
    table.partial_fit(rows.assign(order=[f"B{i}" for i in range(100)]))
    assert list(table.sample(2)) == ["id", "x"]  # keys of two forms
    whole = pd.DataFrame({"id": np.random.default_rng(0).permutation(2000), "x": RNG.normal(size=2000)})
    sampled = kdm.KDMTable(max_rows=200, n_components=2, max_epochs=1, random_state=0).fit(whole)
    assert not set(sampled.sample(100)["id"]) & set(whole["id"])
