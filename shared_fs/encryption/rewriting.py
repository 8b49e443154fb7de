"""Writes the values of a file anew, encrypted with the current key: those in clear, and those under
former keys.

For a copy that nobody else has (`persist/jobs/reencrypting.py`). Rows keep seq, revision, time and
everything else but value and headers, and a leaf stays what it was, so the store is the same to
whoever reads it. Work is done in transactions of bounded size; each can be repeated.

Messages in the archive have no value here. They stay there as they are, or come back into the file
first: a block has checksums of what the table has, so it cannot name other bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.applying import pack_headers, unpack_headers
from holdfast.shared_fs.store_file.archived_blocks import ArchivedMessage, Bodies
from holdfast.shared_fs.store_file.chain.kept_leaves import kept_leaf_of, kept_leaf_of_set
from holdfast.shared_fs.store_file.encrypted.encrypted_values import is_box, leaf_in_box
from holdfast.shared_fs.store_file.store_file import FileParts
from holdfast.shared_fs.store_file.subject_schema import SUBJECT

#: Rows of one transaction: up to 64 MiB of values, usually some kilobytes.
_ROWS_AT_ONCE: Final = 64
#: Neither a box of the current key, nor, with `IS NOT`, anything in clear.
_NOT_CURRENT: Final = "(substr({0}, 1, 1) IS NOT x'C1' OR substr({0}, 3, 4) IS NOT ?)"
_SELECT: Final = (
    "SELECT {place}, {columns} FROM {table} WHERE {place} > ? AND "
    + _NOT_CURRENT.format("headers")
    + " ORDER BY {place} LIMIT ?"
)
_UPDATE: Final = "UPDATE {table} SET value = ?, headers = ? WHERE {place} = ?"
_COLUMNS: Final = "revision, time, value, headers, body_bytes"
_BODY: Final = "SELECT upload, size, sha256, crc32 FROM bodies WHERE place = ?"
_UPDATE_BODY: Final = "UPDATE bodies SET sha256 = ? WHERE place = ?"
_BODIES: Final = "SELECT id, upload, size FROM bodies WHERE upload IS NOT NULL ORDER BY id"
_CHUNKS: Final = (
    "SELECT offset, data, (SELECT min(n.offset) FROM chunks AS n"
    " WHERE n.body = chunks.body AND n.offset > chunks.offset)"
    " FROM chunks WHERE body = ? AND offset > ? ORDER BY offset LIMIT 1"
)
_UPDATE_CHUNK: Final = "UPDATE chunks SET data = ? WHERE body = ? AND offset = ?"
_OUTCOMES: Final = (
    "SELECT writer, counter, outcome FROM outcomes WHERE "
    + _NOT_CURRENT.format("outcome")
    + " LIMIT ?"
)
_UPDATE_OUTCOME: Final = "UPDATE outcomes SET outcome = ? WHERE writer = ? AND counter = ?"
_KEY_ID: Final = slice(2, 6)
_INSERT: Final = schema.INSERT_MESSAGE
_DELETE_LEAF: Final = "DELETE FROM leaves WHERE seq = ?"

# Whether anything has to be rewritten: scans
_HAS_ROW: Final = (
    "SELECT EXISTS (SELECT 1 FROM {table} WHERE " + _NOT_CURRENT.format("headers") + ")"
)
#: One in clear that was written later is none of a counter.
_HAS_OUTCOME: Final = (
    "SELECT EXISTS (SELECT 1 FROM outcomes WHERE substr(outcome, 1, 1) = x'C1'"
    " AND substr(outcome, 3, 4) IS NOT ?)"
)
#: A chunk as long as its part of the value is in clear.
_HAS_CHUNK: Final = (
    "SELECT EXISTS (SELECT 1 FROM (SELECT length(c.data) AS kept, substr(c.data, 3, 4) AS key,"
    " lead(c.offset, 1, b.size) OVER (PARTITION BY c.body ORDER BY c.offset) - c.offset AS clear"
    " FROM chunks AS c JOIN bodies AS b ON b.id = c.body WHERE b.upload IS NOT NULL)"
    " WHERE kept = clear OR key IS NOT ?)"
)

#: Returns values and headers of archived messages of one store.
ReadsBodies = Callable[[Sequence[ArchivedMessage]], Bodies]


class Recipher(Protocol):
    """Encrypts and decrypts the values of one store. Raises KeyUnavailableError,
    TenantShreddedError, DecryptionFailedError."""

    @property
    def current_id(self) -> int: ...
    def row(
        self, place: Any, revision: int, value: Any, headers: bytes
    ) -> tuple[Any, bytes | None]: ...
    def kept_row(
        self, place: Any, revision: int, value: Any, packed: bytes | None, leaf: bytes | None
    ) -> tuple[Any, bytes]: ...
    def chunk(self, upload_id: bytes, offset: int, data: bytes) -> bytes: ...
    def kept_chunk(self, upload_id: bytes, offset: int, data: bytes) -> bytes: ...
    def outcome(self, writer: bytes, counter: int, kept: bytes) -> bytes: ...
    def encrypted_outcome(self, writer: bytes, counter: int, outcome: bytes) -> bytes: ...


class Rewritten(NamedTuple):
    """How many values and chunks were written anew, and how many messages came back from the
    archive."""

    values: int
    chunks: int
    brought_back: int = 0


class ValueRewriting:
    """The rewriting of one open file."""

    def __init__(self, file: FileParts) -> None:
        self._execute = file.execute
        self._transaction = file.transaction
        self._subjects = file.subjects
        self._chain = file.chain
        self._encryption = file.encryption
        self._archived = file.archived
        self._is_stream = file.is_stream

    def is_needed(self, key: int) -> bool:
        """Tell whether the file has anything in clear or under another key than the one of this
        number. Reads all of it."""
        current = (key.to_bytes(4),)
        tables = ["messages"] if self._is_stream else ["entries"]
        if self._has("history"):
            tables.append("history")
        asked = [_HAS_ROW.format(table=table) for table in tables] + [_HAS_OUTCOME]
        if self._has("bodies"):
            asked.append(_HAS_CHUNK)
        return any(self._execute(each, current).get for each in asked)

    def run(self, cipher: Recipher, bodies: ReadsBodies | None = None) -> Rewritten:
        """Rewrite everything. With `bodies`, archived messages come back into the file. Raises what
        the cipher and `bodies` raise, and StorageError."""
        current = cipher.current_id.to_bytes(4)
        values, brought_back = 0, 0
        if self._is_stream:
            if bodies is not None and self._archived.exists:
                brought_back = self._bring_back(bodies)
            subject = SUBJECT if self._subjects.exists else "NULL"
            values += self._rows(cipher, current, "messages", "seq", f"{_COLUMNS}, {subject}")
        else:
            values += self._rows(cipher, current, "entries", "revision", f"{_COLUMNS}, key")
            if self._has("history"):
                values += self._rows(cipher, current, "history", "revision", f"{_COLUMNS}, key")
        chunks = self._chunks(cipher, current) if self._has("bodies") else 0
        self._outcomes(cipher, current)
        return Rewritten(values, chunks, brought_back)

    def _has(self, table: str) -> bool:
        return any(name == table for (name,) in self._execute(schema.SELECT_TABLES).fetchall())

    # Archived messages
    def _bring_back(self, bodies: ReadsBodies) -> int:
        """Put archived messages back into the file, as they were archived."""
        count, last = 0, 0
        while True:
            messages = list(islice(self._archived.messages(last + 1), _ROWS_AT_ONCE))
            if not messages:
                return count
            found = bodies(messages)
            with self._transaction():
                for message in messages:
                    self._insert(message, *found[message.seq, message.revision])
                self._archived.remove([message.seq for message in messages])
            count, last = count + len(messages), messages[-1].seq

    def _insert(self, message: ArchivedMessage, value: bytes, headers: Any) -> None:
        packed = pack_headers(headers)
        if is_box(packed):
            if not self._subjects.is_marked:
                self._subjects.mark()
            self._encryption.mark(is_chained=leaf_in_box(packed) is not None)
        row = (message.seq, message.revision, message.time, value, packed)
        self._execute(_INSERT, row)
        if self._chain.exists:
            # The leaf of what is in the file is made of that.
            self._execute(_DELETE_LEAF, (message.seq,))

    # Rows
    def _rows(self, cipher: Recipher, current: bytes, table: str, place: str, columns: str) -> int:
        count, last = 0, 0
        select = _SELECT.format(table=table, place=place, columns=columns)
        update = _UPDATE.format(table=table, place=place)
        while True:
            rows: list[Any] = self._execute(select, (last, current, _ROWS_AT_ONCE)).fetchall()
            if not rows:
                return count
            with self._transaction():
                for row in rows:
                    self._row(cipher, table, update, row)
            count, last = count + len(rows), rows[-1][0]

    def _row(self, cipher: Recipher, table: str, update: str, row: tuple[Any, ...]) -> None:
        row_place, revision, time, value, headers, body_bytes, about = row
        # What is encrypted is bound to the seq, or the key.
        place = row_place if table == "messages" else about
        of_body = about if table == "entries" else row_place
        if body_bytes is not None:
            [found] = self._execute(_BODY, (of_body,)).fetchall()
            value = list(found)
        leaf = leaf_in_box(headers)
        if is_box(headers):
            value, headers = cipher.row(place, revision, value, headers)
        elif table != "history" and self._chain.exists and row_place > self._chain.base.seq:
            shown = unpack_headers(headers)
            if table == "messages":
                leaf = kept_leaf_of(place, time, value, shown, about)
            else:
                leaf = kept_leaf_of_set(revision, time, value, shown, place)
        kept, box = cipher.kept_row(place, revision, value, headers, leaf)
        if not self._subjects.is_marked and table == "messages":
            self._subjects.mark()
        self._encryption.mark(is_chained=leaf is not None)
        if body_bytes is not None:
            self._execute(_UPDATE_BODY, (kept[2], of_body))
            kept = b""
        self._execute(update, (kept, box, row_place))

    # Chunks of large values, and of unfinished uploads
    def _chunks(self, cipher: Recipher, current: bytes) -> int:
        count = 0
        bodies: list[Any] = self._execute(_BODIES).fetchall()
        for body, upload, size_bytes in bodies:
            for offset, data, clear_bytes in self._chunks_of(body, size_bytes):
                if len(data) != clear_bytes:
                    if data[_KEY_ID] == current:
                        continue
                    data = cipher.chunk(upload, offset, data)
                with self._transaction():
                    self._encryption.mark(is_chained=False)
                    kept = cipher.kept_chunk(upload, offset, data)
                    self._execute(_UPDATE_CHUNK, (kept, body, offset))
                count += 1
        return count

    def _chunks_of(self, body: int, size_bytes: int) -> Iterator[tuple[int, bytes, int]]:
        """Yield offset, data and clear bytes of each chunk, one at a time."""
        offset = -1
        while True:
            rows: list[Any] = self._execute(_CHUNKS, (body, offset)).fetchall()
            if not rows:
                return
            [(offset, data, following)] = rows
            end = size_bytes if following is None else following
            yield offset, bytes(data), end - offset

    # Outcomes of writers: those of counters tell values, and in clear nothing tells which they are
    def _outcomes(self, cipher: Recipher, current: bytes) -> None:
        while True:
            rows: list[Any] = self._execute(_OUTCOMES, (current, _ROWS_AT_ONCE)).fetchall()
            if not rows:
                return
            with self._transaction():
                if not self._subjects.is_marked and self._is_stream:
                    self._subjects.mark()
                self._encryption.mark(is_chained=False)
                for writer, counter, kept in rows:
                    clear = cipher.outcome(writer, counter, kept)
                    again = cipher.encrypted_outcome(writer, counter, clear)
                    self._execute(_UPDATE_OUTCOME, (again, writer, counter))
