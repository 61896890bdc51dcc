"""The description of the API (OpenAPI 3.1), with what routes alone do not tell: the token, errors as problem details,
the events of a lesson."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from zofc.teach import models

PROBLEMS = {
    400: "cannot be understood", 401: "no token", 403: "of another site", 404: "no such thing",
    409: "a lesson is running", 413: "too large", 421: "another host", 422: "refused",
}  # fmt: skip
STREAM = "text/event-stream"
EVENTS: dict[str, type[BaseModel]] = {
    "progress": models.LessonStatus, "finished": models.LessonInfo, "failed": models.LessonFailure,
    "cancelled": models.LessonNumber,
}  # fmt: skip
TOKEN = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "the token that zofc teach printed"},
    "query": {"type": "apiKey", "in": "query", "name": "token", "description": "the token, for GET requests"},
}
Node = dict[str, Any]


def binary(*kinds: str) -> dict[int | str, dict[str, Any]]:
    """The response of a route that answers with a file."""
    schema = {"type": "string", "format": "binary"}
    return {200: {"content": {kind: {"schema": schema} for kind in kinds}, "description": "the file"}}


def describe_api(app: FastAPI) -> None:
    """Complete what FastAPI describes."""
    generate = app.openapi

    def complete() -> Node:
        if app.openapi_schema is None:
            _complete(generate())
        return generate()

    app.openapi = complete  # type: ignore[method-assign]


def _complete(described: Node) -> None:
    schemas = described["components"]["schemas"]
    shown: list[type[BaseModel]] = [models.Problem, *EVENTS.values()]
    for model in shown:
        schema = model.model_json_schema(mode="serialization", ref_template="#/components/schemas/{model}")
        schemas.update(schema.pop("$defs", {}))
        schemas[model.__name__] = schema
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    described["components"]["securitySchemes"] = TOKEN
    described["security"] = [{"bearer": []}]
    for methods in described["paths"].values():
        for method, route in methods.items():
            if method == "get":
                route["security"] = [{"bearer": []}, {"query": []}]
            for status, text in PROBLEMS.items():
                content = {"application/problem+json": {"schema": _reference(models.Problem)}}
                route["responses"][str(status)] = {"description": text, "content": content}
            if STREAM in route["responses"].get("200", {}).get("content", {}):
                route["responses"]["200"] = _stream()


def _reference(model: type) -> Node:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _stream() -> Node:
    """Server-sent events: the data of each is JSON, of the model that its name says."""
    schema = {"type": "string", "x-events": {name: _reference(model) for name, model in EVENTS.items()}}
    text = "`progress` events, then one of `finished`, `failed` or `cancelled`; their data are the models of x-events"
    return {"description": text, "content": {STREAM: {"schema": schema}}}
