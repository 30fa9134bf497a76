"""Tables that learn from chunks, and from more rows than they hold."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kdmkit as kdm
import typecheck
from kdmkit.estimators.table.learning import sample_batches, sample_frame

pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

SMALL: dict[str, Any] = {"n_components": 4, "max_epochs": 2, "batch_size": 64, "random_state": 0}


def curve(n: int, seed: int = 0) -> Any:
    """Two numbers and a level that depend on each other."""
    rng = np.random.default_rng(seed)
    kind = rng.choice(["a", "b", "c"], n, p=[0.5, 0.3, 0.2])
    x = np.select([kind == "a", kind == "b"], [0.0, 1.5], 3.0) + rng.normal(0, 0.6, n)
    return pd.DataFrame({"kind": kind, "x": x, "y": np.sin(2 * x) + rng.normal(0, 0.2, n)})


def learned_from_chunks(frame: Any, n_chunks: int, **options: Any) -> kdm.KDMTable:
    table = kdm.KDMTable(**options)
    size = len(frame) // n_chunks
    for i in range(n_chunks):
        table.partial_fit(frame.iloc[i * size : (i + 1) * size])
    return table


def share_of_gain(frame: Any, new: Any, **options: Any) -> float:
    """How much of the gain of a whole fit over a fit of the first of ten chunks the ten chunks reach."""
    first = kdm.KDMTable(**options).fit(frame.head(len(frame) // 10)).score(new)
    whole = kdm.KDMTable(**options).fit(frame).score(new)
    assert whole > first + 0.05
    return (learned_from_chunks(frame, 10, **options).score(new) - first) / (whole - first)


@pytest.mark.slow
def test_chunks_gain_what_a_whole_fit_gains(unchecked: None) -> None:
    assert share_of_gain(curve(3000), curve(4000, seed=1), random_state=0) >= 0.95


@pytest.fixture(scope="module")
def chunked() -> kdm.KDMTable:
    with typecheck.off():
        return learned_from_chunks(curve(400), 2, **SMALL)


def test_a_chunk_without_rows_is_refused(chunked: kdm.KDMTable) -> None:
    with pytest.raises(ValueError, match="X: expected at least one row, got none"):
        chunked.partial_fit(curve(400)[:0])


def test_chunks_are_counted(chunked: kdm.KDMTable) -> None:
    assert chunked.n_samples_seen_ == 400
    assert [column.kind for column in chunked.columns_.values()] == ["category", "float", "float"]
    # The second chunk is half of the rows: half of the epochs.
    assert [entry["epoch"] for entry in chunked.history_] == [0, 1, 0]


def test_later_chunks_train_with_smaller_rates(chunked: kdm.KDMTable) -> None:
    table = pickle.loads(pickle.dumps(chunked)).set_params(learning_rate=0.01)
    before = table.module_.weight_logits.clone()
    table.partial_fit(curve(40, seed=3))
    near = (table.module_.weight_logits - before).abs().max()
    other = pickle.loads(pickle.dumps(chunked)).set_params(learning_rate=0.01)
    other.n_samples_seen_ = 1
    other.partial_fit(curve(40, seed=3))
    assert 0 < near < (other.module_.weight_logits - before).abs().max()


def test_components_grow_with_the_rows(unchecked: None) -> None:
    options: dict[str, Any] = {"max_epochs": 1, "batch_size": 256, "random_state": 0}
    frame, table = curve(1200), kdm.KDMTable(**options)
    counts = [table.partial_fit(frame.iloc[:200]).module_.n_components]
    counts.append(table.partial_fit(frame.iloc[200:300]).module_.n_components)
    counts.append(table.partial_fit(frame.iloc[300:]).module_.n_components)
    # As many as `fit` takes; 300 rows would have 21, which is less than twice 14.
    assert counts == [14, 14, kdm.KDMTable(**options).fit(frame).module_.n_components]
    # The new model has learned from all rows.
    assert table.score(frame) > kdm.KDMTable(**options).fit(frame.head(200)).score(frame)
    # Without the kept rows it would learn from the new ones alone.
    table._kept = None
    assert table.partial_fit(curve(9000, seed=5)).module_.n_components == counts[-1]
    given = kdm.KDMTable(n_components=4, **options).partial_fit(frame.iloc[:100]).partial_fit(frame)
    assert given.module_.n_components == 4


def test_kept_rows_are_a_bounded_uniform_sample(unchecked: None) -> None:
    table = learned_from_chunks(curve(900), 3, max_rows=150, **SMALL)
    kept = table._kept
    assert kept is not None
    assert len(kept.keys) == len(kept.is_validation) == len(kept.table) == 150
    seen = set(curve(900)["x"].astype(np.float32).tolist()[:300])
    columns = table.schema_.decode(kept.table.columns)
    from_first = np.isin(columns["x"].to_numpy().astype(np.float32), list(seen)).mean()
    assert 0.2 < from_first < 0.47


def test_chunks_are_reproducible_and_leave_the_first_model_alone(unchecked: None) -> None:
    frame = curve(200)
    first = kdm.KDMTable(**SMALL).partial_fit(frame.head(100))
    old = first.module_
    weights = old.weight_logits.clone()
    again = learned_from_chunks(frame, 2, **SMALL)
    first.partial_fit(frame.tail(100))
    assert (old.weight_logits == weights).all()
    assert first.score(frame) == pytest.approx(again.score(frame), abs=1e-6)


def test_new_levels_of_a_chunk_grow_the_column(chunked: kdm.KDMTable, unchecked: None) -> None:
    table = pickle.loads(pickle.dumps(chunked)).set_params(learning_rate=0.01)
    before = table.query("kind").probs
    table.partial_fit(curve(100, seed=5).assign(kind="new"))
    after = table.query("kind").probs
    assert table.levels("kind") == ["a", "b", "c", "new"]
    assert 0.05 < after["new"] < 0.6
    assert after.keys() - before.keys() == {"new"}
    assert table.query("P(kind | x > 0)").probs["new"] > 0.01
    assert "new" in set(table.sample(500, random_state=0)["kind"])
    table.partial_fit(curve(50, seed=6))  # the same levels: nothing grows
    assert table.levels("kind") == ["a", "b", "c", "new"]


def test_unseen_levels_have_the_share_of_new_ones(chunked: kdm.KDMTable, unchecked: None) -> None:
    new = curve(50, seed=5).assign(kind="new")
    share = chunked.schema_.columns["kind"].codec.share
    others = chunked.score_samples(new.drop(columns="kind"))
    with pytest.warns(UserWarning, match="rows lack are taken for missing: 50 in 'kind'"):
        scores = chunked.score_samples(new)
    assert scores == pytest.approx(others + np.log(share), abs=1e-4)


def test_weights_of_chunks(unchecked: None) -> None:
    """Heavy rows are more probable; weights of zero are no rows."""
    frame = curve(300)
    options = {**SMALL, "max_epochs": 8}
    heavy = kdm.KDMTable(**options)
    for i in range(2):
        chunk = frame.iloc[150 * i : 150 * (i + 1)]
        heavy.partial_fit(chunk, sample_weight=np.where(chunk["kind"] == "c", 20.0, 1.0))
    plain = learned_from_chunks(frame, 2, **options)
    assert heavy.query("kind").probs["c"] > plain.query("kind").probs["c"] + 0.1
    none = kdm.KDMTable(**SMALL).partial_fit(frame, sample_weight=(frame["kind"] != "c") * 1.0)
    assert none.query("kind").probs["c"] < 0.1


def test_targets_learn_from_chunks(unchecked: None) -> None:
    table = learned_from_chunks(curve(160), 2, targets=["kind"], **SMALL)
    assert np.isfinite(table.score(curve(20, seed=2)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.drop(columns="x"), "the columns of the rows before, got no 'x'"),
        (lambda f: f.assign(z=1.0), "the columns of the rows before, got also 'z'"),
        (lambda f: f.assign(x="text"), "column 'x'"),
        (lambda f: f.assign(kind=1.5), "values like 'a'"),
    ],
)
def test_chunks_with_other_columns(chunked: kdm.KDMTable, change: Any, message: str) -> None:
    before = chunked.n_samples_seen_
    with pytest.raises((ValueError, TypeError), match=message):
        chunked.partial_fit(change(curve(20)))
    assert chunked.n_samples_seen_ == before


def test_a_saved_table_learns_further(chunked: kdm.KDMTable, tmp_path: Path, unchecked: None) -> None:
    kdm.save(chunked, tmp_path / "model")
    table = kdm.load(tmp_path / "model")
    assert table._kept is None
    table.partial_fit(curve(50, seed=3))
    assert table.n_samples_seen_ == 450


def test_a_killed_fit_of_chunks_resumes(tmp_path: Path, unchecked: None) -> None:
    options = {**SMALL, "checkpoint_dir": tmp_path}
    table = learned_from_chunks(curve(200), 2, **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chunk-0", "chunk-1"]
    again = learned_from_chunks(curve(200), 2, **options)
    assert again.score(curve(50)) == table.score(curve(50))


# ---- more rows than are held


def test_reservoir_is_uniform() -> None:
    """Every row has the same chance, whatever its place in the stream."""
    counts = np.zeros(200)
    for seed in range(60):
        batches = [pa.table({"i": np.arange(start, start + 25)}) for start in range(0, 200, 25)]
        sample = sample_batches("X", batches, 40, np.random.default_rng(seed))
        assert sample.n_total == 200
        assert sample.numbers is not None
        assert (sample.columns["i"].values == sample.numbers).all()
        assert (np.diff(sample.numbers) > 0).all()
        counts[sample.numbers] += 1
    assert counts.sum() == 60 * 40
    # Binomial with mean 12 and standard deviation 3.1.
    assert np.abs(counts - 12).max() < 4.5 * 3.1
    assert abs(counts[:100].sum() - counts[100:].sum()) < 200


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    frame = curve(500).assign(number=np.arange(1, 501))
    pq.write_table(pa.Table.from_pandas(frame), tmp_path / "rows.parquet", row_group_size=60)
    return tmp_path / "rows.parquet"


def test_fit_of_a_file_takes_a_uniform_sample(parquet: Path, unchecked: None) -> None:
    table = kdm.KDMTable(max_rows=100, **SMALL).fit(parquet)
    assert table.n_samples_seen_ == 500
    told = "recognised by a uniform sample of 100 of 500 rows"
    assert told in repr(table.columns_)
    # Numbers of rows are known as such in a sample, too.
    assert table.columns_["number"].kind == "identifier"
    frame = pd.read_parquet(parquet)
    assert kdm.KDMTable(max_rows=100, **SMALL).fit(frame).score(frame) == pytest.approx(table.score(parquet))


def test_fit_of_a_whole_file_is_the_fit_of_its_frame(parquet: Path, unchecked: None) -> None:
    frame = pq.read_table(parquet)
    table = kdm.KDMTable(**SMALL).fit(parquet)
    assert "sample" not in repr(table.columns_)
    assert kdm.KDMTable(**SMALL).fit(frame).score(frame) == table.score(frame)
    streamed = kdm.KDMTable(**SMALL).fit(pq.ParquetFile(parquet).iter_batches(batch_size=90))
    assert streamed.score(frame) == table.score(frame)


def test_weights_of_a_sample(parquet: Path, unchecked: None) -> None:
    frame = pq.read_table(parquet)
    weights = np.asarray(frame["kind"]) != "c"
    table = kdm.KDMTable(max_rows=200, **SMALL).fit(parquet, sample_weight=weights)
    assert table.query("kind").probs["c"] < 0.1
    with pytest.raises(ValueError, match="sample_weight"):
        kdm.KDMTable(max_rows=200, **SMALL).fit(parquet, sample_weight=weights[:200])


def test_sample_is_saved(parquet: Path, tmp_path: Path, unchecked: None) -> None:
    table = kdm.KDMTable(max_rows=100, **SMALL).fit(parquet)
    kdm.save(table, tmp_path / "model")
    loaded = kdm.load(tmp_path / "model")
    assert loaded.schema_.sample == (100, 500)
    assert loaded.max_rows == 100


def test_bad_rows_to_learn_from(parquet: Path) -> None:
    with pytest.raises(ValueError, match="max_rows"):
        kdm.KDMTable(max_rows=0).fit(parquet)
    batches = iter([pa.table({"x": [1, 2]}), pa.table({"x": ["a", "b"]})])
    with pytest.raises(ValueError, match="batches with the same types of columns"):
        sample_frame("X", batches, None, 0)
    with pytest.raises(ValueError, match="X: expected at least one row, got none"):
        kdm.KDMTable().fit(iter([]))
