"""Jobs over the versions of a store, which are in the bucket: list them, back up, restore.

The owner restores a store in place like this (invariants 2 and 4 of the design):

1. It makes the past state as a draft beside the file, while it still serves the store.
2. It closes the store (`closing.py`) and snapshots its last state, so that another restore can undo
   this one.
3. The coordinator grants the next epoch. The draft continues from the revision and the last seq of
   the present state, so no number is ever used twice. Followers are behind the draft's horizon, so
   they begin anew. The outcomes that retries of writers get come from the present state.
4. The draft replaces the file by a rename to a generation of its own. Until then nothing has
   changed; from then on, log records of earlier epochs are void. Without a shared file system,
   publishing the newest version in the manifest takes the place of the rename (`Placement`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.jobs.closing import RetiredStore, StoreCloser
from holdfast.persist.jobs.job_table import Report
from holdfast.persist.jobs.placing import Continuation, DraftPlacing
from holdfast.persist.jobs.point_in_time_restore import PointInTimeRestore
from holdfast.persist.peers.coordination import Coordination
from holdfast.persist.recovery.point_in_time import Course, Point, RestoreTarget
from holdfast.protocol.control import StoreState
from holdfast.protocol.errors import BusyError, InvalidArgumentError, StorageError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk.tombstone import read_tombstone
from holdfast.shared_fs.generations.generations import current_generation
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion
from holdfast.shared_fs.store_file.applying import StoreMeta, WriterOutcome

logger = logging.getLogger("holdfast.persist")

#: The revisions that a restore skips if the present file is damaged: nobody knows how many it had.
_LOST_REVISIONS: Final = 1 << 20


class VersionJobs:
    """The jobs of one incarnation that has a bucket."""

    def __init__(
        self,
        life: Incarnation,
        closer: StoreCloser,
        coordination: Coordination,
        past: PointInTimeRestore,
        placing: DraftPlacing,
        snapshot: Callable[[list[StoreId]], Awaitable[None]],
    ) -> None:
        self._life = life
        self._closer = closer
        self._coordination = coordination
        self._past = past
        self._placing = placing
        self._snapshot = snapshot
        #: Stores to back up with the next snapshots, which share objects and requests.
        self._to_back_up: dict[StoreId, None] = {}
        self._backing_up = asyncio.Lock()

    async def versions(self, store: StoreId) -> Report:
        """List the snapshots of a store that are kept."""
        versions = await self._versions(store)
        return {"versions": [_version_fields(version) for version in versions]}

    async def backup(self, store: StoreId) -> Report:
        """Snapshot a store as it is, and list all of its snapshots."""
        revision = (await self._closer.opened(store)).revision
        self._to_back_up[store] = None
        async with self._backing_up:
            # Whoever comes first takes all that wait. If it fails, the others see that below.
            if store in self._to_back_up:
                together, self._to_back_up = list(self._to_back_up), {}
                await self._snapshot(together)
        versions = await self._versions(store)
        if not versions or versions[0].revision < revision:
            raise BusyError(what=f"the file of {store}")
        return {"versions": [_version_fields(version) for version in versions]}

    async def restore(
        self,
        store: StoreId,
        source: StoreId,
        target: RestoreTarget,
        *,
        nearest: bool,
        dry_run: bool,
    ) -> Report:
        """Restore a past state of `source` as `store`, and report it; `dry_run` only reports."""
        life = self._life
        seen: list[Point] = []
        if store == source:
            # A damaged store can be restored, too.
            with contextlib.suppress(StorageError):
                opened = await self._closer.opened(store)
                now = life.clock_ms()
                seen.append(Point(opened.epoch, opened.durable_revision, opened.time, now))

        def prepare(draft: Path) -> Course:
            with self._past.found(source, target, nearest=nearest, seen=seen) as found:
                if not dry_run:
                    self._past.draft(source, found, store, draft).close()
                return found

        with self._closer.alone(store), life.draft(store) as draft:
            found: Course = await life.run_in_thread(lambda: prepare(draft))
            report: Report = {
                "exact": found.exact,
                "revision": found.revision,
                "time": found.time,
                "version": _version_fields(found.version) if found.version else None,
                "replayed": found.batches.change_count,
            }
            if dry_run:
                return report
            return report | await self._put_in_place(store, store == source, draft)

    async def _put_in_place(self, store: StoreId, in_place: bool, draft: Path) -> Report:
        async with self._closer.closed(store) as closed:
            if not in_place and closed.state != StoreState.UNKNOWN:
                raise InvalidArgumentError(
                    argument="--as", reason=f"{store.name!r} exists: choose a new name"
                )
            onward = await self._continuation(store, closed, in_place=in_place)
            epoch = onward.epoch
            revision = await self._placing.put(store, draft, onward)
            logger.info(
                "store.restored_by_operator store=%s epoch=%d revision=%d", store, epoch, revision
            )
        await self._closer.tell_followers(store, epoch, revision)
        return {"new_revision": revision, "epoch": epoch}

    async def _continuation(
        self, store: StoreId, closed: RetiredStore, *, in_place: bool
    ) -> Continuation:
        """Return the numbers from which the restored state of a closed store continues."""
        life = self._life
        before: StoreMeta | None = None
        outcomes: list[WriterOutcome] = []
        generation = await life.run_in_thread(
            lambda: current_generation(life.disk, life.layout, store, life.id)
        )
        if in_place and generation is not None:
            present = life.layout.store(store, generation)
            before, outcomes = await life.run_in_thread(
                lambda: self._past.remember(present, store)
            )
        versions = await self._versions(store)
        grave = await life.run_in_thread(
            lambda: read_tombstone(life.disk, life.layout.tombstone(store))
        )
        known_epoch = max(closed.epoch, grave.epoch if grave is not None else 0)
        epoch = await self._coordination.raise_epoch(store, known_epoch)
        newest = max(
            grave.revision if grave else 0,
            closed.known_revision,
            *(version.revision for version in versions),
        )
        if before is not None:
            revision = max(before.revision, newest) + 1
        else:
            lost = 0 if not in_place or closed.revision else _LOST_REVISIONS
            revision = max(newest, closed.revision) + 1 + lost
        last_seq = max(
            [before.last_seq if before else 0, *(version.last_seq for version in versions)]
        )
        return Continuation(epoch, revision, last_seq, outcomes)

    async def _versions(self, store: StoreId) -> list[SnapshotVersion]:
        versions: list[SnapshotVersion] = await self._life.run_in_thread(
            lambda: self._past.versions(store)
        )
        return versions


def _version_fields(version: SnapshotVersion) -> dict[str, Any]:
    return {
        "epoch": version.epoch,
        "revision": version.revision,
        "time": version.time,
        "taken": version.taken,
        "last_seq": version.last_seq,
        "count": version.count,
        "bytes": version.bytes,
        "stored_bytes": version.length,
        "key": version.key,
        "offset": version.offset,
        "sha256": version.sha256,
    }
