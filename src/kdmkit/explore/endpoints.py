"""The questions of the API: path, form of the request and of the answer, and who answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

from kdmkit.explore import requests as r


@dataclass(frozen=True)
class Endpoint:
    """One question.

    Args:
        path: below `/api/models/{model}`.
        summary: what it answers.
        answer: the form of the answer; None is CSV.
        call: takes the model, and the request where there is one.
        body: the form of the request; None is a request without a body (GET).
        kind: the kind of model that answers; None is any.
    """

    path: str
    summary: str
    answer: type[BaseModel] | None
    call: Callable[..., Any]
    body: type[BaseModel] | None = None
    kind: Literal["table", "images"] | None = None

    @property
    def method(self) -> str:
        return "GET" if self.body is None else "POST"


ENDPOINTS = (
    Endpoint("", "The model: its columns with their marginals, or its classes", None, lambda m: m.view()),
    Endpoint(
        "/marginals",
        "The distribution of every column given what is known, and log p of what is known",
        r.Marginals,
        lambda model, asked: model.marginals(asked),
        r.Evidence,
        "table",
    ),
    Endpoint(
        "/held",
        "The distribution of the columns that are known in part, given all that is known",
        r.Held,
        lambda model, asked: model.held(asked),
        r.Evidence,
        "table",
    ),
    Endpoint(
        "/links",
        "The tree of columns with the strength of every edge",
        r.Links,
        lambda model: model.links(),
        None,
        "table",
    ),
    Endpoint(
        "/next",
        "Which column would tell most about the target",
        r.Next,
        lambda model, asked: model.next_columns(asked),
        r.Target,
        "table",
    ),
    Endpoint(
        "/draws",
        "Complete rows drawn given what is known",
        r.Rows,
        lambda model, asked: model.draws(asked),
        r.Draws,
        "table",
    ),
    Endpoint(
        "/draws.csv",
        "Complete rows drawn given what is known, as CSV",
        None,
        lambda model, asked: model.draws_csv(asked),
        r.Draws,
        "table",
    ),
    Endpoint(
        "/explain",
        "How surprising every cell of a row is",
        r.Explained,
        lambda model, asked: model.explain(asked),
        r.Row,
        "table",
    ),
    Endpoint(
        "/read",
        "Class probabilities of an image, and how usual it is",
        r.Read,
        lambda model, asked: model.read(asked),
        r.Image,
        "images",
    ),
    Endpoint(
        "/images",
        "Images of a label",
        r.Drawn,
        lambda model, asked: model.draw(asked),
        r.Label,
        "images",
    ),
)


def openapi(version: str) -> dict[str, Any]:
    """The API as an OpenAPI document."""
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {
        "/api/state": {"get": _operation("The models and whether they are there yet", _ref(r.State, schemas))}
    }
    for endpoint in ENDPOINTS:
        answer = _answer_schema(endpoint, schemas)
        operation = _operation(endpoint.summary, answer, csv=endpoint.path.endswith(".csv"))
        operation["parameters"] = [
            {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
        ]
        if endpoint.body is not None:
            content = {"application/json": {"schema": _ref(endpoint.body, schemas)}}
            operation["requestBody"] = {"required": True, "content": content}
        paths[f"/api/models/{{model}}{endpoint.path}"] = {endpoint.method.lower(): operation}
    problem = {"description": "Refused; the text says why", "content": _json(_ref(r.Problem, schemas))}
    return {
        "openapi": "3.1.0",
        "info": {"title": "kdmkit explore", "version": version},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {"Problem": problem},
            "securitySchemes": {"token": {"type": "apiKey", "in": "header", "name": "X-Kdmkit-Token"}},
        },
    }


def _answer_schema(endpoint: Endpoint, schemas: dict[str, Any]) -> dict[str, Any]:
    if endpoint.path == "":
        return {"oneOf": [_ref(r.TableView, schemas), _ref(r.ImageView, schemas)]}
    return {"type": "string"} if endpoint.answer is None else _ref(endpoint.answer, schemas)


def _operation(summary: str, schema: dict[str, Any], *, csv: bool = False) -> dict[str, Any]:
    content = {"text/csv": {"schema": schema}} if csv else _json(schema)
    problem = {"$ref": "#/components/responses/Problem"}
    return {
        "summary": summary,
        "responses": {
            "200": {"description": "The answer", "content": content},
            "4XX": problem,
            "503": problem,
        },
    }


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _ref(model: type[BaseModel], schemas: dict[str, Any]) -> dict[str, str]:
    """A reference to the schema of a model, which goes into `schemas` with all that it needs."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(schema.pop("$defs", {}))
    schemas[model.__name__] = schema
    return {"$ref": f"#/components/schemas/{model.__name__}"}
