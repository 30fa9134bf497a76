"""A server as a process of its own, and clients that move sliders."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

MOVES_PER_SECOND = 2.0


class Running:
    """A server in another process.

    Args:
        model: the file of a table.
        options: of `kdmkit explore`.
    """

    def __init__(self, model: Path, *options: str) -> None:
        command = [sys.executable, "-m", "kdmkit.cli", "explore", str(model), "--no-browser", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().partition(": ")[2].strip()
        self.port, self.token = urlsplit(self.url).port, self.url.partition("token=")[2]
        self.name = model.stem

    def __enter__(self) -> Running:
        end = time.monotonic() + 120
        while self.once("/api/state")["models"][0]["state"] != "ready":
            assert time.monotonic() < end
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.communicate(timeout=60)

    def once(self, path: str, body: Any = None) -> Any:
        with contextlib.closing(self.connect()) as connection:
            return self.ask(connection, path, body)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def ask(self, connection: http.client.HTTPConnection, path: str, body: Any = None) -> Any:
        """The answer, whose status must be 200."""
        content = None if body is None else json.dumps(body).encode()
        status, answer = self.send(connection, path, content)
        assert status == 200, answer
        return json.loads(answer)

    def send(
        self,
        connection: http.client.HTTPConnection,
        path: str,
        body: bytes | None,
        kind: str = "application/json",
    ) -> tuple[int, bytes]:
        """Status and answer."""
        headers = {"X-Kdmkit-Token": self.token, "Content-Type": kind}
        connection.request("GET" if body is None else "POST", path, body, headers)
        response = connection.getresponse()
        return response.status, response.read()

    @property
    def memory(self) -> tuple[float, float]:
        """Memory in MiB of the server, and of the processes of its model; shared parts count once."""
        server, *others = _descendants(self.process.pid)
        return _memory(server), sum(map(_memory, others))


def _descendants(process: int) -> list[int]:
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [process, *(each for child in children for each in _descendants(int(child)))]


def _memory(process: int) -> float:
    """The proportional share of a process (PSS); 0 if it has ended."""
    with contextlib.suppress(OSError):
        found = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{process}/smaps_rollup").read_text(), re.MULTILINE)
        return int(found[1]) / 1024 if found else 0.0
    return 0.0


class Client(threading.Thread):
    """Holds one or two columns and moves the ends of a range, or picks levels.

    Args:
        columns: of the view of the table.
        seed: of the moves.
        end: when to stop, as `time.monotonic` has it.
    """

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


def moves(running: Running, n_clients: int, seconds: float) -> tuple[np.ndarray, list[str], np.ndarray]:
    """Seconds of moves of some clients, errors, and the memory over time (server, processes of the model)."""
    columns = running.once(f"/api/models/{running.name}")["columns"]
    end = time.monotonic() + seconds
    clients = [Client(running, columns, seed, end) for seed in range(n_clients)]
    for client in clients:
        client.start()
    memory = []
    while time.monotonic() < end:
        memory.append(running.memory)
        time.sleep(0.5)
    for client in clients:
        client.join()
    times = np.concatenate([client.times for client in clients])
    return times, [error for client in clients for error in client.errors], np.array(memory)
