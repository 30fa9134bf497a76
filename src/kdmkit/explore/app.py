"""The server: the page, its files, and the API."""

from __future__ import annotations

import hashlib
import mimetypes
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import cache
from importlib import resources
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from kdmkit.explore.endpoints import ENDPOINTS, Endpoint, Health, PageState, RowQuestion
from kdmkit.explore.guard import ARROW, Guard, RequestError, is_arrow, json_response
from kdmkit.explore.page_models import Models, ThreadModels

# The longest error text in an answer, in characters; the schema of texts.
_LONGEST, _TEXT = 500, {"type": "string"}


def create_app(
    models: Mapping[str, Any] | Models,
    *,
    host: str = "127.0.0.1",
    token: str | None = None,
    allowed_hosts: Collection[str] = (),
    start: bool = True,
    page: bool = True,
) -> ASGIApp:
    """The application (ASGI) that shows models.

    Args:
        models: fitted models (`KDMTable`, or `KDMClassifier` of square images) by name, or functions that
            make them.
        host: the address that the server listens on.
        token: what requests need, as the header `X-Kdmkit-Token` or `Authorization: Bearer …`; None is a
            random one.
        allowed_hosts: names by which the server may be called, beside this machine and its addresses.
        start: whether to make the models now, in the background.
        page: whether it has the page, beside the API.

    Returns:
        The application, for any ASGI server.

    With `table` as in the example of `KDMTable`:

    >>> app = create_app({"weights": table}, token="secret")
    """
    page_models = models if isinstance(models, Models) else ThreadModels(models)
    if start:
        page_models.start()
    metrics = Metrics(page_models)

    async def state(_: Request) -> Response:
        from kdmkit import __version__

        return json_response({"version": __version__, "models": page_models.view()})

    async def health(_: Request) -> Response:
        states = {model["state"] for model in page_models.view()}
        status = "ready" if states == {"ready"} else "failed" if "failed" in states else "loading"
        return json_response({"status": status}, 200 if status == "ready" else 503)

    async def document(_: Request) -> Response:
        from kdmkit import __version__

        return json_response(openapi(__version__, "kdmkit explore" if page else "kdmkit serve"))

    async def show_metrics(_: Request) -> Response:
        return Response(metrics.text(), 200, {"cache-control": "no-store"}, "text/plain; version=0.0.4")

    routes = [
        Route("/health", health),
        Route("/metrics", show_metrics),
        Route("/openapi.json", document),
        Route("/api/state", state),
        *(
            Route(
                f"/api/models/{{model}}{one.path}",
                metrics.timed(one, _handler(one, page_models)),
                methods=[one.method],
            )
            for one in ENDPOINTS
        ),
        *([Route("/", _page), Route("/static/{name}", _file)] if page else []),
    ]
    handlers = dict.fromkeys((RequestError, HTTPException, Exception), _error_response)
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return Guard(app, host=host, token=token or secrets.token_urlsafe(16), allowed_hosts=allowed_hosts)


Handler = Callable[[Request], Awaitable[Response]]


class Metrics:
    """Counts and times of requests, as Prometheus reads them.

    Args:
        models: of the server.
    """

    def __init__(self, models: Models) -> None:
        self._models = models
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def timed(self, endpoint: Endpoint, handler: Handler) -> Handler:
        """The handler, with its requests counted."""
        path = endpoint.path or "/"

        async def counted(request: Request) -> Response:
            start, status = time.perf_counter(), 500
            try:
                response = await handler(request)
                status = response.status_code
                return response
            except RequestError as error:
                status = error.status
                raise
            finally:
                self._requests[path, status] += 1
                self._seconds[path] += time.perf_counter() - start

        return counted

    def text(self) -> str:
        requests = [
            f'kdmkit_requests_total{{path="{path}",status="{status}"}} {n}'
            for (path, status), n in sorted(self._requests.items())
        ]
        seconds = [
            f'kdmkit_request_seconds_total{{path="{path}"}} {value:.6f}'
            for path, value in sorted(self._seconds.items())
        ]
        pools = [
            f'kdmkit_{name}{{model="{_label(model)}"}} {value}'
            for model, values in sorted(self._models.counts().items())
            for name, value in sorted(values.items())
        ]
        return "\n".join([*requests, *seconds, *pools, ""])


