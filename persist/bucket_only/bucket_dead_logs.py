"""The logs of fenced incarnations in the bucket, by store: what `takeover.DeadLogs` is
on a shared disk.

One listing of the bucket shows every incarnation. A log is read once, when its fence exists.
`remove_needless` removes slots that no store needs any more, but never the fence and the mark: so
an incarnation that has ended is never taken for one that is alive.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from holdfast.persist.recovery.takeover import DeadLog
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket_log.bucket_log import (
    ListedLog,
    fence_log,
    fence_slot,
    list_logs,
    read_bucket_log,
    remove_log,
)
from holdfast.shared_fs.disk.commit_log import LogRecord
from holdfast.shared_fs.snapshots.manifest import Manifests
from holdfast.shared_fs.snapshots.store_entry import StoreEntry

logger = logging.getLogger("holdfast.persist")

_Key = tuple[str, str]


class BucketDeadLogs:
    """The logs that have been read so far. Calls block; readers see either the old logs
    or the new ones."""

    def __init__(self, bucket: Bucket, incarnation: str) -> None:
        """`incarnation` is the caller's own, whose log is never read."""
        self._bucket = bucket
        self._own = incarnation
        self._loaded: dict[_Key, DeadLog] = {}
        self._listed: dict[_Key, ListedLog] = {}
        #: Logs with a mark but no fence: the fence is about to be put, or its putter
        #: died before that.
        self.half_fenced: list[_Key] = []

    def refresh(self) -> None:
        """Read the logs of incarnations that were fenced since the last call.
        Raises StorageError."""
        loaded: dict[_Key, DeadLog] = {}
        listed: dict[_Key, ListedLog] = {}
        half_fenced: list[_Key] = []
        for log in list_logs(self._bucket):
            key = (log.server, log.incarnation)
            if log.incarnation == self._own or not log.marked:
                continue
            known = self._loaded.get(key)
            if known is None:
                if fence_slot(self._bucket, log) is None:
                    # Until the fence is put, nobody may take over from it.
                    half_fenced.append(key)
                    continue
                known = self._read(log)
            elif len(log.slots) <= 1:
                known = DeadLog(*key)
            loaded[key], listed[key] = known, log
        self._loaded, self._listed, self.half_fenced = loaded, listed, half_fenced

    def logs(self) -> list[DeadLog]:
        """Return every log read so far."""
        return list(self._loaded.values())

    def records(self, store: StoreId) -> list[LogRecord]:
        """Return every record of `store` in the logs read so far, log by log."""
        found: list[LogRecord] = []
        for log in self._loaded.values():
            found.extend(log.records.get(store, ()))
        return found

    def remove_needless(self, needed_by: Callable[[DeadLog], list[StoreId]]) -> list[StoreId]:
        """Remove the slots of each log that no store needs. Return the stores that
        still need theirs."""
        needing: dict[StoreId, None] = {}
        for key, log in self._loaded.items():
            listed = self._listed[key]
            if len(listed.slots) <= 1 or log.is_short:
                continue
            stores = needed_by(log)
            needing.update(dict.fromkeys(stores))
            if not stores:
                remove_log(self._bucket, listed)
                logger.info("log.reaped server=%s incarnation=%s stores=%d", *key, len(log.records))
        return list(needing)

    def _read(self, log: ListedLog) -> DeadLog:
        if len(log.slots) == 1:
            return DeadLog(log.server, log.incarnation)
        contents = read_bucket_log(self._bucket, log.server, log.incarnation)
        for damage in contents.damage:
            logger.error(
                "log.damage server=%s incarnation=%s segment=%s offset=%d reason=%s",
                log.server,
                log.incarnation,
                damage.segment,
                damage.offset,
                damage.reason,
            )
        read = DeadLog.of(log.server, log.incarnation, contents)
        logger.info(
            "log.read server=%s incarnation=%s stores=%d records=%d size_bytes=%d",
            log.server,
            log.incarnation,
            len(read.records),
            len(contents.records),
            contents.size_bytes,
        )
        return read


def needed_by(manifests: Manifests, log: DeadLog) -> list[StoreId]:
    """Return the stores of a log that have no snapshot beyond everything the log has of them."""
    return [
        store for store, records in log.records.items() if _needs(manifests.find(store), records)
    ]


def fence_the_dead(bucket: Bucket, own: str, is_dead: Callable[[str, str], bool]) -> None:
    """Fence the logs of incarnations that have a fence elsewhere: only logs with a fence in the
    bucket are ever removed from it."""
    for log in list_logs(bucket):
        if log.incarnation != own and not log.marked and is_dead(log.server, log.incarnation):
            fence_log(bucket, log.server, log.incarnation)


def _needs(entry: StoreEntry | None, records: list[LogRecord] | object) -> bool:
    assert isinstance(records, list)
    last = max((record.epoch, record.revision) for record in records)
    if entry is None:
        return True
    if entry.deleted is not None and last[0] <= entry.deleted.epoch:
        return False
    return entry.newest is None or entry.newest.order < last
