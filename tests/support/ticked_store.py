"""A store on a real file that runs in whole ticks, and what is written to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.persist.operations import eviction, operations, reads
from holdfast.persist.recovery.takeover import TakeoverPlan, plan
from holdfast.persist.store.store import Store
from holdfast.persist.write_path.tick import as_sent
from holdfast.protocol import frames
from holdfast.protocol.messages import Ack, Durability
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.disk.commit_log import LogRecord
from holdfast.shared_fs.encryption.data_keys import TenantKeys
from holdfast.shared_fs.store_file.encrypted.encrypted_values import BOX_BYTES
from holdfast.shared_fs.store_file.schema import PAGE_BYTES
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.stores import abandon, file_of, record_of
from tests.support.tenant_keys import encrypt


class Bench:
    """One store on a real file, whole ticks (what is due, a group, what is over the limits), their
    log, and the owners that follow each other."""

    def __init__(
        self,
        directory: Path,
        kind: StoreKind,
        *,
        keeps_up: bool = False,
        keys: TenantKeys | None = None,
    ) -> None:
        self.id = StoreId("acme", kind, "a.b")
        self.path = directory / f"store.{kind.word}.db"
        #: Whether the file has each tick at once.
        self.keeps_up = keeps_up
        self.number = 0
        #: How often what has expired was counted aside.
        self.counts = 0
        self.time = 1000
        self.broadcasts: list[Any] = []
        self.records: list[LogRecord] = []
        #: Those of its tenant, if its values are encrypted.
        self.keys = keys
        self.store = encrypt(Store(self.id, 1, None, self.create), keys)

    def boxes(self, count: int) -> int:
        """Return what the boxes of `count` values take, if they are encrypted."""
        return 0 if self.keys is None else count * BOX_BYTES

    def create(self, page_bytes: int = PAGE_BYTES) -> StoreFile:
        return StoreFile.create(self.path, self.id, time=self.time, page_bytes=page_bytes)

    def execute(self, *wanted: list[Any]) -> list[Any]:
        """Execute in the running tick, or in a new one; return the results."""
        self.store.begin()
        self.store.time = self.store.now(self.time)
        # As they come from the wire.
        results = operations.execute(self.store, frames.unpack(frames.pack(wanted)))
        self.store.validate()
        if isinstance(results, frames.Run):
            acks = results.acks(self.store.time, Durability.SYNCED)
            return [
                [ack.seq or 0, ack.revision] if ack.chain is None else result_of(ack)
                for ack in acks
            ]
        return list(results)

    def tick(self, *wanted: list[Any], commit: bool = True) -> list[Any]:
        """Execute one group in a tick of its own; return its results."""
        store = self.store
        now = store.now(self.time)
        if store.retention is not None and store.retention.is_due(now):
            while not eviction.expire(store, now):
                self.commit()
                count = eviction.begin_measuring(store, now)
                if count is not None:
                    self.counts += 1
                    count()
        results = self.execute(*wanted) if wanted else []
        if store.mark is not None and store.retention is not None:
            eviction.evict(store)
        store.validate()
        if commit:
            self.commit()
        else:
            store.fail_tick()
            store.validate()
        return results

    def commit(self) -> None:
        store = self.store
        if store.mark is None:
            return
        self.number += 1
        self.broadcasts.append([list(change) for change in as_sent(store)])
        record = record_of(store)
        assert store.changes_bytes >= sum(map(len, record.payloads)) - 64
        self.records.append(record)
        store.finish_tick(self.number, 1)
        if self.keeps_up:
            self.materialise()
        store.validate()

    def do(self, *operation: Any) -> Any:
        return self.tick(list(operation))[0]

    def materialise(self) -> None:
        self.store.materialise(self.number)

    def read(self, *operation: Any) -> Any:
        """What a read is answered: what is due goes first, and the file has all of it."""
        self.tick()
        self.materialise()
        return reads.execute(self.store, "s1", [list(operation)])[0]

    def rows(self) -> dict[Any, bytes]:
        """Every message by its seq, every entry by its key."""
        operation = [frames.GET_MESSAGES] if self.store.is_stream else [frames.GET_ENTRIES]
        return {row[0]: row[3] for row in self.read(*operation)[0]}

    def reopen(self) -> None:
        self.materialise()
        if self.store.file is not None:
            self.store.file.close()
            file = StoreFile.open(self.path, self.id)
            self.store = encrypt(Store(self.id, self.store.epoch, file, self.create), self.keys)

    def fail_over(self, *, crash: bool = True) -> TakeoverPlan:
        """The owner is killed, or closes the file; the next one has that, and the log. Return what
        it took from there."""
        if crash:
            abandon(self.store)
        else:
            self.materialise()
            file_of(self.store).close()
        file = StoreFile.open(self.path, self.id) if self.path.exists() else self.create()
        meta = file.meta
        found = plan(self.id, self.records, file_epoch=meta.epoch, file_revision=meta.revision)
        file.apply(found.batches, found.outcomes)
        epoch = self.store.epoch + 1
        file.take(epoch, "s", f"i{epoch}")
        self.store = encrypt(Store(self.id, epoch, file, self.create), self.keys)
        return found

    def close(self) -> None:
        abandon(self.store)


def result_of(ack: Ack) -> list[Any]:
    """Return the result that an ack of a stream with a chain was made of."""
    return [ack.seq, ack.revision, ack.time, ack.duplicate, None, ack.chain]


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
