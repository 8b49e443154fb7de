"""The executor's side of an export: reads what a task names, writes files, reports the result.

A task contains everything that it needs; only names and numbers go through the driver. A worker
needs at most some 600 MiB, however large a store is: 64 MiB of packs and twice 16 MiB of an
unpacked image, or 16 MiB of log objects and their unpacked content, and 96 MiB of rows that wait
for their row group, twice while it is written. A larger image is on the executor's disk.
"""

from __future__ import annotations

import functools
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from holdfast.protocol.errors import (
    ArchiveMissingError,
    DecryptionFailedError,
    KeyUnavailableError,
    NewerFormatError,
    StoreDamagedError,
    TenantShreddedError,
)
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.archive.table_layout import TableLayout
from holdfast.shared_fs.archive.table_location import TableLocation
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_errors import ObjectDamagedError, ObjectMissingError
from holdfast.shared_fs.bucket.bucket_usage import Usage
from holdfast.shared_fs.snapshots.cluster_bucket import open_cluster_bucket
from holdfast.spark.rows.batches import BatchMaker, ColumnPiece, rows_of
from holdfast.spark.rows.decrypting import ExportKeys, RowDecrypter
from holdfast.spark.rows.gathering import Gathering, RowBatch, once_read
from holdfast.spark.rows.images import Images, PlainRun
from holdfast.spark.rows.log_rows import LogRows
from holdfast.spark.rows.planning import DropWork, SnapshotWork, Task
from holdfast.spark.rows.rows import DROP, ExportedRow, Piece, RowOrigin, Shape
from holdfast.spark.tables.table import FILE_SCHEMA, AddedFile
from holdfast.spark.tables.watermarks import MarkRows, Watermark
from holdfast.spark.tables.writing import FILE_BYTES, TableWriter


@dataclass(frozen=True, slots=True)
class Job:
    """The parameters that all tasks of a run share."""

    bucket: str
    table: TableLocation
    layout: TableLayout
    run: int
    file_bytes: int = FILE_BYTES
    #: Large values of up to this size are put into the table.
    large_bytes: int = 0
    #: Rows are decrypted with these. None: they are written as they are kept.
    keys: ExportKeys | None = None


class StoreOutcome(NamedTuple):
    """The result of one store, or of one part of it, in a task."""

    store: StoreId
    parts: int
    #: How far the table goes once this is committed. None if nothing was read.
    mark: Watermark | None
    is_reset: bool = False
    #: The reasons why nothing was read: the snapshot is gone, or damaged.
    missing: bool = False
    damage: str | None = None


@dataclass(slots=True)
class TaskOutcome:
    """The result of a task. Its files are not visible before they are committed."""

    files: list[AddedFile] = field(default_factory=list)
    #: How far the table goes in the stores of which there is no more to say.
    marks: MarkRows = field(default_factory=MarkRows)
    #: All others: parts of stores, those that were read anew, and those that were not read.
    stores: list[StoreOutcome] = field(default_factory=list)
    #: The marks of rows from log objects. None if a log object is gone or damaged.
    log_marks: dict[StoreId, Watermark] | None = field(default_factory=dict)
    log_damage: str | None = None
    damaged_logs: tuple[str, ...] = ()
    row_count: int = 0
    image_bytes: int = 0
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0

    def add(self, one: StoreOutcome) -> None:
        """Add the result of a store."""
        if one.mark is None or one.parts > 1 or one.is_reset:
            self.stores.append(one)
        else:
            self.marks.add(one.store, one.mark)


def run_task(job: Job, task: Task) -> TaskOutcome:
    """Run a task. It may be run any number of times: the files of a failed attempt are left over
    for collection. Raises BucketError, OSError, and errors of deltalake and boto3."""
    begun = time.monotonic()
    bucket = _bucket(job.bucket)
    before = bucket.usage.total()
    spoiled: list[StoreOutcome] = []
    while True:
        left_out = {one.store for one in spoiled}
        stores = tuple(work for work in task.stores if work.store not in left_out)
        try:
            outcome = _attempt(job, bucket, replace(task, stores=stores))
            break
        except _SpoiledError as error:
            spoiled.append(error.outcome)
    outcome.stores += spoiled
    outcome.usage = bucket.usage.total() - before
    outcome.seconds = time.monotonic() - begun
    return outcome


class _SpoiledError(Exception):
    """A store is damaged, and some of its rows are in files already, among those of other stores.
    Everything else is read again without it."""

    def __init__(self, outcome: StoreOutcome) -> None:
        super().__init__(outcome.damage)
        self.outcome = outcome


