"""Quantiles of digits that go round, and of the dates that they belong to."""

import datetime
from typing import Any

import numpy as np
import pytest
import torch

import kdmkit as kdm
import typecheck
from kdmkit.distributions.events import as_event
from kdmkit.estimators.table.answering.component_cache import Turn
from kdmkit.estimators.table.answering.digits_posterior import DigitsPosterior
from kdmkit.estimators.table.derived import row_groups

pd = pytest.importorskip("pandas")


@pytest.mark.parametrize(("numbers", "kappa"), [(1 << 19, 300.0), (100, 300.0), (30, 300.0), (30, 1e8)])
def test_the_first_digit_that_reaches_a_level(numbers: int, kappa: float) -> None:
    """Against the probabilities of all digits, from a whole table and from one with gaps."""
    period, c = 60, torch.tensor([[0.2], [59.7], [30.0], [12.0]])
    kernel = kdm.Periodic(torch.tensor([[200.0], [30.0], [0.3], [kappa]]), period)
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(200, 4, generator=generator).double().square()
    weights = weights / weights.sum(-1, keepdim=True)
    level = torch.rand(200, generator=generator).double()
    edges = torch.arange(period).unsqueeze(-1) + torch.tensor([-0.5, 0.5])
    arcs = kdm.kernels.Interval(*edges.double().unsqueeze(-1).unbind(1))
    upto = (kernel.log_mass(arcs, c.double()).exp() @ weights.mT).cumsum(0).mT
    digit, below, reached = Turn(kernel, c, numbers).first(weights, level)
    assert (digit == (upto < level.unsqueeze(-1)).sum(-1)).all()
    at = upto.gather(-1, digit.unsqueeze(-1)).squeeze(-1)
    assert reached.numpy() == pytest.approx(at.numpy(), abs=1e-9)
    assert bool((below < level).all())
    assert bool((level <= reached).all())
    assert Turn(kernel, c, numbers).probs(weights[0].log()).cumsum(0).numpy() == pytest.approx(
        upto[0].numpy(), abs=1e-9
    )


@pytest.fixture(scope="module")
def visits() -> Any:
    """Date-times to the second and times to the minute: shops open at different hours."""
    rng = np.random.default_rng(0)
    shop = rng.choice(["a", "b"], 200)
    seconds = rng.integers(0, 120, 200) * 86400 + 3600 * np.where(shop == "a", 9, 16)
    when = pd.Timestamp("2024-01-01") + pd.to_timedelta(seconds + rng.integers(0, 7200, 200), unit="s")
    paid = [(time + pd.Timedelta(hours=5)).floor("min").time() for time in when]
    return pd.DataFrame(
        {"shop": shop, "when": when, "paid": paid, "price": rng.exponential(10, 200).round(2)}
    )


@pytest.fixture(scope="module")
def table(visits: Any) -> kdm.KDMTable:
    with typecheck.off():
        return kdm.KDMTable(n_components=4, max_epochs=2, random_state=0).fit(visits)


def test_dates_of_rows_are_those_of_single_questions(
    visits: Any, table: kdm.KDMTable, unchecked: None
) -> None:
    """All evidence at once, against evidence after evidence, and against one question after the other."""
    minute = np.timedelta64(60, "s")
    engine = table._engine()
    column = engine.column("target", "when")
    rows = visits.head(4).assign(when=pd.NaT, paid=None)
    rows.loc[:1, "price"] = np.nan
    (group,) = row_groups(engine.schema, engine.schema.encode(rows), column)
    posterior = engine.rows.posterior(column, group)
    slowly = DigitsPosterior(engine, column, posterior.rho)
    medians = posterior.quantile(0.5)
    assert (np.abs(medians - slowly.quantile(0.5)) <= minute).all()
    assert (table.impute(rows)["when"].to_numpy() == medians).all()
    for i, row in enumerate(rows.itertuples()):
        price = None if np.isnan(row.price) else row.price
        alone = table.query("when", given={"shop": row.shop, "price": price}).median
        assert abs(np.datetime64(alone) - medians[i]) <= minute
    boxes, _ = engine.query(column, as_event({"price": [1.0, 20.0, 30.5]}))
    again = DigitsPosterior(engine, column, boxes.rho)
    assert abs(boxes.quantile(0.3) - again.quantile(0.3)) <= minute


def test_times_are_the_first_that_reach_a_level(table: kdm.KDMTable, unchecked: None) -> None:
    answer = table.query("paid", given={"shop": "b"})
    for level in (0.01, 0.3, 0.5, 0.99):
        time = answer.quantile(level)
        assert answer.probability((None, time)) >= level - 1e-6
        assert answer.probability(kdm.Interval(None, time, "left")) < level + 1e-6
    assert answer.interval(0.9) == (answer.quantile(0.05), answer.quantile(0.95))
    assert table.predict({"shop": ["b"]}, "paid")[0] == answer.median


def test_times_given_a_range_of_times(table: kdm.KDMTable, unchecked: None) -> None:
    """Against the probabilities without the condition; a range from evening to morning goes over midnight."""
    whole = table.query("paid", given={"shop": "b"})
    for low, high in (("20:30", "22:00"), ("21:15", "06:00")):
        mass = whole.probability((low, high))
        within = table.query("paid", given={"shop": "b", "paid": (low, high)})
        assert within.probability((low, high)) == pytest.approx(1, abs=1e-6)
        assert within.probability((None, None)) == pytest.approx(1, abs=1e-6)
        assert within.probability(("21:20", "21:40")) == pytest.approx(
            whole.probability(("21:20", "21:40")) / mass, abs=1e-5
        )
        assert within.log_evidence - whole.log_evidence == pytest.approx(np.log(mass), abs=1e-4)
        assert 0 < len(within.bars()) <= 12
        assert len(within.sample(3)) == 3
    assert table.query("P(paid | paid = 21:15)").median == datetime.time(21, 15)
