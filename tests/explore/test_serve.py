"""The server on a real port, and how it is started."""

from __future__ import annotations

import contextlib
import http.client
import json
import shlex
import socket
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import kdmkit as kdm
from kdmkit._core.runtime import in_one_thread
from kdmkit.cli.commands import app
from kdmkit.explore import Server, example_models
from kdmkit.explore import serve as serving
from kdmkit.explore.endpoints import TableQuestion
from kdmkit.explore.table_page import TableModel

pytestmark = pytest.mark.usefixtures("unchecked")


def get(server: Server, path: str, **headers: str) -> tuple[int, bytes]:
    """Status and body."""
    url = server.url.partition("#")[0].rstrip("/") + path
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_a_table_is_shown_beside_a_notebook(table: kdm.KDMTable, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(serving.webbrowser, "open", opened.append)
    server = table.explore()
    try:
        assert server.url.startswith("http://127.0.0.1:")
        assert b"kdmkit explore" in get(server, "/")[1]
        state = json.loads(get(server, "/api/state", **{"X-Kdmkit-Token": server.token})[1])
        assert [model["name"] for model in state["models"]] == ["table"]
        assert get(server, "/api/state")[0] == 401
    finally:
        server.stop()
    assert opened == [server.url]
    with pytest.raises(OSError, match=r"refused|urlopen"):
        get(server, "/")


def test_answers_leave_at_once(table: kdm.KDMTable) -> None:
    """Without TCP_NODELAY the body of an answer waits some 40 ms behind its header."""
    server = Server({"table": table}).start()
    try:
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        ) as connection:
            connection.request("GET", "/")
            connection.getresponse().read()
            (open_one,) = server._server.server_state.connections
            accepted = open_one.transport.get_extra_info("socket")
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    finally:
        server.stop()


def test_questions_take_one_thread_and_leave_others_theirs() -> None:
    usual = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with ThreadPoolExecutor(1) as asked:
            assert asked.submit(in_one_thread, torch.get_num_threads).result() == 1
        assert torch.get_num_threads() == 2
        with ThreadPoolExecutor(1) as new:
            assert new.submit(torch.get_num_threads).result() == 2
    finally:
        torch.set_num_threads(usual)


def test_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ValueError, match="host, port: expected an address that is free"):
            Server({"table": object}, port=taken.getsockname()[1])


def test_the_command_needs_a_model_that_is_there(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["explore", str(tmp_path / "nothing"), "--no-browser"])
    assert result.exit_code == 2
    assert "model: expected a file that kdmkit wrote" in result.output.replace("\n", " ")


def test_the_command_ends_where_the_model_cannot_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no model")
    result = CliRunner().invoke(app, ["explore", str(tmp_path / "text"), "--no-browser"])
    assert result.exit_code == 2
    assert "#token=" in result.output


def test_the_shell_line_of_the_example_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands on the page, with one epoch in place of many."""
    monkeypatch.chdir(tmp_path)
    entry = example_models()["penguins"]
    model = TableModel("penguins", entry.source(), entry.path, entry.fit_command)
    line = model.marginals(TableQuestion(target="sex"))["texts"]["shell"].replace("--epochs 60", "--epochs 1")
    for command in line.split(" && "):
        program, *arguments = shlex.split(command)
        assert program == "kdmkit"
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
    assert "male" in result.output


def test_a_table_without_a_file_has_no_shell_line(table: kdm.KDMTable) -> None:
    assert set(TableModel("table", table).marginals(TableQuestion())["texts"]) == {"python"}


def test_examples_need_no_download() -> None:
    examples = example_models()
    assert {name: entry.kind for name, entry in examples.items()} == {
        "penguins": "table",
        "digits": "images",
    }
    from kdmkit.explore.page_models import fit_digits, penguins

    columns = penguins()
    assert {len(values) for values in columns.values()} == {344}
    assert columns["species"][0] == "Adelie"
    assert fit_digits(20).score_samples([[0.0] * 64]).shape == (1,)
