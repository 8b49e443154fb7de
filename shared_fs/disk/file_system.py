"""The file system under a folder: its type, whether other hosts share it, and its free room.

The type comes from the kernel's list of mounts, so it is known on Linux only. Elsewhere it is
unknown and `local` is False, so callers must expect the worst. A FUSE mount counts as not local,
since its backing storage is unknown.

`time_sync` and `locks_exclude` test what holdfast depends on. They see one host only. The
documentation of the file system must say whether locks and syncs hold between hosts.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_MOUNTS: Final = Path("/proc/self/mounts")
#: Spaces, tabs, newlines and backslashes are octal in the list.
_OCTAL: Final = re.compile(r"\\([0-7]{3})")
_NETWORK_TYPES: Final = frozenset(
    # Clustered ones too: what matters is that another host may change a file.
    ["9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs"]
) | frozenset(
    ["nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "virtiofs", "wekafs"]
)
#: The options that mend a stale cache, as measured with two mounts of GlusterFS 10.3 and ceph-fuse
#: 16.2. Of other file systems only what their manuals say is known.
_MENDS: Final = {
    "fuse.glusterfs": "gluster volume set VOLUME performance.quick-read off, and the same with "
    "performance.stat-prefetch and performance.open-behind; and mount with "
    "--fopen-keep-cache=false --attribute-timeout=0 --entry-timeout=0. Set all of them: without "
    "the mount's, the volume's make it worse",
    "fuse.ceph-fuse": "mount with --fuse_disable_pagecache=true",
    "nfs": "mount without nocto; lookupcache=none and actimeo=0 keep no names and attributes",
}
_ANY_MEND: Final = "turn off what the mount caches: data, attributes and names"
_PROCESS_SECONDS: Final = 30.0
#: Exit codes of the program below.
_LOCKED: Final = 10
_REFUSED: Final = 11
_LOCK_PROGRAM: Final = f"""
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR)
try:
    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
except (BlockingIOError, PermissionError):
    sys.exit({_REFUSED})
sys.exit({_LOCKED})
"""


@dataclass(frozen=True, slots=True)
class Mount:
    """One mounted file system; `type` is empty if it is not known."""

    type: str
    path: str

    @property
    def local(self) -> bool:
        """True if only this host changes its files, as far as the type tells."""
        return bool(self.type) and not (
            self.type in _NETWORK_TYPES or self.type.partition(".")[0] in ("fuse", "fuseblk")
        )


@dataclass(frozen=True, slots=True)
class Room:
    """The room of a file system. `file_count` and `free_file_count`
    are 0 if files are not limited."""

    size_bytes: int
    free_bytes: int
    file_count: int
    free_file_count: int


def cache_mend(types: Iterable[str]) -> str:
    """Return the options that keep mounts of these types from showing an older state."""
    # nfs4 and nfs are one.
    found = {_MENDS[name] for each in types for name in (each, each[:3]) if name in _MENDS}
    return "; ".join(sorted(found)) or _ANY_MEND


def mount_of(path: Path) -> Mount:
    """Return the mount that contains `path`, which exists. Does not touch other mounts."""
    try:
        lines = _MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return Mount("", "")
    return mount_in(lines, path.resolve())


def mount_in(lines: Iterable[str], path: Path) -> Mount:
    """Return the mount of the absolute `path`, given the lines of a list of mounts."""
    found = Mount("", "")
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        mounted = _OCTAL.sub(lambda octal: chr(int(octal[1], 8)), fields[1])
        # If several are mounted on one folder, the last one hides the others.
        if path.is_relative_to(mounted) and len(mounted) >= len(found.path):
            found = Mount(fields[2], mounted)
    return found


def room_of(path: Path) -> Room:
    """Return the room of the file system that contains `path`, for an unprivileged process."""
    found = os.statvfs(path)
    return Room(
        size_bytes=found.f_blocks * found.f_frsize,
        free_bytes=found.f_bavail * found.f_frsize,
        file_count=found.f_files,
        free_file_count=found.f_favail,
    )


def time_sync(folder: Path) -> float:
    """Return how many seconds it takes to make a small new file in `folder` durable.

    Raises OSError. The file is removed.
    """
    with _probe_file(folder) as path:
        started_at = time.perf_counter()
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, b"holdfast\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return time.perf_counter() - started_at


def locks_exclude(folder: Path) -> bool:
    """Tell whether POSIX record locks work in `folder`, between processes of this host.

    A held lock must keep another process out, and a released one must let it in. Raises OSError if
    there are no such locks.
    """
    with _probe_file(folder) as path:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            while_held = _other_process_locks(path)
        finally:
            os.close(descriptor)
        return not while_held and _other_process_locks(path)


@contextlib.contextmanager
def _probe_file(folder: Path) -> Iterator[Path]:
    path = folder / f"probe.{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        path.touch(exist_ok=False)
        yield path
    finally:
        path.unlink(missing_ok=True)


def _other_process_locks(path: Path) -> bool:
    command = [sys.executable, "-I", "-c", _LOCK_PROGRAM, str(path)]
    ended = subprocess.run(
        command, timeout=_PROCESS_SECONDS, capture_output=True, text=True, check=False
    )
    if ended.returncode not in (_LOCKED, _REFUSED):
        raise OSError(f"cannot try a lock from another process: {ended.stderr.strip()[-200:]}")
    return ended.returncode == _LOCKED
