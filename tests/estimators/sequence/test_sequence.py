"""KDMSequence: sequences of mixed columns with keys, times, gaps and missing cells."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.base import clone

import kdmkit as kdm

DAYS = 150


def make_frame(seed: int = 0) -> pd.DataFrame:
    """Two sequences that change between two states; days are missing, and so are cells."""
    rng = np.random.default_rng(seed)
    rows = []
    for name, days in (("a", DAYS), ("b", DAYS // 2)):
        state = 0
        for day in range(days):
            state = 1 - state if rng.random() < 0.05 else state
            label = ["low", "high"][int(rng.random() < 0.1 + 0.8 * state)]
            x = round(rng.normal(4 * state, 1), 1)
            rows.append((name, pd.Timestamp("2020-01-30") + pd.Timedelta(days=day), x, label))
    frame = pd.DataFrame(rows, columns=["id", "day", "x", "label"]).drop(index=[5, 6, 7])
    frame = frame.sample(frac=1, random_state=0).reset_index(drop=True)
    frame.loc[::9, "x"] = np.nan
    frame.loc[::11, "label"] = None
    return frame


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return make_frame()


@pytest.fixture(scope="module")
def model(frame: pd.DataFrame) -> kdm.KDMSequence:
    return kdm.KDMSequence(key="id", time="day", n_states=2, max_epochs=40, random_state=0).fit(frame)


def test_columns_and_steps(model: kdm.KDMSequence) -> None:
    kinds = {name: column.kind for name, column in model.columns_.items()}
    assert kinds == {"x": "float", "label": "category"}
    assert (model.timeline_.clock.unit, model.timeline_.clock.step) == ("microseconds", 86_400e6)
    assert model.module_.n_states == 2
    assert bool((model.module_.transition_probs().diagonal() > 0.7).all())


def test_scores_are_the_chain_rule(model: kdm.KDMSequence, frame: pd.DataFrame) -> None:
    """The scores of a sequence add up to its log p, and those of its beginning do not know its end."""
    scores = model.score_samples(frame)
    assert scores.shape == (len(frame),)
    first = frame[frame.id == "a"].sort_values("day")
    np.testing.assert_allclose(scores[first.index], model.score_samples(first), rtol=1e-5)
    np.testing.assert_allclose(model.score_samples(first[:40]), scores[first.index][:40], rtol=1e-5)
    assert model.score(frame) == pytest.approx(scores.mean())
    alone = kdm.KDMSequence(n_states=1, n_components=2, max_epochs=40, random_state=0)
    assert model.score(frame) > alone.fit(frame[["x", "label"]]).score(frame[["x", "label"]]) + 0.1


def test_a_missing_step_is_a_row_without_cells(model: kdm.KDMSequence, frame: pd.DataFrame) -> None:
    some = frame[frame.id == "b"].sort_values("day").reset_index(drop=True)
    emptied, dropped = some.copy(), some.drop(index=[20, 21])
    emptied.loc[20:21, ["x", "label"]] = [np.nan, None]
    scores = model.score_samples(emptied)
    np.testing.assert_allclose(scores[20:22], 0.0, atol=1e-5)
    np.testing.assert_allclose(np.delete(scores, [20, 21]), model.score_samples(dropped), rtol=1e-5)
    last = len(some) - 1
    emptied = some.copy()
    emptied.loc[last, ["x", "label"]] = [np.nan, None]
    later, now = model.forecast(some.drop(index=last), 3), model.forecast(emptied, 2)
    np.testing.assert_allclose(later.mean("x")[:, 1:], now.mean("x"), rtol=1e-5)
    np.testing.assert_allclose(later.probs("label")[:, 1:], now.probs("label"), rtol=1e-5)


def test_forecasts(model: kdm.KDMSequence, frame: pd.DataFrame) -> None:
    forecast = model.forecast(frame, 3)
    assert forecast.columns == ["x", "label"]
    assert forecast.mean("x").shape == forecast.std("x").shape == (2, 3)
    probs = forecast.probs("label")
    np.testing.assert_allclose(probs.sum(-1), 1, rtol=1e-6)
    np.testing.assert_allclose(
        forecast.probability("label", "low"), probs[..., forecast.levels("label").index("low")], rtol=1e-6
    )
    low, high = forecast.interval("x", 0.8)
    inside = forecast.probability("x", (low[0, 0], high[0, 0]))[0, 0]
    assert 0.78 < inside < 0.84
    assert bool((low < forecast.quantile("x", 0.5)).all() and (forecast.quantile("x", 0.5) < high).all())
    rows = forecast.frame(coverage=0.8)
    assert list(rows) == ["id", "day", "x", "x low", "x high", "label"]
    assert rows.dtypes["day"] == frame.dtypes["day"]
    for name, part in rows.groupby("id"):
        last = frame.loc[frame.id == name, "day"].max()
        assert part.day.tolist() == [last + pd.Timedelta(days=i) for i in (1, 2, 3)]
    np.testing.assert_allclose(rows["x low"], low.reshape(-1))
    assert set(rows.label) <= {"low", "high"}


def test_filled_cells(model: kdm.KDMSequence, frame: pd.DataFrame) -> None:
    filled = model.impute(frame)
    assert not filled.isna().any().any()
    for name in frame:
        there = frame[name].notna()
        assert (filled.loc[there, name] == frame.loc[there, name]).all()
    hidden = frame.copy()
    complete = frame.x.notna()
    rows = frame.index[complete][::4]
    hidden.loc[rows, "x"] = np.nan
    errors = model.impute(hidden).loc[rows, "x"] - frame.loc[rows, "x"]
    assert errors.std() < 0.75 * frame.x.std()
    one, two = model.impute(frame, n=2, random_state=0)
    assert not one.isna().any().any()
    assert (one.x != two.x).any()
    pd.testing.assert_frame_equal(one, model.impute(frame, n=1, random_state=0)[0])


def test_draws(model: kdm.KDMSequence, frame: pd.DataFrame) -> None:
    drawn = model.sample(3, 20, random_state=1)
    assert list(drawn) == ["id", "day", "x", "label"]
    assert drawn.id.tolist() == np.arange(3).repeat(20).tolist()
    assert (drawn.day.diff().dropna().iloc[:19] == pd.Timedelta(days=1)).all()
    assert len(model.sample(1)) == model.typical_length_
    pd.testing.assert_frame_equal(drawn, model.sample(3, 20, random_state=1))
    after = model.sample(200, 2, after=frame, random_state=0)
    assert list(after) == ["draw", "id", "day", "x", "label"]
    forecast = model.forecast(frame, 2)
    means = after.groupby(["id", "day"], sort=False).x.mean().to_numpy().reshape(2, 2)
    assert bool((abs(means - forecast.mean("x")) < 5 * forecast.std("x") / 200**0.5).all())


def test_saved_and_copied_models(model: kdm.KDMSequence, frame: pd.DataFrame, tmp_path: Path) -> None:
    kdm.save(model, tmp_path / "model")
    loaded: Any = kdm.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.score_samples(frame), model.score_samples(frame))
    pd.testing.assert_frame_equal(loaded.forecast(frame, 2).frame(), model.forecast(frame, 2).frame())
    pd.testing.assert_frame_equal(loaded.sample(2, 3, random_state=0), model.sample(2, 3, random_state=0))
    assert clone(model).get_params() == model.get_params()


def test_the_same_seed_gives_the_same_fit(frame: pd.DataFrame) -> None:
    one, two = (
        kdm.KDMSequence(key="id", time="day", n_states=2, max_epochs=3, random_state=0).fit(frame)
        for _ in range(2)
    )
    np.testing.assert_array_equal(one.score_samples(frame), two.score_samples(frame))


QUICK = {"n_states": 2, "max_epochs": 2, "random_state": 0}


def test_frames_of_other_libraries() -> None:
    columns = {"t": np.arange(60), "x": np.random.default_rng(0).normal(size=60).round(2)}
    answers = []
    for data in (columns, pl.DataFrame(columns), pd.DataFrame(columns)):
        model = kdm.KDMSequence(time="t", **QUICK).fit(data)
        rows = model.forecast(data, 2).frame()
        assert type(rows) is type(data)
        answers.append(np.asarray(rows["x"]))
        assert np.asarray(rows["t"]).tolist() == [60, 61]
    np.testing.assert_array_equal(answers[0], answers[1])
    np.testing.assert_array_equal(answers[0], answers[2])
    array = np.column_stack(list(columns.values()))
    assert kdm.KDMSequence(**QUICK).fit(array).score_samples(array).shape == (60,)


@pytest.mark.parametrize(
    ("times", "unit", "step", "after"),
    [
        ([1.0, 1.5, 2.5, 3.0], "numbers", 0.5, 3.5),
        ([0, 10, 30, 40], "numbers", 10, 50),
        (["2020-01-31", "2020-02-29", "2020-04-30", "2020-05-31"], "months", 1, "2020-06-30"),
        (["2019-03-01", "2019-06-01", "2019-12-01", "2020-03-01"], "months", 3, "2020-06-01"),
        (["2020-01-01", "2020-01-02", "2020-01-04", "2020-01-05"], "microseconds", 86_400e6, "2020-01-06"),
        ([0.0, 0.7, 3.1, 3.2], "rows", 1, 1),
    ],
)
def test_lengths_of_steps(times: list[Any], unit: str, step: float, after: Any) -> None:
    is_date = isinstance(times[0], str)
    t = pd.to_datetime(times) if is_date else np.array(times)
    frame = pd.DataFrame({"t": t, "x": [1.0, 2.0, 1.5, 2.5]})
    model = kdm.KDMSequence(time="t", **QUICK).fit(frame)
    clock = model.timeline_.clock
    assert (clock.unit, clock.step) == (unit, step)
    steps = model.timeline_.layout(model.schema_.marked(frame)).step.tolist()
    assert steps == ([0, 1, 2, 3] if unit == "rows" else [0, 1, 3, 4])
    following = model.forecast(frame, 1).frame().t.iloc[0]
    assert following == (pd.Timestamp(after) if is_date else after)


def test_bad_rows(model: kdm.KDMSequence, frame: pd.DataFrame) -> None:
    twice = pd.concat([frame, frame[:1]])
    between = frame.assign(day=frame.day + pd.to_timedelta(np.arange(len(frame)) % 2 * 12, unit="h"))
    absent = frame.assign(day=frame.day.where(frame.index != 3))
    for rows, message in (
        (twice, "time: expected one row for each time of a sequence"),
        (between, "time: expected times that are"),
        (absent, "day: expected a value in every row, got a missing cell in row 3"),
        (frame.drop(columns="id"), "X: expected a column 'id'"),
        (frame[:0], "X: expected one or more rows"),
    ):
        with pytest.raises(ValueError, match=message):
            model.score_samples(rows)
    for options, message in (
        ({"key": "name"}, "key: expected a column of X"),
        ({"key": "id", "time": "id"}, "time: expected another column than `key`"),
        ({"time": "label"}, "label: expected a value in every row"),
        ({"time": "id"}, "time: expected a column of numbers or dates"),
        ({"n_states": 0}, "n_states: expected"),
    ):
        with pytest.raises(ValueError, match=message):
            kdm.KDMSequence(**options).fit(frame)


def test_columns_that_a_frame_lacks_are_unknown(model: kdm.KDMSequence, frame: pd.DataFrame) -> None:
    partial = model.forecast(frame.drop(columns="label"), 1)
    assert partial.probs("label").shape == (2, 1, 2)
    nothing = frame.assign(label=None)
    np.testing.assert_allclose(model.forecast(nothing, 1).mean("x"), partial.mean("x"), rtol=1e-6)


def test_hidden_blocks_decide_how_long_to_train(frame: pd.DataFrame) -> None:
    torch.manual_seed(0)
    model = kdm.KDMSequence(key="id", time="day", n_states=2, max_epochs=8, random_state=0).fit(frame)
    validated = [entry for entry in model.history_ if "validation_loss" in entry]
    best = int(np.argmin([entry["validation_loss"] for entry in validated]))
    assert len(model.history_) == len(validated) + best + 1
    without = kdm.KDMSequence(key="id", time="day", max_epochs=3, validation_fraction=0.0, random_state=0)
    assert len(without.fit(frame).history_) == 3


def test_numbers_from_a_list() -> None:
    """Temperatures that were in Fahrenheit: their typical values are in the list, in forecasts and tables."""
    rng = np.random.default_rng(0)
    celsius = ((rng.integers(30, 90, 1200) - 32) / 1.8).round(1)
    frame = pd.DataFrame({"t": celsius, "x": rng.normal(size=1200).round(1)})
    model = kdm.KDMSequence(**QUICK).fit(frame)
    table = kdm.KDMTable(n_components=4, max_epochs=1, random_state=0).fit(frame)
    assert "values: " in model.columns_["t"].details
    holes = frame.assign(t=frame.t.where(frame.index % 5 > 0))
    for filled in (model.impute(holes), table.impute(holes), model.forecast(frame, 4).frame()):
        assert set(filled.t) <= set(celsius)
