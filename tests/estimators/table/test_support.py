"""Evidence outside of the data is answered and told."""

import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kdmkit as kdm
import typecheck
from kdmkit.estimators.table.answering.support import Margins

pd = pytest.importorskip("pandas")


@pytest.fixture(scope="module")
def weather() -> kdm.KDMTable:
    """Incomes of some states, and the weather on some days of 2015 and 2016."""
    rng = np.random.default_rng(0)
    n = 600
    frame = pd.DataFrame(
        {
            "income": rng.lognormal(10, 1, n).round(),
            "state": rng.choice(["a", "b", "c"], n),
            "date": pd.Timestamp("2015-01-01") + pd.to_timedelta(rng.integers(0, 500, n), unit="D"),
            "clock": [pd.Timestamp(minute * 60, unit="s").time() for minute in rng.integers(0, 1440, n)],
            "wind": np.where(rng.random(n) < 0.4, 0.0, rng.exponential(3, n)),
        }
    )
    with typecheck.off():
        return kdm.KDMTable(n_components=6, max_epochs=3, random_state=0).fit(frame)


OUTSIDE: list[Any] = [
    {"income": 1e9},
    {"income": (1e8, None)},
    "date > 2016-06-01",
    "date < 1990 or date > 2030",
    "state = a and wind > 5000",
]


@pytest.mark.parametrize("given", OUTSIDE)
def test_evidence_outside_of_the_data_is_told_once(
    weather: kdm.KDMTable, given: Any, unchecked: None
) -> None:
    target = "state" if "state" not in given else "clock"
    questions = {
        "query": lambda: weather.query(target, given),
        "marginals": lambda: weather.marginals(given, [target, "clock"]),
        "probability": lambda: weather.probability({"clock": ("09:00", "12:00")}, given),
        "event": lambda: weather.query(kdm.col("clock") < "12:00", given),
    }
    for ask in questions.values():
        with pytest.warns(UserWarning, match="given: expected values between the least and") as told:
            ask()
        assert len(told) == 1
        assert told[0].filename == __file__
    with pytest.warns(UserWarning, match="rests on the tails") as told:
        answer = weather.query(target, given)
    assert answer.support == 0
    assert answer.is_unusual
    assert answer.to_dict()["support"] == 0


@pytest.fixture(scope="module")
def tied() -> kdm.KDMTable:
    """Two columns that rise together."""
    rng = np.random.default_rng(0)
    n = 20_000
    a = rng.normal(size=n)
    frame = pd.DataFrame({"a": a, "b": a + rng.normal(0, 0.1, n), "c": rng.choice(["x", "y"], n)})
    with typecheck.off():
        return kdm.KDMTable(n_components=32, max_epochs=30, random_state=0).fit(frame)


@pytest.mark.parametrize("given", ["a > 2 and b < -2", {"a": 2, "b": -2}, "(a > 2 and b < -2) or a = 11"])
def test_values_that_do_not_occur_together_are_told_once(
    tied: kdm.KDMTable, given: Any, unchecked: None
) -> None:
    with pytest.warns(UserWarning, match="; fewer than 1 in 10,000 rows are as unusual, and the") as told:
        text = repr(answer := tied.query("c", given))
    assert "evidence: unlike the data" in text
    assert len(told) == 1
    assert "a >" in str(told[0].message) or "a = 2" in str(told[0].message)
    assert answer.support < 1e-4
    with pytest.warns(UserWarning, match="given: expected values like those of the data"):
        tied.sample(5, given, random_state=0)


@pytest.mark.filterwarnings("ignore:.*of the draws satisfied")
@pytest.mark.parametrize("given", ["a > 2.2", {"a": 2.0, "b": 2.1}, {"a": 0.0, "b": 0.25}])
def test_rare_values_that_occur_together_are_not_told(
    tied: kdm.KDMTable, given: Any, unchecked: None
) -> None:
    assert "unlike" not in repr(tied.query("c", given))
    tied.sample(5, f"{kdm.col('a') > kdm.col('b')}", random_state=0)
    tied.sample(5, given, random_state=0)


