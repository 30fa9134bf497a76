"""The server: the page, its files, and the API."""

from __future__ import annotations

import hashlib
import mimetypes
import secrets
from collections.abc import Callable, Collection, Mapping
from functools import cache
from importlib import resources
from typing import Any

import anyio
import anyio.to_thread
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from kdmkit._core.runtime import in_one_thread
from kdmkit.explore.endpoints import ENDPOINTS, Endpoint, openapi
from kdmkit.explore.guard import Guard, RequestError, json_response
from kdmkit.explore.page_models import Models

# Questions that are computed at the same time.
_AT_ONCE = 1
# The longest error text in an answer, in characters.
_LONGEST = 500


def create_app(
    models: Mapping[str, Any] | Models,
    *,
    host: str = "127.0.0.1",
    token: str | None = None,
    allowed_hosts: Collection[str] = (),
    start: bool = True,
) -> ASGIApp:
    """The application (ASGI) that shows models.

    Args:
        models: fitted models (`KDMTable`, or `KDMClassifier` of square images) by name, or functions that
            make them.
        host: the address that the server listens on.
        token: the header `X-Kdmkit-Token` that requests need; None is a random one.
        allowed_hosts: names by which the server may be called, beside this machine and its addresses.
        start: whether to make the models now, in the background.

    Returns:
        The application, for any ASGI server.

    With `table` as in the example of `KDMTable`:

    >>> app = create_app({"weights": table}, token="secret")
    """
    page_models = models if isinstance(models, Models) else Models(models)
    if start:
        page_models.start()
    limiter: list[anyio.CapacityLimiter] = []

    async def compute(call: Callable[..., Any], *arguments: Any) -> Any:
        if not limiter:  # belongs to the event loop
            limiter.append(anyio.CapacityLimiter(_AT_ONCE))
        try:
            return await anyio.to_thread.run_sync(in_one_thread, call, *arguments, limiter=limiter[0])
        except (ValueError, TypeError, OverflowError) as error:
            raise RequestError(422, str(error)[:_LONGEST]) from error

    async def state(_: Request) -> Response:
        from kdmkit import __version__

        return json_response({"version": __version__, "models": page_models.view()})

    routes = [
        Route("/", _page),
        Route("/openapi.json", _document),
        Route("/static/{name}", _file),
        Route("/api/state", state),
        *(
            Route(
                f"/api/models/{{model}}{one.path}", _handler(one, page_models, compute), methods=[one.method]
            )
            for one in ENDPOINTS
        ),
    ]
    handlers = dict.fromkeys((RequestError, HTTPException, Exception), _error_response)
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return Guard(app, host=host, token=token or secrets.token_urlsafe(16), allowed_hosts=allowed_hosts)


def _handler(endpoint: Endpoint, models: Models, compute: Callable[..., Any]) -> Callable[..., Any]:
    async def answer(request: Request) -> Response:
        model = models.get(request.path_params["model"], endpoint.kind)
        arguments = []
        if endpoint.body is not None:
            try:
                arguments.append(endpoint.body.model_validate_json(await request.body()))
            except ValidationError as error:
                raise RequestError(422, _first_problem(error)) from error
        reply = await compute(getattr(model, endpoint.method_name), *arguments)
        if isinstance(reply, str):
            headers = {"cache-control": "no-store", "content-disposition": 'attachment; filename="draws.csv"'}
            return Response(reply.encode(), 200, headers, "text/csv; charset=utf-8")
        return json_response(reply)

    return answer


def _first_problem(error: ValidationError) -> str:
    """The first problem of a request in one line."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"]) or "body"
    return f"{place}: {first['msg']}"[:_LONGEST]


# ---- files


@cache
def _files() -> dict[str, tuple[bytes, str, str]]:
    """The files of the page by name: content, type and tag. No other files are served."""
    files = {}
    for file in resources.files("kdmkit.explore").joinpath("static").iterdir():
        content = file.read_bytes()
        kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        kind = "text/javascript" if file.name.endswith(".js") else kind
        files[file.name] = (content, kind, f'"{hashlib.sha256(content).hexdigest()[:16]}"')
    return files


async def _page(request: Request) -> Response:
    return _served("index.html", request)


async def _file(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _files() or name == "index.html":
        raise HTTPException(404)
    return _served(name, request)


def _served(name: str, request: Request) -> Response:
    content, kind, tag = _files()[name]
    headers = {"etag": tag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, 200, headers, f"{kind}; charset=utf-8" if kind.startswith("text/") else kind)


async def _document(_: Request) -> Response:
    from kdmkit import __version__

    return json_response(openapi(__version__))


async def _error_response(_: Request, error: Exception) -> Response:
    if isinstance(error, RequestError):
        return error.response()
    if isinstance(error, HTTPException):
        return json_response({"error": error.detail}, error.status_code)
    return json_response({"error": f"the server failed: {type(error).__name__}"}, 500)
