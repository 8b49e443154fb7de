"""The changes that the image of a store file holds, in the order of revisions.

An image has the last state of each message or entry, and deletes and trims as far back as the
file's change log goes. It does not have values that were overwritten before it was taken.

A part of an image is a range of revisions, so several tasks can read the parts of a large store.
Messages that were only appended have the same order by revision and by seq, so a binary search
finds a range of them; everything else has an index by revision.

The image may not have all changes after the table's revision: deletes were forgotten, or the store
was created anew or restored in the meantime. Then it is read from its beginning, and
`ImageReading.is_reset` says that all earlier rows of the store in the table are void.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import merge
from itertools import islice, takewhile
from operator import attrgetter
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import apsw

from holdfast.protocol import frames
from holdfast.protocol.errors import (
    ArchiveUnreadableError,
    NewerFormatError,
    StoreDamagedError,
)
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.archive.archive_table import Archive
from holdfast.shared_fs.framed_images.image_pages import ImagePages
from holdfast.shared_fs.framed_images.image_vfs import open_paged
from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.applying import StoreMeta, pack_headers
from holdfast.shared_fs.store_file.archived_blocks import (
    ARCHIVE_BLOCK_ROWS,
    ArchivedBlocks,
    ArchivedMessage,
)
from holdfast.shared_fs.store_file.encrypted.encrypted_values import is_box
from holdfast.shared_fs.store_file.pages.page_sizes import format_of, read_format
from holdfast.spark.rows import image_statements as statements
from holdfast.spark.rows.batches import ColumnPiece, SetColumns, rows_of
from holdfast.spark.rows.chained_rows import ChainStart, ImageChain
from holdfast.spark.rows.image_slot import ImageSlot, OpenedImage, names_in
from holdfast.spark.rows.page_hints import SELECT_ROOT, bring_rows
from holdfast.spark.rows.paged_rows import PagedRows, mapped
from holdfast.spark.rows.rows import (
    BASE,
    BATCH_BYTES,
    BATCH_ROWS,
    RESET,
    ExportedRow,
    Piece,
    RowOrigin,
    Shape,
    configured,
    rows_of_change,
    set_row,
)
from holdfast.spark.sqlite_pages.records import PageError
from holdfast.spark.tables.watermarks import Watermark

_CACHE_KIB: Final = 8192
#: Where the header of an image has it.
_USER_VERSION: Final = slice(60, 64)
_LARGEST_SEQ: Final = (1 << 63) - 1
_revision: Final = attrgetter("revision")


@dataclass(frozen=True, slots=True)
class ImageReading:
    """The range of a part of an image: the changes after `after` up to `upto`."""

    after: int
    upto: int
    is_reset: bool
    #: Whether neither the table nor the changes have the configuration.
    lacks_config: bool = False
    #: What its chain follows; None if the store keeps none.
    chain: ChainStart | None = None


class StoreImage:
    """An image that is opened for reading, from memory, from a file that never changes, or by pages
    from the bucket. Then all methods raise what fetching these raises, too."""

    def __init__(
        self,
        store: StoreId,
        content: bytes | Path | ImagePages,
        archive: Archive | None = None,
        slot: ImageSlot | None = None,
        large_bytes: int = 0,
    ) -> None:
        """`archive` has the values of archived messages. A `slot` opens images in memory faster;
        it has one at a time. Large values of up to `large_bytes` are read, others are not. Raises
        StoreDamagedError, NewerFormatError."""
        self.store = store
        self._archive = archive
        self._pages = content if isinstance(content, ImagePages) else None
        self._is_borrowed = slot is not None and isinstance(content, bytes)
        with _telling(store):
            self._connection, names = _opened(content, slot)
            self._begin(content, names, large_bytes)

    def _begin(
        self, content: bytes | Path | ImagePages, names: frozenset[str], large_bytes: int
    ) -> None:
        """Read what the image says of itself. Raises what the constructor does, and apsw.Error."""
        store = self.store
        version = _version_of(content, self._connection)
        if version > schema.LATEST_FORMAT:
            raise NewerFormatError(what=str(store), found=version, known=schema.LATEST_FORMAT)
        row: Any = self._connection.execute(
            statements.select_meta(StoreKind(store.kind), version)
        ).get
        if row is None or (*row[:3],) != store:
            raise StoreDamagedError(store=str(store), reason="its image is of another store")
        *meta, self.created, self._has_changes, self._has_replaced, self._config = row[3:]
        #: Files of earlier formats have no `body_bytes`. Large values stay in their stores.
        can_have_large = "bodies" in names
        self._value = "CASE WHEN body_bytes IS NULL THEN value END" if can_have_large else "value"
        has_large = can_have_large and self._connection.execute(statements.HAS_LARGE).get
        self._has_large = bool(has_large)
        self._large_bytes = large_bytes
        self._has_ttl = statements.TTL_INDEX in names
        self._has_subjects = "subjects" in names
        self._more = statements.more_columns(
            StoreKind(store.kind),
            subjects=self._has_subjects,
            large=self._has_large,
            ttl=self._has_ttl,
        )
        self.meta = StoreMeta(*meta)
        self._known: Watermark | None = None
        #: Some of its values are encrypted, or were; and under which names besides its own.
        self.is_encrypted = "former_names" in names
        self.former_names: list[str] = []
        if self.is_encrypted:
            found = self._connection.execute("SELECT name FROM former_names ORDER BY name")
            self.former_names = [str(name) for (name,) in found]
        #: What is read beside SQLite. The file of an image may be removed once it is open.
        self._content: bytes | mmap.mmap | None = None
        if isinstance(content, Path):
            self._content = mapped(content)
        elif isinstance(content, bytes) and not self._is_borrowed:
            self._content = content
        self._archived = ArchivedBlocks(self._connection.execute)
        if "archived" in names:
            self._archived.load()
        self._chain: ImageChain | None = None
        if "chain" in names:
            self._chain = ImageChain(
                store, self._connection.execute, has_subjects=self._has_subjects
            )

    def close(self) -> None:
        self._content = None
        if not self._is_borrowed:
            self._connection.close(True)

    def _with_value(self, statement: str) -> str:
        return statement.format(value=self._value, more=self._more)

    def watermark(self) -> Watermark:
        """Return the watermark of a table that has the whole image."""
        meta = self.meta
        return Watermark(
            *(meta.epoch, meta.revision, meta.last_seq, meta.time, self.created, False),
            self._config_mark,
            self._chain.value if self._chain is not None else b"",
        )

    @property
    def _config_mark(self) -> int:
        return zlib.crc32(self._config.encode()) if self._config else 0

    def reading(self, since: Watermark | None, part: int = 0, parts: int = 1) -> ImageReading:
        """Return the `part`-th of `parts` equal parts of the changes after `since`. Raises
        StoreDamagedError."""
        with _telling(self.store):
            return self._reading(since, part, parts)

    def _reading(self, since: Watermark | None, part: int, parts: int) -> ImageReading:
        after = 0 if since is None else since.revision
        self._known = since
        is_reset = since is not None and not self._continues(since)
        if is_reset:
            after = 0
        start = None
        if self._chain is not None:
            # The chain after a message depends on all before it, so one task reads all parts.
            start = self._chain.start(None if is_reset else since)
            if part:
                return ImageReading(self.meta.revision, self.meta.revision, is_reset=False)
            part, parts = 0, 1
        length = self.meta.revision - after
        is_last = part == parts - 1
        return ImageReading(
            after + length * part // parts,
            after + length * (part + 1) // parts,
            is_reset and part == 0,
            is_last and self._lacks_config(after, 0 if since is None else since.config),
            start,
        )

    def _lacks_config(self, after: int, known: int) -> bool:
        """Return whether a table that goes up to `after`, with a known configuration, lacks that of
        the image: the change log has forgotten it, or earlier versions did not export it."""
        if self._config_mark == (known if after else 0):
            return False
        return not self._connection.execute(statements.HAS_CONFIGURED, (after,)).get

    def pieces(self, reading: ImageReading, run: int, source: str) -> Iterator[Piece | ColumnPiece]:
        """Yield the changes of a reading, in the order of revisions. Raises StoreDamagedError."""
        origin = RowOrigin(self.store, self.meta.epoch, run, source)
        found = self._pieces(origin, reading)
        if reading.chain is not None and self._chain is not None:
            beginning = ExportedRow(BASE, reading.after, None, None, self.meta.time, None, None)
            found = self._chain.filled(rows_of(found), reading.chain, origin, beginning)
        with _telling(self.store):
            if self._pages is not None:
                self._bring(self._pages, reading)
            yield from found

    def held(
        self, first_seq: int, last_seq: int, start_time: int | None = None
    ) -> Iterator[Piece | ColumnPiece]:
        """Yield what the store holds: the messages from one seq to another, from the first one on
        that was appended at a time or later if there is one, in the order of seqs; or all entries
        of a kv, in the order of revisions. Raises StoreDamagedError."""
        origin = RowOrigin(self.store, self.meta.epoch, 0, "")
        with _telling(self.store):
            if self.store.kind == StoreKind.KV:
                first, last = 1, self.meta.revision
            else:
                first, last = first_seq, min(last_seq, self.meta.last_seq)
                if start_time is not None:
                    first = max(first, self._seq_at_time(start_time))
            paged = None if self._archived.exists else self._paged()
            if paged is not None:
                yield from _column_pieces(origin, paged.between(first, last, with_replaced=True))
                return
            rows: Iterator[Any]
            if self.store.kind == StoreKind.KV:
                found = self._with_value(statements.SELECT_ENTRIES)
                rows = self._connection.execute(found, (first - 1, last))
            else:
                found = self._with_value(statements.SELECT_HELD)
                rows = self._connection.execute(found, (first, last))
            if self._archived.exists:
                rows = merge(rows, self._brought_back(self._archived.messages(first, last)))
            yield from self._interleaved(origin, rows, _Queue(iter(())), self.meta.revision)

    def _seq_at_time(self, start_time: int) -> int:
        """Return the seq of the first message that was appended at a time or later."""
        low, archived = 1, None
        if self._archived.exists:
            earlier, archived = self._archived.around_time(start_time)
            low = earlier + 1
        low = self._first_appended(statements.PROBE_TIME, start_time, low)
        return low if archived is None else min(low, archived)

    def _pieces(self, origin: RowOrigin, reading: ImageReading) -> Iterator[Piece | ColumnPiece]:
        if reading.is_reset:
            reset = ExportedRow(RESET, reading.after, None, None, self.meta.time, None, None)
            yield Piece(origin, Shape.CHANGES, [reset])
        if self.store.kind == StoreKind.STREAM:
            yield from self._messages(origin, reading)
        else:
            yield from self._entries(origin, reading)
        if reading.lacks_config:
            config = json.loads(self._config or "{}")
            yield Piece(origin, Shape.CHANGES, [configured(config, reading.upto, self.meta.time)])

    # Both kinds
    def _continues(self, since: Watermark) -> bool:
        """Return whether the image has every change since a watermark."""
        meta = self.meta
        if since.created and since.created != self.created:
            return False
        if since.chain and self._chain is None:
            return False
        if self._chain is not None and self._chain.lacks(since):
            return False
        if meta.revision < since.revision or since.revision < meta.changes_from:
            return False
        # A store that was restored to an earlier state and then written has other changes under old
        # revisions. Times never run backwards within a store, and it was restored after the export.
        return all(time <= since.time for time in self._times_up_to(since.revision))

    def _times_up_to(self, revision: int) -> Iterator[int]:
        asked = [statements.LAST_TIMES]
        if self.store.kind == StoreKind.STREAM:
            asked.append(statements.LAST_REPLACED_TIME)
            appended: Any = self._connection.execute(
                statements.LAST_APPENDED, (self._first_seq_after(revision),)
            ).get
            if appended is not None:
                yield appended[1]
            if self._archived.exists:
                yield self._connection.execute(statements.LAST_ARCHIVED_TIME, (revision,)).get
        else:
            asked.append(statements.LAST_ENTRY_TIME)
        for statement in asked:
            time: Any = self._connection.execute(statement, (revision,)).get
            if time is not None:
                yield time

    def _piece_rows(self) -> int:
        mean_bytes = self.meta.bytes // max(1, self.meta.count) + 1
        return max(1, min(BATCH_ROWS, BATCH_BYTES // mean_bytes))

    def _changes(self, reading: ImageReading) -> Iterator[ExportedRow]:
        if not self._has_changes:
            return
        found = self._connection.execute(statements.SELECT_CHANGES, (reading.after, reading.upto))
        for revision, time, change in found:
            yield from rows_of_change(frames.unpack(change), revision, time)

    def _bring(self, pages: ImagePages, reading: ImageReading) -> None:
        """Fetch the pages that are about to be read."""
        table, first, last = "entries", reading.after + 1, reading.upto
        if self.store.kind == StoreKind.STREAM:
            table, first, last = "messages", self._first_seq_after(reading.after), _LARGEST_SEQ
            if reading.upto < self.meta.revision:
                # Where this part of the messages ends is not known.
                return
        root: Any = self._connection.execute(SELECT_ROOT, (table,)).get
        bring_rows(pages, root, first, last)

    # Streams
    def _messages(self, origin: RowOrigin, reading: ImageReading) -> Iterator[Piece | ColumnPiece]:
        others = _Queue(self._replaced_and_changes(reading))
        if others.revision is None and not self._archived.exists:
            paged = self._paged()
            if paged is not None:
                first = self._first_seq_after(reading.after)
                last = self._first_seq_after(reading.upto) - 1
                yield from _column_pieces(origin, paged.between(first, last))
                return
        appended: Iterator[Any] = self._connection.execute(
            self._with_value(statements.SELECT_APPENDED), (self._first_seq_after(reading.after),)
        )
        if self._archived.exists:
            # Values that the table has are not read from it again. Nearly always it has all of
            # them.
            wanted = takewhile(
                lambda message: message.revision <= reading.upto,
                self._archived.after_revision(reading.after),
            )
            appended = merge(appended, self._brought_back(wanted))
        yield from self._interleaved(origin, appended, others, reading.upto)

    def _paged(self) -> PagedRows | None:
        """Return what reads the pages of a large image without SQLite, None if rows may have more
        than it reads."""
        if self._content is None or self._is_rich or self._has_subjects:
            return None
        paged = PagedRows(self._content, self._connection, StoreKind(self.store.kind))
        return paged if paged.are_known else None

    def _brought_back(self, wanted: Iterator[ArchivedMessage]) -> Iterator[tuple[Any, ...]]:
        """Yield archived messages as rows, for a reader who does not have them."""
        for messages in iter(lambda: list(islice(wanted, ARCHIVE_BLOCK_ROWS)), []):
            if self._archive is None:
                reason = "its archive is not known"
                raise ArchiveUnreadableError(store=str(self.store), reason=reason)
            bodies = self._archive.bodies(messages)
            for message in messages:
                value, headers = bodies[message.seq, message.revision]
                row = (message.seq, message.revision, message.time, value, pack_headers(headers))
                if self._is_rich:
                    yield (*row, None, None, None, None)
                else:
                    yield (*row, None) if self._has_subjects else row

    def _replaced_and_changes(self, reading: ImageReading) -> Iterator[ExportedRow]:
        if not self._has_replaced:
            return self._changes(reading)
        replaced = (
            set_row(row, is_stream=True)
            for row in self._connection.execute(
                self._with_value(statements.SELECT_REPLACED), (reading.after, reading.upto)
            )
        )
        return _merged(replaced, self._changes(reading))

    def _first_seq_after(self, revision: int) -> int:
        """Return the seq at which the appended messages after a revision begin."""
        if revision == 0:
            return 1
        if self._known is not None and self._known.revision == revision:
            # Nearly always the table ends with the last message that was appended. A search for
            # that would read pages from all over the file.
            seq = self._known.last_seq + 1
            if self._is_first_after(revision, seq):
                return seq
        return self._first_appended(statements.PROBE_APPENDED, revision + 1, 1)

    def _first_appended(self, probe: str, least: int, low: int) -> int:
        """Return the first seq from `low` on for which a probe finds at least `least`."""
        high = self.meta.last_seq + 1
        while low < high:
            middle = (low + high) // 2
            found: Any = self._connection.execute(probe, (middle,)).get
            if found is None or found >= least:
                high = middle
            else:
                low = middle + 1
        return low

    def _is_first_after(self, revision: int, seq: int) -> bool:
        """Return whether no appended message before `seq`, and each one from it on, is after a
        revision."""
        before: Any = self._connection.execute(statements.LAST_APPENDED, (seq,)).get
        if before is not None and before[0] > revision:
            return False
        found: Any = self._connection.execute(statements.PROBE_APPENDED, (seq,)).get
        return found is None or found > revision

    # Kvs
    def _entries(self, origin: RowOrigin, reading: ImageReading) -> Iterator[Piece | ColumnPiece]:
        others = _Queue(self._changes(reading))
        paged = self._paged() if others.revision is None else None
        if paged is not None:
            yield from _column_pieces(origin, paged.between(reading.after + 1, reading.upto))
            return
        entries = self._connection.execute(
            self._with_value(statements.SELECT_ENTRIES), (reading.after, reading.upto)
        )
        yield from self._interleaved(origin, entries, others, reading.upto)

    def _interleaved(
        self, origin: RowOrigin, sets: Iterator[Any], others: _Queue, upto: int
    ) -> Iterator[Piece]:
        """Merge rows of messages or entries with other changes. Where there are no other changes,
        as nearly everywhere, no row is handled one by one."""
        is_stream = self.store.kind == StoreKind.STREAM
        shape_of_sets = Shape.MESSAGES if is_stream else Shape.ENTRIES
        if self._has_subjects:
            shape_of_sets = Shape.SUBJECT_MESSAGES
        size = self._piece_rows()
        for rows in iter(lambda: list(islice(sets, size)), []):
            ended = rows[-1][1] > upto
            if ended:
                rows = [row for row in rows if row[1] <= upto]
            while rows:
                last = rows[-1][1]
                if others.revision is None or others.revision > last:
                    if self._is_rich:
                        found = [set_row(row, is_stream=is_stream) for row in rows]
                        yield from self._filled(origin, found)
                    else:
                        yield Piece(origin, shape_of_sets, rows)
                    break
                mixed = others.take_up_to(last, size)
                if others.revision is not None:
                    last = min(last, max(others.revision - 1, mixed[-1].revision))
                here = [row for row in rows if row[1] <= last]
                rows = rows[len(here) :]
                mixed += [set_row(row, is_stream=is_stream) for row in here]
                mixed.sort(key=_revision)
                yield from self._filled(origin, mixed)
            if ended:
                break
        while mixed := others.take_up_to(upto, size):
            yield from self._filled(origin, mixed)

    @property
    def _is_rich(self) -> bool:
        """Whether rows have all fields of an ExportedRow."""
        return self._has_large or self._has_ttl or self._chain is not None

    def _filled(self, origin: RowOrigin, rows: list[ExportedRow]) -> Iterator[Piece]:
        """Yield rows as a piece, or, with the bytes of large values, as several: so few of them are
        in memory."""
        if not self._large_bytes or not self._has_large:
            yield Piece(origin, Shape.CHANGES, rows)
            return
        held: list[ExportedRow] = []
        held_bytes = 0
        for row in rows:
            # Whether an encrypted one has its SHA-256 cannot be told without its key.
            size_bytes = None if is_box(row.headers) else row.large_bytes
            if size_bytes is not None and size_bytes <= self._large_bytes:
                row = row._replace(value=self._body(row))
                held_bytes += size_bytes
            held.append(row)
            if held_bytes >= BATCH_BYTES:
                yield Piece(origin, Shape.CHANGES, held)
                held, held_bytes = [], 0
        if held:
            yield Piece(origin, Shape.CHANGES, held)

    def _body(self, row: ExportedRow) -> bytes:
        """Return a large value. Raises StoreDamagedError, apsw.Error."""
        place = row.seq if self.store.kind == StoreKind.STREAM else row.key
        found = self._connection.execute(statements.SELECT_BODY, (place,))
        value = b"".join(data for (data,) in found)
        if len(value) != row.large_bytes or hashlib.sha256(value).hexdigest() != row.large_sha256:
            reason = f"the large value of {place!r} has other bytes than were stored"
            raise StoreDamagedError(store=str(self.store), reason=reason)
        return value


@contextmanager
def _telling(store: StoreId) -> Iterator[None]:
    """Say of which store an image is damaged."""
    try:
        yield
    except (apsw.Error, PageError) as error:
        raise StoreDamagedError(store=str(store), reason=f"its image: {error}") from error


def _column_pieces(origin: RowOrigin, found: Iterator[SetColumns]) -> Iterator[ColumnPiece]:
    for columns in found:
        yield ColumnPiece([origin], [len(columns.revisions)], columns)


def _version_of(content: object, connection: apsw.Connection) -> int:
    if isinstance(content, bytes):
        return format_of(int.from_bytes(content[_USER_VERSION]))
    return read_format(connection.execute)


def _opened(content: bytes | Path | ImagePages, slot: ImageSlot | None) -> OpenedImage:
    """Open an image. Raises apsw.Error."""
    if isinstance(content, ImagePages):
        connection = open_paged(content)
        connection.pragma("cache_size", -_CACHE_KIB)
    elif isinstance(content, bytes):
        if slot is not None:
            return slot.put(content)
        connection = apsw.Connection(":memory:")
        connection.deserialize("main", content)
    else:
        connection = apsw.Connection(
            f"file:{quote(str(content))}?immutable=1",
            flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI,
        )
        connection.pragma("cache_size", -_CACHE_KIB)
    return OpenedImage(connection, names_in(connection))


class _Queue:
    """Rows in the order of revisions, with a view of the next one."""

    def __init__(self, rows: Iterator[ExportedRow]) -> None:
        self._rows = rows
        self._next = next(rows, None)

    @property
    def revision(self) -> int | None:
        return None if self._next is None else self._next.revision

    def take_up_to(self, revision: int, count: int) -> list[ExportedRow]:
        taken: list[ExportedRow] = []
        while self._next is not None and self._next.revision <= revision and len(taken) < count:
            taken.append(self._next)
            self._next = next(self._rows, None)
        return taken


def _merged(first: Iterator[ExportedRow], second: Iterator[ExportedRow]) -> Iterator[ExportedRow]:
    """Merge two sequences of rows, each in the order of revisions."""
    left, right = _Queue(first), _Queue(second)
    while left.revision is not None or right.revision is not None:
        if right.revision is None or (left.revision is not None and left.revision < right.revision):
            yield from left.take_up_to(left.revision or 0, 1)
        else:
            yield from right.take_up_to(right.revision, 1)
