"""Batches through a fitted table: the answers of the whole, with one batch in memory."""

import datetime
import resource
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kdmkit as kdm
from kdmkit.estimators.common.csv_parquet import write_batches

pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(scope="module")
def arrow(parcels: Any) -> Any:
    return pa.Table.from_pandas(parcels.head(50), preserve_index=False)


@pytest.fixture
def path(arrow: Any, tmp_path: Path) -> Path:
    pq.write_table(arrow, tmp_path / "rows.parquet", row_group_size=30)
    return tmp_path / "rows.parquet"


def test_scores(table: kdm.KDMTable, arrow: Any, path: Path, unchecked: None) -> None:
    batches = list(table.stream("score", path, batch_size=20))
    assert len(batches) >= 3
    assert max(batch.num_rows for batch in batches) == 20
    whole = pa.concat_tables(batches)["log_prob"].to_numpy()
    assert whole == pytest.approx(table.score_samples(arrow), abs=1e-5)
    assert whole == pytest.approx(table.score_samples(path), abs=1e-5)
    assert table.score(arrow.to_reader(max_chunksize=20)) == pytest.approx(whole.mean(), abs=1e-5)


def test_predictions(table: kdm.KDMTable, arrow: Any, unchecked: None) -> None:
    batches = arrow.to_batches(max_chunksize=20)
    found = pa.concat_tables(table.stream("predict", batches, target="weight", interval=0.8))
    assert found["weight"].to_numpy() == pytest.approx(table.predict(arrow, "weight"), abs=1e-5)
    ends = table.predict_interval(arrow, "weight", coverage=0.8)
    assert found["weight high"].to_numpy() == pytest.approx(ends[:, 1], abs=1e-4)
    found = pa.concat_tables(table.stream("predict", batches, target="size", proba=True))
    assert found["size"].to_pylist() == table.predict(arrow, "size").tolist()
    assert found["P(huge)"].to_numpy() == pytest.approx(table.predict_proba(arrow, "size")[:, 2], abs=1e-5)


def test_imputed_rows(table: kdm.KDMTable, arrow: Any, parcels: Any, unchecked: None) -> None:
    frames = [parcels.iloc[start : start + 20] for start in (0, 20, 40)]
    found = pa.concat_tables(table.stream("impute", [frame.head(10) for frame in frames]))
    whole = pa.Table.from_pandas(
        table.impute(pd.concat([frame.head(10) for frame in frames])), preserve_index=False
    )
    assert found["size"].to_pylist() == whole["size"].to_pylist()
    assert found["weight"].to_numpy() == pytest.approx(whole["weight"].to_numpy(), abs=1e-5)


def test_whole_numbers_of_a_csv_file_are_filled_in_with_fractions(
    table: kdm.KDMTable, tmp_path: Path, unchecked: None
) -> None:
    """Weights have fractions; that those of a file are whole is chance."""
    path = tmp_path / "new.csv"
    path.write_text("size,weight,items\nsmall,1,2\nhuge,,3\nlarge,4,\n", "utf-8")
    (found,) = table.stream("impute", path)
    weights = found["weight"].to_pylist()
    assert weights[::2] == [1.0, 4.0]
    assert weights[1] != round(weights[1])
    assert pa.types.is_integer(found["items"].type)


def test_dates_without_a_time_are_predicted_as_dates(unchecked: None) -> None:
    days = [datetime.date(2024, 1, 1 + i % 28) for i in range(60)]
    table = kdm.KDMTable(n_components=2, max_epochs=1, random_state=0).fit(
        pa.table({"day": days, "x": np.arange(60.0)})
    )
    (found,) = table.stream("predict", [pa.table({"x": [3.0]})], target="day", interval=0.9)
    assert {str(field.type) for field in found.schema} == {"date32[day]"}


