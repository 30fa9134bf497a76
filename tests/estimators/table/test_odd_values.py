"""Questions about values at the limits of their dtypes: float32, fine clocks, one value, any unit."""

import numpy as np
import pytest

import kdmkit as kdm
from kdmkit.estimators.table.frames.storage import shortest

pd = pytest.importorskip("pandas")
pytest.importorskip("narwhals")

x = kdm.col("x")


def fitted(**columns: object) -> kdm.KDMTable:
    return kdm.KDMTable(n_components=4, max_epochs=2, random_state=0).fit(pd.DataFrame(columns))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("decimals", [1, 6])
def test_numbers_of_short_dtypes_are_those_that_the_frame_can_hold(dtype: type, decimals: int) -> None:
    rng = np.random.default_rng(0)
    numbers = np.where(rng.random(400) < 0.3, 0.1, np.round(rng.normal(20, 0.3, 400), decimals)).astype(dtype)
    table = fitted(x=numbers)
    p = table.probability(x == 0.1)
    assert p > 0.1
    for same in (dtype(0.1), float(dtype(0.1)), 0.1 + 1e-9):
        assert table.probability(x == same) == p
        assert table.probability(x > same) == pytest.approx(1 - p, abs=1e-6)
    assert table.probability("x = 0.1") == p
    assert (table.sample(500, given=x > 0.1, random_state=0)["x"] > 0.1).all()
    assert (table.sample(50, given=x <= 0.1, random_state=0)["x"] == dtype(0.1)).all()
    value = float(numbers[numbers > 1][0])
    assert (table.sample(50, given=x == value, random_state=0)["x"] == dtype(value)).all()


def test_float32_is_read_as_people_write_it() -> None:
    numbers = np.random.default_rng(0).gamma(2.0, size=50).astype(np.float32)
    part = fitted(x=np.round(numbers, 2), y=numbers).schema_.columns["x"].codec.number_part
    assert part.step == pytest.approx(0.01)
    for power in (-30, -8, 0, 12, 30):
        scaled = numbers * np.float32(10.0) ** power
        written = [float(str(number)) for number in scaled]
        np.testing.assert_allclose(shortest(scaled.astype(float), 6), written, rtol=1e-15)


def test_an_instant_between_two_microseconds_is_no_outcome() -> None:
    start = pd.Timestamp("2024-03-10")
    rng = np.random.default_rng(0)
    dates = start + pd.to_timedelta(rng.integers(0, 5000, 200), unit="us")
    table = fitted(x=dates, y=rng.choice(["a", "b"], 200))
    between = start + pd.Timedelta(1000, "us") + pd.Timedelta(7, "ns")
    for instant in (between, between.to_datetime64(), between.isoformat()):
        assert table.probability(x == instant) == 0
        assert table.probability(x < instant) == table.probability(x <= instant) > 0
        assert table.probability(x < instant) == table.probability(x <= start + pd.Timedelta(1000, "us"))
        assert table.query("x").density([instant]) == [0]
        answer = table.query("y", x > instant)
        assert table.query(answer.question).log_evidence == answer.log_evidence
    assert (table.sample(100, given=x > between, random_state=0)["x"] > between).all()


@pytest.mark.parametrize("unit", ["us", "ms"])
def test_modes_and_medians_of_fine_clocks(unit: str) -> None:
    """A day has up to 86.4 milliard units: none of them is listed."""
    rng = np.random.default_rng(0)
    day = pd.Timestamp("2024-03-10 12:00")
    dates = day + pd.to_timedelta(np.round(rng.normal(0, 5e6, 300)), unit=unit)
    table = fitted(x=dates, clock=[date.time() for date in dates])
    for name, given in (("x", None), ("clock", None), ("x", x > day), ("clock", x > day)):
        answer = table.query(name, given)
        mode, median = answer.mode, answer.median
        assert (answer.density([mode]) >= 0.999 * answer.density(answer.sample(50, 0))).all()
        upto = answer.probability((None, median))
        assert -1e-6 <= upto - 0.5 < 1e-4


