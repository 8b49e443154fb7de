"""What nats-server says and does in its system account: who comes, who goes, who is there. Pure.

    $SYS.ACCOUNT.<account>.CONNECT, .DISCONNECT   it tells of each connection
    $SYS.REQ.SERVER.PING.CONNZ                    every nats-server lists its connections
    $SYS.REQ.SERVER.<id>.CONNZ                    one of them does
    $SYS.REQ.SERVER.<id>.KICK                     it closes a connection: from nats-server 2.10 on

A connection is named by the id of its nats-server, which each start of one makes anew, and by its
number there, which is never used twice. Its user is the id of the token, as the auth service wrote
it into its answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from holdfast.protocol.errors import MalformedFrameError

#: The first token of the inboxes of this account.
INBOXES: Final = "_SYSTEM"
#: Asks all nats-servers for their connections.
LIST_ALL: Final = "$SYS.REQ.SERVER.PING.CONNZ"
#: Connections in one answer. A nats-server looks at all of its connections for each, so few answers
#: are cheap; one takes some 4 MB.
PAGE: Final = 8192


class ConnectionPlace(NamedTuple):
    """A connection: the id of its nats-server, and its number there."""

    server: str
    number: int


class ConnectionArrival(NamedTuple):
    """A connection that is there: with which token, and since when, in seconds since 1970."""

    token: str
    started_at: float


class ConnectionPage(NamedTuple):
    """What one nats-server lists in one answer."""

    server: str
    connections: Mapping[ConnectionPlace, ConnectionArrival]
    is_last: bool


def came(account: str) -> str:
    """Where nats-server tells of connections that have come."""
    return f"$SYS.ACCOUNT.{account}.CONNECT"


def left(account: str) -> str:
    """Where it tells of those that have gone."""
    return f"$SYS.ACCOUNT.{account}.DISCONNECT"


def list_one(server: str) -> str:
    """Asks one nats-server for its connections."""
    return f"$SYS.REQ.SERVER.{server}.CONNZ"


def close_one(server: str) -> str:
    """Asks one nats-server to close a connection."""
    return f"$SYS.REQ.SERVER.{server}.KICK"


def listing_request(account: str, token: str = "", offset: int = 0) -> bytes:
    """Return the question for the connections of an account, or for those with one token."""
    question = {"acc": account, "auth": True, "offset": offset, "limit": PAGE}
    return _json(question | ({"user": token} if token else {}))


def closing_request(place: ConnectionPlace) -> bytes:
    """Return the request to close a connection."""
    return _json({"cid": place.number})


def read_event(payload: bytes) -> tuple[ConnectionPlace, ConnectionArrival]:
    """Return which connection has come or gone. Raises MalformedFrameError."""
    fields = _fields(payload)
    client = _object(fields, "client")
    place = ConnectionPlace(_text(_object(fields, "server"), "id"), _number(client, "id"))
    return place, ConnectionArrival(_text(client, "user", ""), _time(client))


def read_page(payload: bytes) -> ConnectionPage:
    """Return what a nats-server lists. Raises MalformedFrameError."""
    fields = _fields(payload)
    server, data = _text(_object(fields, "server"), "id"), _object(fields, "data")
    listed = data.get("connections")
    if type(listed) is not list or not all(type(each) is dict for each in listed):
        raise MalformedFrameError(reason="a nats-server lists no connections")
    connections = {
        ConnectionPlace(server, _number(each, "cid")): ConnectionArrival(
            _text(each, "authorized_user", ""), _time(each)
        )
        for each in listed
    }
    return ConnectionPage(server, connections, len(listed) < PAGE)


def read_closed(payload: bytes) -> str:
    """Return why a nats-server did not close a connection, or nothing: then it has. Raises
    MalformedFrameError."""
    error = _fields(payload).get("error")
    return "" if error is None else str(error)


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _fields(payload: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise MalformedFrameError(reason="a nats-server sent no JSON") from error
    if type(found) is not dict:
        raise MalformedFrameError(reason="a nats-server sent no JSON object")
    return found


def _object(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = fields.get(name)
    if type(found) is not dict:
        raise MalformedFrameError(reason=f"a nats-server sent no object {name!r}")
    return found


def _text(fields: Mapping[str, Any], name: str, default: str | None = None) -> str:
    found = fields.get(name, default)
    if type(found) is not str:
        raise MalformedFrameError(reason=f"a nats-server sent no text {name!r}")
    return found


def _number(fields: Mapping[str, Any], name: str) -> int:
    found = fields.get(name)
    if type(found) is not int:
        raise MalformedFrameError(reason=f"a nats-server sent no number {name!r}")
    return found


def _time(fields: Mapping[str, Any]) -> float:
    try:
        return datetime.fromisoformat(_text(fields, "start")).timestamp()
    except ValueError as error:
        raise MalformedFrameError(reason="a nats-server sent no time") from error