def test_draws_of_batches_differ_and_repeat(table: kdm.KDMTable, unchecked: None) -> None:
    """One seed for all batches: every batch has numbers of its own, and the same seed gives the same rows."""
    empty = pa.table({"weight": pa.array([None] * 10, pa.float64()), "items": [3] * 10})
    first, second = table.stream("impute", [empty, empty], draw=True, random_state=1)
    assert not np.isclose(first["weight"].to_numpy(), second["weight"].to_numpy()).any()
    again = next(table.stream("impute", [empty], draw=True, random_state=1))
    assert again["weight"].to_numpy() == pytest.approx(first["weight"].to_numpy())
    drawn = list(table.stream("sample", n=25, batch_size=10, given="size = huge", random_state=2))
    assert [batch.num_rows for batch in drawn] == [10, 10, 5]
    assert set(drawn[1]["size"].to_pylist()) == {"huge"}
    assert not np.isclose(drawn[0]["weight"].to_numpy(), drawn[1]["weight"].to_numpy()).any()


@pytest.mark.parametrize("what", ["score", "predict", "impute"])
def test_batches_do_not_accumulate(table: kdm.KDMTable, arrow: Any, what: str, unchecked: None) -> None:
    """Neither the batches that go in nor those that come out are held."""
    alive: list[Any] = []

    def source() -> Iterator[Any]:
        for _ in range(6):
            batch = arrow.slice(0, 5)
            alive.append(weakref.ref(batch))
            yield batch

    options = {"target": "items"} if what == "predict" else {}
    for made in table.stream(what, source(), **options):
        alive.append(weakref.ref(made))
        del made
        assert sum(ref() is not None for ref in alive) <= 2


@pytest.mark.parametrize(
    ("what", "options"),
    [
        ("score", {}),
        ("predict", {"target": "weight", "interval": 0.9}),
        ("predict", {"target": "size", "proba": True}),
        ("predict", {"target": "sent"}),
        ("impute", {}),
        ("impute", {"draw": True}),
    ],
)
def test_a_batch_without_rows(
    table: kdm.KDMTable, arrow: Any, what: str, options: Any, unchecked: None
) -> None:
    none, some = table.stream(what, [arrow.slice(0, 0), arrow.slice(0, 2)], **options)
    assert none.num_rows == 0
    assert none.column_names == some.column_names


def test_dates_of_rows_without_cells(table: kdm.KDMTable, unchecked: None) -> None:
    predicted = table.predict({"weight": [np.nan, np.nan]}, "sent")
    assert (predicted == table.query("sent").median).all()


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_an_error_leaves_no_partial_file(tmp_path: Path, kind: str) -> None:
    def broken() -> Iterator[Any]:
        yield pa.table({"x": [1]})
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        write_batches(broken(), tmp_path / f"out.{kind}")
    assert list(tmp_path.iterdir()) == []


def test_bad_streams(table: kdm.KDMTable) -> None:
    with pytest.raises(ValueError, match="what: expected one of"):
        table.stream("explain", [])
    with pytest.raises(ValueError, match="data: expected a path"):
        table.stream("score")
    with pytest.raises(ValueError, match="data: expected None"):
        table.stream("sample", [], n=3)
    with pytest.raises(ValueError, match="batch_size"):
        table.stream("sample", n=3, batch_size=0)


# ---- a million rows

_PEAK = """
import resource, sys
from kdmkit.cli.commands import app
try:
    app(sys.argv[1:])
finally:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, file=sys.stderr)
"""


def peak_memory(*arguments: Any) -> float:
    """The peak of the resident memory of a command, in bytes."""
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > 0
    command = [sys.executable, "-c", _PEAK, *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stderr.split()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_million_rows_take_no_more_memory(table: kdm.KDMTable, tmp_path: Path, kind: str) -> None:
    model = tmp_path / "model"
    kdm.save(table, model)
    peaks = {}
    for n in (150_000, 1_000_000):
        rows, out = tmp_path / f"{n}.{kind}", tmp_path / f"out.{kind}"
        peaks["sample", n] = peak_memory("sample", model, "-n", n, "-o", rows, "--seed", 0)
        peaks["score", n] = peak_memory("score", model, rows, "-o", out)
        peaks["impute", n] = peak_memory("impute", model, rows, "-o", out)
        peaks["predict", n] = peak_memory("predict", model, rows, "--target", "items", "-o", out)
    for command in ("sample", "score", "impute", "predict"):
        assert peaks[command, 1_000_000] < 1.15 * peaks[command, 150_000], peaks
