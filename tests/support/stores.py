"""Stores by name, the files that they have, and what a log says of their ticks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from holdfast.persist.store.store import Store
from holdfast.protocol import changes, frames
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.disk.commit_log import LogRecord
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.store_file import StoreFile

#: The configuration of `ephemeral_store`.
EPHEMERAL: Final = {"ephemeral": True, "max_bytes": 1000}


def stream_id(name: str = "chat") -> StoreId:
    return StoreId("acme", StoreKind.STREAM, name)


def kv_id(name: str = "settings") -> StoreId:
    return StoreId("acme", StoreKind.KV, name)


def no_file(page_bytes: int) -> StoreFile:
    raise AssertionError("this test needs no new file")


def store_of(
    store: StoreId, epoch: int = 1, file: StoreFile | None = None, **options: Any
) -> Store:
    """Return an open store that never makes a file."""
    return Store(store, epoch, file, no_file, **options)


def ephemeral_store(path: Path, store: StoreId) -> Store:
    """Return an open ephemeral store. Its file on the disk is new."""
    file = StoreFile.create(path, store, time=1)
    file.apply([AppliedBatch(0, 1, [[changes.CHANGE_CONFIGURE, EPHEMERAL]])])
    return store_of(store, file=file)


def file_of(store: Store) -> StoreFile:
    """Return the file that a store surely has."""
    assert store.file is not None
    return store.file


def abandon(store: Store) -> None:
    """Let go of its file, if it has one, as an owner that is killed."""
    if store.file is not None:
        store.file.abandon()


def record_of(store: Store) -> LogRecord:
    """Return what the log is to say of the tick that runs."""
    assert store.mark is not None
    previous = store.mark.revision
    payload = frames.encode_changes(store.epoch, previous, store.time, store.changes, store.chain)
    payloads = [payload] if store.changes else []
    return LogRecord(store.id, store.epoch, previous, store.revision, payloads, [])
