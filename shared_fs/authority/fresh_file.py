"""Small files that one host overwrites in place and another reads fresh.

They have their full size from the start. With direct reads they are padded, as fences are: see
`fence.py`.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import PADDED_BYTES


def padded(disk: Disk, text: bytes) -> bytes:
    """Return the content of a file that says `text`."""
    return text.ljust(PADDED_BYTES, b"\0") if disk.direct else text


def overwrite(disk: Disk, path: Path, text: bytes) -> None:
    """Put `text`, which always has the same length, into a file. Durable when this returns. Raises
    StorageFailedError."""
    content = padded(disk, text)
    try:
        disk.overwrite_durably(path, content)
    except FileNotFoundError:
        disk.write_durably(path, content)


def read(disk: Disk, path: Path) -> bytes:
    """Return what a file says, without its padding; nothing if it is missing. Raises
    StorageFailedError."""
    try:
        return disk.read_start(path).rstrip(b"\0")
    except FileNotFoundError:
        return b""
