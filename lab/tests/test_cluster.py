"""The experiment with Ray Data: `make test-ray`."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kdmlab import cluster as experiment

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
# Ray warns of its own settings.
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A local Ray with two workers."""
    ray = pytest.importorskip("ray")
    # Workers that are nice to others hardly run beside them.
    os.environ.setdefault("RAY_worker_niceness", "0")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.target_max_block_size = 32 << 10  # several blocks, which workers share
    yield ray
    ray.shutdown()


def test_the_experiment(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`kdmlab reproduce cluster` on a small file: a worker is killed, and nothing is lost."""
    rng = np.random.default_rng(0)
    dates = np.datetime64("2001-01-01T00:00", "us") + rng.integers(0, 3 * 10**13, 4000)
    airports = np.array(["LAS", "ATL", "MCI"])
    flights = {
        "date": dates,
        "delay": rng.integers(-20, 60, 4000),
        "distance": rng.integers(80, 2500, 4000),
        "origin": airports[rng.integers(0, 3, 4000)],
        "destination": airports[rng.integers(0, 3, 4000)],
    }
    pq.write_table(pa.table(flights), tmp_path / experiment.FILE)
    monkeypatch.setattr(experiment, "FITTED", 400)
    monkeypatch.setattr(experiment, "PARTS", 4)
    report = experiment.run(
        tmp_path, tmp_path, tmp_path / "work", models=["KDMDensity"], fresh=True, verbose=False
    )
    assert report.rows[0][:3] == ["KDMDensity, score", "4,000", "0 / 0"]
    assert report.rows[0][-1] == "3, 1 of them killed"
