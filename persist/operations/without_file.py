"""Which writes need no look-up in a store's file, so that they go on while the file is leased."""

from __future__ import annotations

from typing import Any

from holdfast.persist.store.store import Store
from holdfast.protocol import frames
from holdfast.protocol.limits import MAX_PENDING_CHUNK_BYTES


def needs_file(store: Store, writer: bytes, operations: list[list[Any]]) -> bool:
    """Tell if write operations need to look something up in the file. The only ones that do
    not are those of a known writer that just append, or set keys or continue uploads that
    the memtable has."""
    if store.retention is not None or writer not in store.writers.known:
        return True
    memtable = store.contents.memtable
    if operations[0][0] == frames.PUT_CHUNK:
        return store.pending.size_bytes > MAX_PENDING_CHUNK_BYTES or any(
            each[0] != frames.PUT_CHUNK
            or len(each) < 2
            or type(each[1]) is not bytes
            or each[1] not in memtable.uploads
            for each in operations
        )
    if store.is_stream:
        return any(len(each) != 2 or each[0] != frames.APPEND for each in operations)
    return any(
        len(each) != 3
        or each[0] != frames.SET_ENTRY
        or type(each[1]) is not str
        or each[1] not in memtable.entries
        for each in operations
    )
