"""Cooling: files that have not changed for long leave the file system. A sweep finds them.

Now and then the sweep walks all folders, so an idle store takes no server's memory. For files that
nobody has open, of stores that it may work on (`tending.py`), it consults the manifests. A store
without a snapshot of its last change gets one: the server that should have made it may have died. A
store that has not changed for long goes cold:

1. Its newest snapshot is read back from the bucket, whole.
2. The file is opened, which takes its lock. It must have exactly the snapshot's epoch and revision.
3. The coordinator records that the store is cold, durably, if this incarnation still owns it, or
   nobody does and nobody has since it was asked.
4. The fence is read, after the claim; the file is unlinked, under its lock, and its folder synced.

A crash before step 3 changes nothing. After it the file may exist or not: the next owner uses the
file if it exists and is at or beyond the recorded revision, and the bucket otherwise. A server that
is stopped between the fence and the unlinking holds the lock, so the next owner continues with a
copy of a later generation. The generation of a restored file is its owner's epoch: later than that
of any file that an earlier owner may still be about to unlink.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.peers.coordination import Coordination
from holdfast.persist.threads.run_in_thread import RunInThread
from holdfast.persist.tier.claims import Claimed, ClaimLostError, Claims
from holdfast.persist.tier.snapshotter import Snapshotter
from holdfast.persist.tier.tending import Tending
from holdfast.protocol.errors import (
    FencedError,
    HoldfastError,
    StorageError,
    StorageFailedError,
    UnavailableError,
    UnknownOperationError,
)
from holdfast.protocol.names import StoreId
from holdfast.protocol.serving.mishaps import Mishaps
from holdfast.protocol.serving.trouble import Trouble
from holdfast.protocol.work.roles import Role
from holdfast.shared_fs.bucket.bucket_errors import (
    BucketError,
    ObjectDamagedError,
    ObjectMissingError,
)
from holdfast.shared_fs.disk.fence import is_open
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.inspection.inspection import walk_stores
from holdfast.shared_fs.snapshots.places import place_prefix
from holdfast.shared_fs.snapshots.snapshot import verify
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion, StoreEntry
from holdfast.shared_fs.store_file.store_file import StoreFile

logger = logging.getLogger("holdfast.persist")

#: After this long, a closed file without a snapshot of its last change was forgotten by its server.
_FORGOTTEN_SECONDS: Final = 600.0
#: A temporary file is meant to be renamed at once. After this long its writer has probably died. A
#: writer that was merely suspended finds the file gone and fails, as if the disk had: correctness
#: does not depend on this being long enough.
_ABANDONED_SECONDS: Final = 3600.0
#: How many files are looked at together: each shard is then read once for many of them.
_SLICE_FILES: Final = 16_384
#: How many stores go cold together: they share a sync of the coordinator.
_GROUP_STORES: Final = 64


class Resting(NamedTuple):
    """A file that nobody has open, or that its last owner has not closed. `changed` is the file
    system's time of its last change, in milliseconds since the epoch."""

    store: StoreId
    changed: int
    is_closed: bool = True


@dataclass(frozen=True, slots=True)
class ColdCandidate:
    """A store that this incarnation may work on, in `epoch`, and the snapshot with which it may go
    cold."""

    store: StoreId
    epoch: int
    newest: SnapshotVersion
    #: Why it may, if it does not own the store.
    claim: Claimed | None = None

    def check(self) -> None:
        """Raise ClaimLostError, FencedError or StorageError if it may no longer."""
        if self.claim is not None:
            self.claim.check()


