"""The elements of an OpenAPI document: operations, parameters, answers."""

from __future__ import annotations

from typing import Any, Final

from holdfast.gateway.http.asgi import MAX_BODY_BYTES
from holdfast.gateway.http.problems import CONTENT_TYPE

Json = dict[str, Any]

TEXT: Final[Json] = {"type": "string"}
NUMBER: Final[Json] = {"type": "integer", "minimum": 0}
COUNT: Final[Json] = {"type": "integer", "minimum": 1}
SECONDS: Final[Json] = {"type": "number", "exclusiveMinimum": 0}
ANY_BODY: Final[Json] = {"*/*": {"schema": {"type": "string", "format": "binary"}}}


def operation(
    name: str,
    summary: str,
    answers: Json,
    parameters: list[Json] | None = None,
    *,
    body: bool = False,
    tag: str | None = None,
) -> Json:
    """One method of a path; `answers` by status. Every other answer is a problem."""
    found: Json = {
        "operationId": name,
        "summary": summary,
        "responses": {**answers, "default": {"$ref": "#/components/responses/Problem"}},
    }
    if tag:
        found["tags"] = [tag]
    if parameters:
        found["parameters"] = parameters
    if body:
        limit = f"At most {MAX_BODY_BYTES} bytes."
        found["requestBody"] = {"description": limit, "content": ANY_BODY}
    return found


def in_path(name: str, description: str) -> Json:
    """A parameter in the path."""
    return {
        "name": name,
        "in": "path",
        "required": True,
        "schema": TEXT,
        "description": description,
    }


def query(name: str, of: Json, description: str = "") -> Json:
    """A parameter of the query."""
    found: Json = {"name": name, "in": "query", "schema": of}
    return {**found, "description": description} if description else found


def header(name: str, description: str = "", of: Json = TEXT) -> Json:
    """A header of the request."""
    found: Json = {"name": name, "in": "header", "schema": of}
    return {**found, "description": description} if description else found


def ref(name: str) -> Json:
    """A parameter of the components."""
    return {"$ref": f"#/components/parameters/{name}"}


def schema(name: str) -> Json:
    """A schema of the components."""
    return {"$ref": f"#/components/schemas/{name}"}


def plain(description: str) -> Json:
    """An answer without a body."""
    return {"description": description}


def json_answer(description: str, of: Json, media: str = "application/json") -> Json:
    """An answer whose body has a schema."""
    return {"description": description, "content": {media: {"schema": of}}}


def lines_answer(name: str) -> Json:
    """Lines of JSON, each with a schema of the components."""
    return json_answer("One object a line", schema(name), "application/x-ndjson")


def bytes_answer(description: str) -> Json:
    """An answer of any bytes."""
    return {"description": description, "content": ANY_BODY}


def problem_answer() -> Json:
    """A refusal."""
    return json_answer("A refusal", schema("Problem"), CONTENT_TYPE)
