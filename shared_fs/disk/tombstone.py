"""Tombstones on the shared file system: they record that a store was deleted and must not return.

A tombstone is one small file beside the place of the store's file. It makes the following void,
whenever it turns up: files of the store with this epoch as generation or a lower one (a generation
is never above its owner's epoch), and log records and snapshots of this epoch or a lower one. A new
store of the same name has a higher epoch, and so a higher file generation, and starts beyond
`revision`, so that followers of the old store are told to start over.

It stays for ever: nobody can know that no log, and no backup of the coordinator's state, still
mentions the store. The bucket has its own tombstones (`store_entry.Tombstone`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from holdfast.protocol.errors import StoreDamagedError
from holdfast.shared_fs.disk.disk import Disk


class Grave(NamedTuple):
    """A deleted store. `time` is milliseconds since the epoch."""

    epoch: int
    revision: int
    time: int


def read_tombstone(disk: Disk, path: Path) -> Grave | None:
    """Return the content of a tombstone; None if there is none.

    Raises StoreDamagedError, StorageFailedError.
    """
    try:
        content = disk.read(path)
    except FileNotFoundError:
        return None
    try:
        fields = json.loads(content)
        return Grave(int(fields["epoch"]), int(fields["revision"]), int(fields["time"]))
    except (ValueError, TypeError, KeyError) as error:
        raise StoreDamagedError(store=str(path), reason="it is not a tombstone") from error


def write_tombstone(disk: Disk, path: Path, grave: Grave) -> None:
    """Write a tombstone durably; it replaces an earlier one. Raises StorageFailedError."""
    disk.make_directory(path.parent)
    disk.write_durably(path, (json.dumps(grave._asdict()) + "\n").encode())
