"""The places where a cluster keeps what must not be lost, as its coordinator sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from holdfast.coordinator.state.lost_state import has_past, open_state
from holdfast.coordinator.state.state_file import StateFile
from holdfast.protocol.serving.grant_desk import TokenSource
from holdfast.shared_fs.access.audit_outbox import AuditOutbox
from holdfast.shared_fs.access.quotas import ReadsQuotas
from holdfast.shared_fs.authority.term import TermFile
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.cluster_id import bucket_cluster_id, claim_bucket, make_cluster_id
from holdfast.shared_fs.bucket_log.fences import BucketFences, Fences, FileFences
from holdfast.shared_fs.disk.disk import Disk, LockFile
from holdfast.shared_fs.disk.layout import Layout

#: What a test of the storage writes: its size never changes, so it is overwritten in place.
_TEST: Final = b"The coordinator tests its storage.\n"


class Storage:
    """The disk with the coordinator's folder, the fences of the
    servers, and the bucket if there is one.

    All methods block.
    """

    def __init__(
        self,
        layout: Layout,
        disk: Disk,
        *,
        bucket: Bucket | None = None,
        fences: Fences | None = None,
        quotas: ReadsQuotas | None = None,
        tokens: TokenSource | None = None,
        outbox: AuditOutbox | None = None,
    ) -> None:
        """`bucket` has the cold stores; a coordinator that lost its state looks for them there.

        `fences` are by default those under `layout`. `quotas` is where operators set what tenants
        may use. `tokens` is where they say who may do what; without it the cluster is open.
        `outbox` has events for the audit log; without it, this cluster has none.
        """
        self.layout = layout
        self.disk = disk
        self.bucket = bucket
        self.fences = fences or FileFences(disk, layout)
        self.quotas = quotas
        self.tokens = tokens
        self.outbox = outbox

    def has_past(self) -> bool:
        """Tell whether a coordinator or a store was here before. Ask before `lock`."""
        return has_past(self.layout, self.disk, self.fences)

    def make_folder(self) -> None:
        """Create the coordinator's folder if it is missing."""
        self.disk.make_directory(self.layout.coordinator)

    def lock(self) -> LockFile:
        """Take the lock of the active coordinator and return it. Raises AlreadyRunningError."""
        return self.disk.lock(self.layout.coordinator / "lock", "a coordinator")

    def lock_again(self, terms: TermFile) -> LockFile:
        """Make another file the lock of the active coordinator, and return it: the file that the
        deposed one has locked loses its name. Raises DeposedError, StorageError."""
        path = self.layout.coordinator / "lock"
        draft = path.with_name(f"lock.{terms.term}.new")
        lock = self.disk.lock(draft, "a coordinator")
        try:
            terms.check()
            self.disk.rename(draft, path)
        except BaseException:
            lock.release()
            raise
        return lock

    @property
    def term_path(self) -> Path:
        return self.layout.coordinator / "term"

    def may_run(self, server: str) -> bool | None:
        """Tell whether a process of `server` runs, by its lock; None if the lock is out of reach,
        on a disk of the server's own. Raises StorageError."""
        if isinstance(self.fences, BucketFences):
            return None
        return self.disk.is_locked(self.layout.server(server) / "lock")

    def test(self) -> None:
        """Write durably where the fences are, which takes as long as the storage hangs. Fences in a
        bucket need none: a server whose bucket hangs is not silent. Raises StorageError."""
        if not isinstance(self.fences, BucketFences):
            path = self.layout.coordinator / "storage_test"
            try:
                self.disk.overwrite_durably(path, _TEST)
            except FileNotFoundError:
                self.disk.write_durably(path, _TEST)

    def cluster_id(self) -> str:
        """Return the id of this cluster; make one if it has none. Call it under the lock."""
        if self.bucket is not None and isinstance(self.fences, BucketFences):
            return bucket_cluster_id(self.bucket)
        return make_cluster_id(self.disk, self.layout)

    def claim_bucket(self, cluster: str) -> None:
        """Keep other clusters out of the bucket, if there is one. Raises OtherClustersBucketError,
        StoreDamagedError, BucketError."""
        if self.bucket is not None and not isinstance(self.fences, BucketFences):
            claim_bucket(self.bucket, cluster)

    def open_state(
        self,
        *,
        had_past: bool,
        replace_damaged: bool,
        now_ms: int,
        terms: TermFile,
    ) -> StateFile:
        """Open the state file; call it under the lock. `terms` may have begun a term past the lock
        of another coordinator. Raises as `open_state_file` does."""
        return open_state(
            self.layout,
            self.disk,
            self.fences,
            had_past=had_past,
            replace_damaged=replace_damaged,
            now_ms=now_ms,
            terms=terms,
        )