def test_probabilities_and_densities_of_narrow_clocks_agree() -> None:
    rng = np.random.default_rng(0)
    days = pd.Timestamp("2024-03-10") + pd.to_timedelta(rng.integers(0, 40, 300), unit="D")
    dates = days + pd.to_timedelta(rng.integers(600, 606, 300), unit="min")
    table = fitted(x=dates, y=rng.choice(["a", "b"], 300))
    for given in (None, x > dates[0], "y = a"):
        answer = table.query("x", given)
        values = sorted(set(dates))[:20]
        np.testing.assert_allclose(answer.density(values), [answer.probability(v) for v in values], atol=1e-6)


@pytest.mark.parametrize("value", [5.0, 7])
def test_one_number_beside_missing_cells_is_a_number(value: float) -> None:
    rng = np.random.default_rng(0)
    cells = pd.array([value if there else None for there in rng.random(80) < 0.5])
    table = fitted(x=cells, y=rng.normal(size=80))
    there = 1 - table.probability(x.is_missing())
    assert 0.2 < there < 0.8
    assert table.probability(x > 0) == table.probability(x == value) == pytest.approx(there, abs=1e-6)
    assert table.probability(x > value) == 0
    assert table.query("x").mean == value


@pytest.mark.parametrize("unit", [1.0, 1e-6, 1e3])
def test_answers_given_a_single_value_are_that_value(unit: float) -> None:
    rng = np.random.default_rng(0)
    numbers = unit * np.where(rng.random(400) < 0.3, 0.0, rng.normal(0, 1, 400))
    table = fitted(x=numbers, y=rng.normal(size=400))
    for value in (0.0, numbers[numbers != 0][0]):
        answer = table.query("x", x == value)
        assert answer.mode == answer.median == value
        assert answer.interval(0.5) == (value, value)
        assert answer.density([value]) == pytest.approx([1.0], abs=1e-6)
        assert answer.probability(value) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("unit", [100.0, 1000.0, 1024.0, 1e-6])
def test_units_play_no_part_in_fits(unit: float) -> None:
    rng = np.random.default_rng(0)
    numbers, group = rng.normal(0, 1, 300), rng.choice(list("abc"), 300)
    day = pd.Timestamp("2024-03-10")
    dates = day + pd.to_timedelta(rng.integers(0, 40, 300), unit="D")
    shift = pd.Timedelta(364 * int(max(unit, 1)) // 100, "D")
    plain = fitted(x=numbers, g=group, d=dates)
    scaled = fitted(x=numbers * unit, g=group, d=dates + shift)
    for low, high in ((-1, 0.5), (0.3, 4)):
        p = plain.probability(x.between(low, high), "g = a")
        assert scaled.probability(x.between(low * unit, high * unit), "g = a") == pytest.approx(p, abs=1e-5)
        p = plain.probability(kdm.col("d") > day + pd.Timedelta(12, "D"), x > low)
        later = kdm.col("d") > day + shift + pd.Timedelta(12, "D")
        assert scaled.probability(later, x > low * unit) == pytest.approx(p, abs=1e-5)
    assert scaled.query("x", "g = b").mean / unit == pytest.approx(plain.query("x", "g = b").mean, abs=1e-5)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_draws_of_computed_columns_have_the_decimals_of_their_grid(dtype: type) -> None:
    """0.1 + 0.2 is 0.30000000000000004; draws and filled cells of such a column have one decimal."""
    rng = np.random.default_rng(0)
    a, b = (np.round(rng.gamma(3, 2, 400), 1).astype(dtype) for _ in range(2))
    table = fitted(a=a, b=b, total=a + b, rest=a - b)
    assert (np.round((a + b).astype(float), 1) != (a + b).astype(float)).mean() > 0.1  # noise
    for column in ("total", "rest"):
        drawn = table.sample(1000, random_state=0)[column]
        assert drawn.dtype == dtype
        assert (drawn == drawn.astype(float).round(1).astype(dtype)).all()
    value = float(np.round(float(a[0]) + float(b[0]), 1))
    at = table.probability(kdm.col("total") == value)
    assert at > 0
    assert table.probability(kdm.col("total") == float(a[0] + b[0])) == pytest.approx(at)
