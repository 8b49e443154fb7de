"""Jobs that fork a store: a new store that begins as another one is, or was.

    the parent's owner    snapshots the parent, unless its newest snapshot has all of it: `prepare`
    the fork's owner      records the fork in the parent's manifest ──▶ publishes the parent's
                          snapshot as the fork's first version ──▶ tells the coordinator that the
                          fork is cold

No message is read or written. The fork is opened as any cold store, and its image is made of the
parent's then (`growing.py`); the two share the object until the fork has snapshots of its own
(`references.py`). Numbers of the fork continue above the parent's, and above those of an earlier
store of its name, in an epoch above the parent's.

A snapshot in a pack, and a state for which there is no snapshot, are copied instead, as a restore
under another name does it. Invariants:

- A name that has a store is refused. Only a retry of the same request finds what it made.
- A crash before the last step leaves no store: what is published has no owner, and another fork or
  store of the name gets a higher epoch. Nobody was told of it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.jobs.closing import RetiredStore, StoreCloser
from holdfast.persist.jobs.job_table import Report
from holdfast.persist.jobs.placing import Continuation, DraftPlacing
from holdfast.persist.jobs.point_in_time_restore import PointInTimeRestore
from holdfast.persist.jobs.sharing import Sharing, can_be_shared, version_of_fork
from holdfast.persist.jobs.versions import VersionJobs
from holdfast.persist.peers.coordination import Coordination
from holdfast.persist.recovery.point_in_time import RestoreTarget
from holdfast.protocol.control import Grant, StoreState
from holdfast.protocol.errors import (
    BusyError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
    error_from_wire,
)
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.disk.tombstone import read_tombstone
from holdfast.shared_fs.forks.fork import ForkReference
from holdfast.shared_fs.forks.growing import Growth, grow
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion, StoreEntry
from holdfast.shared_fs.store_file.applying import StoreMeta

logger = logging.getLogger("holdfast.persist")

#: A collector that closes the fork's shard meanwhile makes it be recorded anew.
_TRIES: Final = 4


class ForkPoint(NamedTuple):
    """The state of the parent that a fork begins with: as it is, its messages up to a seq, or as it
    was at a revision. `least` is the revision that `prepare` returned."""

    seq: int | None = None
    revision: int | None = None
    least: int = 0

    def check(self, parent: StoreId) -> None:
        """Raise InvalidArgumentError for what no store of that kind has."""
        if self.seq is not None and parent.kind != StoreKind.STREAM:
            raise InvalidArgumentError(argument="seq", reason="a kv has revisions, and no seqs")
        if self.seq is not None and self.revision is not None:
            raise InvalidArgumentError(argument="seq", reason="give a seq or a revision")
        if self.seq == 0 or self.revision == 0:
            raise InvalidArgumentError(argument="seq", reason="seqs and revisions begin at 1")


class _Numbers(NamedTuple):
    """What a fork continues from: its epoch, and a revision that nobody has seen one above."""

    epoch: int
    above: int


class _Found(NamedTuple):
    """The snapshot to share or to copy; None if the state must be made of one and the logs."""

    version: SnapshotVersion | None
    point: ForkPoint
    request: str

    def fork(self, parent: StoreId, epoch: int, above: int, taken: int) -> SnapshotVersion:
        """Return the first version of the fork."""
        assert self.version is not None
        return version_of_fork(
            parent,
            self.version,
            self.point.seq if self.point.seq != self.version.last_seq else None,
            numbers=(epoch, above),
            taken=taken,
            request=self.request,
        )


class ForkJobs:
    """The forks that one incarnation makes."""

    def __init__(
        self,
        life: Incarnation,
        closer: StoreCloser,
        coordination: Coordination,
        versions: VersionJobs,
        past: PointInTimeRestore,
        placing: DraftPlacing,
        sharing: Sharing,
        take_room: Callable[[str, int], None],
    ) -> None:
        """`take_room` raises LimitExceededError if a tenant may not have so many bytes more."""
        self._life = life
        self._closer = closer
        self._coordination = coordination
        self._versions = versions
        self._past = past
        self._placing = placing
        self._sharing = sharing
        self._take_room = take_room

    async def prepare(self, parent: StoreId) -> Report:
        """Have the bucket hold all of a store; return the revision. Raises NotFoundError."""
        opened = await self._closer.opened(parent)
        entry: StoreEntry = await self._life.run_in_thread(lambda: self._sharing.entry(parent))
        revision = opened.durable_revision
        if entry.newest is None or entry.newest.revision != revision:
            report = await self._versions.backup(parent)
            revision = report["versions"][0]["revision"]
        return {"revision": revision}

    async def fork(self, store: StoreId, parent: StoreId, point: ForkPoint, request: str) -> Report:
        """Make `store` a fork of `parent`, and report its numbers. `request` is the same for
        retries.

        Raises InvalidArgumentError if `store` exists, NotFoundError without the parent,
        PointNotReachedError, LimitExceededError, UnavailableError, StorageError.
        """
        point.check(parent)
        if store == parent or store[:2] != parent[:2]:
            reason = "a fork is another store of the same tenant and kind"
            raise InvalidArgumentError(argument="new", reason=reason)
        with self._closer.alone(store):
            made = await self._made_before(store, request)
            if made is not None:
                return _report(made.epoch, made.revision, made.last_seq, is_shared=True)
            found: _Found = await self._life.run_in_thread(
                lambda: self._found(parent, point, request)
            )
            if found.version is not None:
                self._take_room(store.tenant, found.version.bytes)
            if found.version is not None and can_be_shared(found.version):
                report = await self._shared(store, parent, found)
            else:
                report = await self._copied(store, parent, found)
        logger.info("store.forked store=%s parent=%s shared=%s", store, parent, report["shared"])
        await self._closer.tell_followers(store, report["epoch"], report["new_revision"])
        return report

    # What there is
    async def _made_before(self, store: StoreId, request: str) -> SnapshotVersion | None:
        """Return what this request has made. Raises InvalidArgumentError if there is another store
        of the name."""
        try:
            opened = await self._closer.opened(store)
        except NotFoundError:
            # What a request that did not come to its end has published is made anew.
            return None
        entry: StoreEntry = await self._life.run_in_thread(lambda: self._sharing.entry(store))
        for each in entry.versions:
            is_mine = each.origin is not None and each.origin.request == request
            if is_mine and each.revision <= opened.durable_revision:
                return each
        raise _exists(store)

    def _found(self, parent: StoreId, point: ForkPoint, request: str) -> _Found:
        """Find the snapshot of the wanted state, if there is one. Blocking."""
        entry = self._sharing.entry(parent)
        if point.revision is not None:
            exact = (each for each in entry.versions if each.revision == point.revision)
            return _Found(next(exact, None), point, request)
        newest = entry.newest
        if newest is None and entry.deleted is not None:
            raise NotFoundError(what="store", name=parent.name)
        if newest is None or newest.revision < point.least:
            raise BusyError(what=f"the snapshot of {parent}")
        if point.seq is not None and point.seq > newest.last_seq:
            reason = f"the last message of {parent.name!r} is {newest.last_seq}"
            raise InvalidArgumentError(argument="seq", reason=reason)
        return _Found(newest, point, request)

    # Sharing
    async def _shared(self, store: StoreId, parent: StoreId, found: _Found) -> Report:
        assert found.version is not None
        async with self._closer.closed(store) as closed:
            for _ in range(_TRIES):
                taken = self._life.clock_ms()
                numbers = await self._granted(store, closed, found.version.epoch)
                made = found.fork(parent, numbers.epoch, numbers.above, taken)
                try:
                    if await self._life.run_in_thread(self._publisher(store, parent, found, made)):
                        await self._placing.share(store, made)
                        return _report(made.epoch, made.revision, made.last_seq, is_shared=True)
                except BaseException:
                    await self._give_back(store, numbers.epoch)
                    raise
        raise BusyError(what=f"the snapshot of {parent}")

    def _publisher(
        self, store: StoreId, parent: StoreId, found: _Found, made: SnapshotVersion
    ) -> Callable[[], bool]:
        def publish() -> bool:
            fork = ForkReference(store.name, made.epoch, made.taken, made.key, holds=True)
            if not self._sharing.refer(parent, found.version, fork):
                raise BusyError(what=f"the snapshot of {parent}")
            return self._sharing.publish(store, made)

        return publish

    # Copying
    async def _copied(self, store: StoreId, parent: StoreId, found: _Found) -> Report:
        life = self._life
        with life.draft(store) as draft:
            meta: StoreMeta = await life.run_in_thread(
                lambda: self._draft(store, parent, found, draft)
            )
            async with self._closer.closed(store) as closed:
                numbers = await self._granted(store, closed, meta.epoch)
                onward = Continuation(numbers.epoch, numbers.above + 1, 0, [])
                try:
                    revision = await self._placing.put(store, draft, onward)
                except BaseException:
                    await self._give_back(store, numbers.epoch)
                    raise
        return _report(numbers.epoch, revision, meta.last_seq, is_shared=False)

    def _draft(self, store: StoreId, parent: StoreId, found: _Found, draft: Path) -> StoreMeta:
        """Write the state of a fork to `draft`; its numbers go on from the parent's. Blocking."""
        life = self._life
        life.disk.make_directory(draft.parent)
        # Before anything of the parent is read: see `references.py`.
        fork = ForkReference(store.name, 0, life.clock_ms())
        if not self._sharing.refer(parent, found.version, fork):
            raise BusyError(what=f"the snapshot of {parent}")
        if found.version is not None:
            made = found.fork(parent, found.version.epoch, 0, fork.taken)
            return self._sharing.copy(store, made, draft)
        target = RestoreTarget(revision=found.point.revision)
        with self._past.found(parent, target, nearest=False) as course:
            file = self._past.draft(parent, course, parent, draft)
            try:
                meta = file.meta
                grow(file, Growth(store, None, meta.epoch, meta.revision + 1, meta.time))
                return file.meta
            finally:
                file.close()

    # The coordinator
    async def _granted(self, store: StoreId, closed: RetiredStore, least_epoch: int) -> _Numbers:
        """Have the coordinator count a new store of this server, and return its numbers."""
        life = self._life
        if closed.state == StoreState.DURABLE or closed.revision:
            raise _exists(store)
        entry: StoreEntry = await life.run_in_thread(lambda: self._sharing.entry(store))
        grave = await life.run_in_thread(
            lambda: read_tombstone(life.disk, life.layout.tombstone(store))
        )
        graves = [each for each in (entry.deleted, grave) if each is not None]
        revisions = [each.revision for each in (*graves, *entry.versions)]
        epochs = [each.epoch for each in (*graves, *entry.versions)]
        epoch = max([closed.epoch, least_epoch, *epochs])
        [grant] = await self._coordination.open([(store, True)], {store: epoch})
        if grant[0] is None:
            raise error_from_wire(grant[1], grant[2])
        return _Numbers(Grant(*grant[:5]).epoch, max([closed.known_revision, *revisions]))

    async def _give_back(self, store: StoreId, epoch: int) -> None:
        """Have the coordinator forget a store that was not made. If it is away, a store without
        anything stays, as after a write that never came."""
        with contextlib.suppress(UnavailableError):
            await self._coordination.release([(store, epoch)], nothing=True)


def _exists(store: StoreId) -> InvalidArgumentError:
    return InvalidArgumentError(argument="new", reason=f"{store.name!r} exists: choose a new name")


def _report(epoch: int, revision: int, last_seq: int, *, is_shared: bool) -> Report:
    return {"epoch": epoch, "new_revision": revision, "last_seq": last_seq, "shared": is_shared}
