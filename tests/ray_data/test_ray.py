"""Ray Data maps fitted estimators over batches: `make test-ray`."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kdmkit as kdm

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
# Ray warns of its own settings.
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]

ROWS, FILES = 12_000, 8
NAMES = ["x", "z"]


@pytest.fixture(scope="module")
def frame() -> Any:
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=(2, ROWS))
    kind = np.where(x + 0.3 * rng.normal(size=ROWS) > 0, "a", "b")
    return pa.table({"row": rng.permutation(ROWS), "x": x, "z": z, "kind": kind})


@pytest.fixture(scope="module")
def parts(frame: Any, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The rows in several Parquet files."""
    folder, size = tmp_path_factory.mktemp("rows"), ROWS // FILES
    for i in range(FILES):
        pq.write_table(frame.slice(i * size, size), folder / f"{i}.parquet")
    return sorted(map(str, folder.glob("*.parquet")))


@pytest.fixture(scope="module")
def functions(frame: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, kdm.BatchFunction]:
    folder, some = tmp_path_factory.mktemp("models"), frame.slice(0, 500).to_pandas()
    X, few = some[NAMES], {"max_epochs": 2, "random_state": 0}
    models = {
        "density": (kdm.KDMDensity().fit(X), "score", {}),
        "classifier": (
            kdm.KDMClassifier(n_members=3, **few).fit(X, some["kind"]),
            "predict",
            {"proba": True},
        ),
        "regressor": (
            kdm.KDMRegressor(trend=None, n_components=8, **few).fit(X, some["x"] - some["z"]),
            "predict",
            {"interval": 0.9, "std": True},
        ),
        "table": (kdm.KDMTable(n_components=4, **few).fit(some[[*NAMES, "kind"]]), "score", {}),
    }
    for name, (model, _, _) in models.items():
        kdm.save(model, folder / name)
    return {
        name: kdm.BatchFunction(folder / name, what, keep=["row"], **options)
        for name, (_, what, options) in models.items()
    }


@pytest.fixture(scope="module")
def alone(functions: dict[str, kdm.BatchFunction], frame: Any) -> dict[str, Any]:
    """What one process finds."""
    return {name: function(frame).sort_by("row") for name, function in functions.items()}


def read(cluster: Any, parts: list[str], name: str) -> Any:
    """The rows of the files; for most models from memory, which needs fewer processes."""
    if name == "density":
        return cluster.data.read_parquet(parts)
    return cluster.data.from_arrow([pq.read_table(file) for file in parts])


def gathered(dataset: Any) -> Any:
    """All rows of a dataset in the order of their numbers."""
    return pa.concat_tables(dataset.iter_batches(batch_size=None, batch_format="pyarrow")).sort_by("row")


def assert_same(found: Any, wanted: Any) -> None:
    """The same rows, each once, and the same values."""
    assert found["row"].to_pylist() == list(range(ROWS))
    assert found.column_names == wanted.column_names
    for name in wanted.column_names[1:]:
        a, b = found[name].to_numpy(), wanted[name].to_numpy()
        if a.dtype.kind == "f":
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
        else:
            assert (a == b).all()


@pytest.mark.parametrize("name", ["density", "classifier", "regressor", "table"])
def test_tasks(cluster: Any, functions: Any, alone: Any, parts: Any, name: str) -> None:
    rows = read(cluster, parts, name)
    found = gathered(rows.map_batches(functions[name], batch_format="pyarrow", batch_size=None))
    assert_same(found, alone[name])


def test_the_class_itself_is_an_actor(cluster: Any, functions: Any, alone: Any, parts: Any) -> None:
    """An actor reads the model once: engines make the function from its arguments."""
    pool = {"compute": cluster.data.ActorPoolStrategy(size=1), "fn_constructor_kwargs": {"keep": ["row"]}}
    path = functions["density"]._model
    rows = read(cluster, parts, "actors")
    made = rows.map_batches(
        kdm.BatchFunction, fn_constructor_args=(path, "score"), batch_format="pyarrow", **pool
    )
    assert_same(gathered(made), alone["density"])


def test_a_killed_task_is_repeated(
    cluster: Any, functions: Any, alone: Any, parts: Any, tmp_path: Path
) -> None:
    """The process ends in the middle of its rows: no row is missing, wrong or twice."""
    score = functions["density"]

    def killing(batch: Any) -> Any:
        scores = score(batch)
        if ROWS // 2 in batch["row"].to_numpy() and not (tmp_path / "killed").exists():
            (tmp_path / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return scores

    rows = read(cluster, parts, "density")
    found = gathered(rows.map_batches(killing, batch_format="pyarrow", batch_size=500))
    assert (tmp_path / "killed").exists()
    assert_same(found, alone["density"])


def test_two_actors_one_of_them_killed_from_outside(
    cluster: Any, functions: Any, alone: Any, parts: Any, tmp_path: Path
) -> None:
    """Two share the rows, a third one takes the place of the killed."""

    class Slow:
        """An actor that tells its process, and takes its time; workers get it with the pickle."""

        def __init__(self, function: kdm.BatchFunction, folder: Path) -> None:
            self.function, self.folder = function, folder

        def __call__(self, batch: Any) -> Any:
            (self.folder / str(os.getpid())).touch()
            time.sleep(0.2)
            return self.function(batch)

    killed: list[int] = []

    def kill_one() -> None:
        while not killed:
            time.sleep(0.1)
            for file in list(tmp_path.iterdir())[:1]:
                os.kill(int(file.name), signal.SIGKILL)
                killed.append(int(file.name))

    killer = threading.Thread(target=kill_one, daemon=True)
    killer.start()
    rows = read(cluster, parts, "actors")
    pool = {
        "compute": cluster.data.ActorPoolStrategy(size=2),
        "fn_constructor_args": (functions["density"], tmp_path),
        "num_cpus": 0.5,  # what reads the files needs a core, too
    }
    found = gathered(rows.map_batches(Slow, batch_format="pyarrow", batch_size=500, **pool))
    killer.join(10)
    assert len(killed) == 1
    processes = {int(file.name) for file in tmp_path.iterdir()}
    assert len(processes) == 3
    assert os.getpid() not in processes
    assert_same(found, alone["density"])


def test_errors_name_the_column(cluster: Any, functions: Any) -> None:
    rows = cluster.data.from_arrow(pa.table({"row": [0, 1], "x": [1.0, None], "z": [0.0, 0.0]}))
    made = rows.map_batches(functions["density"], batch_format="pyarrow")
    with pytest.raises(Exception, match=r"batch\['x'\]: expected no missing cells, got 1 missing"):
        made.materialize()


def test_another_process_unpickles_the_function(
    functions: Any, alone: Any, parts: Any, tmp_path: Path
) -> None:
    """Nothing but the installed package: what Spark and Dask send."""
    (tmp_path / "function").write_bytes(pickle.dumps(functions["density"]))
    program = (
        "import pickle, sys, pyarrow.parquet as pq\n"
        "score = pickle.load(open(sys.argv[1], 'rb'))\n"
        "pq.write_table(score(pq.read_table(sys.argv[2])), sys.argv[3])\n"
    )
    out = str(tmp_path / "out.parquet")
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "function"), parts[0], out], check=True)
    found = pq.read_table(out)
    wanted = alone["density"].take(found["row"])
    np.testing.assert_allclose(found["log_prob"].to_numpy(), wanted["log_prob"].to_numpy(), rtol=1e-6)
