"""Requests that are malformed or hostile get a status of 4xx, and the server goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import kdmkit as kdm
from kdmkit.explore import create_app
from kdmkit.explore.app import _files, openapi
from kdmkit.explore.endpoints import ENDPOINTS
from kdmkit.explore.guard import may_be_host
from kdmkit.explore.page_models import ThreadModels

pytestmark = pytest.mark.usefixtures("unchecked")

MARGINALS = "/api/models/parcels/marginals"
DEEP = "[" * 100_000


def given(**columns: Any) -> dict[str, Any]:
    return {"given": columns}


#: Bodies that the API refuses, as JSON values or as bytes.
BODIES: list[Any] = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'"text"',
    b"1e999",
    b"\xff\xfe",
    DEEP.encode(),
    ('{"given":' * 5_000).encode(),
    b'{"given": {"weight": {"values": [NaN]}}}',
    b'{"given": {"weight": {"values": [Infinity]}}}',
    b'{"given": {"weight": {"values": [1e999]}}}',
    b'{"given": {"weight": {"values": [' + b"9" * 5_000 + b"]}}}",
    {"given": None},
    {"given": []},
    {"given": "size = huge"},
    {"unknown": 1},
    given(size=None),
    given(size="huge"),
    given(size={}),
    given(size={"values": []}),
    given(size={"values": ["huge"], "missing": True}),
    given(size={"values": ["enormous"]}),
    given(size={"values": [["huge"]]}),
    given(size={"values": [{"$gt": ""}]}),
    given(size={"values": ["huge"] * 5_000}),
    given(size={"values": ["x" * 5_000]}),
    given(size={"range": {"low": "huge"}}),
    given(size={"range": {"low": "huge", "high": "small"}}),
    given(weight={"values": ["heavy"]}),
    given(weight={"values": [-5]}, items={"values": [-1]}),
    given(weight={"range": {"low": 9, "high": 1}}),
    given(weight={"range": {"low": 1, "middle": 2}}),
    given(weight={"range": [1, 2]}),
    given(weight={"values": [10**18, 1e300, -1e300]}, items={"values": [10**18]}),
    given(sent={"values": ["yesterday"]}),
    given(sent={"range": {"low": "2024-13-45"}}),
    given(sent={"values": [12]}),
    given(note={"values": ["parcel 1"]}),
    given(colour={"values": ["red"]}),
    given(**{"x" * 5_000: {"values": [1]}}),
    given(**{f"c{i}": {"missing": True} for i in range(6_000)}),
    {"target": 7},
]

#: Draws, rows, targets, images and labels that are refused.
OTHERS: list[tuple[str, Any]] = [
    *(("parcels/draws", {"n": n}) for n in (0, -1, 10_001, 10**30, 1.5, "10", None, True, [1])),
    *(("parcels/draws", {"seed": seed}) for seed in (-1, 2**32, "a")),
    ("parcels/draws.csv", {"n": 10**9}),
    *(("parcels/next", body) for body in ({}, {"target": None}, {"target": "note"}, {"target": ["size"]})),
    *(("parcels/explain", body) for body in ({}, {"csv": ""}, {"csv": 5}, {"csv": "x" * 300_000})),
    ("parcels/explain", {"csv": "size\nhuge\n", "row": 5}),
    ("parcels/explain", {"csv": "size\nhuge\n", "row": -1}),
    ("parcels/explain", {"csv": "size,size\nhuge,small\n"}),
    ("parcels/explain", {"csv": "/etc/passwd"}),
    *(("digits/read", {"pixels": pixels}) for pixels in (None, "0", [[0] * 8] * 8, [None] * 64, [0] * 10**5)),
    *(("digits/images", body) for body in ({}, {"label": None}, {"label": 3, "n": 1000}, {"label": 30})),
    *(("digits/images", {"label": 3, "spread": spread}) for spread in (0, -1, 1e9, "wide")),
]

#: Paths that lead nowhere, with their method.
PATHS = [
    ("GET", "/static/../app.py"),
    ("GET", "/static/%2e%2e/app.py"),
    ("GET", "/static/..%2f..%2fcli%2f__init__.py"),
    ("GET", "/static//etc/passwd"),
    ("GET", "/static/%00"),
    ("GET", "/static/index.html"),
    ("GET", "/etc/passwd"),
    ("GET", "/api/models/%2e%2e%2f%2e%2e%2fetc%2fpasswd"),
    ("GET", "/api/models/other"),
    ("GET", "/api/models/parcels/read"),
    ("GET", "/api/models/parcels/marginals"),
    ("POST", "/api/models/parcels/links"),
    ("POST", "/api/models/parcels/read"),
    ("POST", "/api/models/digits/marginals"),
    ("PUT", "/api/models/parcels"),
    ("DELETE", "/api/models/parcels"),
    ("TRACE", "/api/state"),
    ("OPTIONS", "/api/state"),
    ("POST", "/"),
]

HOSTS = ["evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example", "169.254.1.1"]
HOSTS += [
    "127.0.0.1@evil.example",
    "127.0.0.1/x",
    "",
    "127.0.0.1:port",
    "[::",
    "localhost#",
    "127.0.0.1, evil",
]
TOKENS = [None, "", "secret ", "Secret", "secret\u00e9", "x" * 10_000]


def alive(client: TestClient) -> bool:
    return client.post(MARGINALS, json={}).status_code == 200


def refused(response: Any) -> None:
    assert 400 <= response.status_code < 500, (response.status_code, response.text[:300])
    assert "Traceback" not in response.text
    assert isinstance(response.json()["error"], str)


def test_there_are_a_hundred() -> None:
    assert len(BODIES) + len(OTHERS) + len(PATHS) + len(HOSTS) + len(TOKENS) + 5 >= 100


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_malformed_questions(client: TestClient, body: Any) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    refused(client.post(MARGINALS, content=content, headers={"content-type": "application/json"}))
    assert alive(client)


@pytest.mark.parametrize(("path", "body"), OTHERS, ids=range(len(OTHERS)))
def test_malformed_requests(client: TestClient, path: str, body: Any) -> None:
    refused(client.post(f"/api/models/{path}", json=body))
    assert alive(client)


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_no_file_and_no_unknown_path(client: TestClient, method: str, path: str) -> None:
    refused(client.request(method, path, json={} if method in ("POST", "PUT") else None))
    assert alive(client)


@pytest.mark.parametrize("host", HOSTS)
def test_foreign_hosts(client: TestClient, host: str) -> None:
    for path in ("/", "/api/state", "/static/main.js"):
        response = client.get(path, headers={"host": host})
        refused(response)
        assert response.status_code == 403
    assert alive(client)


@pytest.mark.parametrize("token", TOKENS)
def test_no_token(client: TestClient, token: str | None) -> None:
    sent = {} if token is None else {"x-kdmkit-token": token.encode()}
    with TestClient(client.app, base_url="http://127.0.0.1") as stranger:
        assert stranger.get("/").status_code == 200
        response = stranger.get("/api/state", headers=sent)
        refused(response)
        assert response.status_code == 401
        assert stranger.get(f"/api/state?token={token}").status_code == 401


def test_large_bodies(client: TestClient) -> None:
    kind = {"content-type": "application/json"}
    assert client.post(MARGINALS, content=b" " * (2 << 20), headers=kind).status_code == 413
    parts = (b" " * 65_536 for _ in range(40))  # no length beforehand
    assert client.post(MARGINALS, content=parts, headers=kind).status_code == 413
    length = {**kind, "content-length": "9" * 30}
    assert client.post(MARGINALS, content=b"{}", headers=length).status_code == 413
    assert alive(client)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_only_json(client: TestClient, kind: str) -> None:
    assert client.post(MARGINALS, content=b"{}", headers={"content-type": kind}).status_code == 415


def test_the_page_keeps_to_itself(client: TestClient) -> None:
    response = client.get("/")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    assert "access-control-allow-origin" not in response.headers
    tag = response.headers["etag"]
    assert client.get("/", headers={"if-none-match": tag}).status_code == 304


def test_the_page_asks_no_other_server() -> None:
    static = Path(kdm.__file__).parent / "explore" / "static"
    for file in static.iterdir():
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "//" not in text.replace("// ", "").replace("\n//", ""), file.name
    assert sum(len(content) for content, _, _ in _files().values()) <= 1_000_000


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:8000", "127.9.9.9"])
def test_own_hosts(host: str) -> None:
    assert may_be_host(host, "127.0.0.1")


def test_other_addresses() -> None:
    assert may_be_host("kdm.example:8000", "0.0.0.0", ["KDM.example"])
    assert may_be_host("192.0.2.1", "0.0.0.0")
    assert may_be_host("[2001:db8::1]:80", "::")
    assert not may_be_host("kdm.example", "0.0.0.0")


def test_failures_of_the_server_tell_no_details(table: kdm.KDMTable) -> None:
    models = ThreadModels({"parcels": table})
    models.prepare()
    models.check("parcels").model.links = lambda: 1 / 0
    with TestClient(
        create_app(models, token="t"),
        base_url="http://127.0.0.1",
        headers={"x-kdmkit-token": "t"},
        raise_server_exceptions=False,
    ) as client:
        response = client.get("/api/models/parcels/links")
    assert response.status_code == 500
    assert response.json() == {"error": "the server failed: ZeroDivisionError"}


def test_models_that_are_not_there_yet(table: kdm.KDMTable) -> None:
    def fail() -> Any:
        raise ValueError("no such file")

    models = ThreadModels({"parcels": lambda: table, "broken": fail})
    app = create_app(models, token="t", start=False)
    with TestClient(app, base_url="http://127.0.0.1", headers={"x-kdmkit-token": "t"}) as client:
        assert client.get("/api/models/parcels").status_code == 503
        models.prepare()
        assert client.get("/api/models/parcels").status_code == 200
        assert client.get("/api/models/broken").json() == {"error": "no such file"}
        states = {model["name"]: model["state"] for model in client.get("/api/state").json()["models"]}
    assert states == {"parcels": "ready", "broken": "failed"}


# ---- documentation of the API


def test_the_document_describes_every_question(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    assert document == openapi(kdm.__version__, "kdmkit explore")
    assert {"/health", "/metrics", "/api/state"} <= document["paths"].keys()
    assert {"4XX", "503", "504"} <= document["paths"]["/metrics"]["get"]["responses"].keys()
    for endpoint in ENDPOINTS:
        path = document["paths"][f"/api/models/{{model}}{endpoint.path}"]
        assert list(path) == [endpoint.method.lower()]
    for reference in references(document):
        place: Any = document
        for part in reference.removeprefix("#/").split("/"):
            place = place[part]
        assert place


def references(part: Any) -> list[str]:
    if isinstance(part, dict):
        own = [part["$ref"]] if isinstance(part.get("$ref"), str) else []
        return own + [found for value in part.values() for found in references(value)]
    return [found for value in part for found in references(value)] if isinstance(part, list) else []
