"""How the shared file system is read: through this host's cache, or past it.

What another host has written must be found at once. A server depends on that when it reads its
fence, a coordinator when it reads the term, and a new owner when it reads the log of a dead server.
On one host, the page cache is always right. On a network file system it may be stale: with their
defaults, a plain read shows a fence after a second on GlusterFS, and some fences never on
ceph-fuse. So a file system that is not known to be local is read with O_DIRECT if it supports that.
`choose_disk` tries, measures, and logs what it chose. What is read of dead servers there must show
a seal as well (`seal.py`), and a file that SQLite reads, which it does through the cache, is
compared with direct reads before (`Disk.refresh`).

A plain read of a fence takes 7 us on ext4, a direct one 80; on GlusterFS 50 and 700.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Final

from holdfast.protocol.errors import InvalidArgumentError, StorageFailedError
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import create_fence, is_open
from holdfast.shared_fs.disk.file_lookups import O_DIRECT
from holdfast.shared_fs.disk.file_system import Mount, mount_of

logger = logging.getLogger("holdfast.shared_fs")

#: Reads of the measurement, whose median counts.
_PROBE_READS: Final = 15


class FenceRead(StrEnum):
    """The operator's choice."""

    #: Direct, unless the file system is known to be local or does not support it.
    AUTO = "auto"
    DIRECT = "direct"
    PLAIN = "plain"


def choose_disk(
    folder: Path,
    wanted: FenceRead = FenceRead.AUTO,
    *,
    find_mount: Callable[[Path], Mount] = mount_of,
) -> Disk:
    """Return the Disk for the shared file system that contains `folder`, which exists.

    Raises InvalidArgumentError if direct reads are requested but not supported, StorageFailedError.
    """
    mount = find_mount(folder)
    plain = Disk()
    plain_ms = _measure(plain, folder)
    direct_ms, refusal = 0.0, "" if O_DIRECT else "this system has no O_DIRECT"
    if O_DIRECT:
        try:
            direct_ms = _measure(Disk(direct=True), folder)
        except StorageFailedError as error:
            refusal = str(error.__cause__ or error)
    if wanted is FenceRead.DIRECT and refusal:
        raise InvalidArgumentError(argument="--fence-read", reason=f"direct: {refusal}")
    direct = not refusal and (
        wanted is FenceRead.DIRECT or (wanted is FenceRead.AUTO and not mount.local)
    )
    # In this case a partition may cost acknowledged writes, unless the mount has no cache.
    risky = not direct and not mount.local
    logger.log(
        logging.WARNING if risky else logging.INFO,
        "fence.reading mode=%s asked=%s type=%s local=%s plain_ms=%.3f direct_ms=%.3f refusal=%s",
        FenceRead.DIRECT if direct else FenceRead.PLAIN,
        wanted,
        mount.type or "unknown",
        mount.local,
        plain_ms,
        direct_ms,
        refusal or "none",
    )
    return Disk(direct=direct, remote=not mount.local)


def _measure(disk: Disk, folder: Path) -> float:
    """Return how many milliseconds a read of a fence takes. Raises StorageFailedError."""
    path = folder / f"probe.{secrets.token_hex(8)}.tmp"
    try:
        create_fence(disk, path)
        took: list[float] = []
        for _ in range(_PROBE_READS):
            began_at = time.perf_counter()
            if not is_open(disk, path):
                raise StorageFailedError(
                    reason=f"{path}: a read returns other content than was written"
                )
            took.append(time.perf_counter() - began_at)
        return sorted(took)[_PROBE_READS // 2] * 1000
    finally:
        disk.remove(path)
