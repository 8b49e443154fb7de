"""Sole use of a folder: no cluster runs on it, and no other process has it.

The library takes the place of the coordinator, by the coordinator's own files:

    coordinator/lock        held as long as the library is open, so no coordinator becomes active,
                            and no second library
    servers/<name>/lock     nobody may hold one: a server of a cluster still runs
    coordinator/term        the library begins a term, which deposes a coordinator that hangs
    coordinator.progress    says that the coordinator's state is older than this term: it knows
                            nothing of what the library does. A cluster that starts later on this
                            folder takes its state for an old one, fences everybody, and finds the
                            stores by their files (`coordinator/state/lost_state.py`)
    fences                  those of all earlier incarnations are written, of any server

A standby coordinator that starts beside an open library may take over past the lock, as from a
coordinator that hangs. It begins a later term and fences the library's incarnation. From then on
the library acknowledges nothing: the gate is the fence, as in a server.

All methods block.
"""

from __future__ import annotations

import secrets
import threading
from pathlib import Path
from typing import Final

from holdfast.protocol.errors import AlreadyRunningError
from holdfast.shared_fs.authority.progress import Progress, ProgressFile
from holdfast.shared_fs.authority.term import TermFile
from holdfast.shared_fs.bucket.cluster_id import make_cluster_id
from holdfast.shared_fs.bucket_log.fences import FileFences
from holdfast.shared_fs.disk.commit_log import segments
from holdfast.shared_fs.disk.dead_incarnation import let_go
from holdfast.shared_fs.disk.disk import Disk, LockFile
from holdfast.shared_fs.disk.layout import Layout, open_layout
from holdfast.shared_fs.disk.privacy import tighten
from holdfast.shared_fs.disk.reading import choose_disk

_WHO: Final = "a cluster or a stream library"
#: The folders that this process has: a record lock does not keep a process from itself.
_mine: set[Path] = set()
_mine_lock: Final = threading.Lock()


class SoleUse:
    """The use of one folder by one library. Make it with `begin`."""

    def __init__(
        self, layout: Layout, disk: Disk, lock: LockFile, terms: TermFile, cluster: str
    ) -> None:
        self.layout = layout
        self.disk = disk
        self.cluster = cluster
        self.fences = FileFences(disk, layout)
        self._key = layout.root.resolve()
        self._lock = lock
        self._terms = terms
        self._ended = False

    @classmethod
    def begin(cls, folder: Path) -> SoleUse:
        """Take a folder, which is created if it is missing or empty.

        Raises AlreadyRunningError, NewerFormatError, StoreDamagedError, StorageFailedError.
        """
        layout = open_layout(folder, Disk())
        tighten(folder)
        key = folder.resolve()
        path = layout.coordinator / "lock"
        with _mine_lock:
            if key in _mine:
                raise AlreadyRunningError(what=_WHO, path=str(path))
            _mine.add(key)
        try:
            return cls.of(layout, choose_disk(folder))
        except BaseException:
            with _mine_lock:
                _mine.discard(key)
            raise

    @classmethod
    def of(cls, layout: Layout, disk: Disk) -> SoleUse:
        """Take a tree of which this process has nothing. Raises AlreadyRunningError,
        StorageFailedError."""
        disk.make_directory(layout.coordinator)
        lock = disk.lock(layout.coordinator / "lock", _WHO)
        try:
            return cls._begun(layout, disk, lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def _begun(cls, layout: Layout, disk: Disk, lock: LockFile) -> SoleUse:
        for server in disk.names(layout.servers):
            server_lock = layout.server(server) / "lock"
            if disk.is_locked(server_lock):
                raise AlreadyRunningError(what=f"server {server!r}", path=str(server_lock))
        cluster = make_cluster_id(disk, layout)
        progress = ProgressFile(disk, layout.coordinator_progress)
        recorded = progress.read()
        terms = TermFile(disk, layout.coordinator / "term", secrets.token_hex(8))
        term = terms.begin(recorded.term + 1 if recorded is not None else 1)
        progress.write(Progress(term, 0))
        use = cls(layout, disk, lock, terms, cluster)
        for server, incarnation in use.fences.incarnations():
            use._end_life(server, incarnation)
        return use

    def _end_life(self, server: str, incarnation: str) -> None:
        """Fence an incarnation, or remove what is left of one that never had a log.

        A life that ended right at its start has a fence alone: its log comes next, durably, and
        then the proof. Fenced, it would look like one whose log somebody has removed.
        """
        disk, layout = self.disk, self.layout
        if (
            self.fences.is_open(server, incarnation)
            and not segments(disk, layout.log(server, incarnation))
            and not disk.exists(layout.proof(server, incarnation))
        ):
            let_go(disk, layout, server, incarnation)
        else:
            self.fences.fence(server, incarnation)

    @property
    def term(self) -> int:
        return self._terms.term

    def check(self) -> None:
        """Pass only if nobody has taken over. Raises DeposedError, StorageFailedError."""
        self._terms.check()

    def end(self) -> None:
        """Let others have the folder. Idempotent."""
        with _mine_lock:
            if not self._ended:
                self._ended = True
                self._lock.release()
                _mine.discard(self._key)