def _attempt(job: Job, bucket: Bucket, task: Task) -> TaskOutcome:
    """Read a task and write its files. Raises _SpoiledError."""
    outcome = TaskOutcome()
    name = f"{job.run:06d}-{secrets.token_hex(8)}"
    snapshots = [work for work in task.stores if isinstance(work, SnapshotWork)]
    with (
        Images(bucket, snapshots, job.large_bytes) as images,
        TableWriter(job.table, name, job.layout, file_bytes=job.file_bytes) as writer,
    ):
        output = _Output(writer)
        for work in images.read(task.stores):
            if isinstance(work, PlainRun):
                piece = work.piece(job.run)
                if piece is not None:
                    output.add(piece)
                for one, found in work:
                    outcome.marks.add(one.store, found.mark)
            elif isinstance(work, DropWork):
                outcome.add(_drop(job, work, output))
            else:
                outcome.add(_read_snapshot(job, images, work, output))
        if task.logs:
            _read_logs(job, bucket, task, output, outcome)
        outcome.image_bytes = images.image_bytes
        if outcome.log_marks is not None:
            outcome.files = output.finish()
            outcome.row_count = output.row_count
    return outcome


class _Output:
    """Passes the rows of a task's readers on to files."""

    def __init__(self, writer: TableWriter) -> None:
        self._writer = writer
        self._gathering = Gathering(BatchMaker(FILE_SCHEMA))

    @property
    def row_count(self) -> int:
        return self._gathering.row_count

    def add(self, piece: Piece | ColumnPiece) -> None:
        self._write(self._gathering.add(piece))

    def drop(self, store: StoreId, row_count: int) -> bool:
        """Take back the last rows, all of one store. Return False if some are in
        a batch already."""
        return self._gathering.drop(store, row_count)

    def finish(self) -> list[AddedFile]:
        self._write(self._gathering.rest())
        return self._writer.finish()

    def _write(self, batches: Iterable[RowBatch]) -> None:
        for batch in batches:
            self._writer.write(batch.tenant, batch.rows)


def _drop(job: Job, work: DropWork, output: _Output) -> StoreOutcome:
    tombstone = work.tombstone
    revision = max(tombstone.revision, work.since.revision)
    row = ExportedRow(DROP, revision, None, None, tombstone.time, None, None)
    origin = RowOrigin(work.store, tombstone.epoch, job.run, "tombstone")
    output.add(Piece(origin, Shape.CHANGES, [row]))
    mark = Watermark(tombstone.epoch, tombstone.revision, time=tombstone.time, dropped=True)
    return StoreOutcome(work.store, 1, mark)


def _read_snapshot(job: Job, images: Images, work: SnapshotWork, output: _Output) -> StoreOutcome:
    store, version = work.store, work.version
    before = output.row_count
    try:
        with images.opened(work) as image:
            decrypter = RowDecrypter(job.keys) if job.keys is not None else None
            if decrypter is not None and image.is_encrypted:
                decrypter.check(store.tenant)
            reading = image.reading(work.since, work.part, work.parts)
            found = image.pieces(reading, job.run, version.key)
            if decrypter is not None:
                names = image.former_names
                found = (decrypter.piece(piece, names) for piece in rows_of(found))
            for piece in once_read(found):
                output.add(piece)
            mark = image.watermark()
    except ObjectMissingError:
        return StoreOutcome(store, work.parts, None, missing=True)
    except (
        ObjectDamagedError,
        StoreDamagedError,
        NewerFormatError,
        ArchiveMissingError,
        DecryptionFailedError,
        KeyUnavailableError,
        TenantShreddedError,
    ) as error:
        damaged = StoreOutcome(store, work.parts, None, damage=str(error))
        if not output.drop(store, output.row_count - before):
            raise _SpoiledError(damaged) from error
        return damaged
    return StoreOutcome(store, work.parts, mark, reading.is_reset)


def _read_logs(job: Job, bucket: Bucket, task: Task, output: _Output, outcome: TaskOutcome) -> None:
    try:
        found = LogRows(bucket, task.logs, job.layout)
    except (ObjectMissingError, ObjectDamagedError) as error:
        outcome.log_marks = None
        if isinstance(error, ObjectDamagedError):
            outcome.log_damage = str(error)
            outcome.damaged_logs = (str(error.fields["key"]),)
        return
    for piece in found.pieces(job.run):
        output.add(piece)
    outcome.log_marks = found.marks()


@functools.lru_cache(maxsize=4)
def _bucket(url: str) -> Bucket:
    """Return the bucket of this worker, which all its tasks share."""
    return open_cluster_bucket(url, make=False)
