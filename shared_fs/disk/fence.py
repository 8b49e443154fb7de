"""The fence: the durable mark that an incarnation may never acknowledge again.

Each incarnation has one small file. It says `open` from the incarnation's start. Anyone who must be
sure that the incarnation is dead overwrites it, once and for ever. The incarnation reads it after
every sync of its commit log and before anything leaves, so:

    after fencing an incarnation, its log shows everything that it ever acknowledged

This holds because an ack needs a sync and then a read that still finds `open`, and once
the fence is written, every later read finds it (close-to-open consistency on NFS; the
page cache on one host). No clock is involved. Anything but the exact text counts as
fenced, and so does a missing file.

The file has its full size from the start and is overwritten in place: see `Disk.overwrite_durably`.
On a file system that is read past its cache (`reading.py`), the file is padded to PADDED_BYTES and
only its first bytes count: GlusterFS keeps the content of files up to 64 KiB for a second in a
place that even O_DIRECT does not bypass.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from holdfast.protocol.errors import FencedError
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.file_lookups import BLOCK_BYTES

_OPEN: Final = b"open  \n"
_FENCED: Final = b"fenced\n"
assert len(_OPEN) == len(_FENCED)
#: Above what network file systems are known to cache beside the kernel's cache.
PADDED_BYTES: Final = 128 * 1024
#: The part of a padded fence that is read.
_PADDED_OPEN: Final = _OPEN.ljust(BLOCK_BYTES, b"\0")


def create_fence(disk: Disk, path: Path) -> None:
    """Write the fence file of a new incarnation, open. Its folder must exist."""
    create_padded(disk, path, _OPEN)


def create_padded(disk: Disk, path: Path, text: bytes) -> None:
    """Write a new file that another host will overwrite in place, and that must be read fresh."""
    disk.write_durably(path, text.ljust(PADDED_BYTES, b"\0") if disk.direct else text)


def fence(disk: Disk, path: Path) -> None:
    """Fence the incarnation of `path` for ever. Idempotent; durable when this returns.

    If the fence file is missing, the incarnation already reads as fenced, and nothing is written.
    Raises StorageFailedError, and then the incarnation must count as alive.
    """
    try:
        disk.overwrite_durably(path, _FENCED)
    except FileNotFoundError:
        return


def is_open(disk: Disk, path: Path) -> bool:
    """Tell whether the incarnation of `path` may still acknowledge; false if the file is missing.

    Raises StorageFailedError if the file cannot be read now: then nobody may conclude anything.
    """
    try:
        found = disk.read_start(path)
    except FileNotFoundError:
        return False
    # A server with another way of reading may have written the file without padding.
    return found == _OPEN or found[:BLOCK_BYTES] == _PADDED_OPEN


class FenceGate:
    """An incarnation's own view of its fence. Once it has seen the fence, it stays fenced."""

    def __init__(self, disk: Disk, path: Path, server: str, incarnation: str) -> None:
        self._disk = disk
        self._path = path
        self._server = server
        self._incarnation = incarnation
        self._fenced = False

    @property
    def fenced(self) -> bool:
        return self._fenced

    def check(self) -> None:
        """Pass only if anything may leave now.

        Raises FencedError, which is final, and StorageFailedError if the fence cannot be read: then
        nothing may leave, but a later check may succeed.
        """
        if self._fenced or not is_open(self._disk, self._path):
            self._fenced = True
            raise FencedError(server=self._server, incarnation=self._incarnation)

    def fence_myself(self) -> None:
        """Never acknowledge again, whatever the file says. Memory first: the disk may be broken."""
        self._fenced = True
        fence(self._disk, self._path)
