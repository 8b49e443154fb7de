"""The seal: marks on the log of a fenced incarnation, by which a reader shows that it reads it all.

A new owner reads the log of a dead server through a mount that may show something older: a listing
without the last segment, or a segment without its last frames. So the coordinator, which has
written the fence, then changes what no older state can show:

    a name in the folder of the log: SEAL
    the time of change of every segment: SEALED_SECONDS, long before there was a holdfast

The reader must find both, and reads again until it does:

- A listing that has the name is from after the fence. So it has every segment with an acknowledged
  frame, because a segment has its name durably before it gets its first frame.
- Time and size of a file travel together. So a segment that shows the time shows a size from after
  the fence, and every acknowledged byte is below it.
- A read of fewer bytes than that size was answered by a cache.

A server on a local file system writes zeros behind its frames (`commit_log.py`), so to a host that
mounts this file system over a network, sizes prove no content. There it rests on direct reads.

Only the order of fence, seal and read counts, no clock: the time is a mark. Frames that a zombie
appends behind the seal are void, and take the mark away; sealing again puts it back. Nothing is
ever written into a segment, because the client of a network file system may take a stale size for
its end.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from holdfast.shared_fs.disk.disk import Disk

#: It sorts behind the segments, so what removes a log by name removes it last.
SEAL: Final = "sealed"
#: Seconds since 1970. Whole, because not every file system keeps more.
SEALED_SECONDS: Final = 1_000_000


class UnsealedError(Exception):
    """This host does not see the seal, so what it reads of a log may be out of date."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


def seal_log(disk: Disk, directory: Path, segments: Iterable[str]) -> None:
    """Seal the log of a fenced incarnation; doing it again is fine. Raises FileNotFoundError if the
    log is being removed, StorageFailedError."""
    path = directory / SEAL
    if not disk.exists(path):
        disk.write_durably(path, b"")
    for name in segments:
        segment = directory / name
        if disk.attributes(segment).changed_seconds != SEALED_SECONDS:
            disk.set_changed(segment, SEALED_SECONDS)


def require_seal(directory: Path, names: Iterable[str]) -> None:
    """Raise UnsealedError unless `names`, a listing of a log, are from after its fence."""
    if SEAL not in names:
        raise UnsealedError(directory, "its listing does not show the seal")


def read_sealed(disk: Disk, path: Path) -> bytes:
    """Return the content of a segment, with all that was ever acknowledged.

    Raises UnsealedError, FileNotFoundError, StorageFailedError.
    """
    found = disk.attributes(path)
    if found.changed_seconds != SEALED_SECONDS:
        raise UnsealedError(path, f"its size of {found.size_bytes} bytes is not sealed")
    content = disk.read_patiently(path)
    if len(content) < found.size_bytes:
        raise UnsealedError(path, f"a read ends at {len(content)} of {found.size_bytes} bytes")
    return content