class Cooler:
    """The sweeps of one incarnation."""

    def __init__(
        self,
        snapshotter: Snapshotter,
        life: Incarnation,
        coordination: Coordination,
        run_in_thread: RunInThread,
        claims: Claims,
        tending: Tending,
    ) -> None:
        self._snapshotter = snapshotter
        self._claims = claims
        self._tending = tending
        self._owns_stores = Role.PERSIST in life.roles
        self._server = life.server
        self._disk = life.disk
        self._layout = life.layout
        self._gate = life.gate
        self._clock_ms = life.clock_ms
        self._coordination = coordination
        self._run_in_thread = run_in_thread
        self._mishaps = Mishaps(logger)
        self._places_away = Trouble(logger, "tier.tenant_bucket_away")

    async def run(self) -> None:
        """Sweep until cancelled. FencedError ends the incarnation."""
        while True:
            await asyncio.sleep(self._snapshotter.policy.sweep_seconds())
            try:
                await self.sweep()
            except FencedError:
                raise
            except ClaimLostError as error:
                logger.info("tier.sweep_ended server=%s reason=%s", self._server, error)
            except (StorageError, UnavailableError, UnknownOperationError) as error:
                logger.warning("tier.sweep_failed server=%s reason=%s", self._server, error)
            except Exception as error:  # noqa: BLE001 (a bug in one pass ends no server)
                self._mishaps.note("tier.sweep_failed", self._server, error)

    async def sweep(self) -> None:
        """Look once at all files that this server may work on. Raises StorageError,
        UnavailableError, ClaimLostError."""
        with self._claims.doing(*self._tending.sweeps) as held:
            if held or self._owns_stores:
                await self._sweep(held)

    async def _sweep(self, held: Mapping[str, Claimed]) -> None:
        free_ratio: float = await self._run_in_thread(self._free_ratio)
        cold_ms = int(self._snapshotter.policy.cold_seconds(free_ratio) * 1000)
        forgotten_ms = int(
            max(_FORGOTTEN_SECONDS, self._snapshotter.policy.snapshot_seconds) * 1000
        )
        youngest_ms = min(cold_ms, forgotten_ms)
        lives: set[str] = await self._run_in_thread(self._lives)
        # One server is enough for what nobody will miss.
        cleans = not self._tending.sweeps or self._tending.sweeps[0] in held
        files = resting_files(
            self._layout,
            *((partial(self._remove_draft, lives), self._remove_temporary) if cleans else ()),
        )
        while True:
            now_ms = self._clock_ms()
            found: list[Resting] = await self._run_in_thread(
                partial(take_slice, files, now_ms - youngest_ms)
            )
            if not found:
                return
            await self._look(found, now_ms - cold_ms, held)

    def _lives(self) -> set[str]:
        """Return the incarnations whose fences are open. Blocking."""
        found = set()
        for server in self._disk.folders(self._layout.servers):
            for name in self._disk.folders(self._layout.server(server)):
                path = self._layout.fence(server, name)
                if self._disk.exists(path) and is_open(self._disk, path):
                    found.add(name)
        return found

    def _remove_draft(self, lives: set[str], draft: Path, incarnation: str) -> None:
        """Remove the draft of a dead incarnation."""
        # Ids sort by the start: a later incarnation may have started since.
        if incarnation not in lives and incarnation < max(lives, default=""):
            self._disk.remove(draft)
            logger.info("store.draft_removed path=%s", draft.name)

    def _remove_temporary(self, path: Path, changed: int) -> None:
        """Remove a temporary file whose writer died before renaming it."""
        if changed + int(_ABANDONED_SECONDS * 1000) <= self._clock_ms():
            self._disk.remove(path)
            logger.info("store.draft_removed path=%s", path.name)

    async def _look(
        self, found: list[Resting], cold_before: int, held: Mapping[str, Claimed]
    ) -> None:
        newest = await self._snapshotter.publisher.newest([each.store for each in found])
        wanted = []
        for resting in found:
            version = newest.get(resting.store)
            if is_behind(version, resting.changed) or resting.changed <= cold_before:
                wanted.append(resting)
        for start in range(0, len(wanted), _GROUP_STORES):
            group = wanted[start : start + _GROUP_STORES]
            changed = {resting.store: resting.changed for resting in group}
            candidates = []
            for store, epoch, claim in await self._tending.tended(list(changed), held):
                version = newest.get(store)
                if version is None or changed[store] > cold_before:
                    self._snapshotter.add(store)
                else:
                    candidates.append(ColdCandidate(store, epoch, version, claim))
            await self.cool(candidates)

    # Going cold
    async def cool(self, candidates: Sequence[ColdCandidate]) -> int:
        """Let stores go cold whose newest snapshots hold all of them. Return how many did."""
        verified = []
        for candidate in candidates:
            try:
                await self._run_in_thread(
                    partial(verify, self._snapshotter.bucket, candidate.newest)
                )
            except (ObjectDamagedError, ObjectMissingError) as error:
                logger.error("store.snapshot_damaged key=%s reason=%s", candidate.newest.key, error)
                # While there is a file, a new snapshot can be made.
                await self._run_in_thread(partial(self._disown, candidate))
                self._snapshotter.add(candidate.store)
            except BucketError as error:
                if not place_prefix(candidate.newest.key):
                    raise
                self._places_away.note(
                    "tenant=%s reason=%s", candidate.store.tenant, error, of=candidate.store.tenant
                )
            else:
                self._places_away.over(candidate.store.tenant)
                verified.append(candidate)
        async with contextlib.AsyncExitStack() as stack:
            opened: list[tuple[ColdCandidate, StoreFile]] = []
            for candidate in verified:
                file = await stack.enter_async_context(self._locked(candidate))
                if file is not None:
                    opened.append((candidate, file))
            if not opened:
                return 0
            recorded = await self._coordination.cold(
                [
                    (
                        one.store,
                        one.epoch,
                        one.newest.revision,
                        None if one.claim is None else (one.claim.work, one.claim.epoch),
                    )
                    for one, _ in opened
                ]
            )
            gone = [each for each, is_cold in zip(opened, recorded, strict=True) if is_cold]
            await self._run_in_thread(lambda: self._unlink(gone))
        self._snapshotter.counts.cooled += len(gone)
        if gone:
            logger.info("tier.cooled server=%s stores=%d", self._server, len(gone))
        return len(gone)

    @contextlib.asynccontextmanager
    async def _locked(self, candidate: ColdCandidate) -> AsyncIterator[StoreFile | None]:
        """Keep a store's file open, if it is exactly as its snapshot has it.
        Otherwise yield None."""
        with self._snapshotter.leased(candidate.store) as mine:
            if not mine:
                yield None
                return
            try:
                file: StoreFile | None = await self._run_in_thread(
                    lambda: self._open_exact(candidate)
                )
            except BucketError:
                raise
            except FencedError:
                raise
            except HoldfastError as error:
                logger.error("store.cool_failed store=%s reason=%s", candidate.store, error)
                file = None
            try:
                yield file
            finally:
                if file is not None:
                    # Nothing was written to it. If it was unlinked, no WAL is left behind.
                    with contextlib.suppress(HoldfastError):
                        file.close()

    def _open_exact(self, candidate: ColdCandidate) -> StoreFile | None:
        file = self._snapshotter.imager.open_closed(candidate.store)
        if file is None:
            return None
        if (file.meta.epoch, file.meta.revision) == candidate.newest.order:
            return file
        file.close()
        # It has changed since, if only in its epoch.
        self._snapshotter.add(candidate.store)
        return None

    def _unlink(self, stores: Sequence[tuple[ColdCandidate, StoreFile]]) -> None:
        """Durably remove files that are locked here, with all earlier generations. Blocking."""
        folders: dict[Path, None] = {}
        for candidate, file in stores:
            candidate.check()
            self._gate.check()
            mine = int(file.path.name.split(".")[-2])
            for generation in self._layout.generations(self._disk, file.store):
                if generation > mine:
                    # It is a later owner's: this server is a zombie that does not know it yet.
                    continue
                path = self._layout.store(file.store, generation)
                # Remove the WAL first: without its file it would belong to nobody.
                self._disk.remove(path.with_name(path.name + "-wal"))
                self._disk.remove(path)
            folders[file.path.parent] = None
        for folder in folders:
            self._disk.sync_directory(folder)

    def _disown(self, candidate: ColdCandidate) -> None:
        """Remove an unreadable version from its manifest. Blocking."""

        def change(entry: StoreEntry | None) -> StoreEntry | None:
            if entry is None or entry.newest != candidate.newest:
                return entry
            return replace(entry, versions=entry.versions[1:])

        candidate.check()
        self._snapshotter.manifests().update_entry(candidate.store, change)

    def _free_ratio(self) -> float:
        try:
            status = os.statvfs(self._layout.root)
        except OSError as error:
            raise StorageFailedError(reason=f"{self._layout.root}: {error.strerror}") from error
        return status.f_bavail / status.f_blocks if status.f_blocks else 1.0


