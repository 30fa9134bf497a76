"""Fitted estimators as functions that other processes can be sent."""

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kdmkit as kdm
from kdmkit import engines as module

pa = pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def table() -> Any:
    rng = np.random.default_rng(0)
    return pa.table({"id": np.arange(30), "x": rng.normal(size=30), "z": rng.normal(size=30)})


@pytest.fixture(scope="module")
def density(table: Any) -> kdm.KDMDensity:
    return kdm.KDMDensity(sigma=1.0).fit(table.select(["x", "z"]).to_pandas())


@pytest.fixture(scope="module")
def path(density: kdm.KDMDensity, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "density"
    kdm.save(density, path)
    return path


def test_a_batch_for_a_batch_and_a_table_for_a_table(density: Any, table: Any) -> None:
    score = kdm.BatchFunction(density, "score", keep=["id"])
    made = score(table.to_batches()[0])
    assert isinstance(made, pa.RecordBatch)
    assert made.schema.names == ["id", "log_prob"]
    assert score(table).equals(pa.Table.from_batches([made]))
    assert score(table.to_pandas()).equals(score(table))
    assert score(table.slice(0, 0)).schema == made.schema


def test_pickles_hold_the_path_or_the_estimator(density: Any, path: Path, table: Any) -> None:
    wanted = kdm.BatchFunction(density, "score")(table)
    for model in (density, path, str(path)):
        score = kdm.BatchFunction(model, "score")
        copy = pickle.loads(pickle.dumps(score))
        assert copy(table).equals(wanted)
        assert pickle.loads(pickle.dumps(copy))(table).equals(wanted)
    assert len(pickle.dumps(kdm.BatchFunction(path, "score"))) < 500
    assert repr(path.name) in f"{kdm.BatchFunction(path, 'score')!r}".replace(f"{path.parent}/", "")


def test_a_saved_model_is_read_once(
    path: Path, table: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, density: Any
) -> None:
    """All functions and threads of a process share a model; another file at its place is another model."""
    read: list[str] = []

    def load(file: str, device: str) -> Any:
        read.append(file)
        return kdm.load(file, device=device)

    monkeypatch.setattr(module, "load", load)
    module._loaded.cache_clear()
    functions = [kdm.BatchFunction(path, "score"), kdm.BatchFunction(path, "score", keep=["id"])]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda function: function(table), functions * 4))
    assert read == [str(path)]
    other = tmp_path / "other"
    kdm.save(density, other)
    score = kdm.BatchFunction(other, "score")
    before = score(table)["log_prob"].to_numpy()
    kdm.save(kdm.KDMDensity(sigma=3.0).fit(table.select(["x", "z"]).to_pandas()), other)
    assert not np.allclose(score(table)["log_prob"].to_numpy(), before)


def test_a_relative_path_means_the_same_elsewhere(
    path: Path, table: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(path.parent)
    score = kdm.BatchFunction(path.name, "score")
    monkeypatch.chdir(tmp_path)
    assert score(table).num_rows == 30


def test_draws_depend_on_the_batch(unchecked: None) -> None:
    """A batch that is repeated in another process has the same draws; other batches have others."""
    frame = {"size": ["small", "large"] * 30, "weight": np.linspace(0, 9, 60) ** 1.5}
    table = kdm.KDMTable(n_components=2, max_epochs=1, random_state=0).fit(frame)
    batches = [
        pa.table({"id": [i] * 3, "size": ["small"] * 3, "weight": pa.array([None] * 3, pa.float64())})
        for i in range(2)
    ]
    fill = kdm.BatchFunction(table, "impute", draw=True, columns=["size", "weight"], keep=["id"])
    seeded = kdm.BatchFunction(table, "impute", draw=True, random_state=1, keep=["id"])
    drawn = [[fill(batch)["weight"].to_pylist(), seeded(batch)["weight"].to_pylist()] for batch in batches]
    assert pickle.loads(pickle.dumps(fill))(batches[0])["weight"].to_pylist() == drawn[0][0]
    assert seeded(batches[1])["weight"].to_pylist() == drawn[1][1]
    assert len({tuple(cells) for pair in drawn for cells in pair}) == 4
    scored = kdm.BatchFunction(table, "score", keep=["id"])(batches[1])
    assert scored.column_names == ["id", "log_prob"]


def test_bad_functions(density: Any, path: Path, table: Any, tmp_path: Path, unchecked: None) -> None:
    with pytest.raises(TypeError, match="model: expected a fitted estimator"):
        kdm.BatchFunction(3, "score")
    with pytest.raises(ValueError, match="what: expected one of"):
        kdm.BatchFunction(density, "predict")
    with pytest.raises(ValueError, match="what: expected an answer to rows"):
        kdm.BatchFunction(path, "sample")
    with pytest.raises(TypeError, match="options of 'score'"):
        kdm.BatchFunction(density, "score", interval=0.9)
    with pytest.raises(ValueError, match="which is no file"):
        kdm.BatchFunction(tmp_path / "absent", "score")(table)
    kdm.save(density.kdm_, tmp_path / "kdm")
    with pytest.raises(TypeError, match="model: expected the path of a saved estimator, got KDM"):
        kdm.BatchFunction(tmp_path / "kdm", "score")(table)
    assert os.path.isabs(kdm.BatchFunction("some", "score")._model)  # type: ignore[arg-type]
