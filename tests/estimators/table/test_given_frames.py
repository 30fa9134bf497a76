"""New rows given a frame of conditions: each row of it is completed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from typer.testing import CliRunner

import kdmkit as kdm
from kdmkit.cli.commands import app
from tests import typecheck

from .test_functions import visits


@pytest.fixture(scope="module")
def shops() -> kdm.KDMTable:
    with typecheck.off():
        return kdm.KDMTable(n_components=8, max_epochs=4, random_state=0).fit(visits())


def test_cells_are_repeated_in_the_dtypes_of_the_table(table: kdm.KDMTable, parcels: Any) -> None:
    given = parcels[["weight", "sent", "size", "id"]].iloc[:40]
    drawn = table.sample(given=given, random_state=0)
    whole = table.sample(1, random_state=0)
    assert list(drawn) == list(whole)
    assert (drawn.dtypes == parcels.dtypes).all()
    assert drawn.index.equals(given.index)
    pd.testing.assert_frame_equal(drawn[list(given)], given)
    assert (drawn["items"] >= 0).all()


def test_several_rows_of_each_condition_follow_each_other(table: kdm.KDMTable) -> None:
    drawn = table.sample(3, given=pl.DataFrame({"items": [2.0, 7.0]}), random_state=0)
    assert drawn["items"].tolist() == [2, 2, 2, 7, 7, 7]
    assert drawn["items"].dtype == np.int64
    assert drawn["id"].nunique() == 6
    assert drawn["weight"].nunique(dropna=False) > 2


@pytest.mark.parametrize("missing", ["outcome", "unknown"])
def test_empty_cells_mean_what_they_mean_in_rows(
    table: kdm.KDMTable, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "missing", missing)
    given = pd.DataFrame({"weight": [np.nan] * 50 + [4.0] * 50, "items": [np.nan] * 100})
    drawn = table.sample(given=given, random_state=0)
    share = 1.0 if missing == "outcome" else 0.3
    assert drawn["weight"][:50].isna().mean() == pytest.approx(share, abs=0.3 * (share < 1))
    assert (drawn["weight"][50:] == 4).all()
    assert drawn["items"].notna().all()  # the rows of the fit had all of these
    assert table.sample(given=given, random_state=0, complete=True).notna().all().all()


def test_draws_agree_with_those_of_one_condition(table: kdm.KDMTable) -> None:
    """The same distribution by two ways, for points, missing cells and a mixture of rows."""
    n = 3000
    given = pd.DataFrame({"size": ["huge"] * n + [None] * n, "fee": [0.0] * n + [None] * n})
    drawn = table.sample(given=given, random_state=0)
    for part, condition in ((drawn[:n], {"size": "huge", "fee": 0.0}), (drawn[n:], {"size": None})):
        other = table.sample(n, given=condition, random_state=1)
        for name in ("weight", "items", "fragile"):
            a, b = part[name].dropna().astype(float), other[name].dropna().astype(float)
            assert abs(a.mean() - b.mean()) < 5 * (a.std() + b.std()) / np.sqrt(n)
        assert part["weight"].isna().mean() == pytest.approx(other["weight"].isna().mean(), abs=0.04)


def test_columns_that_are_functions_stay_functions(shops: kdm.KDMTable) -> None:
    data = visits()
    city = dict(zip(data["shop"], data["city"], strict=True))
    given = pd.DataFrame(
        {"city": ["city 1", "city 4", None] * 20, "shop": [None, None, "s03"] * 20, "band": ["old"] * 60}
    )
    drawn = shops.sample(given=given, random_state=0)
    assert [city[shop] for shop in drawn["shop"]] == drawn["city"].tolist()
    assert drawn["city"][:2].tolist() == ["city 1", "city 4"]
    assert (drawn["shop"][2::3] == "s03").all()
    assert (drawn["age"] >= 60).all()
    with pytest.raises(ValueError, match=r"row 1, which breaks the rule shop -> city"):
        shops.sample(given=pd.DataFrame({"shop": ["s03", "s03"], "city": ["city 3", "city 1"]}))


def test_a_row_and_the_columns_that_it_shares(table: kdm.KDMTable, parcels: Any) -> None:
    """Rows like one that is there."""
    row = parcels.iloc[4]
    for given in (row, row.to_dict(), parcels.iloc[[4]]):
        drawn = table.sample(20, given=given, hold=["size", "fragile"], random_state=0)
        assert (drawn["size"] == row["size"]).all()
        assert (drawn["fragile"] == row["fragile"]).all()
        assert drawn["items"].nunique() > 1
    with pytest.raises(ValueError, match=r"hold: expected columns of `given` \(did you mean 'size'\?\), got"):
        table.sample(given=row, hold=["siz"])
    with pytest.raises(ValueError, match="hold: expected None"):
        table.sample(given="size = huge", hold=["size"])


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"siz": ["small"]}, r"columns of the table \(did you mean 'size'\?\), got 'siz'"),
        ({"size": ["small", "smal"]}, r"row 1, column 'size': .*mean 'small'\?\), got 'smal'"),
        ({"items": [1.0, 4.5]}, r"row 1, column 'items': expected a value that the column can have, got 4.5"),
        ({"items": [-1]}, "got -1"),
        ({"items": []}, "at least one row of conditions"),
    ],
)
def test_errors_name_the_row_and_the_column(table: kdm.KDMTable, given: Any, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        table.sample(given=pd.DataFrame(given))


def test_values_outside_of_the_data_are_a_warning(table: kdm.KDMTable) -> None:
    with pytest.warns(UserWarning, match="outside of the data: 1 in 'weight'"):
        table.sample(given=pd.DataFrame({"weight": [4.0, 80.0]}))


def test_streams_and_the_shell_complete_files(table: kdm.KDMTable, parcels: Any, tmp_path: Path) -> None:
    given = parcels[["items", "fragile"]].iloc[:7]
    batches = list(table.stream("sample", given=given, n=2, batch_size=6, random_state=0))
    assert [batch.num_rows for batch in batches] == [6, 6, 2]
    items = [item for batch in batches for item in batch["items"].to_pylist()]
    assert items == given["items"].repeat(2).tolist()
    assert len({key for batch in batches for key in batch["id"].to_pylist()}) == 14
    with pytest.raises(ValueError, match="row 5, column 'items'"):
        list(table.stream("sample", given=pd.DataFrame({"items": [1.0] * 5 + [0.5]}), batch_size=2))
    path, model = tmp_path / "given.csv", tmp_path / "model"
    given.to_csv(path, index=False)
    kdm.save(table, model)
    options = ["--given-file", path, "--hold", "items", "--seed", 0, "-o", tmp_path / "out.csv"]
    result = CliRunner().invoke(app, [str(part) for part in ("sample", model, *options)])
    assert result.exit_code == 0, result.output
    assert pd.read_csv(tmp_path / "out.csv")["items"].tolist() == given["items"].tolist()
    both = CliRunner().invoke(app, ["sample", str(model), "--given-file", str(path), "--given", "items = 1"])
    assert both.exit_code == 2
    assert "expected no --given beside it" in json.dumps(both.output)
