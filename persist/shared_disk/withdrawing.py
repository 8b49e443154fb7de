"""Takes a store's damaged file out of service, together with all that it lacks.

Acknowledged changes are durable beside the file in quarantine before the log may drop them. The
file is moved under its lock, so it is never the file of a next owner.
"""

from __future__ import annotations

import logging
from functools import partial

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.store.store import Store
from holdfast.protocol import frames
from holdfast.protocol.errors import StorageError, StoreDamagedError
from holdfast.shared_fs.disk.commit_log import LogRecord, read_log
from holdfast.shared_fs.disk.quarantine import quarantine
from holdfast.shared_fs.store_file.store_file import StoreFile

logger = logging.getLogger("holdfast.persist")


class Withdrawal:
    """Moves damaged files of one incarnation to quarantine."""

    def __init__(self, life: Incarnation) -> None:
        self._life = life

    async def withdraw(self, store: Store, error: StoreDamagedError) -> None:
        """Move the file of a leased store. Raises StorageError."""
        await self._life.run_in_thread(partial(self._keep, store, error))

    def _keep(self, store: Store, error: StoreDamagedError) -> None:
        life = self._life
        records = self._records(store)
        others = [
            life.layout.store(store.id, generation)
            for generation in life.layout.generations(life.disk, store.id)
        ]
        # Reading the log may have taken a while. The file's lock is held, so even if this server is
        # stopped right here it moves only its own file.
        life.gate.check()
        path = life.layout.store(store.id) if store.file is None else store.file.path
        has_file = store.file is not None and store.file.is_locked
        if not has_file:
            # The file that lies there is not ours.
            path = path.with_name(f"{path.name}.{life.id}")
        folder = quarantine(
            life.disk,
            life.layout,
            store.id,
            path,
            reason=str(error.fields["reason"]),
            time=life.clock_ms(),
            server=life.server,
            records=records,
            others=[each for each in others if has_file and each != path],
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
        """Return the log records that this incarnation has of a store: at least those
        that its file lacks."""
        life = self._life
        contents = read_log(
            life.disk,
            life.layout.log(life.server, life.id),
            lambda record: record if record.store == store.id else None,
        )
        found = contents.records
        if store.anchor is not None:
            # What waits for its file is content, which is for memory alone.
            return found
        if any(not damage.torn_end for damage in contents.damage) or not _reaches(found, store):
            return pending_records(store)
        return found


def pending_records(store: Store) -> list[LogRecord]:
    """Return the changes that a store's file lacks, all of them synced, as log records."""
    records = []
    for pending in store.pending.ticks:
        previous, time, changes, chain, _ = pending.batch
        payload = frames.encode_changes(store.epoch, previous, time, changes, chain)
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
    """Tell if records hold everything that waits for the store's file."""
    if not store.pending.ticks:
        return True
    mine = [record for record in records if record.epoch == store.epoch]
    first = min((record.previous_revision for record in mine), default=store.revision)
    last = max((record.revision for record in mine), default=0)
    return first <= store.pending.ticks[0].batch.previous_revision and last >= store.revision


def _let_go(file: StoreFile) -> None:
    try:
        file.abandon()
    except StorageError as error:
        # The lock is released all the same.
        logger.error("store.close_failed store=%s reason=%s", file.store, error)
