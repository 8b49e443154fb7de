"""Reads the newest snapshots in a bucket: which stores exist, and what they held.

It costs the cluster nothing, but does not see what was written since the last snapshots. Snapshots
are read as an export reads them (`rows/images.py`): many small ones together from their pages, a
small part of a large stream by pages from the bucket, and another large one as a file that all
tasks of a machine share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.snapshots.existing_bucket import existing_bucket
from holdfast.shared_fs.snapshots.manifest import open_manifests
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion
from holdfast.spark.options import NamePattern
from holdfast.spark.rows.batches import ColumnPiece
from holdfast.spark.rows.images import Images, PlainRun
from holdfast.spark.rows.planning import LITTLE_SHARE
from holdfast.spark.rows.rows import Piece
from holdfast.spark.source.ranges import SeqRange, StoreExtent, limited, tasks

#: Each task that reads a part of a snapshot may fetch all of it, so only large ones are cut.
_TASKS_ROWS: Final = 16

Part = tuple[SeqRange, SnapshotVersion]


@contextmanager
def opened_bucket(url: str) -> Iterator[Bucket]:
    """Open an existing bucket. Raises NoBucketError, other
    BucketErrors, and InvalidArgumentError."""
    bucket = existing_bucket(url)
    try:
        yield bucket
    finally:
        bucket.close()


def newest_versions(
    bucket: Bucket, tenant: str, patterns: Iterable[tuple[StoreKind, NamePattern]]
) -> dict[tuple[StoreKind, str], SnapshotVersion]:
    """Return the newest snapshot of each store that matches, in the order of names.

    Raises ObjectDamagedError, NewerFormatError, BucketError.
    """
    wanted = dict(patterns)
    found = {}
    for store, entry in open_manifests(bucket).entries():
        pattern = wanted.get(StoreKind(store.kind))
        if entry.newest is None or pattern is None or store.tenant != tenant:
            continue
        if pattern.matches(store.name):
            found[StoreKind(store.kind), store.name] = entry.newest
    return dict(sorted(found.items()))


def plan(
    versions: Mapping[tuple[StoreKind, str], SnapshotVersion],
    start_seq: int,
    end_seq: int | None,
    rows_per_task: int,
) -> list[list[Part]]:
    """Return the parts of snapshots that each task reads."""
    ranges = (
        limited(_extent(kind, name, version), start_seq, end_seq)
        for (kind, name), version in versions.items()
    )
    wanted = [one for one in ranges if one is not None]
    first = {(one.kind, one.name): one.start_seq for one in wanted}
    return [
        [
            (
                # Messages before the estimated first one belong to the first part.
                one._replace(start_seq=start_seq)
                if one.start_seq == first[one.kind, one.name]
                else one,
                versions[one.kind, one.name],
            )
            for one in group
        ]
        for group in tasks(wanted, rows_per_task, rows_per_task * _TASKS_ROWS)
    ]


class _HeldWork(NamedTuple):
    """What a task reads of a snapshot: a range of seqs, or all of a kv."""

    store: StoreId
    version: SnapshotVersion
    wanted: SeqRange
    start_time: int | None

    @property
    def since(self) -> None:
        return None

    @property
    def parts(self) -> int:
        # A file for several tasks is made of a large image alone.
        return 1

    @property
    def is_little(self) -> bool:
        wanted, version = self.wanted, self.version
        if wanted.kind is StoreKind.KV:
            return False
        count = min(wanted.end_seq, version.last_seq) - wanted.start_seq + 1
        return self.start_time is not None or count <= LITTLE_SHARE * version.count

    @property
    def is_rest(self) -> bool:
        wanted = self.wanted
        return wanted.kind is StoreKind.KV or (
            self.start_time is None
            and wanted.start_seq == 1
            and wanted.end_seq >= self.version.last_seq
        )


def read(
    bucket: Bucket, tenant: str, parts: Iterable[Part], start_time: int | None
) -> Iterator[Piece | ColumnPiece]:
    """Yield the rows of the parts, in pieces that are small enough for a batch.

    Raises ObjectMissingError if a snapshot was replaced and collected in the meantime,
    ObjectDamagedError, StoreDamagedError, BucketError.
    """
    works = [
        _HeldWork(StoreId(tenant, one.kind, one.name), version, one, start_time)
        for one, version in parts
    ]
    with Images(bucket, works) as images:
        for work in images.read(works):
            if isinstance(work, PlainRun):
                if (piece := work.piece(0)) is not None:
                    yield piece
            elif isinstance(work, _HeldWork):
                with images.opened(work) as image:
                    yield from image.held(
                        work.wanted.start_seq, work.wanted.end_seq, work.start_time
                    )


def _extent(kind: StoreKind, name: str, version: SnapshotVersion) -> StoreExtent:
    """Return the extent of a store in its snapshot. `first_seq` is an estimate, and
    never too low."""
    first_seq = max(1, version.last_seq - version.count + 1)
    return StoreExtent(kind, name, first_seq, version.last_seq, version.count, version.bytes)
