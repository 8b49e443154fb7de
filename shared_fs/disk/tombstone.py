"""Tombstones on the shared file system: that a store was deleted, and what of it never comes back.

One small file beside where the store's file was. Void from then on, whatever turns up: the store's
files of this epoch's or a lower generation (a generation never is above its owner's epoch), log
records and snapshots of this or a lower epoch. A store that is made anew has a higher epoch, hence
file generation, and begins beyond `revision`, so that whoever followed the old one is told to begin
anew as well.

It stays for ever: nobody can know that no log, nor a backup of the coordinator's state, speaks of
the store any more. The bucket has one of its own (`manifest.Tombstone`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from holdfast.protocol.errors import StoreDamagedError
from holdfast.shared_fs.disk.disk import Disk


class Grave(NamedTuple):
    """Of a deleted store. `time` is milliseconds since the epoch."""

    epoch: int
    revision: int
    time: int


def read_tombstone(disk: Disk, path: Path) -> Grave | None:
    """Return what a tombstone says; None without one. Raises StoreDamagedError,
    StorageFailedError."""
    try:
        content = disk.read(path)
    except FileNotFoundError:
        return None
    try:
        fields = json.loads(content)
        return Grave(int(fields["epoch"]), int(fields["revision"]), int(fields["time"]))
    except (ValueError, TypeError, KeyError) as error:
        raise StoreDamagedError(store=str(path), reason="it is no tombstone") from error


def write_tombstone(disk: Disk, path: Path, grave: Grave) -> None:
    """Write a tombstone durably, in the place of an earlier one. Raises StorageFailedError."""
    disk.make_directory(path.parent)
    disk.write_durably(path, (json.dumps(grave._asdict()) + "\n").encode())
