"""Zones: where a server or a client runs, such as an availability zone of a cloud. Pure.

A zone is a short name that an operator chooses. Servers tell theirs to the coordinator, clients
when they ask who owns a store, and every request carries the zone of its sender as a token of the
reply subject: `<inbox>.z=<zone>.<number>`. So servers count what crosses zones without keeping
anything about clients, and servers of earlier versions answer as ever. A client that tells a wrong
zone gets its stores from there and is counted there; nothing else depends on it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from holdfast.protocol.errors import InvalidArgumentError, InvalidNameError
from holdfast.protocol.names import check_server

ZONE_VARIABLE: Final = "HOLDFAST_ZONE"
#: No zone.
NOWHERE: Final = ""
#: What the token of a reply subject that names a zone begins with.
_MARK: Final = "z="


def check_zone(zone: str, argument: str = "zone") -> str:
    """Return the name of a zone, empty for none. Raises InvalidArgumentError."""
    if zone == NOWHERE:
        return zone
    try:
        check_server(zone)
    except InvalidNameError as error:
        raise InvalidArgumentError(argument=argument, reason=str(error)) from None
    return zone


def own_zone(zone: str | None) -> str:
    """Return the zone that a client is given, or that its environment names. Raises
    InvalidArgumentError."""
    if zone is not None:
        return check_zone(zone)
    return check_zone(os.environ.get(ZONE_VARIABLE, NOWHERE), ZONE_VARIABLE)


def zone_of_wire(fields: Mapping[str, Any]) -> str:
    """Return the zone that a peer tells; none if it tells none, as earlier versions do. Raises
    InvalidArgumentError."""
    zone = fields.get("zone")
    if zone is None:
        return NOWHERE
    if type(zone) is not str:
        raise InvalidArgumentError(argument="zone", reason="it must be a short text")
    return check_zone(zone)


def inbox_in(inbox: str, zone: str) -> str:
    """Return the start of the reply subjects of a client in a zone."""
    return f"{inbox}.{_MARK}{zone}" if zone else inbox


def zone_of_reply(reply: str) -> str:
    """Return the zone that a reply subject names, or NOWHERE. It comes from a client, so it may be
    any text: compare it, and do not keep it."""
    token = reply.rpartition(".")[0].rpartition(".")[2]
    return token.removeprefix(_MARK) if token.startswith(_MARK) else NOWHERE
