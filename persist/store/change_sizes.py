"""What changes weigh: the bytes that a store counts, and those that a change takes in memory and on the
wire.

Both follow from the change alone, so that an owner and whoever replays the log count the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from holdfast.protocol import frames
from holdfast.shared_fs.store_file.applying import pack_headers

#: What a change takes beside its content, at least what it takes in a broadcast.
CHANGE_BYTES: Final = 64
#: Changes of which the third element is a value, or what stands for a large one.
SETS: Final = (frames.CHANGE_SET_MESSAGE, frames.CHANGE_SET_ENTRY)


def message_bytes_of(change: frames.WireChange) -> int:
    """Return the size that a set message counts with: its value and its packed headers."""
    headers = pack_headers(change[3]) if len(change) > 3 else None
    return value_bytes_of(change[2]) + (len(headers) if headers else 0)


def entry_bytes_of(change: frames.WireChange) -> int:
    """Return the size that a set entry counts with: its key, value and packed headers."""
    headers = pack_headers(change[3]) if len(change) > 3 else None
    key_bytes = len(change[1].encode())
    return key_bytes + value_bytes_of(change[2]) + (len(headers) if headers else 0)


def value_bytes_of(value: Any) -> int:
    """Return the size of a value, or of the large one that something stands for."""
    return len(value) if type(value) is bytes else int(value[1])


def bytes_of(changes: Iterable[frames.WireChange]) -> int:
    """Return about how much memory changes take, never less than they take in a broadcast."""
    return sum(CHANGE_BYTES + variable_bytes(change) for change in changes)


def variable_bytes(change: frames.WireChange) -> int:
    """Return what the content of a change takes, whatever it is."""
    number = change[0]
    if number in SETS and type(change[2]) is not bytes:
        value = change[2]
        return variable_bytes([*change[:2], b"", *change[3:]]) + len(frames.pack(value))
    if number == frames.CHANGE_SET_MESSAGE:
        size_bytes = message_bytes_of(change)
        if len(change) > 4 and change[4] is not None:
            size_bytes += len(change[4].encode())
        return size_bytes
    if number == frames.CHANGE_SET_ENTRY:
        return entry_bytes_of(change)
    if number == frames.CHANGE_DELETE_MESSAGES:
        return 9 * len(change[1])
    if number == frames.CHANGE_DELETE_ENTRIES:
        return sum(len(key.encode()) + 5 for key in change[1])
    if number == frames.CHANGE_PUT_CHUNK:
        return len(change[3] or b"")
    if number == frames.CHANGE_ARCHIVE:
        return len(change[2])
    if number in frames.STATELESS_CHANGES:
        return len(frames.pack(change[1:]))
    return 0
