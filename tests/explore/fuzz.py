"""Random and mutated requests to the API: JSON, rows of JSON and of Arrow; and mutated SQL."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from kdmkit.explore.guard import ARROW

#: Path below the model, body, and its type.
Request = tuple[str, bytes, str]
_JSON = "application/json"

_ODD: list[Any] = [
    *(None, True, 0, -1, 2**63 - 1, -(2**63), 10**30, 1e308, -1e-308, 0.1, "", "a" * 2000, "\x00", "é\u202e"),
    *("huge", "small", "NaN", "2024-01-01", "x'; DROP TABLE t; --", "P(size)", [], {}, [[]], {"low": 1}),
]
_QUERIES = (
    "P(size | weight > 3)",
    "P(weight between 2 and 5, stars in {1, 2} | fragile = True)",
    "P(sent >= 2024-02-01 or items is missing | not size = huge)",
    "weight > items and stars != 3",
)
_BODIES: dict[str, Any] = {
    "/marginals": {"given": {"size": {"values": ["huge"]}, "weight": {"range": {"low": 1, "high": 4}}}},
    "/held": {"given": {"items": {"range": {"low": 10, "high": 20}}, "weight": {"missing": True}}},
    "/next": {"target": "size", "given": {"stars": {"values": [2, 3]}}},
    "/draws": {"n": 3, "seed": 1, "given": {"sent": {"range": {"low": "2024-01-05", "high": None}}}},
    "/draws.csv": {"n": 2},
    "/columns": {"columns": ["size", "weight"]},
    "/explain": {"csv": "size,weight\nhuge,3\nsmall,\n", "row": 1},
    "/completed.csv": {"csv": "size,weight\nhuge,3\nsmall,\n", "target": "weight"},
    "/ask": {"query": _QUERIES[0]},
}
_ROWS: dict[str, list[Any]] = {
    "size": ["small", None, "huge"],
    "weight": [1.5, None, 9.0],
    "items": [20, 3, None],
    "stars": [1, 5, 3],
    "fragile": [True, None, False],
    "sent": [datetime(2024, 1, 5), None, datetime(2024, 3, 1)],
}
_TYPES = [
    *(pa.int8(), pa.uint64(), pa.float16(), pa.float64(), pa.bool_(), pa.string(), pa.large_string()),
    *(pa.binary(), pa.date32(), pa.timestamp("ns", "UTC"), pa.duration("s"), pa.decimal128(20, 3), pa.null()),
    *(pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.dictionary(pa.int32(), pa.string())),
]


def mutated_text(rng: random.Random, text: str) -> str:
    """A text with some characters taken out, repeated or replaced."""
    characters = list(text)
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        place = rng.randrange(len(characters) + 1)
        part = rng.choice(("", rng.choice("()|,=<>{}'\"`\\%é\x00 "), "9" * 40, " and ", text[:20]))
        characters[place : place + rng.randrange(3)] = list(part)
    return "".join(characters)


def mutated_value(rng: random.Random, value: Any) -> Any:
    """JSON with some parts replaced."""
    if rng.random() < 0.12:
        return rng.choice(_ODD)
    if isinstance(value, dict):
        renamed = {
            (rng.choice(("odd", "", k + "s")) if rng.random() < 0.06 else k): v for k, v in value.items()
        }
        return {key: mutated_value(rng, part) for key, part in renamed.items()}
    if isinstance(value, list):
        return [mutated_value(rng, part) for part in value * rng.choice((1, 1, 1, 0, 3))]
    return mutated_text(rng, value) if isinstance(value, str) and rng.random() < 0.3 else value


def json_request(rng: random.Random) -> Request:
    """A question in JSON, whose parts or whose bytes may be wrong."""
    path = rng.choice(list(_BODIES))
    body = {"query": mutated_text(rng, rng.choice(_QUERIES))} if path == "/ask" else _BODIES[path]
    text = json.dumps(mutated_value(rng, body))
    return path, (mutated_text(rng, text) if rng.random() < 0.2 else text).encode(), _JSON


def rows_path(rng: random.Random) -> str:
    """Something about rows, with options that may be wrong."""
    what = rng.choice(("score", "predict", "probability", "impute", "impute", "fly"))
    options = {
        "target": rng.choice((*_ROWS, "note", "")),
        "event": mutated_text(rng, rng.choice(_QUERIES[2:])),
        "interval": rng.choice(("0.9", "1", "nan", "x")),
        "proba": rng.choice(("true", "false", "2")),
    }
    usual = {"predict": ["target"], "probability": ["event"]}.get(what, [])
    chosen = usual if rng.random() < 0.7 else rng.sample(list(options), rng.randrange(4))
    return f"/rows/{what}?" + "&".join(f"{name}={quote(options[name])}" for name in chosen)


def rows_request(rng: random.Random) -> Request:
    """Rows as columns of JSON."""
    rows = {name: cells for name, cells in _ROWS.items() if name != "sent" and rng.random() < 0.7}
    return (
        rows_path(rng),
        json.dumps(mutated_value(rng, rows) if rng.random() < 0.7 else rows).encode(),
        _JSON,
    )


def arrow_request(rng: random.Random) -> Request:
    """Rows as a stream of Arrow, in types that may be others, with bytes that may be wrong."""
    n = rng.choice((0, 1, 3, 3, 3, 50))
    columns = {}
    for name, cells in _ROWS.items():
        if rng.random() < 0.7:
            kind = rng.choice(_TYPES) if rng.random() < 0.3 else None
            repeated = (cells * 20)[:n]
            columns[name] = pa.array(repeated) if kind is None else _as_type(repeated, kind)
    table = pa.table(columns)
    if rng.random() < 0.1 and columns:
        table = table.append_column(table.column_names[0], table.column(0))
    stream = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=rng.choice((None, None, "zstd", "lz4")))
    with pa.ipc.new_stream(stream, table.schema, options=options) as writer:
        writer.write_table(table)
    content = bytearray(stream.getvalue())
    for _ in range(rng.choice((0, 0, 1, 1, 4, 30))):
        content[rng.randrange(len(content))] = rng.randrange(256)
    if rng.random() < 0.1:
        del content[rng.randrange(len(content)) :]
    return rows_path(rng), bytes(content), ARROW


def _as_type(cells: list[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(cells).cast(kind)
    except pa.ArrowException:
        return pa.nulls(len(cells), kind)


def requests(rng: random.Random, n: int) -> Iterator[Request]:
    """Requests of all kinds."""
    kinds: list[Callable[[random.Random], Request]] = [
        json_request,
        json_request,
        rows_request,
        arrow_request,
    ]
    for i in range(n):
        yield kinds[i % len(kinds)](rng)


#: Expressions of SQL about a table of parcels that is registered as "p", with rows in `parcels`.
SQL = (
    "SELECT p_logp(r) FROM parcels r",
    "SELECT p_predict(r, 'weight') FROM parcels r",
    "SELECT p_quantile({'size': r.size}, 'items', 0.3) FROM parcels r",
    "SELECT p_probability(r, 'weight > 3 and size = huge') FROM parcels r",
    "SELECT p_level({'weight': 2.5, 'sent': DATE '2024-01-03'}, 'size')",
    "SELECT * FROM p_sample(5, given := 'stars >= 3')",
    "SELECT unnest(p_draw({'size': 'small'}), recursive := true)",
)


def sql_text(rng: random.Random) -> str:
    """A query whose values, types or characters may be wrong."""
    text = rng.choice(SQL)
    for _ in range(rng.choice((0, 1, 1, 2))):
        literals = (
            "NULL",
            "-1",
            "1e308",
            "''",
            "'x'",
            "[1]",
            "{'a': 1}",
            "TRUE",
            "'weight'",
            "INTERVAL 1 DAY",
        )
        odd = rng.choice(literals)
        text = text.replace(rng.choice(("'weight'", "'items'", "0.3", "5", "2.5", "'small'", "r,")), odd, 1)
    return mutated_text(rng, text) if rng.random() < 0.5 else text
