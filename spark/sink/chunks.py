"""Cuts the rows of a sink's task into chunks: atomic appends to one stream each. Pure.

A header of a chunk's first message has its number, its row count and a digest of its rows. So a
retry sees which chunks are stored already, and whether they have the rows that it would store. The
limits of chunks depend only on the rows and their order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

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


class OutputRow(NamedTuple):
    """A message to append."""

    value: bytes
    headers: Headers
    subject: str | None = None

    @property
    def size_bytes(self) -> int:
        texts = sum(len(name) + len(text) for name, text in self.headers.items())
        return len(self.value) + _ROW_BYTES + texts + len(self.subject or "")


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
class RowChunk:
    """Rows that are stored together. Chunks of a stream are numbered from 0."""

    stream: str
    mark: ChunkMark
    rows: list[OutputRow]

    def messages(self) -> list[tuple[bytes, Headers, str | None]]:
        """Return the messages for `append_many`."""
        first, *others = self.rows
        marked = {**first.headers, CHUNK_HEADER: self.mark.to_header()}
        return [(first.value, marked, first.subject), *others]


class Chunker:
    """Cuts the rows of a task."""

    def __init__(self, batch: BatchId) -> None:
        self._batch = batch
        self._held: dict[str, list[OutputRow]] = {}
        self._sizes: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        self._held_rows = self._held_bytes = 0

    def add(self, stream: str, row: OutputRow) -> Iterator[RowChunk]:
        """Take a row, and yield the chunks that it makes full."""
        size_bytes = row.size_bytes
        if self._sizes.get(stream, 0) + size_bytes > CHUNK_BYTES:
            yield from self._cut(stream)
        held = self._held.setdefault(stream, [])
        held.append(row)
        self._sizes[stream] = self._sizes.get(stream, 0) + size_bytes
        self._held_rows += 1
        self._held_bytes += size_bytes
        if len(held) >= CHUNK_ROWS:
            yield from self._cut(stream)
        if self._held_rows >= HELD_ROWS or self._held_bytes >= HELD_BYTES:
            yield from self.rest()

    def rest(self) -> Iterator[RowChunk]:
        """Yield the rest as chunks."""
        for stream in list(self._held):
            yield from self._cut(stream)

    def _cut(self, stream: str) -> Iterator[RowChunk]:
        rows = self._held.pop(stream, None)
        if not rows:
            return
        self._held_rows -= len(rows)
        self._held_bytes -= self._sizes.pop(stream)
        number = self._numbers.get(stream, 0)
        self._numbers[stream] = number + 1
        yield RowChunk(stream, ChunkMark(self._batch, number, len(rows), _digest(rows)), rows)


def _digest(rows: list[OutputRow]) -> str:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for row in rows:
        parts = [row.value]
        for name, text in sorted(row.headers.items()):
            parts += (name.encode(), text.encode())
        if row.subject is not None:
            parts += (b"", row.subject.encode())
        for part in parts:
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
        digest.update(b"\xff" * 8)
    return digest.hexdigest()
