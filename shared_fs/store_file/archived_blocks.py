"""What a stream's file keeps of messages whose values are in the archive.

An archived message is as much part of its stream as any other: it counts, and can be deleted,
trimmed, replaced, evicted and found by time. So the file keeps all of it except value and headers:
in blocks of up to a few thousand messages, one row each, with seq, revision, time, size and
checksum of every message, about 7 bytes for each message. Invariants:

- Blocks do not overlap, and are ordered by seq. Within and across blocks, revisions and times never
  go back, since only messages that were appended and never replaced are archived.
- A message is in a block or in the table `messages`, never in both: `remove` comes before a set.
- A message that is not in a block is not in the stream, whatever the archive still has of it.
- A reader of the archive finds exactly the value that was here, by revision, time and checksum, or
  reports that it does not. The checksum is of the value as it is exported (`exported_values.py`),
  and the size is that of the stored value. Nothing is concluded from what the archive lacks.

This module does not read the archive (`archive_table.py`), and does not decide what is archived
(`persist/tier/archiving.py`). Everything runs inside the caller's transaction, if there is one.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

import zstandard

from holdfast.protocol.errors import StoreDamagedError
from holdfast.protocol.limits import MIB
from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.exported_values import exported, exported_bytes

_LARGEST_SEQ: Final = (1 << 63) - 1
#: Decoded blocks that are kept: those where a reader or a deleter currently is.
_KEPT_BLOCKS: Final = 4
#: The size of one block: one turn of the loop moves it in about 5 ms, and a
#: reader of one message has to decode it.
ARCHIVE_BLOCK_ROWS: Final = 2048
ARCHIVE_BLOCK_BYTES: Final = MIB
_ROWS_AT_ONCE: Final = 64
_COLUMNS: Final = 5
_COMPRESSION_LEVEL: Final = 3
_MAX_BLOCK_BYTES: Final = 64 << 20


class ArchivePlace(NamedTuple):
    """The place of an archived message: its table, and the stream whose row it is."""

    #: The URL of the table; empty for the table in the cluster's own bucket.
    table: str
    tenant: str
    name: str


@dataclass(frozen=True, slots=True)
class ArchivedMessage:
    """A message without its value and headers; `checksum` covers both.

    In a row it replaces the value. It is neither bytes nor a tuple,
    so code that overlooks it fails.
    """

    seq: int
    revision: int
    time: int
    size_bytes: int
    checksum: int
    place: ArchivePlace

    @property
    def row(self) -> tuple[int, int, int, ArchivedMessage, None]:
        """A row as `StoreFile.message` returns it."""
        return self.seq, self.revision, self.time, self, None


#: The value of an archived message, and its headers: a map, or the box of an encrypted one.
Body = tuple[bytes, dict[str, str] | bytes | None]
#: Those of several, by seq and revision.
Bodies = Mapping[tuple[int, int], Body]


class ArchiveDraft(NamedTuple):
    """A possible next block: messages that are still in the file.

    `digest` covers all of them, including values and headers.
    """

    end_seq: int
    messages: list[ArchivedMessage]
    digest: bytes


class _Block(NamedTuple):
    """A decoded block: one list for each column of its messages."""

    end_seq: int
    place: ArchivePlace
    seqs: list[int]
    revisions: list[int]
    times: list[int]
    sizes: list[int]
    checksums: list[int]

    def message(self, index: int) -> ArchivedMessage:
        return ArchivedMessage(
            self.seqs[index],
            self.revisions[index],
            self.times[index],
            self.sizes[index],
            self.checksums[index],
            self.place,
        )

    def without(self, gone: set[int]) -> _Block:
        kept = [index for index, seq in enumerate(self.seqs) if seq not in gone]
        columns = (
            [column[index] for index in kept]
            for column in (self.seqs, self.revisions, self.times, self.sizes, self.checksums)
        )
        return _Block(self.end_seq, self.place, *columns)


class ArchivedBlocks:
    """The archived messages of one open file.

    `exists` is False while there have never been any; then nothing queries the file.
    """

    def __init__(self, execute: Callable[..., Any]) -> None:
        """`execute(statement, bindings)` returns a cursor of the file."""
        self._execute = execute
        self.exists = False
        self._kept: dict[int, _Block] = {}

    def load(self) -> None:
        """Read the state from the file, after it was opened."""
        self._kept.clear()
        self.exists = bool(self._execute(schema.HAS_ARCHIVED).get)

    def go_back(self, *, exists: bool) -> None:
        """Return to the state before a transaction that is rolled back."""
        self._kept.clear()
        self.exists = exists

    # Reading
    def find(self, seq: int) -> ArchivedMessage | None:
        """Return an archived message; None if the seq is not archived."""
        block = self._block(seq, seq)
        if block is None:
            return None
        index = bisect_left(block.seqs, seq)
        found = index < len(block.seqs) and block.seqs[index] == seq
        return block.message(index) if found else None

    def messages(self, start_seq: int, end_seq: int = _LARGEST_SEQ) -> Iterator[ArchivedMessage]:
        """Yield archived messages by seq, both ends inclusive. The file may change meanwhile."""
        while (block := self._block(start_seq, end_seq)) is not None:
            last = bisect_right(block.seqs, end_seq)
            for index in range(bisect_left(block.seqs, start_seq), last):
                yield block.message(index)
            start_seq = block.end_seq + 1

    def sum(self, start_seq: int, end_seq: int) -> tuple[int, int]:
        """Return the number of archived messages in a range, and their bytes."""
        count = size_bytes = 0
        for start, end, block_count, block_bytes in self._execute(
            schema.SELECT_BLOCK_SUMS, (start_seq,)
        ).fetchall():
            if start > end_seq:
                break
            if start_seq <= start and end <= end_seq:
                count += block_count
                size_bytes += block_bytes
                continue
            block = self._block_at(end)
            here = slice(bisect_left(block.seqs, start_seq), bisect_right(block.seqs, end_seq))
            count += len(block.seqs[here])
            size_bytes += sum(block.sizes[here])
        return count, size_bytes

    def last_seq(self) -> int:
        """Return the highest seq that was ever archived, or 0. The
        messages may all be deleted since."""
        found: int = self._execute(schema.SELECT_LAST_ARCHIVED).get
        return found

    def first_seq_from(self, start_seq: int) -> int | None:
        """Return the first archived seq from `start_seq` on."""
        found = next(self.messages(start_seq), None) if self.exists else None
        return None if found is None else found.seq

    def first(self) -> ArchivedMessage | None:
        """Return the first archived message."""
        return next(self.messages(1), None)

    def around_time(self, start_time: int) -> tuple[int, int | None]:
        """Return the archived seqs on either side of `start_time`.

        The first is the last seq with an earlier time, or 0; the second is the first seq with a
        time at or after it, or None.
        """
        end_seq = self._execute(schema.SELECT_BLOCK_AT_TIME, (start_time,)).get
        if end_seq is None:
            return self.last_seq(), None
        block = self._block_at(end_seq)
        index = bisect_left(block.times, start_time)
        if index:
            return block.seqs[index - 1], block.seqs[index]
        # Every earlier block ends before that time.
        return block.seqs[0] - 1, block.seqs[0]

    def counts_from_end(self) -> list[tuple[int, int, int]]:
        """Return `(start_seq, end_seq, count)` of each block, the last one first."""
        found: list[tuple[int, int, int]] = self._execute(
            schema.SELECT_BLOCK_COUNTS_FROM_END
        ).fetchall()
        return found

    def after_revision(self, revision: int) -> Iterator[ArchivedMessage]:
        """Yield the archived messages of later revisions by seq, which is also by revision."""
        start_seq = self._execute(schema.SELECT_BLOCK_AFTER_REVISION, (revision,)).get
        if start_seq is not None:
            for message in self.messages(start_seq):
                if message.revision > revision:
                    yield message

    def drafts(
        self,
        place: ArchivePlace,
        *,
        revision: int,
        time: int,
        end_seq: int,
        max_blocks: int,
    ) -> list[ArchiveDraft]:
        """Return the possible next blocks, of messages up to a revision, a time and a seq."""
        drafts: list[ArchiveDraft] = []
        start_seq = self.last_seq() + 1 if self.exists else 1
        for _ in range(max_blocks):
            rows = self._archivable(start_seq, end_seq, revision, time)
            if not rows:
                break
            drafts.append(_draft(place, rows))
            start_seq = rows[-1][0] + 1
        return drafts

    def _archivable(
        self, start_seq: int, end_seq: int, revision: int, time: int
    ) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        size_bytes = 0
        while len(rows) < ARCHIVE_BLOCK_ROWS and size_bytes < ARCHIVE_BLOCK_BYTES:
            # A few at a time, since one row may have a megabyte.
            found = self._execute(
                schema.SELECT_ARCHIVABLE,
                (start_seq, end_seq, schema.BLOCKS_ALONE, _ROWS_AT_ONCE),
            ).fetchall()
            for row in found:
                if row[1] > revision or row[2] > time:
                    return rows
                rows.append(row)
                size_bytes += exported_bytes(row[3], row[4])
                if len(rows) == ARCHIVE_BLOCK_ROWS or size_bytes >= ARCHIVE_BLOCK_BYTES:
                    return rows
            if len(found) < _ROWS_AT_ONCE:
                break
            start_seq = found[-1][0] + 1
        return rows

    # Writing
    def archive(self, end_seq: int, table: str, *, encrypted: bool = False) -> None:
        """Move the messages up to `end_seq` that may be archived into one block.

        These are the messages that were never replaced and have no ttl of their own, and encrypted
        ones only on demand: changes of earlier versions have left them.
        """
        for _ in self._execute(schema.CREATE_ARCHIVED):
            pass
        self.exists = True
        bounds = self._bounds(end_seq, encrypted=encrypted)
        rows = self._movable(bounds)
        if not rows:
            return
        tenant, name = self._execute(schema.SELECT_STORE).get
        seqs, revisions, times = (list(column) for column in list(zip(*rows, strict=True))[:3])
        sizes = [len(row[3]) + len(row[4] or b"") for row in rows]
        checksums = [checksum_of(row[3], row[4]) for row in rows]
        self._write(
            _Block(
                end_seq, ArchivePlace(table, tenant, name), seqs, revisions, times, sizes, checksums
            )
        )
        self._execute(schema.DELETE_ARCHIVABLE, bounds)

    def archivable(self, end_seq: int, *, encrypted: bool = False) -> list[int]:
        """Return the seqs of the messages that `archive` would move."""
        return [row[0] for row in self._movable(self._bounds(end_seq, encrypted=encrypted))]

    def _bounds(self, end_seq: int, *, encrypted: bool) -> tuple[int, int, bytes]:
        start_seq = self.last_seq() + 1 if self.exists else 1
        return start_seq, end_seq, schema.BLOCKS_ALONE if encrypted else schema.BLOCKS_AND_BOXES

    def _movable(self, bounds: tuple[int, int, bytes]) -> list[Any]:
        found: list[Any] = self._execute(schema.SELECT_ARCHIVABLE, (*bounds, -1)).fetchall()
        return found

    def remove(self, seqs: Sequence[int]) -> list[int]:
        """Remove those of `seqs` that are archived, and return the size of each of these."""
        removed: list[int] = []
        wanted = sorted(seqs)
        while wanted:
            block = self._block(wanted[0], wanted[-1])
            if block is None:
                break
            here = wanted[: bisect_right(wanted, block.end_seq)]
            wanted = wanted[len(here) :]
            sizes = dict(zip(block.seqs, block.sizes, strict=True))
            gone = {seq for seq in here if seq in sizes}
            if gone:
                removed += [sizes[seq] for seq in gone]
                self._write(block.without(gone))
        return removed

    def trim(self, end_seq: int) -> tuple[int, int]:
        """Remove the archived messages up to `end_seq`; return their number and their bytes."""
        count, size_bytes = self.sum(1, end_seq)
        for start, end, *_ in self._execute(schema.SELECT_BLOCK_SUMS, (1,)).fetchall():
            if start > end_seq:
                break
            if end <= end_seq:
                self._delete(end)
                continue
            block = self._block_at(end)
            self._write(block.without(set(block.seqs[: bisect_right(block.seqs, end_seq)])))
        return count, size_bytes

    # Inside
    def _block(self, start_seq: int, end_seq: int) -> _Block | None:
        """Return the first block that overlaps a range."""
        row = self._execute(schema.SELECT_BLOCK_FROM, (start_seq,)).get if self.exists else None
        if row is None or row[1] > end_seq:
            return None
        block = self._kept.get(row[0])
        if block is None:
            block = _decode(row)
            self._keep(block)
        return block

    def _block_at(self, end_seq: int) -> _Block:
        block = self._block(end_seq, _LARGEST_SEQ)
        assert block is not None
        assert block.end_seq == end_seq
        return block

    def _keep(self, block: _Block) -> None:
        self._kept.pop(block.end_seq, None)
        self._kept[block.end_seq] = block
        while len(self._kept) > _KEPT_BLOCKS:
            del self._kept[next(iter(self._kept))]

    def _write(self, block: _Block) -> None:
        if not block.seqs:
            self._delete(block.end_seq)
            return
        row = (
            block.end_seq,
            block.seqs[0],
            len(block.seqs),
            sum(block.sizes),
            block.revisions[-1],
            block.times[-1],
            *block.place,
            _encode(block),
        )
        self._execute(schema.INSERT_BLOCK, row)
        self._keep(block)

    def _delete(self, end_seq: int) -> None:
        self._kept.pop(end_seq, None)
        self._execute(schema.DELETE_BLOCK, (end_seq,))


def checksum_of(value: bytes, headers: bytes | None) -> int:
    """Return the CRC-32 of a message's value and its packed headers, as they are exported."""
    if not headers:
        return zlib.crc32(value)
    value, headers = exported(value, headers)
    return zlib.crc32(headers or b"", zlib.crc32(value))


