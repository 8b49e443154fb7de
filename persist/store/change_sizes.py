"""The sizes of changes: the bytes that a store counts, and the bytes that a change takes in memory
and on the wire.

Both follow from the change alone, so an owner and a replay of the log count the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from holdfast.protocol import changes as rows
from holdfast.protocol import frames
from holdfast.protocol.messages import LargeValue
from holdfast.shared_fs.store_file.applying import pack_headers
from holdfast.shared_fs.store_file.subject_rows import subject_bytes

#: What a change takes besides its content: no less than its overhead in a broadcast.
CHANGE_BYTES: Final = 64


def message_bytes_of(change: frames.WireChange) -> int:
    """Return the size with which a set message counts: its value, its headers, and its subject."""
    said = rows.message_set(change)
    size_bytes = value_bytes_of(said.value) + _headers_bytes(said.headers)
    return size_bytes + subject_bytes(said.subject, said.headers)


def entry_bytes_of(change: frames.WireChange) -> int:
    """Return the size with which a set entry counts: its key, value and packed headers."""
    key, value, headers, *_ = rows.entry_set(change)
    return len(key.encode()) + value_bytes_of(value) + _headers_bytes(headers)


def value_bytes_of(value: Any) -> int:
    """Return the size of a value. For the reference to a large value it is the
    size of that value."""
    return len(value) if type(value) is bytes else LargeValue(*value[:4]).size_bytes


def bytes_of(changes: Iterable[frames.WireChange]) -> int:
    """Return roughly how much memory changes take: never less than they take in a broadcast."""
    return sum(CHANGE_BYTES + variable_bytes(change) for change in changes)


def variable_bytes(change: frames.WireChange) -> int:
    """Return the size of a change's content, for any kind of change."""
    number = rows.number_of(change)
    if number == rows.CHANGE_SET_MESSAGE:
        said = rows.message_set(change)
        size_bytes = _wire_bytes_of(said.value) + _headers_bytes(said.headers)
        size_bytes += subject_bytes(said.subject, said.headers)
        return size_bytes if said.msg_id is None else size_bytes + len(said.msg_id.encode())
    if number == rows.CHANGE_SET_ENTRY:
        key, value, headers, *_ = rows.entry_set(change)
        return len(key.encode()) + _wire_bytes_of(value) + _headers_bytes(headers)
    if number == rows.CHANGE_DELETE_MESSAGES:
        return 9 * len(rows.deleted(change))
    if number == rows.CHANGE_DELETE_ENTRIES:
        removed = rows.entries_removed(change)
        return sum(len(key.encode()) + 5 for key in removed.keys) + 9 * len(removed.versions)
    if number == rows.CHANGE_PUT_CHUNK:
        return len(rows.chunk(change).data or b"")
    if number == rows.CHANGE_ARCHIVE:
        return len(rows.archived(change).table)
    if number in rows.STATELESS_CHANGES:
        return len(frames.pack(change))
    return 0


def _wire_bytes_of(value: Any) -> int:
    """Return what a value, or the reference to a large value, takes in a broadcast."""
    return len(value) if type(value) is bytes else len(frames.pack(value))


def _headers_bytes(headers: Any) -> int:
    packed = pack_headers(headers) if headers else None
    return len(packed) if packed else 0
