"""Processes that answer: slow questions, lost processes, silent connections, rows, metrics, and the end."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kdmkit as kdm
from kdmkit.explore.guard import RequestError
from kdmkit.explore.lanes import Lane

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are copied")

TOKEN = "a token of the test"

_SERVER = """
import os, sys, time
import kdmkit as kdm
from kdmkit.explore import PageModel, Server
from kdmkit.explore.table_page import TableModel

class Moody(TableModel):
    def ask(self, question):
        if question.query == "sleep":
            time.sleep(60)
        if question.query == "die":
            os._exit(1)
        if question.query == "hunger":
            return {"bytes": len(bytearray(1 << 30))}
        if question.query == "pid":
            return {"pid": os.getpid()}
        return super().ask(question)

def moody(entry):
    entry.model, entry.state = Moody("parcels", kdm.load(sys.argv[1])), "ready"

class MoodyModel(PageModel):
    prepare = moody

models = {"parcels": MoodyModel("parcels", None)}
server = Server(models, workers=2, time_limit=4.0, memory_limit=400, token=sys.argv[2])
print(server.port, flush=True)
server.run()
"""


class Asked:
    """A client of a running server."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.port = process, port

    def __call__(
        self, path: str, body: Any = None, kind: str = "application/json", token: str = TOKEN
    ) -> tuple[int, Any]:
        """Status and answer."""
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request("GET" if body is None else "POST", path, content, headers)
            response = connection.getresponse()
            answer = response.read()
        is_json = response.headers["content-type"] == "application/json"
        return response.status, json.loads(answer) if is_json else answer

    def ask(self, query: str) -> tuple[int, Any]:
        return self("/api/models/parcels/ask", {"query": query})


def within(seconds: float, is_so: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while not is_so() and time.monotonic() < end:
        time.sleep(0.05)
    return is_so()


@pytest.fixture(scope="module")
def asked(table: kdm.KDMTable, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    path = tmp_path_factory.mktemp("models") / "parcels"
    kdm.save(table, path)
    command = [sys.executable, "-c", _SERVER, str(path), TOKEN]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        asked = Asked(process, int(process.stdout.readline()))
        assert within(60, lambda: asked("/health")[0] == 200)
        yield asked
        process.terminate()


def test_a_slow_question_stops_nobody(asked: Asked) -> None:
    with ThreadPoolExecutor(4) as people:
        slow = people.submit(asked.ask, "sleep")
        answers = list(people.map(asked.ask, ["P(size)"] * 6))
        assert [status for status, _ in answers] == [200] * 6
        status, answer = slow.result()
    assert status == 504
    assert "more than 4 seconds" in answer["error"]
    assert asked.ask("P(size)")[0] == 200


def test_many_slow_questions_stop_nobody(asked: Asked) -> None:
    with ThreadPoolExecutor(8) as people:
        slow = [people.submit(asked.ask, "sleep") for _ in range(6)]
        time.sleep(1.5)
        start = time.monotonic()
        assert [asked.ask("P(size)")[0] for _ in range(4)] == [200] * 4
        assert time.monotonic() - start < 2
        assert not any(question.done() for question in slow)
        assert {question.result()[0] for question in slow} <= {503, 504}


def test_many_rows_wait_in_their_own_lane(asked: Asked) -> None:
    rows = {"size": ["small"] * 20_000, "items": [20] * 20_000}
    path = "/api/models/parcels/rows/predict?target=weight"
    with ThreadPoolExecutor(8) as people:
        large = [people.submit(asked, path, rows) for _ in range(3)]
        assert [asked.ask("P(size)")[0] for _ in range(4)] == [200] * 4
        assert {question.result()[0] for question in large} <= {200, 503}


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is limited on Linux")
def test_memory_of_a_question_is_limited(asked: Asked) -> None:
    status, answer = asked.ask("hunger")
    assert status == 413
    assert "more memory" in answer["error"]
    assert asked.ask("P(size)")[0] == 200


async def entered(lane: Lane, client: str, order: list[str]) -> None:
    await lane.enter(client, 10.0)
    order.append(client)


def test_clients_take_turns() -> None:
    async def check() -> None:
        lane, order = Lane(1, 8), []
        await lane.enter("a", 1.0)
        waiting = [asyncio.ensure_future(entered(lane, client, order)) for client in "aaab"]
        await asyncio.sleep(0)
        for _ in waiting:
            lane.leave()
            await asyncio.sleep(0.01)
        assert "".join(order) == "abaa"

    asyncio.run(check())


def test_a_client_takes_half_of_the_places() -> None:
    async def check() -> None:
        lane, order = Lane(1, 4), []
        await lane.enter("a", 1.0)
        waiting = [asyncio.ensure_future(entered(lane, client, order)) for client in "aa"]
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match="too many questions"):
            await lane.enter("a", 1.0)
        with pytest.raises(RequestError, match="busy"):
            await lane.enter("b", 0.01)
        waiting[0].cancel()
        await asyncio.sleep(0.01)
        assert lane.n_waiting == 1
        lane.leave()
        await waiting[1]
        lane.leave()
        await lane.enter("b", 0.01)
        assert lane.n_waiting == 0

    asyncio.run(check())


def test_a_lost_process_is_replaced(asked: Asked) -> None:
    status, answer = asked.ask("die")
    assert status == 500
    assert "lack of memory" in answer["error"]
    first = asked.ask("pid")[1]["pid"]
    os.kill(first, signal.SIGKILL)
    assert {asked.ask("pid")[0] for _ in range(4)} <= {200, 500}
    status, answer = asked.ask("pid")
    assert status == 200
    assert answer["pid"] != first


def test_silent_and_slow_connections_stop_nobody(asked: Asked) -> None:
    with contextlib.ExitStack() as stack:
        silent = []
        for i in range(150):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", asked.port), timeout=30))
            connection.sendall(b"" if i % 2 else b"POST /api/models/parcels/ask HTTP/1.1\r\nHost:")
            silent.append(connection)
        assert asked.ask("P(size)")[0] == 200
        with contextlib.suppress(ConnectionResetError):
            assert silent[0].recv(1) == b""  # the oldest ones are closed at once, the last ones in seconds
        with contextlib.suppress(ConnectionResetError):
            assert silent[-1].recv(1) == b""


def test_rows_have_the_answers_of_python(asked: Asked, table: kdm.KDMTable) -> None:
    rows = {"size": ["small", None, "huge"], "items": [20, 18, 3]}
    path = "/api/models/parcels/rows"
    status, answer = asked(f"{path}/predict?target=weight&interval=0.9", rows)
    assert status == 200
    frame = pa.table(rows)
    assert answer["weight"] == pytest.approx(table.predict(frame, "weight").tolist())
    low = table.predict_interval(frame, "weight")[:, 0].tolist()
    assert answer["weight low"] == pytest.approx(low)
    assert asked(f"{path}/score", rows)[1]["log_prob"] == pytest.approx(table.score_samples(frame).tolist())
    (expected,) = table.stream("probability", [frame], event="weight > 3")
    answer = asked(f"{path}/probability?event=weight+%3E+3", rows)[1]
    assert answer["probability"] == pytest.approx(expected["probability"].to_pylist())
    assert None not in asked(f"{path}/impute", rows)[1]["size"]


def test_rows_of_arrow_are_answered_in_arrow(asked: Asked, table: kdm.KDMTable) -> None:
    frame = pa.table({"size": ["small", None, "huge"]})
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, frame.schema) as writer:
        writer.write_table(frame)
    kind = "application/vnd.apache.arrow.stream"
    status, answer = asked("/api/models/parcels/rows/score", stream.getvalue(), kind)
    assert status == 200
    scores = pa.ipc.open_stream(answer).read_all()
    assert scores["log_prob"].to_pylist() == pytest.approx(table.score_samples(frame).tolist())