def test_the_support_tells_one_in_10_000_apart(tied: kdm.KDMTable, unchecked: None) -> None:
    """The share of rows of one column below a density is an integral over the column."""
    answer = tied.query("a")
    grid = np.linspace(answer.quantile(1e-7), answer.quantile(1 - 1e-7), 40_000)
    densities = answer.density(grid)
    shares = densities * (grid[1] - grid[0])
    for tail in (3e-3, 1e-3, 2e-5):
        value = answer.quantile(1 - tail / 2)
        expected = shares[densities <= answer.density([value])].sum()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            given = tied.query("c", {"a": value})
        assert given.support == pytest.approx(expected, abs=4 * (expected / 5_000) ** 0.5 + 1e-4)
        assert given.is_unusual == (expected < 5e-5)


def test_the_support_does_not_depend_on_questions_before(tied: kdm.KDMTable, unchecked: None) -> None:
    engine = tied._engine()
    given = {"a": 2.5, "b": 2.4}
    engine.support._log_probs.clear()
    first = tied.query("c", given).support
    engine.support._log_probs.clear()
    with pytest.warns(UserWarning, match="like those of the data"):
        tied.query("c", {"a": 2, "b": -2})
    assert tied.query("c", given).support == first


@pytest.fixture(scope="module")
def young() -> kdm.KDMTable:
    """A table of wines after one epoch."""
    with typecheck.off():
        return kdm.KDMTable(n_components=8, max_epochs=1, random_state=0).fit(_wines())


def _wines() -> Any:
    return pytest.importorskip("sklearn.datasets").load_wine(as_frame=True).frame


