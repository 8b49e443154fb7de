"""Reads the newest snapshots in a bucket: which stores exist, and what they held.

It costs the cluster nothing, but does not see what was written since the last snapshots. Each task
fetches the snapshots that it reads. A large one goes to a file in the temporary folder, and only
one batch of its rows is in memory. Of one in frames a task that reads a small part of a stream
fetches the pages of that part.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final

import apsw

from holdfast.protocol.errors import StorageError
from holdfast.protocol.header_block import headers_from_wire
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.archive.archive_table import Archive
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.framed_images.image_pages import open_pages
from holdfast.shared_fs.framed_images.image_vfs import open_paged
from holdfast.shared_fs.snapshots.existing_bucket import existing_bucket
from holdfast.shared_fs.snapshots.manifest import open_manifests
from holdfast.shared_fs.snapshots.snapshot import fetch, framed_place
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion
from holdfast.shared_fs.store_file.applying import pack_headers, unpack_headers
from holdfast.shared_fs.store_file.archived_blocks import ArchivedMessage
from holdfast.shared_fs.store_file.encrypted.encrypted_values import headers_in_table, is_box
from holdfast.shared_fs.store_file.exported_values import exported, is_marked
from holdfast.shared_fs.store_file.store_file import StoreFile
from holdfast.spark.columns import BATCH_BYTES, BATCH_ROWS, ColumnRows
from holdfast.spark.options import NamePattern
from holdfast.spark.source.ranges import SeqRange, StoreExtent, limited, tasks

#: Each task that reads a part of a snapshot may fetch all of it, so only large ones are cut.
_TASKS_ROWS: Final = 16
#: A snapshot in frames is read by pages if at most this share of its messages is wanted.
_PAGED_SHARE: Final = 0.25
_LAST_SEQ: Final = (1 << 63) - 1

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


def read(
    bucket: Bucket, tenant: str, parts: Iterable[Part], start_time: int | None
) -> Iterator[ColumnRows]:
    """Yield the rows of the parts, in pieces that are small enough for a batch.

    Raises ObjectMissingError if a snapshot was replaced and collected in the meantime,
    ObjectDamagedError, StoreDamagedError, BucketError.
    """
    archive = Archive(bucket.url)
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        for one, version in parts:
            store = StoreId(tenant, one.kind, one.name)
            with ExitStack() as stack:
                file = None
                if _wants_little(one, version, start_time):
                    file = _paged(bucket, store, version, stack)
                if file is None:
                    file = _opened(bucket, store, version, Path(folder) / "image")
                stack.callback(file.abandon)
                yield from _rows(file, one, start_time, archive)


def _extent(kind: StoreKind, name: str, version: SnapshotVersion) -> StoreExtent:
    """Return the extent of a store in its snapshot. `first_seq` is an estimate, and
    never too low."""
    first_seq = max(1, version.last_seq - version.count + 1)
    return StoreExtent(kind, name, first_seq, version.last_seq, version.count, version.bytes)


def _wants_little(one: SeqRange, version: SnapshotVersion, start_time: int | None) -> bool:
    """Return whether a task probably reads a small part of a snapshot."""
    if one.kind is StoreKind.KV:
        return False
    wanted = min(one.end_seq, version.last_seq) - one.start_seq + 1
    return start_time is not None or wanted <= _PAGED_SHARE * version.count


def _paged(
    bucket: Bucket, store: StoreId, version: SnapshotVersion, stack: ExitStack
) -> StoreFile | None:
    """Open a snapshot by pages. None if that is not possible: whoever reads it as a whole then
    finds out why."""
    place = framed_place(version)
    if place is None or version.origin is not None:
        return None
    try:
        pages = stack.enter_context(open_pages(bucket, place))
        return StoreFile.of_connection(open_paged(pages), Path("image"), store)
    except (StorageError, apsw.Error):
        return None


def _opened(bucket: Bucket, store: StoreId, version: SnapshotVersion, path: Path) -> StoreFile:
    fetched = fetch(bucket, store, version, path)
    if isinstance(fetched.content, bytes):
        return fetched.open_in_memory(path)
    return StoreFile.open(fetched.content, store)


def _rows(
    file: StoreFile, one: SeqRange, start_time: int | None, archive: Archive
) -> Iterator[ColumnRows]:
    size = _batch_rows(file)
    rows: Iterator[Any]
    if one.kind is StoreKind.STREAM:
        start_seq = one.start_seq
        if start_time is not None:
            start_seq = max(start_seq, file.seq_at_time(start_time))
        rows = file.messages(start_seq, one.end_seq, _LAST_SEQ)
    else:
        # `(key, revision, time, value, headers)`, like messages.
        rows = file.entries("", None, _LAST_SEQ, with_values=True)
    while some := list(islice(rows, size)):
        if file.has_archived:
            some = _brought_back(some, archive)
        ids, revisions, times, values, packed = zip(*(row[:5] for row in some), strict=True)
        if any(map(is_marked, packed)):
            # Clients compressed them. A row of the source has what applications wrote.
            plain = list(map(exported, values, packed))
            values, packed = tuple(one for one, _ in plain), tuple(one for _, one in plain)
        headers = [
            headers_in_table(one) if is_box(one) else headers_from_wire(unpack_headers(one))
            for one in packed
        ]
        if list in set(map(type, values)):
            # A list stands for a large value, which stays in its store.
            values = tuple(None if type(value) is list else value for value in values)
        # Only rows of a file with subjects have a sixth element, and archived ones have none.
        about = [row[5] if len(row) > 5 else None for row in some]
        subjects = about if any(about) else None
        yield ColumnRows(one.kind, one.name, ids, revisions, times, headers, values, subjects)


def _brought_back(rows: list[Any], archive: Archive) -> list[Any]:
    """Return rows with their values from the archive."""
    archived = [row[3] for row in rows if isinstance(row[3], ArchivedMessage)]
    bodies = archive.bodies(archived)
    brought = []
    for row in rows:
        if isinstance(row[3], ArchivedMessage):
            value, headers = bodies[row[0], row[1]]
            row = (*row[:3], value, pack_headers(headers))
        brought.append(row)
    return brought


def _batch_rows(file: StoreFile) -> int:
    mean_bytes = file.meta.bytes // max(1, file.meta.count) + 1
    return max(1, min(BATCH_ROWS, BATCH_BYTES // mean_bytes))