MISTAKES = {
    "no what": ("rows/fly", {"size": []}, "what: Input should be"),
    "no column": ("rows/predict?target=wait", {"size": ["small"]}, "did you mean 'weight'"),
    "no event": ("rows/probability", {"size": ["small"]}, "event"),
    "no list": ("rows/score", {"size": "small"}, "columns of cells as JSON"),
    "no object": ("rows/score", [1], "columns of cells as JSON"),
    "lengths": ("rows/score", {"size": ["small"], "items": [1, 2]}, "body"),
    "unknown option": ("rows/score?n=3", {"size": ["small"]}, "n: Extra inputs"),
    "query": ("ask", {"query": "P(siz)"}, "did you mean 'size'"),
    "no arrow": ("rows/score", b"\x00\x01 no JSON", "columns of cells as JSON"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_refused(asked: Asked, mistake: str) -> None:
    path, body, text = MISTAKES[mistake]
    status, answer = asked(f"/api/models/parcels/{path}", body)
    assert status == 422
    assert text in answer["error"]


def test_metrics_count_requests(asked: Asked) -> None:
    asked.ask("P(size)")
    status, text = asked("/metrics")
    assert status == 200
    assert b'kdmkit_requests_total{path="/ask",status="200"}' in text
    assert b'kdmkit_processes_replaced_total{model="parcels"}' in text
    assert asked("/metrics", token="another")[0] == 401


def test_the_document_names_rows(asked: Asked) -> None:
    document = asked("/openapi.json")[1]
    paths = document["paths"]
    operation = paths["/api/models/{model}/rows/{what}"]["post"]
    assert {p["name"]: p["in"] for p in operation["parameters"]} == {
        "model": "path",
        "what": "path",
        "target": "query",
        "event": "query",
        "interval": "query",
        "proba": "query",
    }
    assert "application/vnd.apache.arrow.stream" in operation["requestBody"]["content"]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="processes are listed in /proc")
def test_the_processes_end_with_the_server(table: kdm.KDMTable, tmp_path: Path) -> None:
    kdm.save(table, tmp_path / "parcels")
    command = [sys.executable, "-m", "kdmkit.cli", "serve", str(tmp_path / "parcels"), "--port", "0"]
    environment = {**os.environ, "KDMKIT_TOKEN": TOKEN}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert TOKEN not in line
        asked = Asked(process, int(line.partition("/openapi")[0].rpartition(":")[2]))
        assert within(60, lambda: asked("/health")[0] == 200)
        assert asked("/")[0] == 404  # no page
        assert asked.ask("P(size)")[0] == 200
        template = children(process.pid)
        workers = [child for one in template for child in children(one)]
        assert workers
        process.terminate()
    assert within(20, lambda: all(map(has_ended, [*template, *workers])))


def children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def has_ended(process: int) -> bool:
    """Whether a process is gone, or only waits for its parent to notice."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
