"""Fences by name, wherever they are: on the shared file system or in the bucket.

After fencing an incarnation, its log shows everything that it ever acknowledged. `FileFences` uses
`fence.py`. `BucketFences` uses `bucket_log.py`, where the fence is part of the log. `BucketGate` is
an incarnation's own view of its fence in the bucket. Putting a slot needs no look at the fence, but
what leaves without a put, such as a read or a broadcast, does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from holdfast.protocol.errors import FencedError
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket_log import bucket_log
from holdfast.shared_fs.disk import fence
from holdfast.shared_fs.disk.commit_log import segments
from holdfast.shared_fs.disk.dead_incarnation import is_let_go
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.disk.proof import ProofNumber, write_proof
from holdfast.shared_fs.disk.seal import seal_log


class Fences(Protocol):
    """All raise StorageError: then nothing is known, and an incarnation
    to be fenced counts as alive."""

    def fence(self, server: str, incarnation: str) -> None:
        """Fence an incarnation for ever. Idempotent; durable when this returns."""

    def is_open(self, server: str, incarnation: str) -> bool:
        """Tell whether an incarnation may still acknowledge; an unknown one may not."""

    def write_proof(self, server: str, incarnation: str, number: ProofNumber) -> bool:
        """Write a number beside the fence, durably, by which the server shows that it reads fresh
        (`proof.py`). Return False where fences are always read fresh, and nothing is written.
        Raises FileNotFoundError too."""

    def seal(self, ended: Iterable[tuple[str, str]]) -> list[tuple[str, str]] | None:
        """Seal the logs of all fenced incarnations, and return those that have one (`seal.py`).
        Return None where logs are always read whole, and nothing is sealed.

        `ended` are some of which the caller knows, so that none depends on a listing."""

    def incarnations(self) -> list[tuple[str, str]]:
        """Return all known `(server, incarnation)`."""

    def tell_of_a_past(self) -> bool:
        """Tell whether some incarnation has written or ended, where
        no other file tells of a past."""


class FileFences:
    """The fences on the shared file system."""

    def __init__(self, disk: Disk, layout: Layout) -> None:
        self._disk = disk
        self._layout = layout
        #: Those that are fenced and whose folders this host has found: for `seal`.
        self._ended: dict[tuple[str, str], None] = {}

    def fence(self, server: str, incarnation: str) -> None:
        fence.fence(self._disk, self._layout.fence(server, incarnation))
        self._ended[server, incarnation] = None

    def is_open(self, server: str, incarnation: str) -> bool:
        return fence.is_open(self._disk, self._layout.fence(server, incarnation))

    def write_proof(self, server: str, incarnation: str, number: ProofNumber) -> bool:
        write_proof(self._disk, self._layout.proof(server, incarnation), number)
        return True

    def seal(self, ended: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        sealed = []
        # A missing fence reads as fenced. But a log may be sealed only after its fence, so who is
        # not known to have ended needs a fence that is there.
        for life in dict.fromkeys((*self._ended, *ended, *self.incarnations())):
            if not self._disk.exists(self._layout.incarnation(*life)):
                # What was found once, and is not there now, was removed: no folder is made twice.
                # So this host need not be believed that something never was there.
                self._ended.pop(life, None)
            elif life in self._ended or not self.is_open(*life):
                self._ended[life] = None
                if self._seal(*life):
                    sealed.append(life)
        return sealed

    def _seal(self, server: str, incarnation: str) -> bool:
        log = self._layout.log(server, incarnation)
        if is_let_go(self._disk, self._layout, server, incarnation):
            return False
        names = segments(self._disk, log)
        if not names:
            return False
        try:
            seal_log(self._disk, log, names)
        except FileNotFoundError:
            # It is being removed, or a zombie has retired a segment.
            return bool(segments(self._disk, log))
        return True

    def incarnations(self) -> list[tuple[str, str]]:
        return [
            (server, name)
            for server in self._disk.folders(self._layout.servers)
            for name in self._disk.folders(self._layout.server(server))
            if self._disk.exists(self._layout.fence(server, name))
        ]

    def tell_of_a_past(self) -> bool:
        # The coordinator's own files beside them tell.
        return False


class BucketFences:
    """The fences in the bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def fence(self, server: str, incarnation: str) -> None:
        bucket_log.fence_log(self._bucket, server, incarnation)

    def is_open(self, server: str, incarnation: str) -> bool:
        return bool(bucket_log.list_logs(self._bucket, server, incarnation)) and bucket_log.is_open(
            self._bucket, server, incarnation
        )

    def write_proof(self, server: str, incarnation: str, number: ProofNumber) -> bool:
        # Buckets are consistent: a read begun after a put finds it.
        return False

    def seal(self, ended: Iterable[tuple[str, str]]) -> None:
        # For the same reason.
        return None

    def incarnations(self) -> list[tuple[str, str]]:
        return [(log.server, log.incarnation) for log in bucket_log.list_logs(self._bucket)]

    def tell_of_a_past(self) -> bool:
        # Slot 0 alone is empty.
        return any(log.marked or log.slots != (0,) for log in bucket_log.list_logs(self._bucket))


class BucketGate(fence.FenceGate):
    """An incarnation's own view of its fence in the bucket."""

    def __init__(self, bucket: Bucket, server: str, incarnation: str) -> None:
        self._bucket = bucket
        self._server = server
        self._incarnation = incarnation
        self._fenced = False

    def check(self) -> None:
        """Raise FencedError if this incarnation is known to be fenced. Does not ask the bucket."""
        if self._fenced:
            raise FencedError(server=self._server, incarnation=self._incarnation)

    def confirm(self) -> None:
        """Ask the bucket whether anything may leave now. Blocking.
        Raises FencedError, BucketError."""
        if not bucket_log.is_open(self._bucket, self._server, self._incarnation):
            self._fenced = True
        self.check()

    def fence_myself(self) -> None:
        """Never acknowledge again.

        This is only noted in memory: others fence the log in the bucket, or it is fenced after this
        incarnation has ended cleanly.
        """
        self._fenced = True
