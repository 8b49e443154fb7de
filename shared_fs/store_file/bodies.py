"""Large values in a store file: their chunks, from the first one to the removal of the last.

A *body* is the bytes of a value that is too large to be sent, or stored, in one piece. It grows
chunk by chunk as an upload, and is not a value yet. It becomes the value of a seq or key (its
*place*) when the operation that says so is applied, and is dropped when that value is replaced or
removed. Invariants:

- A body is dense: its chunks start at offset 0, and the next one begins at `size`.
- A body is the value of at most one place, and a place has at most one body.
- An upload becomes a value at most once. Its place is remembered for
  UPLOAD_RETENTION_SECONDS, even after the value is dropped, so a client that resumes the
  upload is told, and does not undo later writes.
- A dropped body cannot be read, although its chunks are removed later and in parts (`sweep`):
  freeing a gigabyte takes SQLite seconds.

Everything runs in the caller's transactions. The tables are created with the first chunk: most
stores never have one, and their files do not pay for the tables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import apsw

from holdfast.protocol.changes import Chunk
from holdfast.protocol.limits import UPLOAD_RETENTION_SECONDS
from holdfast.protocol.messages import LargeValue
from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.encrypted.encrypted_rows import StoredEncryption, excess_chunks
from holdfast.shared_fs.store_file.encrypted.encrypted_values import is_box

#: A seq; a key; or the revision of a former value of a kv, which is in its history.
Place = int | str

#: Chunks that one statement removes.
_SWEPT_AT_ONCE: Final = 64
_RETENTION_MS: Final = int(UPLOAD_RETENTION_SECONDS * 1000)


class Body(NamedTuple):
    """The state of an upload, or of a value that was uploaded.

    `revision` is that of its place, None without one. `time` is when it was placed, or else when
    its last chunk came.
    """

    size_bytes: int
    crc32: int
    time: int
    sha256: bytes | None
    place: Place | None
    revision: int | None


class Bodies:
    """The large values of one file."""

    def __init__(self, execute: Callable[..., apsw.Cursor]) -> None:
        self._execute = execute
        self._there: bool | None = None
        self._has_gone: bool | None = None

    @property
    def has_gone(self) -> bool:
        """True if chunks of dropped bodies may have to be swept."""
        if self._has_gone is None:
            self._has_gone = self.there and (self._execute(schema.SELECT_GONE_BODY).get is not None)
        return self._has_gone

    @property
    def there(self) -> bool:
        """True if the file has the tables for them."""
        if self._there is None:
            self._there = bool(self._execute(schema.SELECT_HAS_BODIES).get)
        return self._there

    def look_again(self) -> None:
        """Forget what is cached after a rollback: the tables may not exist after all."""
        self._there = self._has_gone = None

    # Writing
    def put_chunk(self, chunk: Chunk, data: bytes, time: int) -> None:
        """Add the next chunk of an upload, or the first of a new one, with its `data`."""
        if not self.there:
            for _ in self._execute(schema.CREATE_BODIES):
                pass
            self._there = True
        upload_id, offset, _, crc32, _ = chunk
        if offset:
            body = self._execute(schema.GROW_BODY, (chunk.end, crc32, time, upload_id)).get
        else:
            body = self._execute(schema.INSERT_BODY, (upload_id, chunk.end, crc32, time)).get
        self._execute(schema.INSERT_CHUNK, (body, offset, data))

    def put_in_place(self, value: LargeValue, place: Place, revision: int, time: int) -> None:
        """Make an upload the value of a place; drop the body that was there."""
        self.drop_at(place)
        self._execute(schema.PLACE_BODY, (value.sha256, place, revision, time, value.upload_id))

    def drop_uploads(self, upload_ids: Sequence[bytes]) -> None:
        """Drop uploads that are not values."""
        if self.there:
            for upload_id in upload_ids:
                self._execute(schema.DROP_UPLOAD, (upload_id,))
            self._has_gone = None

    def drop_at(self, place: Place) -> None:
        """Drop the body of a place, if it has one."""
        self._drop_placed(schema.BODY_AT, place)

    def drop_past(self) -> None:
        """Drop the bodies of the history of a kv."""
        self._drop_placed(schema.PAST_BODIES)

    def move(self, place: Place, revision: int) -> None:
        """Make the body of a key, if it has one, that of its former value with `revision`."""
        if self.there:
            self._execute(schema.MOVE_BODY, (revision, place))

    def move_all(self) -> None:
        """`move` for every key."""
        if self.there:
            self._execute(schema.MOVE_ALL_BODIES)

    def drop_up_to(self, seq: int) -> None:
        """Drop the bodies of a stream up to and including `seq`."""
        self._drop_placed(schema.BODIES_UP_TO, seq)

    def drop_all(self) -> None:
        """Drop every value, but no upload."""
        self._drop_placed(schema.PLACED_BODIES)

    def _drop_placed(self, which: str, *bindings: Place) -> None:
        if not self.there:
            return
        if not self._execute(schema.SELECT_HAS_PLACED.format(which), bindings).get:
            return
        for _ in self._execute(schema.CREATE_SPENT_UPLOADS):
            pass
        self._execute(schema.INSERT_SPENT_UPLOADS.format(which), bindings)
        self._execute(schema.DELETE_SPENT_UPLOADS, (_RETENTION_MS,))
        self._execute(schema.DROP_PLACED.format(which), bindings)
        self._has_gone = None

    def sweep(self, chunk_limit: int) -> None:
        """Remove about `chunk_limit` chunks of dropped bodies."""
        swept = 0
        while self.there and swept < chunk_limit:
            body = self._execute(schema.SELECT_GONE_BODY).get
            if body is None:
                self._has_gone = False
                return
            removed = _SWEPT_AT_ONCE
            while removed == _SWEPT_AT_ONCE and swept < chunk_limit:
                cursor = self._execute(schema.DELETE_SOME_CHUNKS, (body, _SWEPT_AT_ONCE))
                removed = cursor.connection.changes()
                swept += removed
            if removed < _SWEPT_AT_ONCE:
                self._execute(schema.DELETE_BODY, (body,))

    # Reading
    def find(self, upload_id: bytes) -> Body | None:
        """Return the state of an upload, even if it has become a value.

        It is found for some time after that value was dropped, too.
        """
        if not self.there:
            return None
        row = self._execute(schema.SELECT_BODY, (upload_id,)).get
        if row is None and self._execute(schema.SELECT_HAS_SPENT_UPLOADS).get:
            row = self._execute(schema.SELECT_SPENT_UPLOAD, (upload_id,)).get
        return None if row is None else Body(*row)

    def staged(self) -> list[tuple[bytes, int]]:
        """Return the unfinished uploads, each with the time of its last chunk."""
        found: list[Any] = (
            self._execute(schema.SELECT_STAGED_BODIES).fetchall() if self.there else []
        )
        return found

    def value_at(self, place: Place) -> list[Any] | None:
        """Return the wire form of the large value at a place; None if it has no large value."""
        row = self._execute(schema.SELECT_BODY_AT, (place,)).get if self.there else None
        return None if row is None else list(row)

    def resolve(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a row `(place, revision, time, value, headers, ...)`, with a
        large value in its wire form."""
        if row[3] != b"":
            return row
        value = self.value_at(row[0])
        return row if value is None else (*row[:3], value, *row[4:])

    def damage(self) -> str:
        """Return what is wrong with the first damaged value; empty if all are sound.

        Reads all large values, one chunk at a time. Of encrypted ones only the lengths are checked:
        only who has the key knows more.
        """
        placed: list[Any] = (
            self._execute(schema.SELECT_PLACED_BODIES).fetchall() if self.there else []
        )
        for place, size_bytes, sha256 in placed:
            digest = hashlib.sha256()
            found_bytes = chunk_count = 0
            for (data,) in self._execute(schema.SELECT_CHUNKS_AT, (place,)):
                digest.update(data)
                found_bytes += len(data)
                chunk_count += 1
            encrypted = excess_chunks(found_bytes, size_bytes, chunk_count)
            if encrypted is None:
                return (
                    f"{found_bytes} bytes of {size_bytes} are there of the large value at {place!r}"
                )
            if not encrypted and digest.digest() != sha256 and not self._has_box(place):
                return f"the large value at {place!r} has another sha256"
        return ""

    def _has_box(self, place: Place) -> bool:
        """Tell whether the sha256 of a value is encrypted, though no chunk is: a key was made
        while it was uploaded."""
        names = {row[0] for row in self._execute(schema.SELECT_TABLES)}
        for table, column in schema.PLACES.items():
            if table in names:
                headers = schema.SELECT_HEADERS_AT.format(table=table, column=column)
                if is_box(self._execute(headers, (place,)).get):
                    return True
        return False

    def read(
        self, upload_id: bytes, offset: int, encryption: StoredEncryption
    ) -> bytes | None:
        """Return the bytes of a value from `offset` to the end of its
        chunk; none at the end of the value.

        None if there is no such value.
        """
        body: Any = self._execute(schema.SELECT_BODY, (upload_id,)).get if self.there else None
        if body is None or Body(*body).place is None:
            return None
        row: Any = self._execute(schema.SELECT_CHUNK, (upload_id, offset)).get
        if row is None:
            return b""
        start, data = row
        if encryption.exists:
            following = self._execute(schema.SELECT_NEXT_CHUNK, (upload_id, start)).get
            end = Body(*body).size_bytes if following is None else following
            data = encryption.chunk(upload_id, start, bytes(data), end - start)
        return bytes(data[offset - start :])
