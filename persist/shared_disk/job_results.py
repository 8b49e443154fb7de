"""The results of jobs on a shared file system: tombstones and restored files.

A restored state takes effect when its file is renamed to a generation of its own. The tombstone of
a deleted store is in the folder that held the store's file.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.peers.coordination import Coordination
from holdfast.persist.storage_mode import Publish
from holdfast.protocol.errors import NotOwnerError, StoreDamagedError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.bucket.bucket_errors import BucketError
from holdfast.shared_fs.disk.tombstone import Grave, read_tombstone, write_tombstone
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion

logger = logging.getLogger("holdfast.persist")


class FileTombstones:
    """The tombstones of stores whose files all servers share: see `Tombstones`."""

    def __init__(self, life: Incarnation) -> None:
        self._disk, self._layout = life.disk, life.layout

    def epoch(self, store: StoreId) -> int:
        grave = read_tombstone(self._disk, self._layout.tombstone(store))
        return grave.epoch if grave is not None else 0

    def put(self, store: StoreId, grave: Grave) -> None:
        path = self._layout.tombstone(store)
        # One that is damaged is replaced.
        with contextlib.suppress(StoreDamagedError):
            before = read_tombstone(self._disk, path)
            if before is not None:
                # A deletion that is done again cannot read the file any more.
                grave = grave._replace(revision=max(before.revision, grave.revision))
        write_tombstone(self._disk, path, grave)


class FilePlacement:
    """Puts restored files in place: see `Placement`."""

    def __init__(
        self, life: Incarnation, coordination: Coordination, publish: Publish | None
    ) -> None:
        """`publish` is None if there is no bucket."""
        self._life = life
        self._coordination = coordination
        self._publish = publish

    def place(self, store: StoreId, draft: Path, epoch: int) -> None:
        """Rename the draft to the generation of this epoch."""
        self._life.disk.place(draft, self._life.layout.store(store, epoch))

    async def announce(self, store: StoreId, epoch: int, revision: int) -> None:
        """Tell the coordinator, and publish a snapshot. The restore is valid without it."""
        await self._coordination.created([(store, revision, None)])
        placed, publish = self._life.layout.store(store, epoch), self._publish
        if publish is None:
            return
        try:
            await self._life.run_in_thread(lambda: publish(placed, store))
        except BucketError as error:
            logger.warning("operator.snapshot_failed store=%s reason=%s", store, error)

    async def announce_cold(self, store: StoreId, version: SnapshotVersion) -> None:
        """Tell the coordinator that the store is cold, and how large it is."""
        at = (store, version.epoch, version.revision, None)
        [is_recorded] = await self._coordination.cold([at])
        if not is_recorded:
            raise NotOwnerError(server=self._life.server)
        await self._coordination.created([(store, version.revision, version.totals)])
