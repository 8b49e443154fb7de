"""Small files that begin to get large values: each is made anew with larger pages, once.

Most files are made while their store holds nothing large yet: a stream is configured first, and an
object store is looked at before its first object. The owner notices when much that is large waits
for such a file, while it is small. It closes the store, makes the file anew, and places that under
a new epoch, as a purge does. But revisions go on, nothing is void, and followers go on where they
are. Operations wait meanwhile; then their clients ask for the owner again.

On a shared file system, a file never takes the place of another (`generations.py`). So if this
server is stopped in between and fenced, neither file of it can harm the next owner's. Where the
bucket is all there is, no other process uses the file, which is a cache: the new one takes its
place, and the epoch stays. What fails is not tried again for a while, since the store is closed for
each try: its file is as before.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.jobs.closing import RetiredStore, StoreCloser
from holdfast.persist.peers.coordination import Coordination
from holdfast.persist.store.store import Store
from holdfast.persist.threads.spawned_tasks import SpawnedTasks
from holdfast.protocol.errors import BusyError, FencedError, HoldfastError, StoreDamagedError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.generations.generations import current_generation
from holdfast.shared_fs.store_file.pages.page_sizes import LARGE_PAGE_BYTES
from holdfast.shared_fs.store_file.store_file import StoreFile

logger = logging.getLogger("holdfast.persist")

#: A store whose file could not be made anew is left alone this long, and so many are known; beyond
#: them the oldest one may be tried again.
_ALONE_SECONDS: Final = 3600.0
_MAX_FAILED: Final = 1024


class LargerPages:
    """Makes files of one incarnation anew."""

    def __init__(
        self,
        life: Incarnation,
        closer: StoreCloser,
        coordination: Coordination,
        tasks: SpawnedTasks,
        *,
        shares_files: bool,
    ) -> None:
        """`shares_files` tells whether other servers see the same files."""
        self._shares_files = shares_files
        self._life = life
        self._closer = closer
        self._coordination = coordination
        self._tasks = tasks
        #: Until when stores are left alone, the oldest failure first.
        self._alone_until: dict[StoreId, float] = {}

    def begin(self, store: Store) -> None:
        """Make the file of an open store anew, soon."""
        if self._alone_until.get(store.id, 0.0) <= asyncio.get_running_loop().time():
            self._tasks.spawn(self._begin(store.id))

    async def _begin(self, store: StoreId) -> None:
        try:
            with self._closer.alone(store):
                # Without a coordinator nobody could open the store again, so it stays as it is.
                await self._coordination.tend([(store, None)])
                async with self._closer.closed(store) as closed:
                    epoch = await self._remade(store, closed)
        except FencedError:
            # The write path finds out, too, and ends the incarnation.
            return
        except HoldfastError as error:
            self._leave_alone(store)
            logger.info("store.not_remade store=%s reason=%s", store, error)
        else:
            logger.info(
                "store.remade store=%s epoch=%d page_bytes=%d", store, epoch, LARGE_PAGE_BYTES
            )

    def _leave_alone(self, store: StoreId) -> None:
        self._alone_until.pop(store, None)
        self._alone_until[store] = asyncio.get_running_loop().time() + _ALONE_SECONDS
        if len(self._alone_until) > _MAX_FAILED:
            del self._alone_until[next(iter(self._alone_until))]

    async def _remade(self, store: StoreId, closed: RetiredStore) -> int:
        """Make the file of a closed store anew, and return its epoch."""
        life = self._life
        with life.draft(store) as draft:
            await life.run_in_thread(lambda: self._draft(store, closed, draft))
            if not self._shares_files:
                path = life.layout.store(store)
                await life.run_in_thread(lambda: self._replace(draft, path))
                return closed.epoch
            epoch = await self._coordination.raise_epoch(store, closed.epoch)
            revision: int = await life.run_in_thread(lambda: self._place(store, draft, epoch))
        await self._coordination.created([(store, revision, None)])
        return epoch

    def _draft(self, store: StoreId, closed: RetiredStore, draft: Path) -> None:
        disk, layout = self._life.disk, self._life.layout
        disk.remove(draft)
        generation = current_generation(disk, layout, store, self._life.id)
        if generation is None or not closed.revision:
            raise BusyError(what=f"the file of {store}")
        file = StoreFile.open(layout.store(store, generation), store, disk=disk)
        try:
            if file.meta.revision != closed.revision:
                raise BusyError(what=f"the file of {store}")
            file.remake_to(draft, LARGE_PAGE_BYTES, disk)
            before = file.meta
        finally:
            file.close()
        remade = StoreFile.open(draft, store, disk=disk)
        try:
            remade.quick_check()
            if remade.meta != before:
                raise StoreDamagedError(store=str(store), reason="its file made anew is another")
        finally:
            remade.close()

    def _replace(self, draft: Path, path: Path) -> None:
        """Let a draft take the place of the file that it was made of. What is lost by a crash in
        between comes back from the bucket."""
        life = self._life
        life.gate.check()
        life.disk.remove(path)
        life.disk.place(draft, path)

    def _place(self, store: StoreId, draft: Path, epoch: int) -> int:
        """Let a draft take effect, and return its revision."""
        life = self._life
        file = StoreFile.open(draft, store, disk=life.disk)
        try:
            file.take(epoch, life.server, life.id)
            revision = file.meta.revision
        finally:
            # Makes all of it durable.
            file.close()
        life.gate.check()
        life.disk.place(draft, life.layout.store(store, epoch))
        return revision