def _are_unusual(table: kdm.KDMTable, names: list[str]) -> list[bool]:
    """Whether the least probable rows of the data are unusual evidence by some columns."""
    rows = _wines()[names]
    rows = rows.iloc[np.argsort(table.score_samples(rows))[:10]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [table.query("alcohol", row).is_unusual for row in rows.to_dict("records")]


@pytest.mark.parametrize("others", [[], ["hue"], ["hue", "color_intensity"]])
def test_cells_of_the_data_are_no_reason_for_a_young_model(
    young: kdm.KDMTable, others: list[str], unchecked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["proanthocyanins", *others]
    assert not any(_are_unusual(young, names))
    support = young._engine().support
    monkeypatch.setattr(support, "margins", Margins())
    support._last = None, False
    assert any(_are_unusual(young, names))


def test_a_saved_model_tells_the_same(young: kdm.KDMTable, tmp_path: Path, unchecked: None) -> None:
    kdm.save(young, tmp_path / "young.kdm")
    again = kdm.load(tmp_path / "young.kdm")
    assert again._engine().support.measure() == young._engine().support.measure()
    assert pickle.loads(pickle.dumps(young))._margins.rows is None
    with pytest.warns(UserWarning, match="between the least and the greatest"):
        again.query("alcohol", {"hue": 9.0})


def test_draws_outside_of_the_data_are_told(weather: kdm.KDMTable, unchecked: None) -> None:
    with pytest.warns(UserWarning, match="between the least and the greatest") as told:
        drawn = weather.sample(20, given="date > 2016-06-01", random_state=0)
    assert len(told) == 1
    assert (drawn["date"] > "2016-06-01").all()


@pytest.mark.parametrize(
    "given",
    [
        None,
        {"income": 20_000},
        {"income": (None, 1e9)},
        "date > 2016-03-01",
        "wind = 0",
        "income > 1e8 or wind = 0",
    ],
)
def test_usual_evidence_is_not_told(weather: kdm.KDMTable, given: Any, unchecked: None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = weather.query("state", given)
        weather.sample(3, given, random_state=0)
    assert not answer.is_unusual
    assert answer.support > 1e-3
    assert json.dumps(answer.to_dict())


def test_the_support_is_the_share_of_rows_that_are_less_usual(weather: kdm.KDMTable, unchecked: None) -> None:
    incomes = np.array([3_000.0, 20_000.0, 200_000.0])
    drawn = weather.query("income").sample(4000, random_state=0)
    density = weather.query("income").density(drawn)
    for income, height in zip(incomes, weather.query("income").density(incomes), strict=True):
        support = weather.query("state", {"income": income}).support
        assert support == pytest.approx((density <= height).mean(), abs=0.04)


@pytest.mark.parametrize("given", ["x = 0", "y is missing"])
def test_the_support_has_no_unit(given: str, unchecked: None) -> None:
    """Frequent values and missing cells are compared with values of densities."""
    rng = np.random.default_rng(0)
    x, y = np.where(rng.random(500) < 0.1, 0.0, rng.gamma(2, 1, 500)), rng.normal(size=500)
    y[rng.random(500) < 0.1] = np.nan
    for unit in (1e-3, 1e3):
        frame = {"x": unit * x, "y": unit * y, "c": rng.choice(["a", "b"], 500)}
        table = kdm.KDMTable(n_components=3, max_epochs=3, random_state=0).fit(frame)
        assert table.query("c", given).support == 1
        assert table.query("c", {"x": 6 * unit}).support < 0.1


def test_printed_answers_tell_that_the_evidence_is_unlike_the_data(
    weather: kdm.KDMTable, unchecked: None
) -> None:
    console = pytest.importorskip("rich.console").Console(width=80)
    with pytest.warns(UserWarning, match="outside|between"):
        unusual = weather.query("state", {"income": 1e9})
    for answer, is_told in ((unusual, True), (weather.query("state", {"income": 20_000}), False)):
        with console.capture() as capture:
            console.print(answer)
        assert ("unlike the data" in capture.get()) == is_told


@pytest.mark.parametrize("name", ["income", "date", "clock", "wind"])
@pytest.mark.parametrize("n", [3, 12, 48])
def test_bins_are_a_partition(weather: kdm.KDMTable, name: str, n: int, unchecked: None) -> None:
    """Frequent values at the ends of ranges count once."""
    answer = weather.query(name)
    bins = answer.bins(n)
    inside = answer.probability((bins[0][0], bins[-1][1]))
    assert answer.histogram(bins).sum() == pytest.approx(inside, abs=1e-6)
    assert sum(answer.bars().values()) <= 1 + 1e-6


def test_ranges_that_touch_count_their_common_end_once(weather: kdm.KDMTable, unchecked: None) -> None:
    answer = weather.query("wind")
    below, above = answer.histogram([(None, 0.0), (0.0, None)])
    assert below + above == pytest.approx(1.0, abs=1e-6)
    assert above >= answer.probability(0.0)
    first, second, third = answer.histogram([(0, 2), (2.5, 3), (3, 4)])
    assert first == pytest.approx(answer.probability((0, 2)))
    assert second + third == pytest.approx(answer.probability((2.5, 4)), abs=1e-6)


def test_information_given_a_union_is_that_of_the_mixture(unchecked: None) -> None:
    rng = np.random.default_rng(0)
    b = rng.random(400) < 0.5
    d = rng.random(400) < np.where(b, 0.8, 0.1)
    e = rng.random(400) < np.where(d, 0.3, 0.9)
    frame = {"b": b, "d": d, "e": e, "f": rng.random(400) < 0.4}
    table = kdm.KDMTable(n_components=3, max_epochs=3, random_state=0).fit(frame)
    given = "e = true or f = true"
    values = (False, True)
    probs = np.array([[table.probability({"b": i, "d": j}, given) for j in values] for i in values])
    independent = probs.sum(1, keepdims=True) * probs.sum(0, keepdims=True)
    expected = float((probs * np.log(probs / independent)).sum())
    assert table.information("b", given)["d"] == pytest.approx(expected, rel=1e-4)
