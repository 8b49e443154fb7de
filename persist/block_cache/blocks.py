"""Blocks of objects, and which server of a zone has which of them in its memory. Pure.

An object is divided into blocks, which are what is kept, and into pieces of several blocks, which
are what servers are chosen for (`zone_helpers.ranked`), so that one request to the bucket can bring
neighbouring blocks. With different lists two servers keep the same blocks for a while, which costs
memory and is never wrong: the content of these objects never changes, and whoever reads a block
checks what it is made of.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from holdfast.protocol.errors import MalformedFrameError
from holdfast.protocol.limits import CACHE_BLOCK_BYTES, CACHE_PIECE_BYTES, MAX_INTEGER
from holdfast.shared_fs.bucket.bucket_backend import MAX_KEY_BYTES
from holdfast.shared_fs.snapshots.pack import PACK_PREFIX
from holdfast.shared_fs.snapshots.places import place_prefix
from holdfast.shared_fs.snapshots.snapshot import SNAPSHOT_PREFIX

#: Keys of objects whose content never changes, and is checked by whoever reads it.
_PREFIXES: Final = (SNAPSHOT_PREFIX, PACK_PREFIX)


class Ask(NamedTuple):
    """A part of one block that somebody wants."""

    key: str
    start: int
    length: int
    #: How much of the object its reader wants from `start` on, within the piece: what is not here
    #: is fetched as a whole.
    ahead: int

    @property
    def block(self) -> int:
        return self.start // CACHE_BLOCK_BYTES

    @property
    def piece(self) -> int:
        return self.start // CACHE_PIECE_BYTES

    @classmethod
    def from_wire(cls, fields: Any) -> Ask:
        """Return what another server asks for. Raises MalformedFrameError."""
        try:
            ask = cls(fields["key"], fields["start"], fields["length"], fields["ahead"])
        except (KeyError, TypeError) as error:
            raise MalformedFrameError(reason=f"ask of a block: {error!r}") from error
        numbers = (ask.start, ask.length, ask.ahead)
        if type(ask.key) is not str or any(type(number) is not int for number in numbers):
            raise MalformedFrameError(reason="ask of a block: a key and three numbers")
        end = ask.start + ask.length
        if not (
            0 <= ask.start <= MAX_INTEGER
            and 1 <= ask.length <= ask.ahead <= CACHE_PIECE_BYTES
            and (end - 1) // CACHE_BLOCK_BYTES == ask.block
            and (ask.start + ask.ahead - 1) // CACHE_PIECE_BYTES == ask.piece
            and _may_be_cached(ask.key)
        ):
            raise MalformedFrameError(reason="ask of a block: not within one block of a snapshot")
        return ask


def _may_be_cached(key: str) -> bool:
    """Tell whether this is the key of a snapshot or of a pack."""
    if not key.isprintable() or len(key) > MAX_KEY_BYTES:
        return False
    return key.removeprefix(place_prefix(key)).startswith(_PREFIXES)


def asks_of(key: str, start: int, length: int) -> Iterator[list[Ask]]:
    """Yield the asks for a part of an object, piece by piece."""
    end = start + length
    while start < end:
        piece_end = min(end, (start // CACHE_PIECE_BYTES + 1) * CACHE_PIECE_BYTES)
        asks = []
        while start < piece_end:
            block_end = min(piece_end, (start // CACHE_BLOCK_BYTES + 1) * CACHE_BLOCK_BYTES)
            asks.append(Ask(key, start, block_end - start, piece_end - start))
            start = block_end
        yield asks
