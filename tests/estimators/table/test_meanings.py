"""Small questions whose answer everybody knows: ends of ranges, units, values that cannot be, odd names.

An audit of answers, and where each of its findings is tested (here, if no file is named):

- a01, strict ends at a frequent value: `test_a_strict_end_leaves_a_frequent_value_out`
- a02, ends of narrow ranges on the target and in draws: `test_both_ends_of_a_narrow_range_on_the_target`
- a03, whole turns of a circle: `test_whole_turns_are_counted_once`
- a04, single times and date-times: `test_single_times_and_date_times`
- a05, certain and impossible events: `test_certain_and_impossible_events`
- a06, densities of levels: `test_densities_of_levels_are_their_probabilities`
- a07, dates, times and durations as values: `test_densities_and_probabilities_of_dates_times_and_durations`,
  `test_densities_of_one_value_and_of_lists`
- a08, atoms beside densities: `test_an_atom_beside_a_density_in_any_unit`
- a09, rows filled in together: `test_rows_filled_in_together_are_at_least_as_probable_as_cell_by_cell`
- a10, integers beyond 2^53: `test_integers_beyond_2_to_53_are_left_out_with_a_reason`
- a11, probabilities above 1, modes of dates: `test_the_mode_of_a_date_is_its_most_probable_day`,
  `test_no_probability_is_above_1`, distributions/test_values_of_users.py, metrics/test_reliability.py
- a12, values off the grid: `test_values_off_the_grid_have_no_probability`
- a13, printed questions: `test_printed_questions_ask_the_same`
- a14, evidence outside of the data: `test_evidence_outside_of_the_data_is_answered_with_a_warning`,
  test_support.py
- a15, results that share parameters (nn/test_snapshots.py), lost gradients and soft labels
  (distributions/test_values_of_users.py), bias of Gumbel draws (distributions/test_rsample.py)
"""

from __future__ import annotations

import datetime as dt
import warnings
from typing import Any

import numpy as np
import pytest
import torch

import kdmkit as kdm
import typecheck
from kdmkit.estimators.table.answering.pairs import Comparison

pd = pytest.importorskip("pandas")
pytest.importorskip("narwhals")
pytestmark = pytest.mark.usefixtures("unchecked")

N = 300


def fitted(frame: Any, **options: Any) -> kdm.KDMTable:
    settings: dict[str, Any] = {"n_components": 4, "max_epochs": 2, "random_state": 0, **options}
    return kdm.KDMTable(**settings).fit(frame)


