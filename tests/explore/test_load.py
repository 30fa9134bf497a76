"""Many people at once: the server as a process of its own. Takes a minute."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import kdmkit as kdm

from .clients import Running, moves
from .conftest import saved_model

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unchecked")]

CLIENTS, SECONDS = 30, float(os.environ.get("KDMKIT_LOAD_SECONDS", "60"))


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="memory is read from /proc")
def test_thirty_clients_for_a_minute(table: kdm.KDMTable, tmp_path_factory: pytest.TempPathFactory) -> None:
    with Running(saved_model(table, tmp_path_factory)) as running:
        times, errors, memory = moves(running, CLIENTS, SECONDS)
    p50, p95 = np.quantile(times, [0.5, 0.95])
    print(f"{len(times)} moves, median {1e3 * p50:.0f} ms, p95 {1e3 * p95:.0f} ms, memory {memory[-1]} MiB")
    assert not errors
    assert p95 <= 0.5
    middle = memory[len(memory) // 2]
    assert (memory[-1] <= 1.05 * middle + 5).all()
