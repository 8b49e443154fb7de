"""A store with a chain of hashes from tier to tier: its file, a snapshot, a log, and a forger."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import apsw

from holdfast.protocol import frames
from holdfast.protocol.changes import CHANGE_CONFIGURE
from holdfast.protocol.frames import WireChange
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.bucket.bucket import open_bucket
from holdfast.shared_fs.bucket_log.bucket_log import BucketLog
from holdfast.shared_fs.disk.commit_log import LogRecord
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import open_layout
from holdfast.shared_fs.inspection.verification import StoreVerdict, Verifier
from holdfast.shared_fs.snapshots.manifest import open_manifests
from holdfast.shared_fs.snapshots.snapshot import compress, put, take_image
from holdfast.shared_fs.snapshots.store_entry import KeepPolicy
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.sqlite_connection import checksum_vfs
from holdfast.shared_fs.store_file.store_file import StoreFile

Values = TypeVar("Values")


class ChainWorld(Generic[Values]):
    def __init__(
        self, root: Path, store: StoreId, sets: Callable[[Values], list[WireChange]]
    ) -> None:
        """`sets` returns the changes that set the values."""
        self.root = root
        self.store = store
        self.layout = open_layout(root / "data", Disk())
        self.bucket = open_bucket(f"file://{root / 'bucket'}")
        self.path = self.layout.store(store)
        self.path.parent.mkdir(parents=True)
        self._sets = sets

    def write(self, values: Values, *more: WireChange, to: Path | None = None) -> Path:
        """Write the file of a store that was configured, and got these values and changes."""
        path = to or self.path
        file = StoreFile.create(path, self.store, time=1)
        file.take(1, "s1", "i1")
        changes = [[CHANGE_CONFIGURE, {"chain": True}], *self._sets(values), *more]
        file.apply([AppliedBatch(0, 5, changes)])
        file.close()
        return path

    def snapshot(self, values: Values) -> None:
        file = StoreFile.open(self.write(values, to=self.root / "copy.db"), self.store)
        made = compress(take_image(file, self.root / "draft"), 9)
        file.close()
        version = put(self.bucket, made, "n")
        open_manifests(self.bucket).publish([(self.store, version)], KeepPolicy(), 9)

    def log(self, previous_revision: int, changes: list[WireChange], chain: bytes) -> None:
        log = BucketLog(self.bucket, "s1", "i1")
        log.begin()
        payload = frames.encode_changes(1, previous_revision, 5, changes, chain)
        revision = previous_revision + len(changes)
        log.put(log.prepare([LogRecord(self.store, 1, previous_revision, revision, [payload], [])]))

    def forge(self, statement: str) -> None:
        """Somebody with the right tools changes the file: checksums of pages are right."""
        connection = apsw.Connection(str(self.path), vfs=checksum_vfs())
        connection.execute(statement)
        connection.close()
        self.path.with_name(self.path.name + "-wal").unlink(missing_ok=True)

    def verdict(self) -> StoreVerdict:
        return Verifier(self.layout, self.bucket).verify(self.store)
