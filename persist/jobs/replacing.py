"""Replaces the file of a store by a changed copy, for good: what was there before is void.

    copy the file ──▶ change the copy ──▶ place it, under a new epoch ──▶ drop earlier snapshots

As in a restore in place, the store is closed, its file is replaced by a rename, or without a shared
file system by the manifest, and followers begin anew. Until that step nothing has changed. Earlier
snapshots go with the file: the past of the store begins here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.jobs.closing import RetiredStore, StoreCloser
from holdfast.persist.jobs.job_table import Report
from holdfast.persist.jobs.placing import Continuation, DraftPlacing
from holdfast.persist.jobs.removal import remove_files
from holdfast.persist.peers.coordination import Coordination
from holdfast.protocol.errors import BusyError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.erasure.packs import drop_versions
from holdfast.shared_fs.generations.generations import current_generation
from holdfast.shared_fs.snapshots.manifest import Manifests
from holdfast.shared_fs.snapshots.repacking import fetch_moved
from holdfast.shared_fs.snapshots.store_entry import StoreEntry
from holdfast.shared_fs.store_file.applying import StoreMeta
from holdfast.shared_fs.store_file.store_file import StoreFile

_Done = TypeVar("_Done")


class StoreReplacement:
    """Replaces files of stores of one incarnation."""

    def __init__(
        self,
        life: Incarnation,
        closer: StoreCloser,
        coordination: Coordination,
        placing: DraftPlacing,
        manifests: Callable[[], Manifests] | None,
    ) -> None:
        """`manifests` returns those of the bucket; it is None if there is no bucket."""
        self._life = life
        self._closer = closer
        self._coordination = coordination
        self._placing = placing
        self._manifests = manifests

    async def replaced(
        self, store: StoreId, work: Callable[[StoreFile], _Done], *, key: int = 0
    ) -> tuple[_Done, Report]:
        """Replace the file of a store by a copy on which `work` was done, under a new epoch, and
        drop its earlier snapshots. Return what `work` returned, and what was removed. `key` is the
        number of the data key with which `work` encrypts all values anew, if it does."""
        life = self._life
        opened = await self._closer.opened(store)
        with self._closer.alone(store):
            async with self._closer.closed(store) as closed:
                with life.draft(store) as draft:
                    done, meta = await life.run_in_thread(
                        lambda: self._draft(store, work, closed, draft)
                    )
                    entry = await life.run_in_thread(lambda: self.entry(store))
                    epoch = await self._coordination.raise_epoch(store, closed.epoch)
                    newest = max([meta.revision, *(each.revision for each in entry.versions)])
                    revision = await self._placing.put(
                        store, draft, Continuation(epoch, newest + 1, meta.last_seq, [], key)
                    )
                files = await life.run_in_thread(lambda: self._remove(store, epoch - 1))
        assert opened.epoch < epoch
        await self._closer.tell_followers(store, epoch, revision)
        dropped = await self.drop(store, epoch - 1)
        return done, {
            "epoch": epoch - 1,
            "snapshots": dropped,
            "files": files,
            "table": entry.archive.table if entry.archive is not None else "",
        }

    async def looked_at(self, store: StoreId, look: Callable[[StoreFile], _Done]) -> _Done:
        """Return what `look` returns of the file of a store, which is closed meanwhile and stays as
        it is. Raises NotFoundError, BusyError, StorageError."""
        await self._closer.opened(store)

        def read(closed: RetiredStore, draft: Path) -> _Done:
            with self._newest(store, closed, draft) as file:
                return look(file)

        with self._closer.alone(store):
            async with self._closer.closed(store) as closed:
                with self._life.draft(store) as draft:
                    found: _Done = await self._life.run_in_thread(lambda: read(closed, draft))
        return found

    async def drop(self, store: StoreId, epoch: int) -> int:
        """Drop the snapshots that owners up to `epoch` made of a store, and return how many. Raises
        BusyError if no later one is there."""

        def work() -> int:
            self._life.gate.check()
            return drop_versions(self._manifests(), store, epoch) if self._manifests else 0

        dropped: int = await self._life.run_in_thread(work)
        return dropped

    def entry(self, store: StoreId) -> StoreEntry:
        """Return what the bucket has of a store. Blocking."""
        manifests = self._manifests
        return (manifests().find(store) if manifests is not None else None) or StoreEntry()

    def _draft(
        self,
        store: StoreId,
        work: Callable[[StoreFile], _Done],
        closed: RetiredStore,
        draft: Path,
    ) -> tuple[_Done, StoreMeta]:
        """Write a copy of a closed store, and do `work` on it. Blocking."""
        with self._newest(store, closed, draft) as file:
            is_copy = file.path == draft
            if not is_copy:
                file.copy_to(draft)
            else:
                return work(file), file.meta
        file = StoreFile.open(draft, store, disk=self._life.disk)
        try:
            return work(file), file.meta
        finally:
            file.close()

    @contextmanager
    def _newest(self, store: StoreId, closed: RetiredStore, draft: Path) -> Iterator[StoreFile]:
        """Open the file of a closed store; or a copy at `draft` of a cold one, which was opened in
        memory. Blocking."""
        life = self._life
        life.disk.make_directory(draft.parent)
        life.disk.remove(draft)
        path = draft
        generation = current_generation(life.disk, life.layout, store, life.id)
        if generation is not None:
            path = life.layout.store(store, generation)
        else:
            newest = self.entry(store).newest
            if newest is None or self._manifests is None:
                raise BusyError(what=f"the file of {store}")
            partial = draft.with_name(f"{draft.name}.part")
            fetch_moved(self._manifests(), store, newest, partial).place(life.disk, draft)
        file = StoreFile.open(path, store, disk=life.disk)
        try:
            if not closed.revision or file.meta.revision < closed.revision:
                raise BusyError(what=f"the file of {store}")
            yield file
        finally:
            file.close()

    def _remove(self, store: StoreId, epoch: int) -> int:
        self._life.gate.check()
        return remove_files(self._life.disk, self._life.layout, store, epoch)
