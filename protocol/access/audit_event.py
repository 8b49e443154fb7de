"""What the audit log has of one deed, or of many alike: who did what, to what, and how it ended.

Each event is one JSON message of the stream `audit` of the system tenant. It has neither secrets
nor values of data. Texts of peers are cut short, so an event has at most MAX_AUDIT_EVENT_BYTES.
"""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Self

from holdfast.protocol.errors import MalformedFrameError
from holdfast.protocol.limits import MAX_AUDIT_EVENT_BYTES, MAX_AUDIT_TEXT, MAX_INTEGER
from holdfast.protocol.names import SYSTEM_TENANT, StoreId, StoreKind

#: Where the events are.
AUDIT_STORE: Final = StoreId(SYSTEM_TENANT, int(StoreKind.STREAM), "audit")
_MAX_DETAILS: Final = 16


class AuditAction(StrEnum):
    """What was done, or tried."""

    ACCESS_SET_UP = "access.set_up"
    ISSUER_ADDED = "issuer.added"
    TOKEN_CREATED = "token.created"
    #: A token of another issuer was used for the first time.
    TOKEN_REGISTERED = "token.registered"
    TOKEN_REVOKED = "token.revoked"
    LOGIN = "login"
    #: A request with a token, or without one, that servers or the coordinator refused.
    REQUEST = "request"
    STORE_CONFIGURED = "store.configured"
    STORE_DESTROYED = "store.destroyed"
    STORE_DELETED = "store.deleted"
    STORE_FORKED = "store.forked"
    STORE_PURGED = "store.purged"
    STORE_REENCRYPTED = "store.reencrypted"
    STORE_RESTORED = "store.restored"
    STORE_BACKED_UP = "store.backed_up"
    STORE_MOVED = "store.moved"
    TENANT_LIMITED = "tenant.limited"
    TENANT_ENCRYPTED = "tenant.encrypted"
    TENANT_KEY_ROTATED = "tenant.key_rotated"
    TENANT_KEY_DROPPED = "tenant.key_dropped"
    TENANT_KEYS_REWRAPPED = "tenant.keys_rewrapped"
    TENANT_SHREDDED = "tenant.shredded"
    TENANT_DESTROYED = "tenant.destroyed"
    TENANT_PURGED = "tenant.purged"
    SERVER_DRAINED = "server.drained"
    SERVER_UNDRAINED = "server.undrained"
    SERVER_FORGOTTEN = "server.forgotten"
    SERVER_REGISTERED = "server.registered"
    SERVER_ENDED = "server.ended"
    CLUSTER_REBALANCED = "cluster.rebalanced"
    COORDINATOR_STARTED = "coordinator.started"
    #: A process had more events than it could keep until they were recorded.
    EVENTS_LOST = "audit.lost"


class AuditOutcome(StrEnum):
    """How it ended."""

    DONE = "done"
    #: Somebody may not do it.
    REFUSED = "refused"
    #: It was allowed, and did not work.
    FAILED = "failed"
    #: It was allowed; how it ended, the process that let it pass does not know.
    ALLOWED = "allowed"


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One event. A text that is empty says nothing."""

    #: Unique for ever: the `msg_id` of its message.
    id: str
    #: Milliseconds since 1970, by the clock of the process that saw it.
    time: int
    action: str
    outcome: str
    #: The process that saw it, such as `persist s1`, and its host.
    process: str
    host: str
    #: The id of the token that it was done with. The recorder adds the token's subject and issuer,
    #: and whether the cluster is `open`, or asks for `tokens`.
    token: str = ""
    subject: str = ""
    issuer: str = ""
    mode: str = ""
    #: The user of the operating system, as the command says.
    user: str = ""
    #: Where a connection comes from, as nats-server says.
    address: str = ""
    #: `*` for all of them.
    tenant: str = ""
    #: `stream notes` or `kv settings`.
    store: str = ""
    reason: str = ""
    #: How many alike there were, and when the last one was.
    count: int = 1
    last_time: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def seen(
        cls,
        now_ms: int,
        process: str,
        action: AuditAction,
        outcome: AuditOutcome,
        fields: Mapping[str, Any],
    ) -> Self:
        """Return the event of something that `process` has seen just now, on this host."""
        told: dict[str, Any] = {
            name: shown(value) if isinstance(value, str) else value
            for name, value in fields.items()
        }
        host = shown(socket.gethostname())
        return cls(new_event_id(now_ms), now_ms, action, outcome, shown(process), host, **told)

    def to_wire(self) -> dict[str, Any]:
        """Return what it says as a map, without what is empty."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        fields |= {"action": str(self.action), "outcome": str(self.outcome)}
        return {name: value for name, value in fields.items() if value or name == "time"}

    def to_json(self) -> bytes:
        """Return the message of it."""
        return json.dumps(self.to_wire(), separators=(",", ":")).encode()

    @classmethod
    def from_wire(cls, fields: Any) -> Self:
        """Return the event that a peer or a message tells. Raises MalformedFrameError."""
        if type(fields) is not dict:
            raise MalformedFrameError(reason="an event must be a map")
        known = {name: fields[name] for name in cls.__dataclass_fields__ if name in fields}
        for name, value in known.items():
            if name in _NUMBERS:
                good = type(value) is int and 0 <= value <= MAX_INTEGER
            elif name == "details":
                good = type(value) is dict and len(value) <= _MAX_DETAILS
            else:
                good = type(value) is str and len(value) <= MAX_AUDIT_TEXT
            if not good:
                raise MalformedFrameError(reason=f"an event has no valid {name!r}")
        try:
            event = cls(**known)
            size_bytes = len(event.to_json())
        except (TypeError, ValueError, RecursionError) as error:
            raise MalformedFrameError(reason=f"it is no event: {error!r:.80}") from error
        if not event.id or size_bytes > MAX_AUDIT_EVENT_BYTES:
            raise MalformedFrameError(reason="an event has no id, or is too large")
        return event


_NUMBERS: Final = frozenset(["time", "count", "last_time"])


def new_event_id(time_ms: int) -> str:
    """Return an id that no other event has. Ids sort by time."""
    return f"{time_ms:012x}{secrets.token_hex(10)}"


def shown(value: object) -> str:
    """Return text of a peer as events have it: printable, and not too long."""
    text = value if isinstance(value, str) else str(value)
    text = text if text.isascii() and text.isprintable() else ascii(text)[1:-1]
    return text if len(text) <= MAX_AUDIT_TEXT else f"{text[: MAX_AUDIT_TEXT - 3]}..."


def shown_store(kind: int, name: str) -> str:
    """Return a store as events name it."""
    word = StoreKind(kind).word if kind in tuple(StoreKind) else str(kind)
    return shown(f"{word} {name}")
