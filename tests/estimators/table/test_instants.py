"""Dates and times are compared digit by digit, as sums over their values say."""

import datetime as dt
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import kdmkit as kdm
import typecheck
from kdmkit.estimators.table.answering import instants
from kdmkit.estimators.table.codecs.dates import DateCodec

pd = pytest.importorskip("pandas")
pytest.importorskip("narwhals")
pytestmark = pytest.mark.usefixtures("unchecked")

N = 300
_START = pd.Timestamp("2021-03-10")


def _spread(rng: np.random.Generator, days: float, unit: str, z: np.ndarray) -> Any:
    share = 1 / (1 + np.exp(-z - rng.normal(0, 0.5, N)))
    moments = _START + pd.to_timedelta(np.round(share * days * 86400), unit="s")
    return moments.to_period(unit).to_timestamp() if unit == "M" else moments.floor(unit)


def _times(rng: np.random.Generator, minutes: int, z: np.ndarray) -> Any:
    minute = np.mod(720 + 200 * z + rng.normal(0, 60, N), 1440).astype(int) // minutes * minutes
    return [dt.time(int(m) // 60, int(m) % 60) for m in minute]


@functools.cache
def tables() -> kdm.KDMTable:
    rng = np.random.default_rng(3)
    z = rng.normal(size=N)
    frame = pd.DataFrame(
        {
            "days": _spread(rng, 20, "D", z),
            "weeks": _spread(rng, 90, "D", z),
            "season": _spread(rng, 800, "D", z),
            "months": _spread(rng, 400, "M", z),
            "hours": _spread(rng, 12, "h", z),
            "quarters": _spread(rng, 70, "15min", z),
            "gaps": _spread(rng, 30, "D", z).to_series().mask(rng.random(N) < 0.2).to_numpy(),
            "clock": _times(rng, 5, z),
            "minute": _times(rng, 1, -z),
            "x": z + rng.normal(size=N),
        }
    )
    with typecheck.off():
        return kdm.KDMTable(n_components=5, max_epochs=2, random_state=0).fit(frame)


def _values(name: str) -> list[Any]:
    """All values that a column may have but for tails."""
    codec: Any = tables()._engine().columns[name].codec
    answer = tables().query(name)
    low, high = answer.quantile(1e-9), answer.quantile(1 - 1e-9)
    first, last = codec.outcomes_of(codec.raw([low, high]).values)
    return list(codec.from_units(np.arange(first, last + 1)))


_PAIRS = [
    ("days", "weeks"),
    ("weeks", "season"),
    ("days", "season"),
    ("days", "months"),
    ("days", "hours"),
    ("hours", "months"),
    ("days", "quarters"),
    ("hours", "quarters"),
    ("gaps", "days"),
    ("clock", "minute"),
]


@pytest.mark.parametrize(("a", "b"), _PAIRS, ids=str)
def test_comparisons_are_sums_over_values(a: str, b: str) -> None:
    table, one, other = tables(), kdm.col(a), kdm.col(b)
    shares = [table.probability(event) for event in (one < other, one == other, one > other)]
    flipped = [table.probability(event) for event in (other > one, other == one, other < one)]
    np.testing.assert_allclose(flipped, shares, atol=2e-6)
    if a == "days":
        values = _values(a)
        below = sum(table.probability((one == v) & (other > v)) for v in values)
        equal = sum(table.probability((one == v) & (other == v)) for v in values)
        np.testing.assert_allclose(shares[:2], [below, equal], atol=2e-6)


@pytest.mark.parametrize("given", ["x > 0.5", {"x": 0.25}], ids=["range", "value"])
@pytest.mark.parametrize(("a", "b"), [("hours", "quarters"), ("gaps", "days")], ids=str)
def test_comparisons_given_other_columns(a: str, b: str, given: Any) -> None:
    table, one, other = tables(), kdm.col(a), kdm.col(b)
    below, equal, above = (
        table.probability(event, given) for event in (one < other, one == other, other < one)
    )
    there = table.probability(~one.is_missing() & ~other.is_missing(), given)
    assert below + equal + above == pytest.approx(there, abs=2e-6)
    drawn = table.sample(4000, given=given, random_state=0)
    assert below == pytest.approx((drawn[a] < drawn[b]).mean(), abs=0.04)


@pytest.mark.parametrize("b", ["quarters", "days"])
@pytest.mark.parametrize(
    ("given", "holds"),
    [
        (
            "hours between '2021-03-15 07:00' and '2021-03-16 09:00'",
            lambda v: pd.Timestamp("2021-03-15 07:00") <= v <= pd.Timestamp("2021-03-16 09:00"),
        ),
        ("hour(hours) = 7", lambda v: v.hour == 7),
        (
            "(weekday(hours) = 'Monday' or weekday(hours) = 'Friday') and hour(hours) < 2",
            lambda v: v.weekday() in (0, 4) and v.hour < 2,
        ),
    ],
    ids=["range", "hour", "weekdays"],
)
def test_comparisons_given_the_columns_themselves(given: str, holds: Callable[[Any], bool], b: str) -> None:
    table, one, other = tables(), kdm.col("hours"), kdm.col(b)
    shares = [table.probability(event, given) for event in (one < other, one == other, one > other)]
    values = [v for v in _values("hours") if holds(pd.Timestamp(v))]
    below = sum(table.probability((one == v) & (other > v)) for v in values)
    equal = sum(table.probability((one == v) & (other == v)) for v in values)
    np.testing.assert_allclose(shares[:2], np.array([below, equal]) / table.probability(given), atol=5e-6)
    assert sum(shares) == pytest.approx(1, abs=1e-6)


def test_clocks_with_many_units_share_cells() -> None:
    rng = np.random.default_rng(0)
    seconds = rng.integers(0, 86400, (2, N))
    frame = pd.DataFrame(
        {
            name: [(dt.datetime.min + dt.timedelta(seconds=int(s))).time() for s in part]
            for name, part in zip("ab", seconds, strict=True)
        }
    )
    table = kdm.KDMTable(n_components=4, max_epochs=2, random_state=0).fit(frame)
    engine = table._engine()
    left, right = (instants.Instants(engine.columns[name], engine.joint) for name in "ab")
    cells = instants.time_signs(left, right)
    starts = np.arange(0, instants.DAY, left.clock)
    at = left.times(np.append(starts, instants.DAY)).diff(dim=0)
    before, upto = right.times(starts), right.times(starts + 1)
    exact = [at.mT @ (1 - upto), at.mT @ (upto - before), at.mT @ before]
    for one, other in zip(cells, exact, strict=True):
        torch.testing.assert_close(one, other, atol=1e-7, rtol=0)


def test_comparisons_of_dates_make_no_boxes_of_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Boxes of digits are handled one by one: thousands of them take minutes."""
    monkeypatch.setattr(DateCodec, "boxes", None)
    p = tables().probability(kdm.col("season") < kdm.col("quarters"))
    drawn = tables().sample(20_000, random_state=0)
    assert p == pytest.approx((drawn["season"] < drawn["quarters"]).mean(), abs=0.02)
