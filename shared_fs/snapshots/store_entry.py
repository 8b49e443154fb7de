"""What the bucket knows of one store: its versions, its archive, its end. Pure.

- Versions are ordered by (epoch, revision). Publishing one that is not beyond the newest changes
  nothing, so a zombie's snapshot, which is a prefix of the truth, never becomes the newest.
- Nothing is published to a store that was deleted in the same or a later epoch.
- Nothing is published that was taken before `collected_before` of its shard.
- The newest version is never removed, except with the whole store.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import StrEnum
from operator import attrgetter
from typing import Final, NamedTuple

from holdfast.protocol.control import StoreTotals
from holdfast.shared_fs.forks.fork import ForkOrigin, ForkReference
from holdfast.shared_fs.framed_images.frame_table import TableMark


@dataclass(frozen=True, slots=True)
class SnapshotVersion:
    """One snapshot of a store, and its place.

    The `length` bytes from `offset` of object `key` are compressed with zstd. Their content has
    this sha256 (hex) and `image_bytes` bytes. It is one frame, or, with `frames`, as
    `framed_images/frame_table.py` says. With an `origin`, that is the image of another store, and
    `growing.py` makes the image of this version of it. Until then, `count` and `bytes` are those of
    the other store.
    """

    key: str
    offset: int
    length: int
    sha256: str
    image_bytes: int
    epoch: int
    revision: int
    last_seq: int
    count: int
    bytes: int
    #: Times of the store's last change and of the snapshot, in milliseconds since the epoch.
    time: int
    taken: int
    #: Only of the first version of a fork.
    origin: ForkOrigin | None = None
    #: Only of large images: what to check the table of their frames with.
    frames: TableMark | None = None

    @property
    def data_bytes(self) -> int:
        """How many of the bytes from `offset` are compressed data; a table follows."""
        return self.length if self.frames is None else self.length - self.frames.length

    @property
    def totals(self) -> StoreTotals:
        """What the coordinator is told of the store."""
        return StoreTotals(self.bytes, self.count, self.time)

    @property
    def order(self) -> tuple[int, int]:
        """The order of versions."""
        return self.epoch, self.revision

    def __reduce__(self) -> tuple[object, ...]:
        # An export sends millions to its tasks. As a dataclass does it, that takes ten times as
        # long.
        return SnapshotVersion, version_values(self)


VERSION_FIELDS: Final = tuple(each.name for each in fields(SnapshotVersion))
#: Returns the values of a version as a tuple.
version_values: Final = attrgetter(*VERSION_FIELDS)


class Tombstone(NamedTuple):
    """The store was deleted in this epoch; nothing of this or an earlier epoch comes back.

    A new store of the same name starts beyond `revision`.
    """

    epoch: int
    time: int
    revision: int = 0


class ArchiveMark(NamedTuple):
    """The changes of a store that a table has: all up to a revision, by an owner of this epoch."""

    epoch: int
    revision: int
    #: The URL of the table; empty for the bucket's own table.
    table: str


@dataclass(frozen=True, slots=True)
class StoreEntry:
    """What the bucket knows of one store. `versions` are newest first."""

    versions: tuple[SnapshotVersion, ...] = ()
    #: Messages up to this seq are in the archive's tables.
    archived_seq: int = 0
    deleted: Tombstone | None = None
    #: Where the archive is; None if an export of an earlier version archived it.
    archive: ArchiveMark | None = None
    #: The forks that were made of it, also of an earlier store of its name.
    forks: tuple[ForkReference, ...] = ()

    def names(self, key: str) -> bool:
        """Tell whether an object must stay: a version names it, or a fork holds it."""
        return any(version.key == key for version in self.versions) or any(
            fork.holds and fork.key == key for fork in self.forks
        )

    @property
    def newest(self) -> SnapshotVersion | None:
        return self.versions[0] if self.versions else None

    def at(self, *, time: int | None = None, revision: int | None = None) -> SnapshotVersion | None:
        """Return the newest version that has no change after a time or a revision."""
        for version in self.versions:
            if (time is None or version.time <= time) and (
                revision is None or version.revision <= revision
            ):
                return version
        return None


class Published(StrEnum):
    """The outcome of publishing a version."""

    NEWEST = "newest"
    #: The entry already has this version or a newer one.
    OLDER = "older"
    DELETED = "deleted"
    #: Its object may have been collected meanwhile, so the snapshot must be taken again.
    COLLECTED = "collected"


@dataclass(frozen=True, slots=True)
class KeepPolicy:
    """Keep at most `count` versions, and only those that show the store within the last `days`.

    The newest version is always kept.
    """

    count: int = 8
    days: float = 7.0


def with_version(
    entry: StoreEntry | None, version: SnapshotVersion, collected_before: int = 0
) -> tuple[StoreEntry, Published]:
    """Return the entry with a version published, in a shard with this `collected_before`."""
    entry = entry or StoreEntry()
    if entry.deleted is not None and version.epoch <= entry.deleted.epoch:
        return entry, Published.DELETED
    newest = entry.newest
    if newest is not None and version.order <= newest.order:
        return entry, Published.OLDER
    if version.taken < collected_before:
        return entry, Published.COLLECTED
    return replace(entry, versions=(version, *entry.versions), deleted=None), Published.NEWEST


def pruned(entry: StoreEntry, keep: KeepPolicy, now_ms: int) -> StoreEntry:
    """Return the entry without the versions that the policy does not keep."""
    horizon = now_ms - int(keep.days * 86_400_000)
    versions = entry.versions
    # A version shows the store until the time when the next one was taken.
    kept = tuple(
        version
        for index, version in enumerate(versions[: max(1, keep.count)])
        if index == 0 or versions[index - 1].taken >= horizon
    )
    return entry if len(kept) == len(versions) else replace(entry, versions=kept)


def deleted(entry: StoreEntry | None, tombstone: Tombstone) -> StoreEntry:
    """Return the entry of a deleted store: no versions, and a tombstone. Its forks stay.

    A deletion that is done again may know less of the store than the one before: the revision of a
    tombstone never becomes lower.
    """
    before = entry.deleted if entry is not None else None
    forks = entry.forks if entry is not None else ()
    last = tombstone
    if before is not None:
        revision = max(before.revision, tombstone.revision)
        last = max(before, tombstone)._replace(revision=revision)
    return StoreEntry(deleted=last, forks=forks)
