"""Takeover: what the logs of fenced incarnations add to a store's file.

`plan` is pure. The rules, which together keep one order through any number of owners:

- Records are taken epoch by epoch, oldest first, and within an epoch in the order of the log.
- Records of epochs before the file's own are void: who took the store over had applied what counted.
- An epoch ends where the next one begins: a record of a higher epoch that starts at revision r makes
  everything of lower epochs beyond r void. So what a zombie appended to its log after it was fenced
  (it was never acknowledged) cannot appear once a later owner has written.
- A record follows the one before it without a gap, or the store is damaged and says what is missing.

`DeadLogs` reads and keeps the logs, one read for each dead incarnation whatever its stores.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.protocol import frames
from holdfast.protocol.errors import StoreDamagedError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs import fence
from holdfast.shared_fs.commit_log import LogRecord, read_log
from holdfast.shared_fs.disk import Disk
from holdfast.shared_fs.layout import Layout
from holdfast.shared_fs.store_file import AppliedBatch, WriterOutcome

logger = logging.getLogger("holdfast.persist")


class Plan(NamedTuple):
    """What to apply to a file, in order."""

    batches: list[AppliedBatch]
    outcomes: list[WriterOutcome]


def plan(
    store: StoreId, records: Sequence[LogRecord], *, file_epoch: int, file_revision: int
) -> Plan:
    """Return what `records`, of any dead incarnations, add to a file at `file_revision`.

    Raises StoreDamagedError when revisions in between are missing.
    """
    by_epoch: dict[int, list[LogRecord]] = {}
    for record in records:
        if record.epoch >= file_epoch:
            by_epoch.setdefault(record.epoch, []).append(record)
    epochs = sorted(by_epoch)
    starts = [min(record.previous_revision for record in by_epoch[epoch]) for epoch in epochs]
    found = Plan([], [])
    revision = file_revision
    for index, epoch in enumerate(epochs):
        end = min(starts[index + 1 :], default=None)
        for record in by_epoch[epoch]:
            if record.revision < revision or (end is not None and record.revision > end):
                continue
            if record.revision == revision and record.previous_revision < revision:
                continue
            if record.previous_revision != revision:
                raise StoreDamagedError(
                    store=str(store),
                    reason=f"revisions {revision + 1} to {record.previous_revision} are neither in "
                    "its file nor in any log",
                )
            found.batches.extend(_batches(record))
            found.outcomes.extend(WriterOutcome(*outcome) for outcome in record.outcomes)
            revision = record.revision
    return found


def _batches(record: LogRecord) -> list[AppliedBatch]:
    decoded = [frames.decode_changes(payload) for payload in record.payloads]
    return [AppliedBatch(each.previous_revision, each.time, each.changes) for each in decoded]


class DeadLogs:
    """The logs of fenced incarnations on the shared file system, by store."""

    def __init__(self, disk: Disk, layout: Layout, incarnation: str) -> None:
        """`incarnation` is the caller's own, which is never read."""
        self._disk = disk
        self._layout = layout
        self._own = incarnation
        self._loaded: dict[tuple[str, str], dict[StoreId, list[LogRecord]]] = {}
        self._damaged: set[tuple[str, str]] = set()

    def refresh(self) -> None:
        """Read the logs of incarnations that were fenced since the last call. Blocking.

        May run in a thread: readers see the old collection or the new one. Raises
        StorageFailedError.
        """
        present = set()
        loaded = dict(self._loaded)
        for server in self._disk.names(self._layout.servers):
            for incarnation in self._disk.names(self._layout.server(server)):
                directory = self._layout.log(server, incarnation)
                if incarnation == self._own or not self._disk.exists(directory):
                    continue
                present.add((server, incarnation))
                if (server, incarnation) in loaded:
                    continue
                if fence.is_open(self._disk, self._layout.fence(server, incarnation)):
                    continue
                loaded[server, incarnation] = self._read(server, incarnation)
        self._loaded = {key: loaded[key] for key in loaded if key in present}

    @property
    def damaged(self) -> bool:
        """Something acknowledged may be missing from a log: nobody knows of which store."""
        return any(key in self._damaged for key in self._loaded)

    def records(self, store: StoreId) -> list[LogRecord]:
        """Return every record of `store` in the logs read so far, log by log."""
        found: list[LogRecord] = []
        for by_store in self._loaded.values():
            found.extend(by_store.get(store, ()))
        return found

    def incarnations(self) -> list[tuple[str, str]]:
        """Return the `(server, incarnation)` of every log read so far."""
        return list(self._loaded)

    def stores(self, server: str, incarnation: str) -> list[StoreId]:
        """Return the stores that a dead incarnation's log speaks of."""
        return list(self._loaded.get((server, incarnation), ()))

    def _read(self, server: str, incarnation: str) -> dict[StoreId, list[LogRecord]]:
        contents = read_log(self._disk, self._layout.log(server, incarnation))
        for damage in contents.damage:
            if not damage.torn_end:
                self._damaged.add((server, incarnation))
            logger.log(
                logging.INFO if damage.torn_end else logging.ERROR,
                "log.damage server=%s incarnation=%s segment=%s offset=%d reason=%s",
                server,
                incarnation,
                damage.segment,
                damage.offset,
                damage.reason,
            )
        by_store: dict[StoreId, list[LogRecord]] = {}
        for record in contents.records:
            by_store.setdefault(record.store, []).append(record)
        logger.info(
            "log.read server=%s incarnation=%s stores=%d records=%d size_bytes=%d",
            server,
            incarnation,
            len(by_store),
            len(contents.records),
            contents.size_bytes,
        )
        return by_store
