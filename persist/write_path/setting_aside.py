"""Takes stores out of service whose files turned out to be damaged while their owner had them open.

A change that cannot be applied would wait for ever, and the log with it: one flipped bit would in
the end stop every store of the server. So such a store is set aside, alone:

    hold it ──▶ wait until all that it accepted is synced ──▶ keep its changes, and move the file,
    to quarantine ──▶ close it: the log may go on, and who asks for the store is told that it is
    damaged

Invariants:

- What was acknowledged is durable beside the file in quarantine before the log may let it go.
- The file leaves under its lock, so it is never that of a next owner.
- Only damage sets a store aside. A disk that is full or fails may be well again: `store.py` goes on
  holding the changes, and the log has them.

Without a shared file system the file is a cache, and the log in the bucket has everything: there
the file is dropped, and the store opened again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from holdfast.persist.store.leases import Lease
from holdfast.persist.store.open_stores import OpenStores
from holdfast.persist.store.states import OpenState
from holdfast.persist.store.store import Store
from holdfast.persist.threads.run_in_thread import RunInThread
from holdfast.persist.write_path.releasing import Releaser
from holdfast.protocol import frames
from holdfast.protocol.errors import FencedError, StorageError, StoreDamagedError
from holdfast.shared_fs.disk.commit_log import LogRecord, read_log
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import FenceGate
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.disk.quarantine import quarantine
from holdfast.shared_fs.store_file.store_file import StoreFile

logger = logging.getLogger("holdfast.persist")


class SettingAside:
    """Sets damaged stores of one incarnation aside."""

    def __init__(
        self,
        *,
        server: str,
        incarnation: str,
        disk: Disk,
        layout: Layout,
        gate: FenceGate,
        open_stores: OpenStores,
        releaser: Releaser,
        run_in_thread: RunInThread,
        clock_ms: Callable[[], int],
        settle_bucket_log: Callable[[], None] | None,
    ) -> None:
        """`settle_bucket_log`: without a shared file system; after it what was synced is known to
        be in the bucket."""
        self._server = server
        self._incarnation = incarnation
        self._disk = disk
        self._layout = layout
        self._gate = gate
        self._open_stores = open_stores
        self._releaser = releaser
        self._run_in_thread = run_in_thread
        self._clock_ms = clock_ms
        self._settle_bucket_log = settle_bucket_log

    async def run_pass(self) -> None:
        """Set aside what is known to be damaged. Raises FencedError."""
        for store, error in self._open_stores.upkeep.damaged():
            if store.state is OpenState.SERVING:
                with self._open_stores.leases.hold(store) as lease:
                    await self._set_aside(lease, error)

    async def _set_aside(self, lease: Lease, error: StoreDamagedError) -> None:
        store = lease.store
        await self._releaser.settled(store.last_tick)
        try:
            self._gate.check()
            if self._settle_bucket_log is not None:
                self._settle_bucket_log()
                await self._run_in_thread(lambda: self._drop(store))
            else:
                await self._run_in_thread(lambda: self._keep(store, error))
        except FencedError:
            raise
        except StorageError as failed:
            # The log has it all; the next pass tries again.
            logger.error("store.set_aside_failed store=%s reason=%s", store.id, failed)
            return
        store.file = None
        lease.leave(error if self._settle_bucket_log is None else None)

    def _drop(self, store: Store) -> None:
        if store.file is not None:
            _let_go(store.file)
            self._disk.remove(store.file.path)
            self._disk.remove(store.file.path.with_name(store.file.path.name + "-wal"))
        logger.error("store.cache_damaged store=%s", store.id)

    def _keep(self, store: Store, error: StoreDamagedError) -> None:
        records = self._records(store)
        others = [
            self._layout.store(store.id, generation)
            for generation in self._layout.generations(self._disk, store.id)
        ]
        # Reading the log may have taken a while. The file's lock is held, so even a server that is
        # stopped right here moves nothing but what was its own.
        self._gate.check()
        path = self._layout.store(store.id) if store.file is None else store.file.path
        if store.file is None:
            # Whatever lies there is none of ours.
            path = path.with_name(f"{path.name}.{self._incarnation}")
        folder = quarantine(
            self._disk,
            self._layout,
            store.id,
            path,
            reason=str(error.fields["reason"]),
            time=self._clock_ms(),
            server=self._server,
            records=records,
            others=[each for each in others if store.file is not None and each != path],
        )
        if store.file is not None:
            _let_go(store.file)
        logger.error(
            "store.set_aside store=%s epoch=%d revision=%d records=%d folder=%s reason=%s",
            store.id,
            store.epoch,
            store.revision,
            len(records),
            folder.name,
            error,
        )

    def _records(self, store: Store) -> list[LogRecord]:
        """Return what the log of this incarnation has of a store; at the least what its file
        lacks."""
        contents = read_log(
            self._disk,
            self._layout.log(self._server, self._incarnation),
            lambda record: record if record.store == store.id else None,
        )
        found = contents.records
        if any(not damage.torn_end for damage in contents.damage) or not _reaches(found, store):
            return pending_records(store)
        return found


def pending_records(store: Store) -> list[LogRecord]:
    """Return the changes of a store that its file lacks, all of them synced, as log records."""
    records = []
    for pending in store.pending:
        previous, time, changes = pending.batch
        payload = frames.encode_changes(store.epoch, previous, time, changes)
        payloads = [payload] if changes else []
        records.append(
            LogRecord(
                store.id,
                store.epoch,
                previous,
                previous + len(changes),
                payloads,
                pending.outcomes,
            )
        )
    return records


def _reaches(records: list[LogRecord], store: Store) -> bool:
    """Tell if records have all that waits for the store's file."""
    if not store.pending:
        return True
    mine = [record for record in records if record.epoch == store.epoch]
    first = min((record.previous_revision for record in mine), default=store.revision)
    last = max((record.revision for record in mine), default=0)
    return first <= store.pending[0].batch.previous_revision and last >= store.revision


def _let_go(file: StoreFile) -> None:
    try:
        file.abandon()
    except StorageError as error:
        # The lock is gone all the same.
        logger.error("store.close_failed store=%s reason=%s", file.store, error)
