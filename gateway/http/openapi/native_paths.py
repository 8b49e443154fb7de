"""Kvs and streams as plain HTTP, in the OpenAPI document."""

from __future__ import annotations

from typing import Final

from holdfast.gateway.http.openapi.elements import (
    COUNT,
    NUMBER,
    TEXT,
    Json,
    bytes_answer,
    header,
    in_path,
    json_answer,
    lines_answer,
    operation,
    plain,
    problem_answer,
    query,
    ref,
    schema,
)


def native_paths() -> Json:
    """Return the paths of `gateway/http/native`."""
    return {
        "/v1/kv/{name}/{key}": _kv_key(),
        "/v1/kv/{name}": _kv(),
        "/v1/streams/{name}": _stream(),
        "/v1/streams/{name}/{seq}": _stream_message(),
        "/v1/watch/{name}": _followed("watch", "a kv", [query("prefix", TEXT)]),
        "/v1/follow/{name}": _followed(
            "follow", "a stream", [query("start_seq", NUMBER), query("subject", TEXT)]
        ),
    }


NAME: Final = in_path("name", "The store; a slash is %2F.")


def _kv_key() -> Json:
    key = in_path("key", "The key; it may contain slashes.")
    read = {"200": bytes_answer("The value"), "304": plain("It has this revision")}
    read["404"] = problem_answer()
    return {
        "parameters": [NAME, key],
        "get": operation("kv_get", "Read a value", read, [ref("IfNoneMatch")]),
        "head": operation("kv_head", "Read a value's headers", {"200": plain("It exists")}),
        "put": operation(
            "kv_set",
            "Set a value",
            {"200": json_answer("Stored", schema("Ack")), "412": problem_answer()},
            [ref("IfMatch"), ref("IfNoneMatch"), ref("TtlSeconds")],
            body=True,
        ),
        "delete": operation(
            "kv_delete",
            "Delete a value",
            {"204": plain("Deleted"), "404": problem_answer(), "412": problem_answer()},
            [ref("IfMatch")],
        ),
    }


def _kv() -> Json:
    return {
        "parameters": [NAME],
        "get": operation(
            "kv_list",
            "Read all entries",
            {"200": lines_answer("Entry")},
            [query("prefix", TEXT), ref("Limit")],
        ),
    }


def _stream() -> Json:
    return {
        "parameters": [NAME],
        "get": operation(
            "stream_read",
            "Read messages",
            {"200": lines_answer("Message")},
            [
                *(query("start_seq", NUMBER), query("end_seq", NUMBER)),
                query("last", COUNT, "The last so many."),
                *(query("subject", TEXT), ref("Limit")),
            ],
        ),
        "post": operation(
            "stream_append",
            "Append a message",
            {"201": json_answer("Stored", schema("Ack")), "412": problem_answer()},
            [
                header("If-Match", "Append only if this is the last seq, in quotes."),
                header("Idempotency-Key", "The message id: a retry is stored once."),
                *(query("subject", TEXT), ref("TtlSeconds")),
            ],
            body=True,
        ),
    }


def _stream_message() -> Json:
    answers = {"200": bytes_answer("The bytes of the message"), "404": problem_answer()}
    seq = {**in_path("seq", "The message's number."), "schema": COUNT}
    return {
        "parameters": [NAME, seq],
        "get": operation("stream_get", "Read one message", answers),
        "head": operation("stream_head", "Read its headers", {"200": plain("It exists")}),
    }


def _followed(name: str, of: str, parameters: list[Json]) -> Json:
    answers = {
        "101": plain("A WebSocket, whose messages are changes"),
        "200": {
            "description": "Server-sent events: the data of each is a change",
            "content": {"text/event-stream": {"schema": schema("Change")}},
        },
    }
    after = "Continue behind this event."
    resume = [header("Last-Event-ID", after), query("last_event_id", TEXT, after)]
    return {
        "parameters": [NAME],
        "get": operation(name, f"Follow the changes of {of}", answers, [*parameters, *resume]),
    }
