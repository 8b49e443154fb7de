"""The schemas of what plain requests send and get, and the parameters that they share."""

from __future__ import annotations

from holdfast.gateway.http.openapi.elements import (
    COUNT,
    NUMBER,
    SECONDS,
    TEXT,
    Json,
    header,
    query,
    schema,
)


def parameters() -> Json:
    """Return the parameters of the components."""
    return {
        "IfMatch": header("If-Match", 'One revision in quotes, such as "17".'),
        "IfNoneMatch": header("If-None-Match", "An entity tag; of a write only *."),
        "TtlSeconds": query("ttl_seconds", SECONDS, "Remove it after this time."),
        "Limit": query("limit", COUNT, "At most so many lines."),
    }


def record(required: str, properties: Json) -> Json:
    """Return the schema of an object."""
    return {"type": "object", "required": required.split(), "properties": properties}


def native_schemas() -> Json:
    """Return the schemas of `gateway/http/native`, and of refusals."""
    value: Json = {
        "value": {**TEXT, "description": "A value that is text."},
        "value_base64": {**TEXT, "description": "Any other."},
        "size_bytes": {**NUMBER, "description": "Of a value too large to be shown."},
        "headers": {"type": "object", "additionalProperties": TEXT},
    }
    time = {**NUMBER, "description": "Milliseconds since the epoch."}
    stored: Json = {"revision": NUMBER, "time": time}
    change: Json = {
        "kind": TEXT,
        **stored,
        "message": schema("Message"),
        "entry": schema("Entry"),
        "seqs": {"type": "array", "items": NUMBER},
        "keys": {"type": "array", "items": TEXT},
        "end_seq": NUMBER,
        "id": {**TEXT, "description": "Of a WebSocket: the place behind it."},
    }
    ack: Json = {
        **stored,
        "seq": COUNT,
        "duplicate": {"type": "boolean"},
        "durability": {"enum": ["applied", "synced", "stored"]},
    }
    problem: Json = {
        "type": TEXT,
        "title": TEXT,
        "status": {"type": "integer"},
        "code": {**TEXT, "description": "Stays the same between versions."},
        "detail": TEXT,
    }
    return {
        "Ack": record("revision time durability", ack),
        "Message": record("seq revision time", {"seq": COUNT, **stored, "subject": TEXT, **value}),
        "Entry": record("key revision time", {"key": TEXT, **stored, **value}),
        "Change": record("kind revision time", change),
        "Problem": record("type title status code detail", problem),
    }
