"""Jobs that make data go from a store for good: a whole store, or one message or entry of it.

    store      delete it (`deleting.py`)
    value      copy the file ──▶ scrub the copy ──▶ place it, under a new epoch ──▶ drop snapshots
    clear      the same, with a copy whose values are encrypted with the current key

All end with an epoch. Whatever owners of that epoch or earlier ones wrote of the store is void,
and may be removed wherever it is: `erasure.py` does that, on every server. So an erasure has no
state of its own. One that was interrupted, at any step, is continued by asking again.

A value is purged like a restore in place: the store is closed, its file is replaced by a rename, or
without a shared file system by the manifest, and followers begin anew. Until that step nothing has
changed. Its earlier snapshots go with it: the past of the store begins with the purge.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.jobs.closing import RetiredStore, StoreCloser
from holdfast.persist.jobs.deleting import DeletionJobs
from holdfast.persist.jobs.job_table import Report
from holdfast.persist.jobs.placing import Continuation, DraftPlacing
from holdfast.persist.jobs.removal import remove_files
from holdfast.persist.peers.coordination import Coordination
from holdfast.protocol.errors import BusyError, InvalidArgumentError, NotFoundError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.encryption.rewriting import Rewritten, ValueRewriting
from holdfast.shared_fs.encryption.sessions import CipherSessions
from holdfast.shared_fs.encryption.store_cipher import StoreCipher
from holdfast.shared_fs.erasure.packs import drop_versions
from holdfast.shared_fs.generations.generations import current_generation
from holdfast.shared_fs.snapshots.manifest import Manifests
from holdfast.shared_fs.snapshots.repacking import fetch_moved
from holdfast.shared_fs.snapshots.store_entry import StoreEntry
from holdfast.shared_fs.store_file.applying import StoreMeta
from holdfast.shared_fs.store_file.store_file import StoreFile

logger = logging.getLogger("holdfast.persist")

_Done = TypeVar("_Done")


class PurgeJobs:
    """The purges of one incarnation."""

    def __init__(
        self,
        life: Incarnation,
        closer: StoreCloser,
        coordination: Coordination,
        deletions: DeletionJobs,
        placing: DraftPlacing,
        manifests: Callable[[], Manifests] | None,
        read_keys: Callable[[], Awaitable[None]] | None,
    ) -> None:
        """`manifests` returns those of the bucket; it is None if there is no bucket. `read_keys`
        reads the registry of keys; it is None if there is none."""
        self._life = life
        self._closer = closer
        self._coordination = coordination
        self._deletions = deletions
        self._placing = placing
        self._manifests = manifests
        self._read_keys = read_keys

    async def store(self, store: StoreId) -> Report:
        """Delete a store, unless that was done before. Raises NotFoundError if there never was
        one."""
        try:
            report = await self._deletions.delete(store)
        except NotFoundError:
            buried = await self._deletions.buried(store)
            if not buried:
                raise
            report = {"epoch": buried}
        return {"found": 0, "snapshots": 0, "files": 0, "table": "", **report}

    async def value(self, store: StoreId, place: int | str) -> Report:
        """Purge the message of a seq, or the entry of a key, and what deletes have left in the
        file. Raises NotFoundError without the store; a value that is gone is purged all the same,
        because earlier states have it."""
        was_there, report = await self._replaced(store, lambda file: file.scrub(place))
        logger.info("store.purged store=%s epoch=%d", store, report["epoch"])
        return {**report, "found": int(was_there)}

    async def reencrypt(self, store: StoreId) -> Report:
        """Encrypt the values of a store that are in clear, or under a former key, with the current
        one. What has them as they were is void. Raises NotFoundError without the store,
        InvalidArgumentError if its tenant is not encrypted, KeyUnavailableError,
        TenantShreddedError, DecryptionFailedError, StorageError."""
        if self._read_keys is not None:
            # Otherwise a key that was replaced a second ago could still be the current one here.
            await self._read_keys()
        opened = await self._closer.opened(store)
        if opened.anchor is not None:
            # What an ephemeral store holds reaches no disk.
            return {"epoch": 0, "values": 0, "chunks": 0, "archived": 0, "table": ""}
        cipher = opened.cipher
        if cipher is None:
            reason = f"the values of tenant {store.tenant!r} are not encrypted"
            raise InvalidArgumentError(argument="tenant", reason=reason)
        if cipher.problem is not None:
            raise cipher.problem.with_traceback(None)
        keys = cipher.sessions.keys

        def rewrite(file: StoreFile) -> tuple[Rewritten, int]:
            # A session of its own: this is another thread.
            names = file.encryption.state.former_names
            cipher = StoreCipher(CipherSessions(keys), store, names)
            found = file.rewrite(lambda parts: ValueRewriting(parts).run(cipher))
            return found, file.archived_count()

        (found, archived), report = await self._replaced(store, rewrite)
        logger.info(
            "store.reencrypted store=%s epoch=%d values=%d", store, report["epoch"], found.values
        )
        return {**report, **found._asdict(), "archived": archived}

    async def _replaced(
        self, store: StoreId, work: Callable[[StoreFile], _Done]
    ) -> tuple[_Done, Report]:
        """Replace the file of a store by a copy on which `work` was done, under a new epoch, and
        drop its earlier snapshots. Return what `work` returned, and what was removed."""
        life = self._life
        opened = await self._closer.opened(store)
        path = life.layout.store(store)
        draft = path.with_name(f"{path.name}.{life.id}")
        with self._closer.alone(store):
            async with self._closer.closed(store) as closed:
                try:
                    done, meta = await life.run_in_thread(
                        lambda: self._draft(store, work, closed, draft)
                    )
                    entry = await life.run_in_thread(lambda: self._entry(store))
                    epoch = await self._coordination.raise_epoch(store, closed.epoch)
                    newest = max([meta.revision, *(each.revision for each in entry.versions)])
                    revision = await self._placing.put(
                        store, draft, Continuation(epoch, newest + 1, meta.last_seq, [])
                    )
                finally:
                    for part in (draft, draft.with_name(draft.name + "-wal")):
                        life.disk.remove(part)
                files = await life.run_in_thread(lambda: self._remove(store, epoch - 1))
        assert opened.epoch < epoch
        await self._closer.tell_followers(store, epoch, revision)
        dropped = await life.run_in_thread(lambda: self._drop(store, epoch - 1))
        return done, {
            "epoch": epoch - 1,
            "snapshots": dropped,
            "files": files,
            "table": entry.archive.table if entry.archive is not None else "",
        }

    def _draft(
        self,
        store: StoreId,
        work: Callable[[StoreFile], _Done],
        closed: RetiredStore,
        draft: Path,
    ) -> tuple[_Done, StoreMeta]:
        """Write a copy of a closed store, and do `work` on it. Blocking."""
        life = self._life
        life.disk.make_directory(draft.parent)
        life.disk.remove(draft)
        generation = current_generation(life.disk, life.layout, store, life.id)
        if generation is not None:
            file = StoreFile.open(life.layout.store(store, generation), store, disk=life.disk)
            try:
                file.copy_to(draft)
            finally:
                file.close()
        else:
            # It is cold, and was opened in memory.
            newest = self._entry(store).newest
            if newest is None or self._manifests is None:
                raise BusyError(what=f"the file of {store}")
            partial = draft.with_name(f"{draft.name}.part")
            fetch_moved(self._manifests(), store, newest, partial).place(life.disk, draft)
        file = StoreFile.open(draft, store, disk=life.disk)
        try:
            if not closed.revision or file.meta.revision < closed.revision:
                raise BusyError(what=f"the file of {store}")
            return work(file), file.meta
        finally:
            file.close()

    def _entry(self, store: StoreId) -> StoreEntry:
        manifests = self._manifests
        return (manifests().find(store) if manifests is not None else None) or StoreEntry()

    def _remove(self, store: StoreId, epoch: int) -> int:
        self._life.gate.check()
        return remove_files(self._life.disk, self._life.layout, store, epoch)

    def _drop(self, store: StoreId, epoch: int) -> int:
        self._life.gate.check()
        return drop_versions(self._manifests(), store, epoch) if self._manifests else 0
