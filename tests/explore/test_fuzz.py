"""Fuzzed requests and SQL: answers or refusals, never a failure. `scripts/page_load.py` sends 2,000."""

from __future__ import annotations

import io
import random

import duckdb
import pyarrow as pa
import pytest
from starlette.testclient import TestClient

import kdmkit as kdm
from kdmkit.explore.guard import ARROW

from .conftest import parcels
from .fuzz import requests, sql_text

pytestmark = [pytest.mark.usefixtures("unchecked"), pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("seed", range(2))
def test_fuzzed_requests_are_answered_or_refused(client: TestClient, seed: int) -> None:
    statuses = set()
    for path, body, kind in requests(random.Random(seed), 60):
        response = client.post(f"/api/models/parcels{path}", content=body, headers={"content-type": kind})
        statuses.add(response.status_code)
        assert response.status_code < 500, (path, body[:500], response.text[:300])
    assert {200, 422} <= statuses


def test_a_type_that_arrow_cannot_convert_is_refused(client: TestClient) -> None:
    rows = pa.table({"size": ["small"], "sent": pa.array([(1, 2, 3)], pa.month_day_nano_interval())})
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, rows.schema) as writer:
        writer.write_table(rows)
    for what in ("score", "impute", "predict?target=size"):
        response = client.post(
            f"/api/models/parcels/rows/{what}", content=stream.getvalue(), headers={"content-type": ARROW}
        )
        assert response.status_code == 422, response.text


def test_fuzzed_sql_has_an_answer_or_an_error_of_sql(table: kdm.KDMTable) -> None:
    rng, outcomes = random.Random(0), set()
    with duckdb.connect() as connection:
        connection.register("parcels", pa.table({name: cells[:20] for name, cells in parcels().items()}))
        kdm.sql.register(connection, table, "p", random_state=0)
        for _ in range(60):
            try:
                connection.execute(sql_text(rng)).fetchall()
                outcomes.add("answer")
            except duckdb.Error:
                outcomes.add("error")
    assert outcomes == {"answer", "error"}
