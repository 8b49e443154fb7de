"""Durable streams, in the OpenAPI document."""

from __future__ import annotations

from holdfast.gateway.http.openapi.elements import (
    TEXT,
    Json,
    bytes_answer,
    header,
    in_path,
    operation,
    plain,
    problem_answer,
    query,
    ref,
)


def durable_paths() -> Json:
    """Return the paths of `gateway/http/durable`."""
    return {"/v1/stream/{path}": _durable()}


def _durable() -> Json:
    headers: Json = {
        name: {"schema": TEXT} for name in ("Stream-Next-Offset", "Stream-Closed", "Content-Type")
    }
    path = in_path("path", "The stream: segments with slashes between them.")
    lifetime = [header("Stream-TTL"), header("Stream-Expires-At"), header("Stream-Closed")]
    forks = [
        *(header("Stream-Forked-From"), header("Stream-Fork-Offset")),
        header("Stream-Fork-Sub-Offset"),
    ]
    producer = [header("Producer-Id"), header("Producer-Epoch"), header("Producer-Seq")]
    read = {
        "200": {**bytes_answer("Content, or server-sent events"), "headers": headers},
        "204": {"description": "Nothing came in time", "headers": headers},
        "304": plain("Not changed"),
    }
    live = {"type": "string", "enum": ["long-poll", "sse"]}
    reading = [
        query("offset", TEXT, "-1, now, or an offset of an earlier answer."),
        *(query("live", live), query("cursor", TEXT), ref("IfNoneMatch")),
    ]
    made = {"200": {**plain("It exists"), "headers": headers}}
    made["201"] = {**plain("Created"), "headers": headers}
    stored = {"204": {**plain("Stored"), "headers": headers}, "409": problem_answer()}
    stored["200"] = {**plain("Stored, of a producer"), "headers": headers}
    return {
        "description": "The protocol of durable streams.",
        "parameters": [path],
        "put": operation("durable_create", "Create", made, [*lifetime, *forks], body=True),
        "post": operation(
            "durable_append",
            "Append, or close",
            stored,
            [header("Stream-Seq"), header("Stream-Closed"), *producer],
            body=True,
        ),
        "get": operation("durable_read", "Read or follow", read, reading),
        "head": operation(
            "durable_head", "Read its state", {"200": {**plain("It exists"), "headers": headers}}
        ),
        "delete": operation("durable_delete", "Delete", {"204": plain("Deleted")}),
    }
