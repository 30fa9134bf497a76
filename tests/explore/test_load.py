"""Many people at once, and hostile ones among them: the server as a process of its own. Takes a minute."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

import kdmkit as kdm

from .conftest import saved_model

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unchecked")]

CLIENTS, MOVES_PER_SECOND = 20, 2.0
SECONDS = float(os.environ.get("KDMKIT_LOAD_SECONDS", "60"))


@pytest.fixture(scope="module")
def model(table: kdm.KDMTable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_model(table, tmp_path_factory)


class Running:
    """A server in another process."""

    def __init__(self, model: Path) -> None:
        command = [sys.executable, "-m", "kdmkit.cli", "explore", str(model), "--no-browser", "--workers=2"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        url = self.process.stdout.readline().partition(": ")[2].strip()
        self.port, self.token = urlsplit(url).port, url.partition("token=")[2]
        self.name = model.stem

    def wait(self) -> None:
        """Until the model is there, in both processes: the last ten connections say so."""
        end = time.monotonic() + 60
        ready = 0
        while ready < 10:
            assert time.monotonic() < end
            ready = ready + 1 if self.once("/api/state")["models"][0]["state"] == "ready" else 0
            time.sleep(0.1)

    def once(self, path: str) -> Any:
        with contextlib.closing(self.connect()) as connection:
            return self.ask(connection, path)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def ask(self, connection: http.client.HTTPConnection, path: str, body: Any = None) -> Any:
        headers = {"X-Kdmkit-Token": self.token, "Content-Type": "application/json"}
        method = "GET" if body is None else "POST"
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        content = json.loads(response.read())
        assert response.status == 200, content
        return content

    @property
    def memory(self) -> float:
        """Resident memory in MiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


@pytest.fixture
def running(model: Path) -> Iterator[Running]:
    if not Path("/proc/self/status").exists():
        pytest.skip("memory is read from /proc")
    running = Running(model)
    try:
        running.wait()
        yield running
    finally:
        running.process.terminate()
        running.process.communicate(timeout=20)


class Client(threading.Thread):
    """Holds one or two columns and moves the ends of a range, or picks levels."""

    def __init__(self, running: Running, columns: list[Any], seed: int, end: float) -> None:
        super().__init__()
        self.running, self.columns, self.end = running, columns, end
        self.random = random.Random(seed)
        self.times: list[float] = []
        self.errors: list[str] = []

    def run(self) -> None:
        with contextlib.closing(self.running.connect()) as connection:
            self.move(connection)

    def move(self, connection: http.client.HTTPConnection) -> None:
        given: dict[str, Any] = {}
        time.sleep(self.random.random() / MOVES_PER_SECOND)
        while time.monotonic() < self.end:
            start = time.monotonic()
            column = self.random.choice(self.columns)
            given = {**dict(list(given.items())[-1:]), column["name"]: self.condition(column)}
            try:
                self.running.ask(connection, f"/api/models/{self.running.name}/marginals", {"given": given})
                self.times.append(time.monotonic() - start)
            except Exception as error:
                self.errors.append(repr(error))
            time.sleep(max(0.0, start + 1 / MOVES_PER_SECOND - time.monotonic()))

    def condition(self, column: Any) -> Any:
        if column["bins"] is None:
            # Rare levels may exclude each other; the common ones never do.
            shares = column["prior"]["probabilities"]
            return {"values": [column["levels"][int(np.argmax(shares))]]}
        n = len(column["bins"])
        low, high = self.random.randrange(n // 2), self.random.randrange(n // 2, n)
        return {"range": {"low": column["bins"][low][0], "high": column["bins"][high][1]}}


def test_twenty_clients_for_a_minute(running: Running) -> None:
    columns = running.once(f"/api/models/{running.name}")["columns"]
    memory: list[float] = []
    end = time.monotonic() + SECONDS
    clients = [Client(running, columns, seed, end) for seed in range(CLIENTS)]
    for client in clients:
        client.start()
    while time.monotonic() < end:
        memory.append(running.memory)
        time.sleep(0.5)
    for client in clients:
        client.join()
    times = np.concatenate([client.times for client in clients])
    p50, p95 = np.quantile(times, [0.5, 0.95])
    half = len(memory) // 2
    print(
        f"{len(times)} moves, median {1e3 * p50:.0f} ms, p95 {1e3 * p95:.0f} ms, "
        f"memory {memory[half]:.0f} to {memory[-1]:.0f} MiB in the second half"
    )
    assert not [error for client in clients for error in client.errors]
    assert p95 <= 0.5
    assert memory[-1] - memory[half] <= 0.05 * memory[half]
