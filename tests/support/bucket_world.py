"""A bucket with snapshots and logs in it, made as servers make them, and a model of what they
hold."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
from deltalake import DeltaTable

from holdfast.protocol import frames
from holdfast.protocol.changes import (
    CHANGE_ARCHIVE,
    CHANGE_CLEAR,
    CHANGE_CONFIGURE,
    CHANGE_DELETE_ENTRIES,
    CHANGE_DELETE_MESSAGES,
    CHANGE_PUT_CHUNK,
    CHANGE_SET_ENTRY,
    CHANGE_SET_MESSAGE,
    CHANGE_TRIM,
)
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.archive.table_location import TableLocation
from holdfast.shared_fs.bucket.bucket import open_bucket
from holdfast.shared_fs.bucket_log.bucket_log import BucketLog
from holdfast.shared_fs.disk.commit_log import LogRecord
from holdfast.shared_fs.snapshots.manifest import open_manifests
from holdfast.shared_fs.snapshots.pack import packs_of, put_pack
from holdfast.shared_fs.snapshots.snapshot import compress, put, take_image
from holdfast.shared_fs.snapshots.store_entry import KeepPolicy, SnapshotVersion, Tombstone, deleted
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.schema import PAGE_BYTES
from holdfast.shared_fs.store_file.store_file import StoreFile
from holdfast.spark.state import STATE_COLUMNS, state_sql

DAY_MS = 86_400_000
START_MS = 1_795_230_000_000


def stream(name: str, tenant: str = "acme") -> StoreId:
    return StoreId(tenant, StoreKind.STREAM, name)


def kv(name: str, tenant: str = "acme") -> StoreId:
    return StoreId(tenant, StoreKind.KV, name)


def message(seq: int, value: bytes, headers: dict[str, str] | None = None) -> list[Any]:
    return [CHANGE_SET_MESSAGE, seq, value, *([headers] if headers else [])]


def entry(key: str, value: bytes, headers: dict[str, str] | None = None) -> list[Any]:
    return [CHANGE_SET_ENTRY, key, value, *([headers] if headers else [])]


@dataclass
class Held:
    """What one store holds, by seq or key: value, headers, revision."""

    file: StoreFile
    epoch: int
    rows: dict[Any, tuple[bytes, dict[str, str], int]] = field(default_factory=dict)
    revision: int = 0


class BucketWorld:
    """Stores in a folder, published to a bucket when a test says so."""

    def __init__(self, root: Path, url: str) -> None:
        self.root = root
        self.url = url
        self.bucket = open_bucket(url)
        self.manifests = open_manifests(self.bucket)
        self.held: dict[StoreId, Held] = {}
        self.time = START_MS
        #: Of the files that are made from now on.
        self.page_bytes = PAGE_BYTES
        self._count = 0

    def close(self) -> None:
        for held in self.held.values():
            held.file.abandon()
        self.bucket.close()

    def create(self, store: StoreId, epoch: int = 1) -> Held:
        self._count += 1
        path = self.root / f"{self._count}.db"
        file = StoreFile.create(path, store, time=self.time, page_bytes=self.page_bytes)
        file.take(epoch, "s1", f"i{epoch}")
        self.held[store] = Held(file, epoch)
        return self.held[store]

    def change(self, store: StoreId, *changes: Sequence[Any], after_ms: int = 1000) -> LogRecord:
        """Apply changes, one transaction, and return what the log says of it."""
        held = self.held.get(store) or self.create(store)
        self.time += after_ms
        before = held.revision
        held.file.apply([AppliedBatch(before, self.time, list(changes))])
        for change in changes:
            held.revision += 1
            _note(held, change)
        payload = frames.encode_changes(
            held.epoch, before, self.time, list(changes), held.file.chain.value
        )
        return LogRecord(store, held.epoch, before, held.revision, [payload], [])

    def publish(
        self, *stores: StoreId, packed: bool = False, keep: KeepPolicy | None = None
    ) -> list[SnapshotVersion]:
        """Snapshot stores, all if none is named."""
        self.time += 1
        self._count += 1
        made = []
        for store in stores or tuple(self.held):
            file = self.held[store].file
            file.checkpoint()
            made.append(compress(take_image(file, self.root / "draft"), self.time))
        nonce = f"n{self._count}"
        if packed:
            versions = [
                version
                for group in packs_of(made)
                for version in put_pack(self.bucket, group, self.time, nonce)
            ]
        else:
            versions = [(one.store, put(self.bucket, one, nonce)) for one in made]
        self.manifests.publish(versions, keep or KeepPolicy(), self.time)
        return [version for _, version in versions]

    def log(self, server: str, incarnation: str, *ticks: Sequence[LogRecord]) -> BucketLog:
        """Put a log with a slot for each tick after the first, empty one."""
        log = BucketLog(self.bucket, server, incarnation)
        log.begin()
        for records in ticks:
            log.put(log.prepare(records))
        return log

    def delete(self, store: StoreId) -> None:
        held = self.held.pop(store)
        held.file.close()
        self.time += 1
        tombstone = Tombstone(held.epoch, self.time)
        self.manifests.update_entry(store, lambda entry: deleted(entry, tombstone))

    def state(self) -> set[tuple[Any, ...]]:
        """Return what a table should say: tenant, kind, store, seq, key, revision, value,
        headers."""
        return {
            (
                store.tenant,
                StoreKind(store.kind).word,
                store.name,
                name if store.kind == StoreKind.STREAM else None,
                name if store.kind == StoreKind.KV else None,
                revision,
                value,
                tuple(sorted(headers.items())),
            )
            for store, held in self.held.items()
            for name, (value, headers, revision) in held.rows.items()
        }


def _note(held: Held, change: Sequence[Any]) -> None:
    number = change[0]
    if number in (CHANGE_SET_MESSAGE, CHANGE_SET_ENTRY):
        headers = (change[3] if len(change) > 3 else None) or {}
        held.rows[change[1]] = (change[2], headers, held.revision)
    elif number in (CHANGE_DELETE_MESSAGES, CHANGE_DELETE_ENTRIES):
        for name in change[1]:
            held.rows.pop(name, None)
    elif number == CHANGE_TRIM:
        for seq in [seq for seq in held.rows if seq <= change[1]]:
            del held.rows[seq]
    elif number not in (CHANGE_ARCHIVE, CHANGE_CONFIGURE, CHANGE_PUT_CHUNK):
        assert number == CHANGE_CLEAR, number
        held.rows.clear()


def age(table: str, hours: float) -> None:
    """Make the files of a table in a folder, but its log, this much older."""
    folder = TableLocation(table).folder
    for path in folder.rglob("*"):
        if path.is_file() and "_delta_log" not in path.parts:
            then = path.stat().st_mtime - hours * 3600
            os.utime(path, (then, then))


def rows_of(frame: Any) -> set[tuple[Any, ...]]:
    """Return the rows of a state as `BucketWorld.state` does; of a Spark DataFrame."""
    return {_state_row(row) for row in frame.collect()}


def state_of(table: str, without: Sequence[str] = ()) -> set[tuple[Any, ...]]:
    """Return the state of a table as `BucketWorld.state` does; by DuckDB, in a tenth of Spark's
    time. `without` are columns that the table does not have."""
    columns = [name for name in STATE_COLUMNS if name not in without]
    location = TableLocation(table)
    delta = DeltaTable(location.uri, storage_options=location.delta_options)
    with duckdb.connect() as database:
        database.register("changes", delta.to_pyarrow_dataset())
        found = database.execute(state_sql("changes", columns=columns)).fetchall()
    rows = (dict(zip(columns, row, strict=True)) for row in found)
    return {_state_row(row) for row in rows}


def _state_row(row: Any) -> tuple[Any, ...]:
    return (
        row["tenant"],
        row["kind"],
        row["store"],
        row["seq"],
        row["key"],
        row["revision"],
        bytes(row["value"]),
        tuple(sorted((row["headers"] or {}).items())),
    )
