"""Hosts whose memory holds some of each file at one moment and not at the next, so that reads of
streams are put aside, fetched for, and run again later, or too late."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from holdfast.shared_fs.read_ahead.host_cache import CachedFile
from tests.simulation.simulated_disk import HostDisk
from tests.simulation.simulated_files import Inode


class _ForgetfulFile:
    def __init__(self, memory: ForgetfulMemory, inode: Inode) -> None:
        self._memory = memory
        self._inode = inode

    def holds(self, offsets: Iterable[int]) -> bool:
        return self._memory.chance.random() < 0.5

    def read(self, offset: int, size_bytes: int) -> bytes:
        return bytes(self._inode.content[offset : offset + size_bytes])

    def bring(self, offset: int, size_bytes: int) -> None:
        self._memory.fetch_count += 1
        self._memory.fetched_bytes += size_bytes
        if self._memory.chance.random() < 0.1:
            raise OSError(errno.EIO, "a bad disk")

    def disk_bytes(self) -> int:
        return self._memory.fetched_bytes

    def give_back(self, offset: int, size_bytes: int) -> None:
        return None


class ForgetfulMemory:
    """The memory of all hosts."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(f"memory {seed}")
        #: How often something was fetched.
        self.fetch_count = 0
        self.fetched_bytes = 0

    def of_host(self, disk: HostDisk) -> ForgetfulHost:
        return ForgetfulHost(self, disk)


class ForgetfulHost:
    """The memory of one host."""

    def __init__(self, memory: ForgetfulMemory, disk: HostDisk) -> None:
        self._memory = memory
        self._disk = disk

    def find(self, path: Path) -> CachedFile | None:
        node = self._disk.file_at(path)
        return None if node is None else _ForgetfulFile(self._memory, node)

    def disk_reads(self) -> int:
        # Now and then a read has needed the disk, so no store is trusted for long.
        return self._memory.chance.randrange(1000) // 990


@contextmanager
def forgetful_hosts(seed: int) -> Iterator[ForgetfulMemory]:
    """Give all hosts of the simulations in the body such a memory; all streams are large there."""
    memory = ForgetfulMemory(seed)
    with (
        patch("tests.simulation.simulated_nodes.memory_of", memory.of_host),
        patch("holdfast.persist.prefetch.prefetching.PREFETCHED_STORE_BYTES", 1),
        patch("holdfast.persist.prefetch.prefetching.RECENT_BYTES", 0),
    ):
        yield memory
