"""Answers of the server."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

from kdmkit.explore.errors import RequestError

_NO_STORE = {"cache-control": "no-store"}


def json_response(content: Any, status: int = 200) -> Response:
    """JSON; numbers that JSON lacks are an error of the server."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(text.encode(), status, _NO_STORE, "application/json")


def csv_response(text: str, name: str) -> Response:
    headers = {**_NO_STORE, "content-disposition": f'attachment; filename="{name}"'}
    return Response(text.encode(), 200, headers, "text/csv; charset=utf-8")


def problem(error: RequestError) -> Response:
    return json_response({"error": str(error)}, error.status)
