"""What forking reads and writes in the bucket: see `forking.py`. Blocking.

A version can be shared if it is an object of its own. A tiny snapshot lies in a pack with those of
other stores: it is copied, since packs are rewritten, and copying it takes fewer bytes than the
shards that sharing writes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from holdfast.persist.incarnation import Incarnation
from holdfast.protocol.errors import BusyError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.forks.fork import ForkOrigin, ForkReference
from holdfast.shared_fs.forks.growing import first_revision
from holdfast.shared_fs.snapshots.manifest import FORKS_FORMAT, Manifests, raise_format
from holdfast.shared_fs.snapshots.pack import is_pack
from holdfast.shared_fs.snapshots.references import refer
from holdfast.shared_fs.snapshots.repacking import fetch_moved
from holdfast.shared_fs.snapshots.store_entry import (
    KeepPolicy,
    Published,
    SnapshotVersion,
    StoreEntry,
)
from holdfast.shared_fs.store_file.applying import StoreMeta


class Sharing:
    """The shared snapshots that one server makes."""

    def __init__(
        self, life: Incarnation, manifests: Callable[[], Manifests], keep: KeepPolicy
    ) -> None:
        self._life = life
        self._manifests = manifests
        self._keep = keep

    def entry(self, store: StoreId) -> StoreEntry:
        """Return what the bucket knows of a store. Raises BucketError."""
        return self._manifests().find(store) or StoreEntry()

    def refer(self, parent: StoreId, version: SnapshotVersion | None, fork: ForkReference) -> bool:
        """Record a fork of a store that is not published yet; return False if `version`, of which
        it is to be made, is not there any more. Raises LimitExceededError, BucketError."""
        manifests = self._manifests()
        raise_format(manifests.bucket, FORKS_FORMAT)
        origin = parent
        if fork.holds and version is not None and version.origin is not None:
            origin = version.origin.store
            # What was forked is found here, and what is held there.
            refer(manifests, parent, fork._replace(key="", holds=False))
        if not refer(manifests, origin, fork):
            return False
        if version is None:
            return True
        # Who purges something drops the version first, and then looks for forks.
        return any(each.order == version.order for each in self.entry(parent).versions)

    def publish(self, store: StoreId, version: SnapshotVersion) -> bool:
        """Publish the first version of a fork. Return False if its shard is closed to what was
        taken then: it must be recorded anew. Raises BucketError, BusyError."""
        now = self._life.clock_ms()
        self._life.gate.check()
        outcome = self._manifests().publish([(store, version)], self._keep, now)[store]
        if outcome is Published.COLLECTED:
            return False
        if outcome is not Published.NEWEST:
            raise BusyError(what=f"{store}, which the bucket calls {outcome},")
        return True

    def copy(self, store: StoreId, version: SnapshotVersion, draft: Path) -> StoreMeta:
        """Write the state of a version of a fork to `draft`, whose folder exists. Raises
        ObjectMissingError, ObjectDamagedError, BucketError, StorageError."""
        disk = self._life.disk
        disk.remove(draft)
        partial = draft.with_name(f"{draft.name}.part")
        # A pack may be rewritten meanwhile.
        fetched = fetch_moved(self._manifests(), store, version, partial)
        fetched.place(disk, draft)
        return fetched.meta


def can_be_shared(version: SnapshotVersion) -> bool:
    """Tell whether a version is an object of its own."""
    return not is_pack(version.key)


def version_of_fork(
    parent: StoreId,
    version: SnapshotVersion,
    cut_seq: int | None,
    *,
    numbers: tuple[int, int],
    taken: int,
    request: str,
) -> SnapshotVersion:
    """Return the first version of a fork of a version of `parent`. `numbers` are its epoch, and a
    revision that it must exceed. Messages behind `cut_seq` are not the fork's. Pure."""
    epoch, above = numbers
    base, cuts = parent, [] if cut_seq is None else [cut_seq]
    if version.origin is not None:
        base = version.origin.store
        cuts += [] if version.origin.cut_seq is None else [version.origin.cut_seq]
    cut = min(cuts, default=None)
    last_seq = version.last_seq if cut is None else min(version.last_seq, cut)
    cut_count = version.count if cut is not None else 0
    return replace(
        version,
        epoch=epoch,
        revision=max(first_revision(version.revision, cut_count), above + 1),
        last_seq=last_seq,
        taken=taken,
        origin=ForkOrigin(*base, cut, request),
    )
