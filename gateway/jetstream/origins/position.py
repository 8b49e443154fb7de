"""How far one source of a stream has been copied. Pure.

A position is a cursor in the store of the copies, and changes in the batch that stores them: so a
gateway that goes on where another has died copies nothing twice and leaves nothing out. A mirror
needs none, since it has the seqs of its origin: its own last one says how far it is.

Consumers are cursors too. No consumer has a dot in its name, so the two are told apart by it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Final, NamedTuple

from holdfast.gateway.jetstream.api.stream_source import StreamSource
from holdfast.protocol.errors import MalformedFrameError

_CURSORS: Final = ".source."
#: A cursor has a configuration, and here it says all that there is to say.
CURSOR_CONFIG: Final = b"source"


class OriginId(NamedTuple):
    """One life of a stream: one that is deleted and created again has another."""

    store: str
    created_ms: int


@dataclass(frozen=True, slots=True)
class Position:
    """Everything up to `seq` of this life of the origin is copied, or not wanted."""

    origin: OriginId
    seq: int

    def to_bytes(self) -> bytes:
        """Return the state of the cursor."""
        value = {"store": self.origin.store, "created_ms": self.origin.created_ms, "seq": self.seq}
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, state: bytes) -> Position:
        """Return what the state of a cursor says. Raises MalformedFrameError."""
        try:
            found = json.loads(state)
            store, created_ms, seq = found["store"], found["created_ms"], found["seq"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise MalformedFrameError(reason=f"the position of a source: {error!r:.80}") from error
        if type(store) is not str or type(created_ms) is not int or type(seq) is not int or seq < 0:
            raise MalformedFrameError(reason=f"the position of a source: {state!r:.80}")
        return cls(OriginId(store, created_ms), seq)


def cursor_name(source: StreamSource) -> str:
    """Return the name of the cursor of a source: the same whoever asks, and whatever its place
    among the sources."""
    return _CURSORS + hashlib.sha256(source.index_name.encode()).hexdigest()[:32]


def is_of_source(cursor: str) -> bool:
    """Tell a position from a consumer, by the name of its cursor."""
    return cursor.startswith(_CURSORS)
