"""The console's `/api/v1`, in the OpenAPI document.

Its schemas are made of the records that the console shows: a number that is added to a cluster's
overview, or a setting to stores, is in the document too.
"""

from __future__ import annotations

from typing import Final

from holdfast.gateway.http.console.api import API, MAX_ASKED_STREAMS, MAX_MESSAGES, MAX_ROWS
from holdfast.gateway.http.console.census import Census
from holdfast.gateway.http.console.history import CHARTS
from holdfast.gateway.http.openapi.elements import (
    NUMBER,
    TEXT,
    Json,
    in_path,
    json_answer,
    operation,
    plain,
    problem_answer,
    query,
    schema,
)
from holdfast.gateway.http.openapi.record_schemas import fields_of, record_schema, schema_of
from holdfast.protocol.consumers import ConsumerInfo
from holdfast.protocol.control import ServerInfo, StoreInfo
from holdfast.protocol.messages import Durability, Head
from holdfast.protocol.monitoring.cluster_rows import ClusterTotals, Cost, PartRow, ServerRow
from holdfast.protocol.monitoring.findings import ClusterFinding
from holdfast.protocol.names import StoreKind
from holdfast.protocol.store_config import StoreConfig

#: The tag of all operations of the console.
TAG: Final = "console"

_BOOLEAN: Final[Json] = {"type": "boolean"}
_MAYBE_NUMBER: Final[Json] = {"type": ["number", "null"]}
_MAYBE_TEXT: Final[Json] = {"type": ["string", "null"]}
_KIND: Final[Json] = {"enum": [each.word for each in StoreKind]}
_PREFIX: Final = query("prefix", TEXT, "Of names.")


def console_paths() -> Json:
    """Return the paths of `gateway/http/console`."""
    name = in_path("name", "The store; a slash is %2F.")
    listed = [query("kind", _KIND), _PREFIX, _limit(MAX_ROWS, 100)]
    last = [query("end_seq", NUMBER, "The last seq."), _limit(MAX_MESSAGES, 50)]
    return {
        f"{API}/cluster": _path("cluster", "The cluster now"),
        f"{API}/live": {"get": _live()},
        f"{API}/servers": _path("servers", "The persist servers"),
        f"{API}/stores": _path("stores", "Stores by name", listed),
        f"{API}/stores/stream/{{name}}": {
            "parameters": [name],
            **_path("store", "A stream and its consumers", of="stream"),
        },
        f"{API}/stores/kv/{{name}}": {"parameters": [name], **_path("store", "A kv", of="kv")},
        f"{API}/stores/stream/{{name}}/messages": {
            "parameters": [name],
            **_path("messages", "The last messages up to a seq", last),
        },
        f"{API}/stores/kv/{{name}}/keys": {
            "parameters": [name],
            **_path("keys", "Keys", [_PREFIX, _limit(MAX_ROWS, 100)]),
        },
        f"{API}/consumers": _path(
            "consumers",
            "Consumers of the first hot streams by name",
            [_PREFIX, _limit(MAX_ASKED_STREAMS, 20)],
        ),
    }


def console_schemas() -> Json:
    """Return the schemas of the console's answers, and of what is in them."""
    return {
        "ConsoleCluster": _cluster(),
        "ConsoleServers": _object(servers=_list("ConsoleServer")),
        "ConsoleStores": _object(stores=_list("ConsoleStore"), more=_BOOLEAN),
        "ConsoleStoreDetails": _store_details(),
        "ConsoleMessages": _object(messages=_list("ConsoleMessage")),
        "ConsoleKeys": _object(keys={"type": "array", "items": TEXT}, more=_BOOLEAN),
        "ConsoleConsumers": _object(
            consumers=_list("ConsoleConsumer"), asked=NUMBER, more=_BOOLEAN
        ),
        "ConsoleServer": record_schema(ServerInfo),
        "ConsoleServerRow": record_schema(
            ServerInfo, ServerRow, without=["info"], append_seconds=_MAYBE_NUMBER
        ),
        "ConsoleStore": record_schema(
            StoreInfo,
            without=["cold", "bytes", "message_count", "time"],
            kind=_KIND,
            tier={"enum": ["hot", "cold"]},
            state=TEXT,
        ),
        "ConsoleMessage": _message(),
        "ConsoleConsumer": _object(stream=TEXT, **fields_of(ConsumerInfo)),
    }


def _path(
    name: str, summary: str, parameters: list[Json] | None = None, *, of: str | None = None
) -> Json:
    answer_of = f"Console{name.capitalize()}" if of is None else "ConsoleStoreDetails"
    answers = {"200": json_answer(summary, schema(answer_of))}
    identifier = f"console_{of or name}"
    return {"get": operation(identifier, summary, answers, parameters, tag=TAG)}


def _live() -> Json:
    events = (
        "Server-sent events: `history` once, then every two seconds `overview`, whose data is the"
        " cluster, and `happened`; `unavailable` while the coordinator does not answer"
    )
    answers = {
        "200": {**plain(events), "content": {"text/event-stream": {"schema": TEXT}}},
        "421": problem_answer(),
    }
    return operation("console_live", "Follow the cluster", answers, tag=TAG)


def _limit(most: int, usual: int) -> Json:
    limit = {"type": "integer", "minimum": 1, "maximum": most, "default": usual}
    return query("limit", limit, "At most so many rows.")


def _list(name: str) -> Json:
    return {"type": "array", "items": schema(name)}


def _object(**properties: Json) -> Json:
    return {"type": "object", "required": list(properties), "properties": properties}


def _cluster() -> Json:
    census = record_schema(Census, hot=NUMBER, stores=NUMBER)
    return _object(
        time={**NUMBER, "description": "Milliseconds since the epoch."},
        servers=_list("ConsoleServerRow"),
        parts={"type": "array", "items": record_schema(PartRow)},
        totals=record_schema(ClusterTotals),
        cost=schema_of(Cost | None),
        has_statistics=_BOOLEAN,
        tenant=TEXT,
        charts=_object(**dict.fromkeys(CHARTS, _MAYBE_NUMBER)),
        findings={"type": "array", "items": record_schema(ClusterFinding)},
        census={"anyOf": [census, {"type": "null"}]},
        census_problem=_MAYBE_TEXT,
    )


def _store_details() -> Json:
    durability: Json = {"enum": [each.word for each in Durability]}
    return _object(
        kind=_KIND,
        name=TEXT,
        **fields_of(Head),
        settings=record_schema(StoreConfig, durability=durability),
        changed={"type": "array", "items": TEXT},
        consumers=_list("ConsoleConsumer"),
    )


def _message() -> Json:
    found = _object(
        **dict.fromkeys(("seq", "revision", "time", "size_bytes"), NUMBER), truncated=_BOOLEAN
    )
    found["properties"] |= {
        "subject": TEXT,
        "headers": {"type": "object", "additionalProperties": TEXT},
        "value": TEXT,
        "value_base64": TEXT,
        "unreadable": {**TEXT, "description": "Why the value cannot be shown."},
    }
    return found