def mixed() -> Any:
    rng = np.random.default_rng(0)
    start = pd.Timestamp("2024-01-01")
    return pd.DataFrame(
        {
            "zeros": np.where(rng.random(N) < 0.6, 0.0, np.round(rng.gamma(2, 50, N), 9)),
            "tenths": np.round(rng.normal(20, 0.3, N), 1),
            "minute": [dt.time(9 + int(m) // 60, int(m) % 60) for m in rng.integers(0, 180, N)],
            "stamp": start + pd.to_timedelta(rng.integers(0, 60 * 24 * 40, N), unit="min"),
            "day": start + pd.to_timedelta(rng.integers(0, 300, N), unit="D"),
            "lasts": pd.to_timedelta(rng.integers(1, 100, N), unit="h"),
            "count": rng.poisson(4, N),
            "level": np.where(rng.random(N) < 0.5, "a", [f"id{i}" for i in range(N)]),
            " lead": rng.normal(size=N),
        }
    )


@pytest.fixture(scope="module")
def table() -> kdm.KDMTable:
    with typecheck.off():
        return fitted(mixed(), types={"level": "category"})


def test_a_strict_end_leaves_a_frequent_value_out(table: kdm.KDMTable) -> None:
    zero, more = (table.probability(f"zeros {sign} 0") for sign in ("=", ">"))
    assert zero == pytest.approx((mixed()["zeros"] == 0).mean(), abs=0.2)
    assert zero + more == pytest.approx(1, abs=1e-6)
    positive = table.query("zeros", "zeros > 0")
    assert positive.probability(0) == 0
    assert positive.mean == pytest.approx(table.query("zeros").mean / more, rel=1e-4)
    assert (table.sample(200, given="zeros > 0", random_state=0)["zeros"] > 0).all()


def test_both_ends_of_a_narrow_range_on_the_target(table: kdm.KDMTable) -> None:
    given = {"tenths": (20.1, 20.2)}
    inside = table.query("tenths", given)
    assert inside.probability(20.1) == pytest.approx(table.probability({"tenths": 20.1}, given), abs=1e-6)
    assert inside.probability(20.1) + inside.probability(20.2) == pytest.approx(1, abs=1e-6)
    assert set(table.sample(200, given=given, random_state=0)["tenths"]) == {20.1, 20.2}
    assert table.query("tenths", {"tenths": (20.2, 20.3)}).interval(0.9) == (20.2, 20.3)


def test_whole_turns_are_counted_once() -> None:
    kernel = kdm.Periodic(2.0, 7, whole=True)
    components = torch.arange(7.0, dtype=torch.float64).reshape(-1, 1)
    for last in range(6):
        below, above = kdm.Interval(None, last), kdm.Interval(last + 1, None)
        total = sum(kernel.log_mass(region, components).exp() for region in (below, above))
        np.testing.assert_allclose(total.numpy(), 1, atol=1e-12)


def test_single_times_and_date_times(table: kdm.KDMTable) -> None:
    minutes = [table.probability({"minute": (dt.time(9, m), dt.time(9, m))}) for m in range(60)]
    assert sum(minutes) == pytest.approx(table.probability({"minute": ("9:00", "9:59")}), abs=1e-6)
    assert min(minutes) > 0
    stamp = mixed()["stamp"][3]
    assert table.query("stamp", {"stamp": stamp}).mode == stamp
    both = table.marginals({"stamp": stamp})
    assert both["count"].mean == pytest.approx(table.query("count", {"stamp": stamp}).mean, rel=1e-6)
    assert both["stamp"].probability(stamp) == pytest.approx(1)


def test_certain_and_impossible_events(table: kdm.KDMTable) -> None:
    assert float(table.query("P(count >= 0)")) == 1
    assert table.probability("count < 0") == 0
    assert table.query("tenths", "count >= 0").mean == table.query("tenths").mean
    assert table.query("tenths", "count >= 0").log_evidence == 0
    with pytest.raises(ValueError, match="probability 0 of count < 0"):
        table.query("tenths", "count < 0")


def test_densities_of_levels_are_their_probabilities(table: kdm.KDMTable) -> None:
    levels, answer = table.levels("level"), table.query("level")
    densities = answer.density(levels)
    np.testing.assert_allclose(densities, [answer.probability(level) for level in levels], atol=1e-6)
    assert densities.sum() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("name", ["day", "minute", "stamp", "lasts"])
def test_densities_and_probabilities_of_dates_times_and_durations(table: kdm.KDMTable, name: str) -> None:
    value, answer = mixed()[name][5], table.query(name)
    # Minutes of date-times are measured in their middle.
    assert answer.density([value]) == pytest.approx(answer.probability(value), rel=1e-3)
    assert table.query(name, {name: value}).probability((None, value)) == pytest.approx(1)


@pytest.mark.parametrize("name", ["zeros", "tenths", "minute", "stamp", "day", "lasts", "count", "level"])
def test_densities_of_one_value_and_of_lists(table: kdm.KDMTable, name: str) -> None:
    cells, answer = mixed()[name][:3], table.query(name)
    expected = answer.density(list(cells))
    for several in (tuple(cells), cells, cells.to_numpy(), iter(cells)):
        np.testing.assert_array_equal(answer.density(several), expected)
    np.testing.assert_array_equal(answer.log_density(cells), np.log(expected))
    for value in (cells[0], cells.to_numpy()[0], cells.to_numpy()[:1].reshape(())):
        assert isinstance(answer.density(value), float)
        assert answer.density(value) == expected[0]
        assert answer.log_density(value) == np.log(expected[0])
    assert answer.density([]).shape == (0,)
    wrong: list[Any] = [[[cells[0]]], [cells[0], [cells[0]]], {cells[0]}, {cells[0]: 1}]
    for value in wrong:
        for ask in (answer.density, answer.log_density):
            with pytest.raises(ValueError, match="values: expected a value, or a list of values, got"):
                ask(value)


def test_no_probability_is_above_1(table: kdm.KDMTable) -> None:
    for given in (None, "tenths > 20", {"count": 3}, "zeros = 0 or tenths = 20.1"):
        for name in ("count", "level", "day", "minute"):
            answer = table.query(name, given)
            values = table.levels(name) if answer.levels else mixed()[name][:20]
            assert max(answer.probability(value) for value in values) <= 1
            assert not answer.ordered or answer.probability((None, None)) == 1
    probs = table.predict_proba(mixed().drop(columns="level"), "level")
    assert probs.max() <= 1
    np.testing.assert_allclose(probs.sum(1), 1, atol=1e-7)


def test_densities_of_times_sum_to_one(table: kdm.KDMTable) -> None:
    minutes = [dt.time(i // 60, i % 60) for i in range(1440)]
    late = table.query("minute", "minute >= 10:30 or tenths = 20.1")
    for answer in (table.query("minute"), late):
        densities = answer.density(minutes)
        assert densities.sum() == pytest.approx(1, abs=1e-6)
        np.testing.assert_allclose(
            densities[600:650], [answer.probability(m) for m in minutes[600:650]], rtol=1e-5
        )
        assert answer.mode == minutes[int(densities.argmax())]


@pytest.mark.parametrize("name", ["day", "stamp"])
def test_modes_of_dates_under_several_conditions(table: kdm.KDMTable, name: str) -> None:
    answer = table.query(name, f"{name} >= 2024-01-20 or tenths = 20.1")
    values = [answer.mode, *answer.sample(30, random_state=0)]
    probabilities = [answer.probability(value) for value in values]
    np.testing.assert_allclose(answer.density(values), probabilities, rtol=1e-3)
    assert probabilities[0] == pytest.approx(max(probabilities), rel=1e-3)


def test_an_atom_beside_a_density_in_any_unit() -> None:
    x = np.where(np.random.default_rng(1).random(N) < 0.6, 0, np.random.default_rng(2).gamma(2, 50, N))
    for unit in (1.0, 1000.0):
        table = fitted({"x": x * unit})
        assert table.probability({"x": 0}, {"x": [0, float(x.max()) * unit]}) == 1


def test_rows_filled_in_together_are_at_least_as_probable_as_cell_by_cell(table: kdm.KDMTable) -> None:
    frame = mixed().astype({"count": float})[:30]
    gaps = frame.mask(np.random.default_rng(3).random(frame.shape) < 0.4)
    whole, cells = (table.score_samples(table.impute(gaps, how=how)) for how in ("rows", "cells"))
    assert (whole >= cells - 1e-4).all()


def test_integers_beyond_2_to_53_are_left_out_with_a_reason() -> None:
    odd = 2**53 + 1 + 2 * np.random.default_rng(0).integers(0, 40, N)
    table = fitted({"k": odd, "x": np.arange(N) % 7})
    with pytest.raises(ValueError, match=r"left out \(identifier: whole numbers beyond 2\^53"):
        table.query("k")
    exact = fitted({"k": odd - 2**53 + 2**52})
    assert (exact.sample(200, random_state=0)["k"] % 2 == 1).all()
    assert exact.probability({"k": 2**52 + 2}) == 0


def test_the_mode_of_a_date_is_its_most_probable_day() -> None:
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta([0] * 120 + list(range(20, 170)), unit="D")
    answer = fitted({"day": days}, max_epochs=20).query("day")
    every = [days[0] + pd.Timedelta(days=i) for i in range(200)]
    assert answer.mode == every[int(answer.density(every).argmax())]
    assert answer.mode != answer.median


@pytest.mark.parametrize("condition", ["count = 4.5", "4.2 < count < 4.8", "tenths = 20.05"])
def test_values_off_the_grid_have_no_probability(table: kdm.KDMTable, condition: str) -> None:
    assert table.probability(condition) == 0
    assert table.query("count").density([4.5, -1.0]).tolist() == [0, 0]
    assert table.query("tenths").density([20.05]) == 0
    assert (
        table.query("minute").density([dt.time(9, 0, 1)])
        == table.query("day").density(["2024-01-05 12:00"])
        == 0
    )
    off_grid, negative, on_grid = table.score_samples({"count": [4.5, -1.0, 4.0]})
    assert off_grid == negative < on_grid


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("day > 2024-03-05", 'day > "2024-03-05"'),
        ("tenths > 20.1", "tenths > 20.1"),
        ({" lead": (0, None)}, "` lead` >= 0"),
    ],
)
def test_printed_questions_ask_the_same(table: kdm.KDMTable, given: Any, text: str) -> None:
    answer = table.query("count", given)
    assert answer.question == f"P(count | {text})"
    again = table.query(answer.question)
    assert (again.question, again.log_evidence) == (answer.question, answer.log_evidence)


@pytest.mark.parametrize("given", [{"tenths": 1e9}, "day > 2026-06-01", "zeros > 1e6"])
def test_evidence_outside_of_the_data_is_answered_with_a_warning(table: kdm.KDMTable, given: Any) -> None:
    with pytest.warns(UserWarning, match="rests on the tails of the model"):
        answer = table.query("count", given)
    assert answer.support == 0
    assert answer.is_unusual
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert table.query("count", "tenths > 20").support > 0.1


def test_two_columns_are_compared_given_anything(table: kdm.KDMTable) -> None:
    c = table.columns
    for given in (
        None,
        {"zeros": 0},
        {" lead": 0.25},
        {" lead": [0.25, 0.5]},
        "zeros > 3.5 or tenths = 20.1",
    ):
        below, equal, above = (
            table.probability(event, given)
            for event in (c.tenths < c.zeros, c.tenths == c.zeros, c.tenths > c.zeros)
        )
        assert below + equal + above == pytest.approx(1, abs=1e-6)
        assert above == pytest.approx(table.probability(c.zeros < c.tenths, given), abs=1e-6)
    assert table.probability(c.tenths < c.zeros, {"zeros": 0}) == 0
    point = {" lead": 0.25}
    direct = table.probability("tenths > 0.25", point)
    assert table.probability(c.tenths > c[" lead"], point) == pytest.approx(direct, abs=1e-6)


@pytest.mark.parametrize("step", [0.5, 1e-9])
def test_comparisons_of_numbers_are_sums_over_their_values(step: float) -> None:
    rng = np.random.default_rng(5)
    a = np.round(rng.normal(0, 4, N) / step) * step
    b = np.where(rng.random(N) < 0.3, 0.0, np.round((a + rng.normal(1, 3, N)) / step) * step)
    table = fitted({"a": a, "b": b, "c": np.sign(a) + rng.normal(size=N)})
    for given in ("true", "c > 0", "a > 1 or c < 0"):
        shares = [table.probability(f"a {sign} b", given) for sign in ("<", "=", ">")]
        assert sum(shares) == pytest.approx(1, abs=1e-6)
        if step == 0.5:
            grid = np.arange(-50, 50) * step
            below = sum(table.probability(f"a = {v} and b > {v}", given) for v in grid.tolist())
            assert shares[0] == pytest.approx(below, abs=1e-5)
        else:
            drawn = table.sample(4000, given=given, random_state=0)
            assert shares[0] == pytest.approx((drawn["a"] < drawn["b"]).mean(), abs=0.03)


def test_two_ends_that_are_one_value_but_for_rounding_are_no_cell(table: kdm.KDMTable) -> None:
    engine = table._engine()
    compared = Comparison(engine, engine.columns["tenths"], engine.columns["zeros"], engine.joint)
    ends = np.array([20.1]), np.nextafter([20.1], 21)
    assert compared._between(engine.columns["tenths"], *ends, "neither").isneginf().all()
    assert compared._between(engine.columns["tenths"], *ends).isfinite().all()


def test_edges_of_many_numbers_are_those_of_each(table: kdm.KDMTable) -> None:
    part: Any = table._engine().columns["tenths"].codec.number_part
    grid = np.arange(-30, 300) / 10
    numbers = np.concatenate(
        [grid, np.nextafter(grid, 40), grid + 0.05, grid + 0.0003, [np.inf, -np.inf, 1e300]]
    )
    for after in (False, True):
        assert part.edges(numbers, after).tolist() == [part.edge(number, after) for number in numbers]


def test_a_column_compared_with_itself(table: kdm.KDMTable) -> None:
    c = table.columns
    assert table.probability(c.tenths <= c.tenths) == table.probability(c.tenths == c.tenths) == 1
    assert table.probability(c.tenths < c.tenths) == table.probability(c.tenths != c.tenths) == 0


@pytest.mark.parametrize("given", [{" lead": 0.35}, {" lead": [0.1, 0.35]}, "` lead` = 0.35 and count > 2"])
def test_rows_given_a_single_value_hold_it_exactly(table: kdm.KDMTable, given: Any) -> None:
    rows = table.sample(50, given=given, random_state=0)
    assert set(rows[" lead"]) <= {0.1, 0.35}


def test_rows_of_alternatives_with_comparisons_are_as_frequent_as_they_are_probable(
    table: kdm.KDMTable,
) -> None:
    c = table.columns
    event = ((c.tenths < c.zeros) & (c["count"] > 1)) | ((c.tenths >= c.zeros) & (c["count"] > 4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = table.sample(4000, given=event, random_state=0)
    p = table.probability((c.tenths < c.zeros) & (c["count"] > 1)) / table.probability(event)
    assert (rows["tenths"] < rows["zeros"]).mean() == pytest.approx(p, abs=4 * (p * (1 - p) / 4000) ** 0.5)


@pytest.mark.parametrize(
    "query",
    [
        "P(tenths | count > 3 and count < 2)",
        "P(tenths < zeros and zeros < count)",
        "P(tenths | tenths < zeros)",
        "P(nothing | count > 3)",
        "P(tenths | count >)",
    ],
)
def test_queries_without_an_answer_raise_one_error(table: kdm.KDMTable, query: str) -> None:
    with pytest.raises(kdm.answers.QueryError):
        table.query(query)


def test_tables_of_comparisons_that_are_kept_serve_all_evidence(table: kdm.KDMTable) -> None:
    c = table.columns
    rare = "tenths > 20.6 and zeros > 100"  # evidence in the tails, where tables without it know little
    for given in ("count > 3", "tenths > 20.3", "zeros = 0 or tenths = 20.1", rare):
        kept = [table.probability(event, given) for event in (c.count < c.tenths, c.count == c.tenths)]
        table._engine().signs.clear()
        table.probability(c.count == c.tenths, "true")
        again = [table.probability(event, given) for event in (c.count < c.tenths, c.count == c.tenths)]
        assert kept == pytest.approx(again, abs=1e-9)
        whole = sum(table.probability(f"count = {n} and tenths > {n}", given) for n in range(60))
        assert kept[0] == pytest.approx(whole, abs=2e-6)
