"""What the doctor finds out about the file system that the data is on."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Final

from holdfast.cli.doctor import checks
from holdfast.cli.doctor.checks import Check, Findings, Severity
from holdfast.cli.render import size
from holdfast.protocol.limits import LOG_CAP_BYTES
from holdfast.shared_fs.disk.file_system import (
    Mount,
    Room,
    locks_exclude,
    mount_of,
    room_of,
    time_sync,
)
from holdfast.shared_fs.disk.privacy import open_to_others

#: A log may grow to twice its cap before its server refuses writes. With less free space than this,
#: one server can fill the disk.
_CRITICAL_FREE_BYTES: Final = 2 * LOG_CAP_BYTES
_LOW_FREE_BYTES: Final = 1 << 30
_LOW_FREE_RATIO: Final = 0.02
#: Shared file systems whose locks and caches, by their specification, are what holdfast needs.
_TRUSTED_TYPES: Final = frozenset({"nfs4"})


class FileSystemChecks:
    """Checks who may read the data, how much room is left, and that syncs and locks work."""

    def __init__(self, root: Path, findings: Findings) -> None:
        self.mount = Mount("", "")
        self.room: Room | None = None
        self._root = root
        self._findings = findings

    def run(self) -> None:
        """Check everything. Raises StorageFailedError."""
        root, findings = self._root, self._findings
        mode = open_to_others(root)
        if mode is not None:
            findings.warn(checks.ACCESS, "", f"its mode is {mode:04o}: others may look into it")
        self.mount = mount = mount_of(root)
        self.room = room = room_of(root)
        what = (
            f"{mount.type or 'of an unknown type'}, mounted on {mount.path or 'an unknown folder'}"
        )
        if not mount.type or mount.local:
            findings.note(checks.FILE_SYSTEM, "", what)
        elif mount.type in _TRUSTED_TYPES:
            findings.note(checks.FILE_SYSTEM, "", f"{what}; other hosts may share it")
        else:
            findings.warn(checks.FILE_SYSTEM, "", f"{what}; other hosts may share it")
        self._check_room(room)
        self._probe(checks.SYNC, self._probe_sync)
        self._probe(checks.LOCKS, self._probe_locks)

    def _check_room(self, room: Room) -> None:
        what = f"{size(room.free_bytes)} of {size(room.size_bytes)} are free"
        if room.free_bytes < _CRITICAL_FREE_BYTES:
            severity = Severity.CRITICAL
        elif room.free_bytes < max(_LOW_FREE_BYTES, _LOW_FREE_RATIO * room.size_bytes):
            severity = Severity.WARNING
        else:
            severity = Severity.NOTE
        self._findings.add(checks.ROOM, severity, "", what)
        if room.free_file_count < _LOW_FREE_RATIO * room.file_count:
            what = f"{room.free_file_count:,} of {room.file_count:,} inodes are free"
            self._findings.warn(checks.ROOM, "", what)

    def _probe(self, check: Check, probe: Callable[[], None]) -> None:
        try:
            probe()
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                self._findings.skip(check, f"this user may not write here: {error.strerror}")
            else:
                self._findings.alarm(check, "", error.strerror or str(error))

    def _probe_sync(self) -> None:
        milliseconds = time_sync(self._root) * 1000
        self._findings.note(checks.SYNC, "", f"a small file was durable in {milliseconds:.1f} ms")

    def _probe_locks(self) -> None:
        if not locks_exclude(self._root):
            self._findings.alarm(checks.LOCKS, "", "a held lock does not exclude another process")