def _label(text: str) -> str:
    """A text as the value of a label."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _handler(endpoint: Endpoint, models: Models) -> Handler:
    async def answer(request: Request) -> Response:
        name = request.path_params["model"]
        models.check(name, endpoint.kind)
        arguments: list[Any] = []
        if endpoint.body is RowQuestion:
            options = {**request.query_params, "what": request.path_params["what"]}
            arguments = [_parsed(RowQuestion, options), await request.body()]
            arguments.append(is_arrow(request.headers.get("content-type", "")))
        elif endpoint.body is not None:
            arguments = [_parsed(endpoint.body, await request.body())]
        client = "" if request.client is None else request.client.host
        response: Response = await models.ask(client, name, endpoint.kind, endpoint.method_name, *arguments)
        return response

    return answer


def _parsed(form: Any, content: Any) -> Any:
    """A request in its form: from JSON, or from the values of a query string."""
    try:
        if isinstance(content, bytes):
            return form.model_validate_json(content)
        return form.model_validate_strings(content)
    except ValidationError as error:
        raise RequestError(422, _first_problem(error)) from error


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


async def _error_response(_: Request, error: Exception) -> Response:
    if isinstance(error, RequestError):
        return error.response()
    if isinstance(error, HTTPException):
        return json_response({"error": error.detail}, error.status_code)
    return json_response({"error": f"the server failed: {type(error).__name__}"}, 500)


# ---- the document of the API


def openapi(version: str, title: str) -> dict[str, Any]:
    """The API as an OpenAPI document."""
    schemas: dict[str, Any] = {}
    state = _operation("The models and whether they are ready", _schema(PageState, schemas))
    status = {"description": "Whether all models are ready", "content": _json(_schema(Health, schemas))}
    health = {"summary": "Whether all models are ready", "responses": {"200": status, "503": status}}
    counts = _operation("Counts and times of requests, as Prometheus reads them", _TEXT, "text/plain")
    paths: dict[str, Any] = {
        "/health": {"get": {**health, "security": []}},
        "/metrics": {"get": counts},
        "/api/state": {"get": state},
    }
    for endpoint in ENDPOINTS:
        media = "text/csv" if endpoint.answer is str else "application/json"
        operation = _operation(endpoint.summary, _schema(endpoint.answer, schemas), media)
        operation["parameters"] = [
            {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
        ]
        if endpoint.body is RowQuestion:
            operation["parameters"] += _parameters(RowQuestion)
            rows = {"type": "object", "additionalProperties": {"type": "array"}}
            stream = {ARROW: {"schema": {"type": "string", "format": "binary"}}}
            operation["requestBody"] = {"required": True, "content": {**_json(rows), **stream}}
            operation["responses"]["200"]["content"].update(stream)
        elif endpoint.body is not None:
            operation["requestBody"] = {"required": True, "content": _json(_schema(endpoint.body, schemas))}
        paths[f"/api/models/{{model}}{endpoint.path}"] = {endpoint.method.lower(): operation}
    error = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {"Problem": {"description": "Refused; the text says why", "content": _json(error)}},
            "securitySchemes": {"token": {"type": "apiKey", "in": "header", "name": "X-Kdmkit-Token"}},
        },
    }


def _parameters(form: type[BaseModel]) -> list[dict[str, Any]]:
    """The fields of a form as parameters: `what` in the path, the others in the query string."""
    schema = form.model_json_schema()
    required = schema.get("required", [])
    return [
        {
            "name": name,
            "in": "path" if name == "what" else "query",
            "required": name in required,
            "schema": field,
        }
        for name, field in schema["properties"].items()
    ]


def _operation(summary: str, schema: dict[str, Any], media: str = "application/json") -> dict[str, Any]:
    problem = {"$ref": "#/components/responses/Problem"}
    answer = {"description": "The answer", "content": {media: {"schema": schema}}}
    codes = dict.fromkeys(("4XX", "500", "503", "504"), problem)
    return {"summary": summary, "responses": {"200": answer, **codes}}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _schema(form: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """The schema of a type; models go into `schemas`, with a reference in their place."""
    schema = TypeAdapter(form).json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(schema.pop("$defs", {}))
    if not (isinstance(form, type) and issubclass(form, BaseModel)):
        return schema
    schemas[form.__name__] = schema
    return {"$ref": f"#/components/schemas/{form.__name__}"}
