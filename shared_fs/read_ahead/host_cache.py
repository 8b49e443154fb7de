"""What of a file this host has in memory, and how to get more into it or out of it.

Linux keeps what was read of files in memory while there is room. All of this goes through the
descriptor that SQLite has open anyway, found among those of the process: to open the file once
more and to close it would drop SQLite's lock (sqlite.org/howtocorrupt.html, 2.2). SQLite may close
its descriptor at any moment, and another file may get the number. So device and inode are compared
before each use; and if the number changes hands just then, a piece of another file is read into
memory, or forgotten there, which changes nothing that anybody sees.

Where Linux does not tell whether something is in memory (`RWF_NOWAIT`: network file systems and
some others), and on other systems, there is nothing of this: `host_cache` returns None,
or `find` does.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol

_DESCRIPTORS: Final = Path("/proc/self/fd")
#: How much is read at once.
_READ_BYTES: Final = 1 << 20
#: The unit of `ru_inblock`.
_BLOCK_BYTES: Final = 512


class CachedFile(Protocol):
    """An open file of a store, as this host has it in memory. `read` and `bring` may wait, and
    `give_back` too."""

    def holds(self, offsets: Iterable[int]) -> bool:
        """Tell if the bytes at all of `offsets` are in memory. Never waits."""

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Return a piece of it. Raises OSError."""

    def bring(self, offset: int, size_bytes: int) -> None:
        """Get a piece into memory. Raises OSError."""

    def disk_bytes(self) -> int:
        """Return what this thread has ever read from disks, with what the system has read beyond
        what was asked for."""

    def give_back(self, offset: int, size_bytes: int) -> None:
        """Let a piece go, if it is as on the disk."""


class HostCache(Protocol):
    """The memory of this host for files."""

    def find(self, path: Path) -> CachedFile | None:
        """Return a file that this process has open; None if it has not, or if nothing is known of
        it. May wait."""

    def disk_reads(self) -> int:
        """Return how much this thread has ever read from disks."""


def host_cache() -> HostCache | None:
    """Return the memory of this host, or None if this system tells nothing of it."""
    if sys.platform != "linux" or not hasattr(os, "RWF_NOWAIT") or not _DESCRIPTORS.is_dir():
        return None
    return _LinuxCache()


class _LinuxCache:
    def find(self, path: Path) -> CachedFile | None:
        try:
            found = path.stat()
        except OSError:
            return None
        identity = found.st_dev, found.st_ino
        for entry in _DESCRIPTORS.iterdir():
            descriptor = int(entry.name)
            if _identity_of(descriptor) == identity:
                file = _LinuxFile(descriptor, identity)
                return file if file.tells else None
        return None

    def disk_reads(self) -> int:
        return _blocks_read()


class _LinuxFile:
    def __init__(self, descriptor: int, identity: tuple[int, int]) -> None:
        self._descriptor = descriptor
        self._identity = identity

    @property
    def tells(self) -> bool:
        """Tell if the file system says whether something is in memory."""
        try:
            os.preadv(self._descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True

    def holds(self, offsets: Iterable[int]) -> bool:
        buffer = [bytearray(1)]
        try:
            self._check()
            for offset in offsets:
                # Nothing is read beyond the end, and nothing waits for that.
                os.preadv(self._descriptor, buffer, offset, os.RWF_NOWAIT)
        except OSError:
            return False
        return True

    def read(self, offset: int, size_bytes: int) -> bytes:
        self._check()
        return os.pread(self._descriptor, size_bytes, offset)

    def bring(self, offset: int, size_bytes: int) -> None:
        end = offset + size_bytes
        buffer = memoryview(bytearray(min(size_bytes, _READ_BYTES)))
        while offset < end:
            self._check()
            found = os.preadv(self._descriptor, [buffer[: end - offset]], offset)
            if not found:
                break
            offset += found

    def disk_bytes(self) -> int:
        return _blocks_read() * _BLOCK_BYTES

    def give_back(self, offset: int, size_bytes: int) -> None:
        with contextlib.suppress(OSError):
            self._check()
            os.posix_fadvise(self._descriptor, offset, size_bytes, os.POSIX_FADV_DONTNEED)

    def _check(self) -> None:
        if _identity_of(self._descriptor) != self._identity:
            raise FileNotFoundError("the file was closed")


def _identity_of(descriptor: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _blocks_read() -> int:
    # Not on all systems.
    import resource

    return resource.getrusage(resource.RUSAGE_THREAD).ru_inblock
