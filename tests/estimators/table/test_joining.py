"""Two tables that belong together: joined, drawn, and errors."""

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import kdmkit as kdm
from tests import typecheck


def customers_and_orders(n: int = 150, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Shops order more often, and for larger amounts, than people."""
    rng = np.random.default_rng(seed)
    kind = rng.choice(["shop", "person"], n)
    customers = pd.DataFrame({"customer": [f"C{i:04d}" for i in range(n)], "kind": kind})
    counts = rng.poisson(np.where(kind == "shop", 5, 1))
    at = np.repeat(np.arange(n), counts)
    amount = rng.gamma(4, np.where(kind[at] == "shop", 50, 5)).round(2)
    orders = pd.DataFrame({"order": np.arange(len(at)), "customer": customers["customer"].to_numpy()[at]})
    return customers, orders.assign(amount=amount)


def test_children_have_the_cells_of_their_parents() -> None:
    customers, orders = customers_and_orders()
    joined = kdm.join_tables(customers, orders, on="customer", count="orders")
    pd.testing.assert_frame_equal(joined.children, orders.merge(customers, on="customer"))
    counts = orders["customer"].value_counts().reindex(customers["customer"], fill_value=0)
    assert joined.parents["orders"].tolist() == counts.tolist()
    pd.testing.assert_frame_equal(joined.parents.drop(columns="orders"), customers)
    repeated = joined.conditions(joined.parents)
    assert list(repeated) == ["customer", "kind"]
    assert repeated["customer"].tolist() == sorted(orders["customer"])


@pytest.mark.parametrize("library", [pl.from_pandas, lambda frame: dict(frame.items())])
def test_other_frames(library: Any) -> None:
    parts = [library(part) for part in customers_and_orders()]
    joined = kdm.join_tables(*parts, on="customer")
    assert type(joined.parents) is type(joined.children) is type(parts[0])
    assert list(joined.children["kind"]) == list(
        kdm.join_tables(*customers_and_orders(), on="customer").children["kind"]
    )


def test_draws_of_both_tables_belong_together() -> None:
    customers, orders = customers_and_orders()
    joined = kdm.join_tables(customers, orders, on="customer", count="orders")
    settings: Any = {"n_components": 8, "max_epochs": 10, "random_state": 0}
    with typecheck.off():
        parents = kdm.KDMTable(**settings).fit(joined.parents)
        children = kdm.KDMTable(types={"customer": "identifier"}, **settings).fit(joined.children)
    new = parents.sample(300, random_state=1)
    drawn = children.sample(given=joined.conditions(new), random_state=2)
    assert len(drawn) == new["orders"].sum()
    assert not set(new["customer"]) & set(customers["customer"])
    assert set(drawn["customer"]) <= set(new["customer"])
    assert drawn["order"].is_unique
    both = drawn.merge(new, on="customer", suffixes=("", "_of_parent"))
    assert (both["kind"] == both["kind_of_parent"]).all()
    for frame, column in ((new, "orders"), (drawn, "amount")):
        means = frame.groupby("kind")[column].mean()
        assert means["shop"] > 2 * means["person"]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (
            lambda a, b: (pd.concat([a, a]), b, {}),
            r"parent\['customer'\]: expected a key of its own .*'C0000'",
        ),
        (lambda a, b: (a[1:], b.assign(customer="C0000"), {}), r"child\['customer'\]: .* got 'C0000'"),
        (lambda a, b: (a, b.assign(customer=None), {}), r"child\['customer'\]: .* got None"),
        (lambda a, b: (a, b.assign(kind="x"), {}), "other names than those of `parent`.*'kind'"),
        (lambda a, b: (a, b, {"on": "custmer"}), r"did you mean 'customer'\?"),
        (lambda a, b: (a, b, {"count": "amount"}), "count: expected the name of a new column, got 'amount'"),
    ],
)
def test_errors(change: Any, error: str) -> None:
    parent, child, options = change(*customers_and_orders())
    with pytest.raises(ValueError, match=error):
        kdm.join_tables(parent, child, **{"on": "customer", **options})


def test_conditions_need_numbers_of_children() -> None:
    joined = kdm.join_tables(*customers_and_orders(), on="customer")
    with pytest.raises(ValueError, match="a frame with the column 'n_children'"):
        joined.conditions(joined.parents.drop(columns="n_children"))
    with pytest.raises(ValueError, match="numbers of children ≥ 0"):
        joined.conditions(joined.parents.assign(n_children=-1))
