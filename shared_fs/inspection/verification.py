"""Verification: checks that the data of a store is whole and fits together.

For `holdfast verify`: it checks the store's file, its newest snapshot and its records in the
bucket's logs, and reads back what left the file for the archive. It only reads, takes no lock but
the one that `inspection.py` takes, and leaves a file in use alone. It reports what is wrong with
each store. Run it in a process of its own, as the inspection.

Of a store that keeps a chain of hashes, the table of changes is read too, and all tiers are
compared with each other and with acks that somebody kept.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from holdfast.protocol.chain.hashing import ChainLink
from holdfast.protocol.errors import ArchiveUnreadableError, NotFoundError, StorageError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.archive.chain_reading import TableChains
from holdfast.shared_fs.archive.table_chain import KeptAck
from holdfast.shared_fs.archive.table_location import TableLocation, default_table
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_errors import BucketUnavailableError, ObjectDamagedError
from holdfast.shared_fs.bucket_log.bucket_log import list_logs, read_bucket_log, read_coverage
from holdfast.shared_fs.bucket_log.log_object import Covered
from holdfast.shared_fs.disk.commit_log import read_log
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.inspection.archive_check import ArchiveCheck
from holdfast.shared_fs.inspection.chain_check import (
    ChainTier,
    LogPoints,
    compare,
    find_acks,
    links_of,
    read_chain,
    tier_of_table,
)
from holdfast.shared_fs.inspection.inspection import (
    FileState,
    FileVerdict,
    inspect_store_file,
    walk_stores,
)
from holdfast.shared_fs.inspection.value_check import ValueCheck
from holdfast.shared_fs.snapshots.manifest import Manifests, open_manifests
from holdfast.shared_fs.snapshots.snapshot import check_frames, fetch
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion, StoreEntry

#: The states of a file that are no problem.
_WELL: Final = (FileState.SOUND, FileState.PARTLY_CHECKED, FileState.IN_USE, FileState.GONE)


@dataclass(slots=True)
class StoreVerdict:
    """What was found of one store. A word is `-` if that part does not exist."""

    store: StoreId
    file: str = "-"
    snapshot: str = "-"
    log: str = "-"
    #: Of archived messages; `unchecked` if the bucket is not known.
    archive: str = "-"
    #: That of a store that keeps one: `sound` or `broken`; `links` if the leaves of encrypted
    #: values were not compared with the values, which takes the keys.
    chain: str = "-"
    #: Of encrypted values, if the keys are given: `sound`, `broken` or `shredded`.
    values: str = "-"
    #: Its rows in a table of changes, if it keeps a chain: `links` if some are encrypted;
    #: `unchecked` if a package is missing.
    table: str = "-"
    #: How many messages are archived.
    archived: int = 0
    revision: int | None = None
    snapshot_revision: int | None = None
    log_revision: int | None = None
    problems: list[str] = field(default_factory=list)
    #: What files at rest, snapshots and logs tell of its chain, as somebody might have kept it.
    links: list[ChainLink] = field(default_factory=list)
    #: From where to where the table has its chain without a gap.
    parts: list[tuple[int, int]] = field(default_factory=list)
    #: Messages whose rows in the table do not tell how they were stored.
    unproven: tuple[int, ...] = ()
    #: What each tier tells of the acks that somebody kept, by its name.
    acks: dict[str, list[KeptAck]] = field(default_factory=dict)


class Verifier:
    """Checks stores one by one. Any two of the three places may be left out."""

    def __init__(
        self,
        layout: Layout | None,
        bucket: Bucket | None,
        values: ValueCheck | None = None,
        table: TableChains | None = None,
    ) -> None:
        """Without a `table`, that of the bucket is read, if it has one. With `values`, encrypted
        values of files and snapshots are decrypted."""
        self._must_have_table = table is not None
        if table is None and bucket is not None:
            table = TableChains(TableLocation(default_table(bucket.url)))
        self._table = table
        self._layout = layout
        self._values = values
        self._disk = Disk()
        self._manifests: Manifests | None = open_manifests(bucket) if bucket else None
        #: Logs that cannot be read.
        self.problems: list[str] = []
        self._covered = self._coverage(bucket) if bucket is not None else {}
        self._archive = ArchiveCheck(bucket.url if bucket is not None else None)
        self._bucket = bucket
        #: What all logs tell of chains, once a store needs it.
        self._points: LogPoints | None = None

    def stores(self) -> list[StoreId]:
        """Return every store that has a file, a snapshot or log records. Raises StorageError."""
        found: set[StoreId] = set(self._covered)
        if self._layout is not None:
            for folder in walk_stores(self._layout):
                found.update(each.store for each in folder.stores)
        if self._manifests is not None:
            found.update(store for store, entry in self._manifests.entries() if entry.versions)
        elif self._layout is None and self._table is not None:
            found.update(self._table.stores())
        return sorted(found)

    def verify(self, store: StoreId, kept: Sequence[ChainLink] = ()) -> StoreVerdict:
        """Check one store, and what somebody `kept` of its chain. Raises BucketUnavailableError,
        StorageFailedError, UnavailableError if a table cannot be reached, ArchiveUnreadableError
        if a package is missing, and NotFoundError if the given table does not exist."""
        verdict = StoreVerdict(store)
        self._tiers: list[ChainTier] = []
        entry = None
        if self._manifests is not None:
            entry = self._manifests.find(store)
        file = self._look_at_file(store, verdict)
        newest = entry.newest if entry is not None else None
        if newest is not None and self._manifests is not None:
            self._look_at_snapshot(newest, verdict)
        self._look_at_log(entry, verdict)
        self._compare(file, newest, verdict)
        self._look_at_table(verdict, kept)
        for tier in self._tiers:
            if tier.what not in verdict.acks and kept:
                verdict.acks[tier.what] = find_acks(tier, kept)
        if self._tiers:
            points = self._log_points().of(store)
            found = compare(self._tiers, points)
            believes = any(tier.believes for tier in self._tiers) and verdict.values != "sound"
            verdict.chain = "broken" if found else "links" if believes else "sound"
            verdict.problems += found
            verdict.links = links_of(self._tiers, points)
        return verdict

    def _look_at_file(self, store: StoreId, verdict: StoreVerdict) -> FileVerdict | None:
        if self._layout is None:
            return None
        generations = self._layout.generations(self._disk, store)
        if not generations:
            return None
        path = self._layout.store(store, generations[-1])
        found = inspect_store_file(path, store, deep=True)
        verdict.file = found.state.replace("_", " ")
        if found.state is FileState.GONE:
            verdict.file = "-"
        if found.meta is not None:
            verdict.revision = found.meta.revision
        if found.state not in _WELL:
            verdict.problems.append(f"its file: {found.reason or found.state.value}")
            if found.state is FileState.MISCOUNTED:
                self._look_at_chain(path, verdict, "its file", left_open=found.left_open)
        elif found.archives:
            self._look_at_archive(path, verdict, left_open=found.left_open)
        if found.state is FileState.SOUND:
            self._look_at_chain(path, verdict, "its file", left_open=found.left_open)
        return found

    def _look_at_archive(
        self, path: Path, verdict: StoreVerdict, *, left_open: bool = False
    ) -> None:
        found = self._archive.messages(path, left_open=left_open)
        verdict.archive, verdict.archived = found.word, found.count
        verdict.problems += [f"its archive: {reason}" for reason in found.reasons]

    def _look_at_chain(
        self, path: Path, verdict: StoreVerdict, what: str, *, left_open: bool = False
    ) -> None:
        # What is in a WAL was checked with the file, and is not compared.
        if not left_open:
            tier = read_chain(path, verdict.store, what)
            if tier is not None:
                self._tiers.append(tier)
            self._look_at_values(path, verdict, what)

    def _look_at_values(self, path: Path, verdict: StoreVerdict, what: str) -> None:
        if self._values is None:
            return
        found = self._values.values(path, verdict.store, what)
        verdict.problems += found.problems
        if found.problems:
            verdict.values = "broken"
        elif found.is_shredded:
            verdict.values = "shredded"
        elif found.decrypted and verdict.values != "broken":
            verdict.values = "sound"

    def _look_at_table(self, verdict: StoreVerdict, kept: Sequence[ChainLink]) -> None:
        """Read a store's rows, if it may have a chain in the table."""
        if self._table is None or not (self._must_have_table or self._tiers):
            return
        try:
            found = self._table.check(verdict.store, kept)
        except NotFoundError:
            if self._must_have_table:
                raise
            return
        except ArchiveUnreadableError:
            if self._must_have_table:
                raise
            verdict.table = "unchecked"
            return
        tier = tier_of_table(found)
        if tier is None:
            return
        self._tiers.append(tier)
        if kept:
            verdict.acks[tier.what] = list(found.acks)
        verdict.table = "broken" if found.problems else "links" if found.believed else "sound"
        verdict.problems += [f"its table: {reason}" for reason in found.problems]
        verdict.unproven = found.unproven
        verdict.parts = [(part.base.seq + 1, part.told.seq) for part in found.parts]

    def _log_points(self) -> LogPoints:
        """Read all logs, once, for what they tell of chains."""
        if self._points is not None:
            return self._points
        self._points = points = LogPoints()
        logs = []
        if self._layout is not None:
            for server in self._disk.folders(self._layout.servers):
                for incarnation in self._disk.folders(self._layout.server(server)):
                    folder = self._layout.log(server, incarnation)
                    if self._disk.exists(folder):
                        logs.append(read_log(self._disk, folder))
        if self._bucket is not None:
            for log in list_logs(self._bucket):
                logs.append(read_bucket_log(self._bucket, log.server, log.incarnation))
        for contents in logs:
            for record in contents.records:
                points.take(record)
        return points

    def _look_at_snapshot(self, version: SnapshotVersion, verdict: StoreVerdict) -> None:
        assert self._manifests is not None
        verdict.snapshot_revision = version.revision
        with tempfile.TemporaryDirectory(prefix="holdfast-verify-") as folder:
            path = Path(folder) / "image"
            try:
                # Verifies its checksum, those of its pages, quick_check,
                # and the store it belongs to.
                fetched = fetch(self._manifests.bucket, verdict.store, version, path)
                if isinstance(fetched.content, bytes):
                    path.write_bytes(fetched.content)
                if verdict.archive == "-":
                    # There is no file, or it is in use.
                    self._look_at_archive(path, verdict)
                self._look_at_chain(path, verdict, "its snapshot")
                fetched.drop(self._disk)
                # What exports read it by.
                check_frames(self._manifests.bucket, version)
            except BucketUnavailableError:
                raise
            except StorageError as error:
                verdict.snapshot = "damaged"
                verdict.problems.append(f"its snapshot: {error}")
            else:
                verdict.snapshot = "sound"

    def _look_at_log(self, entry: StoreEntry | None, verdict: StoreVerdict) -> None:
        """Follow the log from the newest snapshot on: nothing may be missing."""
        covered = self._covered.get(verdict.store, [])
        entry = entry or StoreEntry()
        epoch = revision = 0
        if entry.newest is not None:
            epoch, revision = entry.newest.order
        elif entry.deleted is not None:
            epoch, revision = entry.deleted.epoch + 1, entry.deleted.revision + 1
        beyond = [each for each in covered if (each.epoch, each.revision) > (epoch, revision)]
        if not covered:
            return
        verdict.log = "sound"
        for each in _in_order(beyond):
            if each.revision <= revision:
                continue
            if each.previous_revision > revision:
                verdict.log = "gap"
                verdict.problems.append(
                    f"its log: revisions {revision + 1} to {each.previous_revision} are missing"
                )
            revision = each.revision
        verdict.log_revision = revision

    def _compare(
        self, file: FileVerdict | None, newest: SnapshotVersion | None, verdict: StoreVerdict
    ) -> None:
        if newest is None or file is None or file.meta is None or file.left_open:
            return
        if file.state in (FileState.SOUND, FileState.PARTLY_CHECKED):
            meta = file.meta
            if (meta.epoch, meta.revision) < newest.order and meta.revision < newest.revision:
                verdict.problems.append(
                    f"its file is of revision {meta.revision}, its snapshot of {newest.revision}"
                )

    def _coverage(self, bucket: Bucket) -> dict[StoreId, list[Covered]]:
        found: dict[StoreId, list[Covered]] = {}
        for log in list_logs(bucket):
            for slot in log.slots:
                try:
                    covered = read_coverage(bucket, log.server, log.incarnation, slot)
                except BucketUnavailableError:
                    raise
                except ObjectDamagedError as error:
                    self.problems.append(str(error))
                    continue
                except StorageError:
                    # It was removed after it was listed.
                    continue
                for each in covered:
                    found.setdefault(each.store, []).append(each)
        return found


def _in_order(covered: Iterable[Covered]) -> Iterator[Covered]:
    """Yield what counts: an epoch ends where the next one begins."""
    by_epoch: dict[int, list[Covered]] = {}
    for each in covered:
        by_epoch.setdefault(each.epoch, []).append(each)
    epochs = sorted(by_epoch)
    for index, epoch in enumerate(epochs):
        starts = [
            each.previous_revision for later in epochs[index + 1 :] for each in by_epoch[later]
        ]
        end = min(starts, default=None)
        for each in sorted(by_epoch[epoch], key=lambda one: one.previous_revision):
            if end is None or each.previous_revision < end:
                yield each._replace(
                    revision=each.revision if end is None else min(each.revision, end)
                )
