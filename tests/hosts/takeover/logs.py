"""`python -m tests.hosts.takeover.logs FS [COUNT]`: what a takeover sees of logs.

Each host has a mount of its own. A server on the first host writes the log of each round, with
syncs, while the new owner, on the second, looks at it again and again, so that its mount has
something older to show. Then the coordinator seals the log, on the third host or on the second,
and the new owner reads it: after a listing, as a takeover does, or by names that it is told,
which is harder, because a listing may bring the sizes with it.
Needs what `make hosts` needs.
"""

from __future__ import annotations

import random
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple
from unittest.mock import patch

from holdfast.protocol.errors import StorageFailedError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.bucket_log.fences import FileFences
from holdfast.shared_fs.disk import commit_log
from holdfast.shared_fs.disk.commit_log import CommitLog, LogRecord, read_log
from holdfast.shared_fs.disk.dead_incarnation import let_go
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import create_fence
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.disk.seal import UnsealedError
from tests.hosts.network import Host
from tests.hosts.takeover.command import measure_file_system

_HOSTS: Final = (Host("h1", 11), Host("h2", 12), Host("h3", 13))
_STORE: Final = StoreId("acme", StoreKind.STREAM, "notes")
_SIZES: Final = (32, 300, 4000, 32000)
_GIVE_UP_SECONDS: Final = 20.0


class ToldDisk(Disk):
    """Looks at no listing, but is told what is listed on another mount."""

    def __init__(self, own: Path, other: Path, *, direct: bool) -> None:
        super().__init__(direct=direct, remote=True)
        self._own = own
        self._other = other

    def names(self, path: Path) -> list[str]:
        return super().names(self._other / path.relative_to(self._own))


class Round(NamedTuple):
    """What the new owner saw. `short`: a seal was seen, and not all of the log."""

    whole_at_once: bool
    sealed_after_ms: float
    short: bool


def one_round(dead: Layout, new: Layout, sealing: Layout, number: int, reader: Disk) -> Round:
    """Write one log, seal it, and read it."""
    life, chance, disk = ("s1", f"{number:04d}"), random.Random(number), Disk()
    disk.make_directory(dead.incarnation(*life))
    create_fence(disk, dead.fence(*life))
    log = CommitLog(disk, dead.log(*life))
    with looking(reader, new.log(*life)):
        ticks = chance.randint(9, 20)
        for tick in range(1, ticks + 1):
            payload = bytes(chance.choice(_SIZES))
            log.append(tick, [LogRecord(_STORE, 1, tick - 1, tick, [payload], [])])
            log.prepare_sync()()
    at_once = revisions(reader, new.log(*life), sealed=False) == ticks
    fences = FileFences(disk, sealing)
    began_at = time.monotonic()
    while True:
        # As a takeover does: it asks again before each try.
        fences.fence(*life)
        fences.seal(())
        try:
            found = revisions(reader, new.log(*life), sealed=True)
        except UnsealedError:
            if time.monotonic() - began_at > _GIVE_UP_SECONDS:
                raise
            time.sleep(0.01)
            continue
        took_ms = (time.monotonic() - began_at) * 1000
        log.close()
        let_go(disk, dead, *life)
        return Round(at_once, took_ms, found < ticks)


def revisions(disk: Disk, directory: Path, *, sealed: bool) -> int:
    """Return the last revision in a log; 0 if nothing of it can be read."""
    records = read_log(disk, directory, sealed=sealed).records
    return records[-1].revision if records else 0


@contextmanager
def looking(disk: Disk, directory: Path) -> Iterator[None]:
    """Look at a log all the time, by the names that it gets."""
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            for number in range(1, 8):
                try:
                    disk.read(directory / commit_log.segment_name(number))
                    disk.attributes(directory / commit_log.segment_name(number))
                except (FileNotFoundError, StorageFailedError):
                    break

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def measure(name: str, folders: list[Path], count: int) -> None:
    """Measure one file system, and print a line for each way."""
    dead, new, third = map(Layout, folders)
    readers = {
        f"{'direct' if direct else 'plain'} reads {how}": reader
        for direct in (False, True)
        for how, reader in (
            ("after a listing", Disk(direct=direct, remote=True)),
            ("by name", ToldDisk(new.root, dead.root, direct=direct)),
        )
    }
    number = 0
    with patch.object(commit_log, "LOG_SEGMENT_BYTES", 32 * 1024):
        for how, reader in readers.items():
            for where, sealing in (("a third mount", third), ("the new owner's mount", new)):
                rounds = []
                for _ in range(count):
                    number += 1
                    rounds.append(one_round(dead, new, sealing, number, reader))
                took = [each.sealed_after_ms for each in rounds]
                print(
                    f"{name}, {how}, sealed through {where}: "
                    f"whole at once {sum(each.whole_at_once for each in rounds)} of {count}; "
                    f"sealed and read after {statistics.median(took):.0f} ms, "
                    f"at most {max(took):.0f}; "
                    f"short in spite of a seal {sum(each.short for each in rounds)}",
                    flush=True,
                )


if __name__ == "__main__":
    sys.exit(measure_file_system(_HOSTS, measure))