def resting_files(
    layout: Layout,
    on_draft: Callable[[Path, str], None] = lambda path, incarnation: None,
    on_temporary: Callable[[Path, int], None] = lambda path, changed: None,
    *,
    with_open: bool = False,
) -> Iterator[Resting]:
    """Yield the store files that nobody has open, or all of them, folder by folder.

    `on_draft` is called for each unfinished copy, with the incarnation that made it. `on_temporary`
    is called for each file that is to be renamed, with the time of its last change in milliseconds.
    Raises StorageFailedError.
    """
    for folder in walk_stores(layout):
        for draft, incarnation in folder.drafts:
            on_draft(draft, incarnation)
        for temporary in folder.temporaries:
            try:
                on_temporary(temporary, temporary.stat().st_mtime_ns // 1_000_000)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StorageFailedError(reason=f"{temporary}: {error.strerror}") from error
        for found in folder.stores:
            if found.misplaced:
                continue
            try:
                changed = found.path.stat().st_mtime_ns // 1_000_000
                # An open file has a WAL, even if it is empty.
                wal = found.path.with_name(found.path.name + "-wal")
                is_closed = not wal.exists()
                if not is_closed:
                    if not with_open:
                        continue
                    changed = max(changed, wal.stat().st_mtime_ns // 1_000_000)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StorageFailedError(reason=f"{found.path}: {error.strerror}") from error
            yield Resting(found.store, changed, is_closed)


def is_behind(newest: SnapshotVersion | None, changed: int) -> bool:
    """Tell if the newest snapshot may lack the last change of a file."""
    return newest is None or newest.taken < changed


def take_slice(files: Iterator[Resting], changed_before: int) -> list[Resting]:
    """Return the next files that have not changed since: so many that each shard of the manifests
    is read once for many of them."""
    return list(islice((each for each in files if each.changed <= changed_before), _SLICE_FILES))