def digest_of(rows: Iterable[tuple[int, int, int, bytes, bytes | None]]) -> bytes:
    """Return the SHA-256 of rows `(seq, revision, time, value, headers)`, as they are exported.

    The headers are packed.
    """
    digest = hashlib.sha256()
    for seq, revision, time, stored, stored_headers in rows:
        value, headers = exported(stored, stored_headers)
        packed = headers or b""
        digest.update(struct.pack("<qqqqq", seq, revision, time, len(value), len(packed)))
        digest.update(value)
        digest.update(packed)
    return digest.digest()


def _draft(place: ArchivePlace, rows: list[tuple[Any, ...]]) -> ArchiveDraft:
    messages = [
        ArchivedMessage(
            seq,
            revision,
            time,
            len(value) + len(headers or b""),
            checksum_of(value, headers),
            place,
        )
        for seq, revision, time, value, headers in rows
    ]
    return ArchiveDraft(rows[-1][0], messages, digest_of(rows))


def _encode(block: _Block) -> bytes:
    """Return the columns of a block, one after the other.

    The first three store differences between rows, so a column that grows by one
    each time takes next to nothing.
    """
    columns: list[int] = []
    for column in (block.seqs, block.revisions, block.times):
        columns.append(column[0])
        columns += [after - before for before, after in pairwise(column)]
    columns += block.sizes
    columns += block.checksums
    packed = struct.pack(f"<{len(columns)}q", *columns)
    return zstandard.ZstdCompressor(level=_COMPRESSION_LEVEL).compress(packed)


def _decode(row: Sequence[Any]) -> _Block:
    """Return a block of the table. Raises StoreDamagedError."""
    end_seq, _, count, size_bytes, _, _, table, tenant, name, messages = row
    try:
        packed = zstandard.ZstdDecompressor().decompress(messages, _MAX_BLOCK_BYTES)
        numbers = struct.unpack(f"<{_COLUMNS * count}q", packed)
    except (zstandard.ZstdError, struct.error) as error:
        raise StoreDamagedError(store=name, reason=f"archived block {end_seq}: {error}") from error
    columns = [list(numbers[start : start + count]) for start in range(0, len(numbers), count)]
    seqs, revisions, times = (list(accumulate(column)) for column in columns[:3])
    if sum(columns[3]) != size_bytes:
        raise StoreDamagedError(store=name, reason=f"archived block {end_seq} has other sizes")
    return _Block(
        end_seq, ArchivePlace(table, tenant, name), seqs, revisions, times, columns[3], columns[4]
    )
