"""One side of a probe: a process that does to the files of one mount what it is told.

Caches and locks belong to a mount and to a process, so `probe.py` starts one such process per mount
and compares what they see. Each line of stdin is a request as JSON, `[name, arguments]`, and each
line of stdout its answer, `{"answer": ...}` or `{"refused": "..."}`. The process ends with its
stdin, and its locks with it.

All files go through `Disk`, as holdfast's own do. Moments are of the monotonic clock, which all
processes of a host share.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

from holdfast.protocol.errors import AlreadyRunningError, StorageFailedError
from holdfast.shared_fs.disk.disk import AppendFile, Disk, LockFile
from holdfast.shared_fs.disk.fence import PADDED_BYTES
from holdfast.shared_fs.disk.file_lookups import BLOCK_BYTES, O_DIRECT
from holdfast.shared_fs.disk.file_system import mount_of
from holdfast.shared_fs.disk.reading import choose_disk

#: What POSIX and all known file systems allow, and what a store's file may need.
LONGEST_NAME_BYTES: Final = 255
#: Between two looks at a lock.
_LOCK_PAUSE_SECONDS: Final = 0.001
_APPEND: Final = bytes(512)


class Way(StrEnum):
    """How a file changes, and so what the other side looks at."""

    #: In place, as a fence.
    OVERWRITE = "overwrite"
    #: With fdatasync, as a commit log.
    APPEND = "append"
    CREATE = "create"
    #: By a rename over it, as a state file.
    REPLACE = "replace"
    REMOVE = "remove"


class Watched(NamedTuple):
    """What a reader saw who looked at a file again and again until it had changed."""

    seen: bool
    #: When the last look began that showed the old state; 0 if none did.
    stale_at: float
    #: Looks that failed with ESTALE.
    stale_handles: int


class Workbench:
    """The requests, on the files of one folder. For one thread."""

    def __init__(self, folder: Path, *, plain: Disk | None = None) -> None:
        """`plain` is for tests."""
        self._folder = folder
        self._plain = plain or Disk()
        self._direct = Disk(direct=True) if O_DIRECT else None
        self._logs: dict[str, AppendFile] = {}
        self._locks: dict[str, LockFile] = {}
        self._requests: dict[str, Callable[..., Any]] = {
            each.__name__: each
            for each in (
                *(self.describe, self.write, self.look, self.watch),
                *(self.lock, self.unlock, self.is_locked, self.take_freed),
                *(self.time_syncs, self.time_writes),
                *(self.create_exclusively, self.long_name, self.link, self.truncate, self.size),
            )
        }

    def do(self, request: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to one request."""
        try:
            return {"answer": self._requests[request](**arguments)}
        except StorageFailedError as error:
            return {"refused": error.fields["reason"]}
        except OSError as error:
            return {"refused": str(error)}

    def describe(self) -> dict[str, Any]:
        """Tell what the mount is, whether it takes direct reads, and whether holdfast uses them."""
        mount = mount_of(self._folder)
        disk = choose_disk(self._folder)
        takes_direct = disk.direct
        if self._direct is not None and not takes_direct:
            self._plain.write_durably(self._folder / "direct", b"x")
            with contextlib.suppress(StorageFailedError):
                takes_direct = self._direct.read(self._folder / "direct") == b"x"
        return {
            "type": mount.type,
            "mount": mount.path,
            "local": mount.local,
            "device": self._folder.stat().st_dev,
            "takes_direct": takes_direct,
            "direct": disk.direct,
        }

    def write(self, name: str, way: str, number: int) -> tuple[float, float]:
        """Change a file durably; return when that began and when it was durable."""
        path = self._folder / name
        began_at = time.monotonic()
        match Way(way):
            case Way.OVERWRITE:
                self._plain.overwrite_durably(path, _text(number))
            case Way.APPEND:
                if name not in self._logs:
                    self._logs[name] = self._plain.open_append(path)
                self._logs[name].write(_record(number))
                self._logs[name].sync()
            case Way.CREATE | Way.REPLACE:
                self._plain.write_durably(path, _text(number).ljust(PADDED_BYTES, b"\0"))
            case Way.REMOVE:
                self._plain.remove(path)
                self._plain.sync_directory(path.parent)
        return began_at, time.monotonic()

    def look(self, name: str, way: str, number: int, direct: bool) -> bool:
        """Tell if a file shows its change `number`. The look fills whatever cache there is."""
        disk = self._direct if direct else self._plain
        assert disk is not None
        path = self._folder / name
        try:
            found = disk.read(path) if way == Way.APPEND else disk.read_start(path)
        except FileNotFoundError:
            return way == Way.REMOVE and not self._named(disk, path, number)
        match Way(way):
            case Way.APPEND:
                return found == b"".join(map(_record, range(1, number + 1)))
            case Way.REMOVE:
                return False
            case Way.CREATE if not self._named(disk, path, number):
                return False
            case _:
                return found.startswith(_text(number))

    def _named(self, disk: Disk, path: Path, number: int) -> bool:
        """Tell if a file is found by its name, or in every second round by a listing, which may
        refresh what a cache knows of the name."""
        return disk.exists(path) if number % 2 else path.name in disk.names(path.parent)

    def watch(self, name: str, way: str, number: int, direct: bool, seconds: float) -> Watched:
        """Look again and again until the file shows its change, but not much longer than
        `seconds`."""
        give_up_at = time.monotonic() + seconds
        stale_at, stale_handles = 0.0, 0
        while True:
            began_at = time.monotonic()
            try:
                if self.look(name, way, number, direct):
                    return Watched(True, stale_at, stale_handles)
            except StorageFailedError as error:
                if not _is_stale(error):
                    raise
                stale_handles += 1
            stale_at = began_at
            if began_at > give_up_at:
                return Watched(False, stale_at, stale_handles)

    def lock(self, name: str) -> bool:
        try:
            self._locks[name] = self._plain.lock(self._folder / name, "the probe's file")
        except AlreadyRunningError:
            return False
        return True

    def unlock(self, name: str) -> None:
        self._locks.pop(name).release()

    def is_locked(self, name: str) -> bool:
        return self._plain.is_locked(self._folder / name)

    def take_freed(self, name: str, seconds: float) -> float | None:
        """Take a lock once nobody holds it; return when, or None if that did not happen."""
        give_up_at = time.monotonic() + seconds
        while self.is_locked(name) or not self.lock(name):
            if time.monotonic() > give_up_at:
                return None
            time.sleep(_LOCK_PAUSE_SECONDS)
        return time.monotonic()

    def time_syncs(self, name: str, count: int, seconds: float) -> list[float]:
        """Append to a new log `count` times; return the milliseconds of each fdatasync."""
        log = self._plain.open_append(self._folder / name)
        try:

            def append() -> float:
                log.write(_APPEND)
                return _milliseconds(log.sync)

            return _repeated(append, count, seconds)
        finally:
            log.close()

    def time_writes(self, name: str, count: int, seconds: float) -> list[float]:
        """Return the milliseconds of each of `count` durable writes of a file."""
        path = self._folder / name

        def write() -> float:
            return _milliseconds(lambda: self._plain.write_durably(path, _text(0)))

        return _repeated(write, count, seconds)

    def create_exclusively(self, name: str) -> bool:
        """Create a file with O_EXCL; False if there is one."""
        try:
            (self._folder / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def long_name(self) -> None:
        path = self._folder / ("n" * LONGEST_NAME_BYTES)
        path.touch(exist_ok=False)
        path.unlink()

    def link(self, source: str, target: str) -> None:
        (self._folder / target).hardlink_to(self._folder / source)

    def truncate(self, name: str, size_bytes: int) -> None:
        with (self._folder / name).open("r+b") as file:
            os.ftruncate(file.fileno(), size_bytes)
            os.fsync(file.fileno())

    def size(self, name: str, direct: bool) -> int:
        """Return how many bytes a read of the file yields."""
        disk = self._direct if direct else self._plain
        assert disk is not None
        return len(disk.read(self._folder / name))


def _text(number: int) -> bytes:
    return b"%016d\n" % number


def _record(number: int) -> bytes:
    """Return a record whose length is not a multiple of a block."""
    return _text(number) * (1 + number * 37 % 200)


assert len(_text(0)) < BLOCK_BYTES


def _is_stale(error: StorageFailedError) -> bool:
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno == errno.ESTALE


def _milliseconds(action: Callable[[], None]) -> float:
    began_at = time.perf_counter()
    action()
    return (time.perf_counter() - began_at) * 1000


def _repeated(action: Callable[[], float], count: int, seconds: float) -> list[float]:
    """Return the results of `count` calls, or of those that begin within `seconds`."""
    give_up_at = time.monotonic() + seconds
    results = [action()]
    while len(results) < count and time.monotonic() < give_up_at:
        results.append(action())
    return results


def serve(workbench: Workbench) -> None:
    """Answer the requests of stdin until it ends."""
    for line in sys.stdin:
        request, arguments = json.loads(line)
        print(json.dumps(workbench.do(request, arguments)), flush=True)


if __name__ == "__main__":
    # What `choose_disk` has to say is in the report.
    logging.getLogger("holdfast").addHandler(logging.NullHandler())
    serve(Workbench(Path(sys.argv[1])))
