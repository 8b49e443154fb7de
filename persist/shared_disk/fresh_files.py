"""Store files as they are: a new owner reads what the last one left, or does not open the file.

SQLite reads through this host's cache. On a network file system that may have pages from when this
host had the store before, and names of files that are gone. A file, or pages of it, that are older
than what the last owner checkpointed would cost what that one let go from its log, and look sound:
each page has a checksum, and none says of when it is. So, before SQLite opens a file that somebody
else may have written, its cache is dropped, and all of its bytes and of its WAL are read twice:
plainly, as SQLite will read them, and past the cache. Where they differ, or the name leads to a
file that is gone, they are read again, and in the end the store is refused.

Direct reads themselves are proven: a server reads its fence and the number beside it in the same
way (`freshness.py`). Where reads are plain, because the operator wants that or the file system does
not support others, nothing is compared.

A listing cannot be compared. What speaks against a store because of its names, such as a missing
file, is therefore looked at again for a while before it is told. Nothing is made, moved or removed
because of a name that is not seen.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.shared_disk.freshness import stale_file_system
from holdfast.persist.store.store import Store
from holdfast.protocol.errors import StorageFailedError
from holdfast.protocol.limits import SEAL_SECONDS
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk.file_lookups import is_stale

logger = logging.getLogger("holdfast.persist")

#: Between two looks: doubled after each, up to the second.
_FIRST_PAUSE_SECONDS: Final = 0.05
_MAX_PAUSE_SECONDS: Final = 1.0
#: Of how many stores it is known that nobody else has written them since this incarnation did.
_MAX_OWN: Final = 4096


class FreshFiles:
    """The files of stores as one incarnation on a shared file system sees them."""

    def __init__(self, life: Incarnation) -> None:
        self._life = life
        #: The epoch in which this incarnation opened a store; the one longest ago comes first.
        self._own: dict[StoreId, int] = {}
        #: For each store with something against it: for how long it was looked at again.
        self._looked_seconds: dict[StoreId, float] = {}

    def opened(self, store: Store) -> None:
        """Note that this incarnation has opened a store, as its owner."""
        self._looked_seconds.pop(store.id, None)
        if self._life.disk.remote and store.file is not None and not store.file.in_memory:
            self._own.pop(store.id, None)
            self._own[store.id] = store.epoch
            if len(self._own) > _MAX_OWN:
                del self._own[next(iter(self._own))]

    def is_own(self, store: StoreId, epoch: int) -> bool:
        """Tell if nobody else can have written a store that is granted in `epoch` since this
        incarnation did, which sees what it wrote itself: another owner has another epoch."""
        return self._own.get(store) == epoch

    def show(self, path: Path) -> None:
        """Let SQLite see what is there. Blocking; this process has no lock on the file.

        Raises StaleFileSystemError if this host goes on showing something else, FileNotFoundError,
        StorageFailedError.
        """
        try:
            self._life.disk.refresh(path)
        except StorageFailedError as error:
            if not is_stale(error.__cause__):
                raise
            logger.error("store.stale server=%s path=%s reason=%s", self._life.server, path, error)
            raise stale_file_system(self._life, path) from error

    async def look_again(self, store: StoreId) -> bool:
        """Wait, and return True, if what speaks against a store may be an old listing."""
        looked_seconds = self._looked_seconds.get(store, 0.0)
        if not self._life.disk.remote or looked_seconds >= SEAL_SECONDS:
            return False
        pause_seconds = min(max(looked_seconds, _FIRST_PAUSE_SECONDS), _MAX_PAUSE_SECONDS)
        self._looked_seconds[store] = looked_seconds + pause_seconds
        await asyncio.sleep(pause_seconds)
        return True
