"""Cuts the rows of a sink's task into chunks: atomic writes to one store each. Pure.

A chunk of messages has its mark in a header of the first one, a chunk of entries in a key beside
them (`kv_output.py`): its number, its row count and a digest of its rows. So a retry sees which
chunks are stored already, and whether they have the rows that it would store. The limits of chunks
depend only on the rows and their order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, Protocol, Self, TypeVar

from holdfast.protocol.limits import KIB, MIB
from holdfast.protocol.messages import Headers
from holdfast.protocol.names import quote, unquote

#: In the first message of each chunk: `query/batch/partition/chunk/count/digest`.
CHUNK_HEADER: Final = "holdfast-chunk"
#: Well within a frame, and large enough to be worth a round trip.
CHUNK_ROWS: Final = 2048
CHUNK_BYTES: Final = 512 * KIB
#: Limits for all streams of a task together. Beyond them the chunks of all streams end.
HELD_ROWS: Final = 32 * KIB
HELD_BYTES: Final = 16 * MIB
_ROW_BYTES: Final = 32
_DIGEST_BYTES: Final = 12


class Row(Protocol):
    """What a chunk has several of."""

    @property
    def size_bytes(self) -> int:
        """About what it takes in a frame."""

    def parts(self) -> Iterator[bytes]:
        """Yield all that tells it from other rows."""


class OutputRow(NamedTuple):
    """A message to append."""

    value: bytes
    headers: Headers
    subject: str | None = None

    @property
    def size_bytes(self) -> int:
        """See `Row`."""
        return len(self.value) + _ROW_BYTES + _text_bytes(self.headers) + len(self.subject or "")

    def parts(self) -> Iterator[bytes]:
        """See `Row`."""
        yield self.value
        yield from _parts(self.headers)
        if self.subject is not None:
            yield b""
            yield self.subject.encode()


class EntryRow(NamedTuple):
    """A key to set, or to delete if the value is None."""

    key: str
    value: bytes | None
    headers: Headers
    ttl_seconds: float | None = None

    @property
    def size_bytes(self) -> int:
        """See `Row`."""
        size_bytes = len(self.key) + len(self.value or b"")
        return size_bytes + _ROW_BYTES + _text_bytes(self.headers)

    def parts(self) -> Iterator[bytes]:
        """See `Row`."""
        yield self.key.encode()
        yield b"" if self.value is None else b"=" + self.value
        yield b"" if self.ttl_seconds is None else repr(self.ttl_seconds).encode()
        yield from _parts(self.headers)


R = TypeVar("R", bound=Row)


class BatchId(NamedTuple):
    """Identifies the rows of one partition of one batch of a query, which are written once."""

    query: str
    batch: int
    partition: int

    def __str__(self) -> str:
        return f"partition {self.partition} of batch {self.batch} of {self.query}"


@dataclass(frozen=True, slots=True)
class ChunkMark:
    """The header that identifies the chunk which begins with a message."""

    id: BatchId
    number: int
    count: int
    digest: str

    def to_header(self) -> str:
        query, batch, partition = self.id
        return f"{quote(query)}/{batch}/{partition}/{self.number}/{self.count}/{self.digest}"

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Self | None:
        """Return the mark of a message, or None."""
        parts = headers.get(CHUNK_HEADER, "").split("/")
        if len(parts) != 6 or not all(part.isdigit() for part in parts[1:5]):
            return None
        query, digest = unquote(parts[0]), parts[5]
        batch, partition, number, count = map(int, parts[1:5])
        return cls(BatchId(query, batch, partition), number, count, digest)


@dataclass(frozen=True, slots=True)
class RowChunk(Generic[R]):
    """Rows that are stored together. Chunks of a store are numbered from 0."""

    store: str
    mark: ChunkMark
    rows: list[R]


class Chunker(Generic[R]):
    """Cuts the rows of a task."""

    def __init__(self, batch: BatchId) -> None:
        self._batch = batch
        self._held: dict[str, list[R]] = {}
        self._sizes: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        self._held_rows = self._held_bytes = 0

    def add(self, store: str, row: R) -> Iterator[RowChunk[R]]:
        """Take a row, and yield the chunks that it makes full."""
        size_bytes = row.size_bytes
        if self._sizes.get(store, 0) + size_bytes > CHUNK_BYTES:
            yield from self._cut(store)
        held = self._held.setdefault(store, [])
        held.append(row)
        self._sizes[store] = self._sizes.get(store, 0) + size_bytes
        self._held_rows += 1
        self._held_bytes += size_bytes
        if len(held) >= CHUNK_ROWS:
            yield from self._cut(store)
        if self._held_rows >= HELD_ROWS or self._held_bytes >= HELD_BYTES:
            yield from self.rest()

    def rest(self) -> Iterator[RowChunk[R]]:
        """Yield the rest as chunks."""
        for store in list(self._held):
            yield from self._cut(store)

    def _cut(self, store: str) -> Iterator[RowChunk[R]]:
        rows = self._held.pop(store, None)
        if not rows:
            return
        self._held_rows -= len(rows)
        self._held_bytes -= self._sizes.pop(store)
        number = self._numbers.get(store, 0)
        self._numbers[store] = number + 1
        yield RowChunk(store, ChunkMark(self._batch, number, len(rows), _digest(rows)), rows)


def _digest(rows: Iterable[Row]) -> str:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for row in rows:
        for part in row.parts():
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
        digest.update(b"\xff" * 8)
    return digest.hexdigest()


def _parts(headers: Headers) -> Iterator[bytes]:
    for name, text in sorted(headers.items()):
        yield name.encode()
        yield text.encode()


def _text_bytes(headers: Headers) -> int:
    return sum(len(name) + len(text) for name, text in headers.items())
