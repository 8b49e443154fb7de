"""What is recorded of a durable stream beside its messages, in a cursor of its store.

The *config* is what it was created with and never changes. The *state* changes with appends, in the
same batch. Markers are messages without content: one opens the stream, so that creating it takes a
seq and two creations collide; one closes it, so that an append that does not know collides too; one
tells its followers that it was deleted.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple, Self

import msgpack

from holdfast.gateway.http.durable.producers import Producing
from holdfast.protocol.frames import APPEND

#: Cursors of a store.
STREAM_CURSOR: Final = "durable-stream"
PRODUCERS_CURSOR: Final = "durable-producers"
FORKS_CURSOR: Final = "durable-forks"
USED_CURSOR: Final = "durable-used"
#: The store is about to be destroyed, since the time in its state. Whoever would create waits.
REMOVING_CURSOR: Final = "durable-removing"

#: The header that marks a message without content.
MARKER: Final = "hf-durable"
OPENED: Final = b"NATS/1.0\r\nhf-durable: opened\r\n\r\n"
CLOSED: Final = b"NATS/1.0\r\nhf-durable: closed\r\n\r\n"
REMOVED: Final = b"NATS/1.0\r\nhf-durable: removed\r\n\r\n"
MARKERS: Final = frozenset((OPENED, CLOSED, REMOVED))


class DurableMessage(NamedTuple):
    """A message to be appended: content, or a marker."""

    value: bytes
    headers: bytes | None = None
    expected_last_seq: int | None = None

    def operation(self, epoch: int) -> list[Any]:
        """Return the append, for a stream that is in this serving epoch."""
        return [APPEND, self.value, self.headers, None, self.expected_last_seq, None, None, epoch]


@dataclass(frozen=True, slots=True)
class Fork:
    """Where a fork came from. Its first own message is `seq`; what is before is its source's."""

    #: The store of the source, and the id of the stream that it was.
    store: str
    source_id: str
    #: What the request named, to tell whether another one asks for the same.
    path: str
    offset: int | None
    sub_offset: int
    seq: int
    #: Bytes of the message `seq` of the source that the fork begins with, as a message of its own.
    prefix_bytes: int = 0


class ForkRow(NamedTuple):
    """What a source records of a fork, before that exists: its id, its store, and when."""

    id: str
    store: str
    time_ms: int

    @property
    def row(self) -> int:
        """The number of the row."""
        digest = hashlib.blake2b(self.id.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 2

    def to_bytes(self) -> bytes:
        """Return it as it is stored."""
        packed: bytes = msgpack.packb(list(self))
        return packed

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return what `to_bytes` made. Raises ValueError, TypeError."""
        return cls(*msgpack.unpackb(data))


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """What a stream was created with. Times are int milliseconds since the epoch."""

    id: str
    content_type: str
    created_ms: int
    #: The seq of the marker that opened it.
    opened_seq: int
    ttl_seconds: int | None = None
    expires_at: str | None = None
    expires_at_ms: int | None = None
    fork: Fork | None = None

    def to_bytes(self) -> bytes:
        """Return it as it is stored."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return what `to_bytes` made. Raises ValueError, TypeError, KeyError."""
        fields = json.loads(data)
        fork = fields.pop("fork", None)
        return cls(**fields, fork=None if fork is None else Fork(**fork))


@dataclass(frozen=True, slots=True)
class DurableState:
    """What changes of a stream."""

    #: The serving epoch of the store that writes name: a greater one for each life of a stream.
    epoch: int
    closed: bool = False
    #: The seq of the marker that closed it.
    closed_seq: int = 0
    #: The request of an idempotent producer that closed it.
    closed_by: Producing | None = None
    #: The last `Stream-Seq`.
    writer_seq: str | None = None
    #: Deleted, and kept for its forks.
    deleted: bool = False

    def to_bytes(self) -> bytes:
        """Return it as it is stored."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return what `to_bytes` made. Raises ValueError, TypeError, KeyError."""
        fields: dict[str, Any] = json.loads(data)
        closed_by = fields.pop("closed_by", None)
        state = cls(**fields)
        return replace(state, closed_by=None if closed_by is None else Producing(**closed_by))
