"""Missing cells in draws: as often, and beside the same cells, as in the data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import kdmkit as kdm


def loans(n: int = 1500) -> Any:
    """Only joint applications have a second income and its source; some incomes are not told."""
    rng = np.random.default_rng(0)
    joint = rng.random(n) < 0.15
    income = np.exp(rng.normal(11, 0.5, n))
    return pd.DataFrame(
        {
            "application": np.where(joint, "joint", "individual"),
            "income": np.where(rng.random(n) < 0.05, np.nan, income),
            "second_income": np.where(joint, 1.6 * income, np.nan),
            "second_source": np.where(joint, rng.choice(["wage", "rent"], n), None),
            "purpose": rng.choice(["car", "house", "other"], n),
        }
    )


@pytest.fixture(scope="module")
def data() -> Any:
    return loans()


@pytest.fixture(scope="module")
def table(data: Any) -> kdm.KDMTable:
    return kdm.KDMTable(random_state=0).fit(data)


def test_draws_have_as_many_missing_cells_as_the_data(table: kdm.KDMTable, data: Any) -> None:
    drawn = table.sample(20_000, random_state=0)
    gaps = (drawn.isna().mean() - data.isna().mean()).abs()
    assert gaps.max() < 0.02
    assert not table.sample(2000, complete=True, random_state=0).isna().any(axis=None)


def test_cells_that_exclude_each_other_are_not_drawn_together(table: kdm.KDMTable) -> None:
    drawn = table.sample(20_000, random_state=0)
    joint = drawn["application"] == "joint"
    for name in ("second_income", "second_source"):
        assert (drawn[name].notna() & ~joint).mean() < 1e-3
        assert (drawn[name].isna() & joint).mean() < 1e-3
    assert (drawn["second_income"].isna() != drawn["second_source"].isna()).mean() < 1e-3
    assert table.probability("application = joint", given={"second_income": None}) < 1e-3
    assert table.query("second_income", given="application = individual").p_missing > 0.998


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_short_fits_know_which_cells_exclude_each_other(data: Any, seed: int) -> None:
    """Two passes over the rows are too few for gradients to learn it."""
    table = kdm.KDMTable(n_components=8, max_epochs=2, random_state=seed).fit(data)
    assert table.query("second_income", given="application = individual").p_missing > 0.998
    assert table.probability("application = joint", given={"second_income": None}) < 2e-3


def test_presence_does_not_come_between_values() -> None:
    """Cells of both columns are missing for one reason; their values tell about each other all the same."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=600)
    gone = rng.random(600) < 0.4
    cells = {name: np.where(gone, np.nan, x + 0.5 * rng.normal(size=600)) for name in "ab"}
    table = kdm.KDMTable(n_components=4, max_epochs=1, random_state=0).fit({**cells, "c": x})
    columns = table.schema_.columns
    values = {column.variables[0] for column in columns.values()}
    links = [{name, above} for name, above in table.module_.parents.items() if above is not None]
    assert sum(link <= values for link in links) == 2
    presence = {columns[name].presence.name for name in "ab"}  # type: ignore[union-attr]
    assert presence in links


@pytest.mark.parametrize(
    "given",
    [
        None,
        {"purpose": "car"},
        {"income": (50_000, None), "purpose": ["car", "other"]},
        "income is missing or purpose = house",
    ],
)
def test_one_pass_gives_the_same_shares_of_missing_cells(table: kdm.KDMTable, given: Any) -> None:
    for name, answer in table.marginals(given).items():
        assert answer.p_missing == pytest.approx(table.query(name, given).p_missing, abs=1e-6)
    assert all(0 <= answer.p_missing <= 1 for answer in table.marginals(given).values())
