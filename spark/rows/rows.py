"""Changes as rows, from the readers of images and logs.

Readers yield pieces: rows of one store in the order of revisions. Most are plain appends, thousands
at once, so common values are kept once per piece until Arrow needs them (`batches.py`). Small
pieces are gathered into batches of some thousand rows (`gathering.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from holdfast.protocol import changes, frames
from holdfast.protocol.limits import MIB
from holdfast.protocol.messages import LargeValue
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.archive import table_chain

SET: Final = "set"
DELETE: Final = "delete"
TRIM: Final = "trim"
CLEAR: Final = "clear"
#: All earlier rows of the store are void; its whole state follows in the same run.
RESET: Final = "reset"
#: The store was deleted; all its earlier rows are void.
DROP: Final = "drop"
#: The store has this configuration, as JSON. No message and no entry is affected.
CONFIGURE: Final = "configure"
#: The leaf, and the chain, of a message or set whose value the table does not have.
LEAF: Final = table_chain.LEAF
#: Where the chain of the table begins: that after `seq`, of before which it has nothing.
BASE: Final = table_chain.BASE

#: The limits of a batch, and of a piece: rows, and bytes of values.
BATCH_ROWS: Final = 8192
BATCH_BYTES: Final = 8 * MIB


class ExportedRow(NamedTuple):
    """One change. `headers` is a map, its packed form, a header block as bytes, or None. Size and
    digest are set if the value is a large one. `expires` is when its ttl ends, in milliseconds
    since the epoch, or NEVER_EXPIRES."""

    operation: str
    revision: int
    seq: int | None
    key: str | None
    time: int
    headers: Any
    value: bytes | None
    subject: str | None = None
    large_bytes: int | None = None
    #: In lower-case hexadecimal.
    large_sha256: str | None = None
    expires: int | None = None
    #: Of a store that keeps a chain: that of this message or set, and the chain after it.
    leaf: bytes | None = None
    chain: bytes | None = None
    #: What the leaf is made of, where the columns have another form of it.
    stored_headers: bytes | None = None
    stored_value: bytes | None = None


class RowOrigin(NamedTuple):
    """The values that all rows of a piece share."""

    store: StoreId
    epoch: int
    run: int
    source: str


def rows_of_change(change: frames.WireChange, revision: int, time: int) -> list[ExportedRow]:
    """Return the rows of one change, from the log or from the change log of a file."""
    number = changes.number_of(change)
    if number == changes.CHANGE_SET_MESSAGE:
        said = changes.message_set(change)
        written = time if said.time is None else said.time
        return [
            ExportedRow(
                *(SET, revision, said.seq, None, written, said.headers),
                *_held(said.value, said.subject),
                said.expires,
            )
        ]
    if number == changes.CHANGE_SET_ENTRY:
        entry = changes.entry_set(change)
        written = time if entry.time is None else entry.time
        return [
            ExportedRow(
                *(SET, revision, None, entry.key, written, entry.headers),
                *_held(entry.value),
                entry.expires,
            )
        ]
    if number == changes.CHANGE_DELETE_MESSAGES:
        gone = changes.deleted(change)
        return [ExportedRow(DELETE, revision, seq, None, time, None, None) for seq in gone]
    if number == changes.CHANGE_DELETE_ENTRIES:
        gone = changes.deleted(change)
        return [ExportedRow(DELETE, revision, None, key, time, None, None) for key in gone]
    if number == changes.CHANGE_TRIM:
        end_seq = changes.trimmed_to(change)
        return [ExportedRow(TRIM, revision, end_seq, None, time, None, None)]
    if number == changes.CHANGE_CLEAR:
        return [ExportedRow(CLEAR, revision, None, None, time, None, None)]
    if number == changes.CHANGE_CONFIGURE:
        return [configured(changes.configured(change), revision, time)]
    if number == changes.CHANGE_RESERVE:
        return [configured(changes.reserved(change).config, revision, time)]
    # Other changes do not affect messages or entries.
    return []


def configured(config: Mapping[str, Any], revision: int, time: int) -> ExportedRow:
    """Return the row of a configuration, without defaults, that a store has."""
    text = json.dumps(config, ensure_ascii=False, sort_keys=True)
    return ExportedRow(CONFIGURE, revision, None, None, time, None, text.encode())


def _held(
    value: Any, subject: str | None = None
) -> tuple[bytes | None, str | None, int | None, str | None]:
    """Return the value, and the fields after it, of an `ExportedRow`."""
    if type(value) is bytes:
        return value, subject, None, None
    large = LargeValue(*value)
    return None, subject, large.size_bytes, large.sha256.hex()


class Shape(StrEnum):
    """The form of the rows of a piece."""

    #: `(seq, revision, time, value, headers)`, as in the file of a stream; all of them are sets.
    MESSAGES = "messages"
    #: The same with a subject, or None, as a last element.
    SUBJECT_MESSAGES = "subject_messages"
    #: `(key, revision, time, value, headers)`, as in the file of a kv; all of them are sets.
    ENTRIES = "entries"
    #: `ExportedRow`
    CHANGES = "changes"


class Piece(NamedTuple):
    """Changes of one store in the order of revisions, at least one."""

    origin: RowOrigin
    shape: Shape
    rows: Sequence[tuple[Any, ...]]

    @property
    def row_count(self) -> int:
        return len(self.rows)


def set_row(row: tuple[Any, ...], *, is_stream: bool) -> ExportedRow:
    """Return a row of a store file as a change; it may have the last fields of one."""
    name, revision, time, value, headers, *more = row
    seq, key = (name, None) if is_stream else (None, name)
    return ExportedRow(SET, revision, seq, key, time, headers, value, *more)
