"""Large values within a store file: their chunks, from the first one to the removal of the last.

A *body* is the bytes of a value that is too large to travel, or to be kept, in one piece. It grows
chunk by chunk as an upload that is no value yet, becomes that of a seq or key (its *place*) when
the operation that says so is applied, and is gone when that is replaced or removed. Invariants:

- A body is dense: chunk by chunk from offset 0, and `size` is where the next one begins.
- A body is the value of one place at the most, and a place has one body at the most.
- An upload is a value once: whose it was is known for UPLOAD_RETENTION_SECONDS, also when that is
  gone, so that who goes on with it is told, and does not undo what came after it.
- What is gone cannot be read, although its chunks are removed later and in parts (`sweep`): freeing
  a gigabyte takes SQLite seconds.

Runs in transactions of its caller. The tables are made with the first chunk: most stores never have
one, and their files do not pay for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import apsw

from holdfast.protocol.limits import UPLOAD_RETENTION_SECONDS
from holdfast.protocol.messages import LargeValue
from holdfast.shared_fs.store_file import schema

#: A seq, or a key.
Place = int | str

#: Chunks that one statement removes.
_SWEPT_AT_ONCE: Final = 64
_RETENTION_MS: Final = int(UPLOAD_RETENTION_SECONDS * 1000)


class Body(NamedTuple):
    """What there is of an upload, or was uploaded. `revision` is that of its place, None if it has
    none; `time` is then when it got there, else that of the last chunk."""

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
        """Chunks of bodies that are gone may be left to be swept."""
        if self._has_gone is None:
            self._has_gone = self.there and (
                self._execute(schema.SELECT_GONE_BODY).get is not None
            )
        return self._has_gone

    @property
    def there(self) -> bool:
        """The file has tables for them."""
        if self._there is None:
            self._there = bool(self._execute(schema.SELECT_HAS_BODIES).get)
        return self._there

    def look_again(self) -> None:
        """A transaction was taken back: perhaps the tables are not there after all."""
        self._there = self._has_gone = None

    # Writing
    def put_chunk(self, upload_id: bytes, offset: int, data: bytes, crc32: int, time: int) -> None:
        """Add the next chunk of an upload, or the first of a new one."""
        if not self.there:
            for _ in self._execute(schema.CREATE_BODIES):
                pass
            self._there = True
        size_bytes = offset + len(data)
        if offset:
            body = self._execute(schema.GROW_BODY, (size_bytes, crc32, time, upload_id)).get
        else:
            body = self._execute(schema.INSERT_BODY, (upload_id, size_bytes, crc32, time)).get
        self._execute(schema.INSERT_CHUNK, (body, offset, data))

    def put_in_place(self, value: LargeValue, place: Place, revision: int, time: int) -> None:
        """Make an upload the value of a place; what was there is gone."""
        self.drop_at(place)
        self._execute(schema.PLACE_BODY, (value.sha256, place, revision, time, value.upload_id))

    def drop_uploads(self, upload_ids: Sequence[bytes]) -> None:
        """Drop uploads that are nobody's value."""
        if self.there:
            for upload_id in upload_ids:
                self._execute(schema.DROP_UPLOAD, (upload_id,))
            self._has_gone = None

    def drop_at(self, place: Place) -> None:
        """Drop the body of a place, if it has one."""
        self._drop_placed(schema.BODY_AT, place)

    def drop_up_to(self, seq: int) -> None:
        """Drop those of a stream up to and with `seq`."""
        self._drop_placed(schema.BODIES_UP_TO, seq)

    def drop_all(self) -> None:
        """Drop every value; uploads go on."""
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
        """Remove chunks of bodies that are gone, about `chunk_limit` of them."""
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
        """Return what there is of an upload, also when it has become a value, and for a while when
        that is gone."""
        if not self.there:
            return None
        row = self._execute(schema.SELECT_BODY, (upload_id,)).get
        if row is None and self._execute(schema.SELECT_HAS_SPENT_UPLOADS).get:
            row = self._execute(schema.SELECT_SPENT_UPLOAD, (upload_id,)).get
        return None if row is None else Body(*row)

    def staged(self) -> list[tuple[bytes, int]]:
        """Return the uploads that are not finished, each with the time of its last chunk."""
        found: list[Any] = (
            self._execute(schema.SELECT_STAGED_BODIES).fetchall() if self.there else []
        )
        return found

    def value_at(self, place: Place) -> list[Any] | None:
        """Return what stands for the value of a place on the wire, None if it is not a large
        one."""
        row = self._execute(schema.SELECT_BODY_AT, (place,)).get if self.there else None
        return None if row is None else list(row)

    def resolve(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a row `(place, revision, time, value, headers)` with what stands for a large value
        in its place."""
        if row[3] != b"":
            return row
        value = self.value_at(row[0])
        return row if value is None else (*row[:3], value, row[4])

    def damage(self) -> str:
        """Return what is wrong with the first value whose bytes are not what was stored, else
        nothing. Reads all of them, a chunk at a time."""
        placed = self._execute(schema.SELECT_PLACED_BODIES).fetchall() if self.there else []
        for place, size_bytes, sha256 in placed:
            digest = hashlib.sha256()
            found_bytes = 0
            for (data,) in self._execute(schema.SELECT_CHUNKS_AT, (place,)):
                digest.update(data)
                found_bytes += len(data)
            if found_bytes != size_bytes:
                return (
                    f"{found_bytes} bytes of {size_bytes} are there of the large value at {place!r}"
                )
            if digest.digest() != sha256:
                return f"the large value at {place!r} has another sha256"
        return ""

    def read(self, upload_id: bytes, offset: int) -> bytes | None:
        """Return bytes of a value from `offset` on, up to the end of a chunk: none at the end of
        the value. None if there is no such value."""
        body = self._execute(schema.SELECT_BODY, (upload_id,)).get if self.there else None
        if body is None or Body(*body).place is None:
            return None
        row: Any = self._execute(schema.SELECT_CHUNK, (upload_id, offset)).get
        return b"" if row is None else bytes(row[1][offset - row[0] :])
