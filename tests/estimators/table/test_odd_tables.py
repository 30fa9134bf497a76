"""Tables and rows that people bring: odd types, odd numbers, no rows."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import kdmkit as kdm
import typecheck
from kdmkit.estimators.table.frames.read import read_frame
from kdmkit.estimators.table.schema import Schema

N = 80


def odd_frame() -> Any:
    rng = np.random.default_rng(0)
    x = rng.normal(size=N)
    start = pd.Timestamp("2024-10-20", tz="Europe/Berlin")
    return pd.DataFrame(
        {
            "x": x,
            "tiny": x * 1e-300,
            "vast": x * 1e300,
            "level": rng.choice(["1", "2"], N),
            "number": pd.Categorical(rng.choice([1, 2], N)),
            "interval": pd.cut(x, [-9, -0.5, 0.5, 9]),
            "dates": pd.Categorical(pd.to_datetime(rng.choice(["2024-01-01", "2025-01-01"], N))),
            "zone": start + pd.to_timedelta(rng.integers(0, 400, N), unit="h"),
            "clock": [dt.time(int(m) // 60, int(m) % 60) for m in rng.integers(0, 1440, N)],
            "text date": [str(dt.date(2024, 1, 1) + dt.timedelta(int(i))) for i in rng.integers(0, 99, N)],
            "duration": pd.to_timedelta(rng.integers(0, 10**6, N), unit="s"),
            "decimal": [decimal.Decimal(str(round(v, 2))) for v in x],
            "constant": [7.0, None] * (N // 2),
            "same day": [pd.Timestamp("2024-05-05")] * N,
        }
    )


@pytest.fixture(scope="module")
def frame() -> Any:
    return odd_frame()


@pytest.fixture(scope="module")
def odd(frame: Any) -> kdm.KDMTable:
    with typecheck.off():
        return kdm.KDMTable(n_components=3, max_epochs=1, random_state=0).fit(frame)


@pytest.fixture(autouse=True)
def _unchecked(unchecked: None) -> None:
    pass


def test_gaps_of_every_kind_are_filled(odd: kdm.KDMTable, frame: Any) -> None:
    gaps = frame[:6].copy()
    gone = np.random.default_rng(0).random(gaps.shape) < 0.4
    gaps = gaps.mask(gone)
    for whole in (odd.impute(gaps), odd.impute(gaps, how="rows"), *odd.impute(gaps, n=2, random_state=0)):
        assert not whole.isna().any(axis=None)
        assert whole.dtypes.equals(gaps.dtypes)
        for name in gaps:
            known = gaps[name].notna()
            assert list(map(repr, whole[name][known])) == list(map(repr, gaps[name][known]))
    assert (whole["constant"] == 7).all()


def test_saved_tables_have_the_same_categories(odd: kdm.KDMTable, frame: Any, tmp_path: Any) -> None:
    kdm.save(odd, tmp_path / "model")
    other = kdm.load(tmp_path / "model")
    drawn = other.sample(5, random_state=0)
    pd.testing.assert_frame_equal(drawn, odd.sample(5, random_state=0))
    assert drawn.dtypes.equals(frame.dtypes)
    np.testing.assert_array_equal(other.score_samples(frame), odd.score_samples(frame))


def test_answers_have_one_type(odd: kdm.KDMTable) -> None:
    for name, kind in {"clock": dt.time, "duration": float, "decimal": float, "level": str}.items():
        answer = odd.query(name)
        values = [*answer.sample(3, random_state=0).tolist(), answer.mode]
        values += [] if name == "level" else [answer.median, *answer.interval()]
        assert all(isinstance(value, kind) for value in values), name


def test_durations_are_in_seconds_everywhere(odd: kdm.KDMTable) -> None:
    answer = odd.query("duration")
    assert answer.interval(0.99)[1] < 2e6
    assert answer.sample(50, random_state=0).max() < 2e6
    question = odd.query("x", given={"duration": (pd.Timedelta(0), pd.Timedelta("1 day"))}).question
    assert question == "P(x | duration in [0.0, 86400.0])"
    assert odd.query(question).question == question


def test_rows_are_explained(odd: kdm.KDMTable, frame: Any) -> None:
    known = frame[["x", "interval", "dates", "clock", "decimal", "constant"]]
    for row in (known.iloc[0], known[:1]):
        explained = {cell.column: cell for cell in odd.explain(row)}
        assert set(explained) == set(known)
        assert explained["constant"].value == frame["constant"][0]  # one value, or missing
        assert explained["clock"].value == frame["clock"][0]


def test_unseen_values_are_explained(odd: kdm.KDMTable) -> None:
    with pytest.warns(UserWarning, match="1 in 'level' \\('new'\\)"):
        cells = odd.explain({"level": "new", "x": 1e308})
    assert cells[0].column == "x"
    assert {cell.column: cell.value for cell in cells} == {"x": 1e308, "level": "new"}
    assert all(0 <= cell.probability < 0.1 for cell in cells)


def test_far_numbers_have_no_probability_and_predict(odd: kdm.KDMTable) -> None:
    far = {"x": [1e308, -1e308]}
    assert (odd.score_samples(far) == -math.inf).all()
    assert np.isfinite(odd.predict(far, "decimal")).all()
    with pytest.raises(ValueError, match="expected finite values, got inf"):
        odd.query("decimal", given={"x": math.inf})


def test_numbers_of_any_size(odd: kdm.KDMTable, frame: Any) -> None:
    for name in ("tiny", "vast"):
        low, high = odd.query(name).interval(0.9)
        assert -5 * frame[name].abs().max() < low < high < 5 * frame[name].abs().max()
    assert np.isfinite(odd.score_samples(frame)).all()


def test_zones_agree(odd: kdm.KDMTable, frame: Any) -> None:
    local = frame[["zone"]][:10]
    universal = local.assign(zone=local["zone"].dt.tz_convert("UTC"))
    np.testing.assert_array_equal(odd.score_samples(local), odd.score_samples(universal))
    moment = local["zone"][0]
    answers = [
        odd.query("level", given={"zone": value}).probs
        for value in (moment, moment.tz_convert("UTC"), moment.tz_localize(None), str(moment))
    ]
    assert all(answer == answers[0] for answer in answers)


def test_dates_and_levels_as_files_write_them(odd: kdm.KDMTable) -> None:
    def score(**columns: Any) -> Any:
        return odd.score_samples({name: np.array(cells) for name, cells in columns.items()})

    np.testing.assert_array_equal(score(level=[1, 2]), score(level=["1", "2"]))
    np.testing.assert_array_equal(score(level=[1.0, np.nan]), score(level=["1", None]))
    np.testing.assert_array_equal(score(number=["1", "2"]), score(number=[1, 2]))
    written = score(zone=["2024-10-22 10:00:00", "2024-10-23 10:00:00"])
    np.testing.assert_array_equal(written, score(zone=np.array(["2024-10-22T10", "2024-10-23T10"], "M8[us]")))
    with pytest.raises(TypeError, match="values like '1'"):
        score(level=[8, 9])


def test_decimals_and_missing_marks_in_questions(odd: kdm.KDMTable) -> None:
    exact = odd.query("x", given={"decimal": decimal.Decimal("0.5")})
    assert exact.mean == odd.query("x", given={"decimal": 0.5}).mean
    for mark in (np.nan, pd.NA, pd.NaT, None):
        answer = odd.query("x", given={"level": mark, "duration": mark})
        assert answer.mean == odd.query("x").mean


def test_no_rows(odd: kdm.KDMTable, frame: Any) -> None:
    none = frame[:0]
    assert odd.score_samples(none).shape == (0,)
    assert odd.predict(none, "x").shape == odd.predict(none, "zone").shape == (0,)
    assert odd.predict_proba(none, "level").shape == (0, 2)
    assert odd.predict_interval(none, "x").shape == (0, 2)
    for whole in (odd.impute(none), odd.impute(none, how="rows"), odd.impute(none, n=1)[0]):
        assert whole.dtypes.equals(frame.dtypes)


def test_rows_of_which_nothing_is_known(odd: kdm.KDMTable) -> None:
    unknown = {"x": [None, None]}
    assert len(set(odd.predict(unknown, "x"))) == 1
    assert len(set(odd.predict(unknown, "zone"))) == 1


# ---- frames


@pytest.mark.parametrize(
    ("frame", "missing"),
    [
        (np.ma.MaskedArray([[1.5, 2.0], [2.5, 3.0]], [[True, False], [False, False]]), [True, False]),
        (torch.tensor([[1.5, 2.0], [2.5, 3.0]], requires_grad=True), [False, False]),
        ([[1.5, "a"], [2.5, None]], [False, False]),
        ({"x": [10**25, 10**25 + 1]}, [False, False]),
        ({"x": ["1", None]}, [False, True]),
    ],
)
def test_frames_of_other_kinds(frame: Any, missing: list[bool]) -> None:
    columns = list(read_frame("X", frame).columns.values())
    assert columns[0].missing.tolist() == missing
    assert columns[0].storage.base in ("float", "string")


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        ({"x": 3}, "an array or a list of cells, got 3"),
        ({"x": "abc"}, "an array or a list of cells, got 'abc'"),
        ({"x": ["a", 1]}, "values of one type, got str in row 0 .'a'., int in row 1"),
        (np.ones((2, 2), complex), "Complex data not supported"),
        (np.ones((2, 0)), "at least one column"),
        ([1, 2], "a list of something else"),
        (pd.DataFrame({"k": [1, 1]}), r"columns that a model can learn, got k \(constant\)"),
        (pd.DataFrame({"k": [1]}), r"columns that a model can learn, got k \(constant\)"),
    ],
)
def test_what_is_no_table(frame: Any, text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        kdm.KDMTable().fit(frame)


def test_many_levels_are_quick() -> None:
    levels = np.array([f"level {i}" for i in range(10_000)])
    schema = Schema.from_frame(pd.DataFrame({"c": pd.Categorical(np.repeat(levels, 2))}))
    codec = schema.columns["c"].codec
    assert codec.trimmed(codec.read(kdm.OneOf(levels.tolist()))).is_whole
    (box,) = codec.boxes(codec.read(kdm.OneOf(levels[::2].tolist())))
    assert sum(round(piece.high - piece.low) for piece in box[0].pieces) == 5_000


def test_constants_that_are_dates_are_told() -> None:
    column = Schema.from_frame(odd_frame()).columns["same day"]
    assert column.details == "always '2024-05-05T00:00:00.000000'"


def test_a_table_of_one_column_of_dates(unchecked: None) -> None:
    days = pd.Timestamp("2024-03-01") + pd.to_timedelta(np.arange(120) % 60, unit="D")
    table = kdm.KDMTable(n_components=3, max_epochs=1, random_state=0).fit(pd.DataFrame({"day": days}))
    gaps = pd.DataFrame({"day": [pd.NaT, days[0], pd.NaT]})
    answer = table.query("day")
    assert (table.predict(gaps, "day") == np.datetime64(answer.median)).all()
    assert table.predict_interval(gaps, "day").shape == (3, 2)
    assert table.impute(gaps)["day"].tolist() == [answer.median, days[0], answer.median]
    assert "00:00" not in repr(answer)
    assert "00:00" not in str(answer.to_dict()["median"])


def test_frames_without_a_known_column_are_refused(odd: kdm.KDMTable) -> None:
    with pytest.raises(ValueError, match="X: expected at least one column of the table, got 'X'"):
        odd.score_samples({"X": [1.0, 2.0]})


@pytest.mark.parametrize(
    ("cells", "text"),
    [
        ([10**400, 1], "column 'x': expected values that a float can have, got 1000"),
        (["\ud800", "a"], "column 'x': expected text in Unicode, got .* in row 0"),
        ([[1, 2], [3]], "columns that a model can learn"),
        ([decimal.Decimal("Infinity"), decimal.Decimal(1)], "expected finite numbers"),
    ],
)
def test_cells_that_no_column_can_have(cells: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        kdm.KDMTable(max_epochs=1).fit({"x": cells})


def test_cells_at_the_ends_of_their_types(unchecked: None) -> None:
    frame = {
        "tiny": [5e-324, 0.0, 1e-323] * 20,
        "date": [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(2020, 2, 29)] * 20,
        "decimal": [decimal.Decimal("sNaN"), decimal.Decimal(1), decimal.Decimal(2)] * 20,
    }
    table = kdm.KDMTable(n_components=2, max_epochs=1, random_state=0).fit(pd.DataFrame(frame))
    assert table.columns_["decimal"].missing == pytest.approx(1 / 3)
    assert len(table.sample(5, random_state=0)) == 5
