"""A store on a real file that runs in whole ticks, and what is written to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.persist.operations import eviction, operations, reads
from holdfast.persist.store.store import Store
from holdfast.protocol import frames
from holdfast.protocol.messages import Durability
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.disk.commit_log import LogRecord
from holdfast.shared_fs.store_file.store_file import StoreFile


class Bench:
    """One store on a real file, and whole ticks: what is due, a group, what is over the limits."""

    def __init__(self, directory: Path, kind: StoreKind) -> None:
        self.id = StoreId("acme", kind, "a.b")
        self.path = directory / f"store.{kind.word}.db"
        self.number = 0
        self.time = 1000
        self.broadcasts: list[Any] = []
        self.records: list[LogRecord] = []
        self.store = Store(self.id, 1, None, self.create)

    def create(self) -> StoreFile:
        return StoreFile.create(self.path, self.id, time=self.time)

    def tick(self, *wanted: list[Any], commit: bool = True) -> list[Any]:
        """Execute one group in a tick of its own; return its results."""
        store = self.store
        now = store.now(self.time)
        if store.retention is not None and store.retention.is_due(now):
            assert eviction.expire(store, now)
        results: Any = []
        if wanted:
            store.begin()
            store.time = store.now(self.time)
            results = operations.execute(store, frames.unpack(frames.pack(wanted)))
            if isinstance(results, frames.Run):
                acks = results.acks(store.time, Durability.SYNCED)
                results = [[ack.seq or 0, ack.revision] for ack in acks]
        if store.mark is not None and store.retention is not None:
            eviction.evict(store)
        store.validate()
        if commit:
            self.commit()
        else:
            store.fail_tick()
        return list(results)

    def commit(self) -> None:
        store = self.store
        if store.mark is None:
            return
        self.number += 1
        self.broadcasts.append([list(change) for change in store.changes])
        previous = store.mark.revision
        payload = frames.encode_changes(1, previous, store.time, store.changes)
        self.records.append(LogRecord(self.id, 1, previous, store.revision, [payload], []))
        store.finish_tick(self.number, 1)
        store.validate()

    def do(self, *operation: Any) -> Any:
        return self.tick(list(operation))[0]

    def read(self, *operation: Any) -> Any:
        """What a read is answered: what is due goes first, and the file has all of it."""
        self.tick()
        self.store.materialise(self.number)
        return reads.execute(self.store, "s1", [list(operation)])[0]

    def rows(self) -> dict[Any, bytes]:
        """Every message by its seq, every entry by its key."""
        operation = [frames.GET_MESSAGES] if self.store.is_stream else [frames.GET_ENTRIES]
        return {row[0]: row[3] for row in self.read(*operation)[0]}

    def reopen(self) -> None:
        self.store.materialise(self.number)
        if self.store.file is not None:
            self.store.file.close()
            self.store = Store(self.id, 1, StoreFile.open(self.path, self.id), self.create)

    def close(self) -> None:
        if self.store.file is not None:
            self.store.file.abandon()


def append(value: bytes = b"v", ttl_seconds: float | None = None) -> list[Any]:
    if ttl_seconds is None:
        return [frames.APPEND, value]
    return [frames.APPEND, value, None, None, None, ttl_seconds]


def put(key: str, value: bytes = b"v", ttl_seconds: float | None = None) -> list[Any]:
    if ttl_seconds is None:
        return [frames.SET_ENTRY, key, value]
    return [frames.SET_ENTRY, key, value, None, None, ttl_seconds]


def configure(bench: Bench, **config: Any) -> Any:
    return bench.do(frames.CONFIGURE, config)
