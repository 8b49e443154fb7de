"""Opens the image of a cold store from the bucket, in place of the file that the
store does not have.

A small image that is wanted only for reads is opened in memory. Any other becomes the store's file,
as a generation that no earlier owner can have had, nor be about to unlink.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.recovery.takeover import FoundFile
from holdfast.persist.shared_disk.evidence import Evidence
from holdfast.persist.tier.cold_stores import ColdStores, StoreIsColdError
from holdfast.protocol.control import Grant, StoreState
from holdfast.protocol.errors import StorageFailedError
from holdfast.protocol.limits import MAX_COLD_MEMORY_BYTES, MAX_COLD_READ_BYTES
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.snapshots.snapshot import Fetched
from holdfast.shared_fs.store_file.store_file import StoreFile

logger = logging.getLogger("holdfast.persist")


class ColdImages:
    """The images that one incarnation opens."""

    def __init__(
        self,
        life: Incarnation,
        evidence: Evidence,
        raise_epoch: Callable[[StoreId, int], Awaitable[int]],
        cold_stores: ColdStores | None,
    ) -> None:
        self._life = life
        self._evidence = evidence
        self._raise_epoch = raise_epoch
        self._cold_stores = cold_stores
        #: The size of the images that are open in memory.
        self._memory_bytes = 0

    def brought(self, store: StoreId, grant: Grant, *, has_file: bool) -> Fetched | None:
        """Return the image that takes the place of a file, if the store has no file
        because it is cold.

        Raises StoreIsColdError if the image must be fetched first, StorageFailedError.
        """
        cold_stores = self._cold_stores
        # Also for a store that is not cold: what was fetched before it had a file must not be found
        # when it is cold again.
        brought = cold_stores.take(store, grant) if cold_stores is not None else None
        if grant.cold is None or has_file:
            if brought is not None and brought.image is not None:
                brought.image.drop(self._life.disk)
            return None
        if brought is not None:
            return brought.image
        if cold_stores is not None:
            raise StoreIsColdError(store=str(store))
        if grant.state == StoreState.DURABLE:
            raise StorageFailedError(reason=f"{store} is cold, and this server has no bucket")
        return None

    async def open(self, image: Fetched, grant: Grant, *, to_read: bool) -> StoreFile:
        """Open a fetched image, in memory or as the store's file."""
        life = self._life
        store, epoch = image.store, grant.epoch
        try:
            # It was closed when its owner let it be snapshotted.
            closed = FoundFile(image.meta.epoch, image.meta.revision, image.meta.incarnation, True)
            found = self._evidence.missing(store, closed, grant)
            if to_read and not (found.batches or found.outcomes):
                file = self._in_memory(image)
                if file is not None:
                    return file
            mine = image.meta.epoch == epoch and image.meta.incarnation == life.id
            if image.meta.epoch >= epoch and not mine:
                epoch = await self._raise_epoch(store, image.meta.epoch)
            path = life.layout.store(store, epoch)
            life.disk.make_directory(path.parent)
            life.gate.check()
            await life.run_in_thread(lambda: image.place(life.disk, path))
        except BaseException:
            image.drop(life.disk)
            raise
        logger.info("store.restored store=%s revision=%d", store, image.version.revision)
        return StoreFile.open(path, store, disk=life.disk)

    def _in_memory(self, image: Fetched) -> StoreFile | None:
        """Return a small image opened in memory, or None if a file is better."""
        size_bytes = image.version.image_bytes
        if (
            isinstance(image.content, Path)
            or size_bytes > MAX_COLD_READ_BYTES
            or self._memory_bytes + size_bytes > MAX_COLD_MEMORY_BYTES
        ):
            return None
        file = image.open_in_memory(self._life.layout.store(image.store))
        if any(file.limits()) or file.staged_bodies():
            # Even a read may make changes in such a store: it removes what is due.
            file.abandon()
            return None
        self._memory_bytes += size_bytes
        weakref.finalize(file, self._free_memory, size_bytes)
        return file

    def _free_memory(self, size_bytes: int) -> None:
        self._memory_bytes -= size_bytes
