"""Which of several files of a store counts.

Nearly always there is one. There are several after a file was copied away from an owner that is
fenced but holds its lock, or restored, until the earlier ones are removed; and when a server that
was stopped in the middle of a copy or a restore goes on after its stores have got other owners, and
names its file then: no check before a rename can exclude that. Such a file must never take the
place of the next owner's.

So a file never takes another's name (`Disk.place`), each owner names what it makes by its own
epoch, which nobody else has, or beyond, and what it names is complete and says that epoch (but for
the files of new stores, and for snapshots that take the place of a cold store's file). What counts
is what the files say: the highest epoch, and only among equal ones the highest generation.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.protocol.errors import BusyError, StoreDamagedError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk.copying import copy_in_use
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.store_file.store_file import StoreFile


def current_generation(disk: Disk, layout: Layout, store: StoreId, draft_suffix: str) -> int | None:
    """Return the generation of the file that counts, None without a file. Blocking if there are
    several.

    A file that another process has open is copied, to a name that ends in `draft_suffix`, to be
    read. Raises StorageFailedError, NewerFormatError.
    """
    generations = layout.generations(disk, store)
    if len(generations) < 2:
        return generations[-1] if generations else None

    def order(generation: int) -> tuple[int, int]:
        return _epoch(
            disk, store, layout.store(store, generation), generation, draft_suffix
        ), generation

    return max(generations, key=order)


def _epoch(disk: Disk, store: StoreId, path: Path, generation: int, draft_suffix: str) -> int:
    """Return the epoch of the last owner of a file; of one that cannot be read the least it can
    be."""
    try:
        try:
            return _read_epoch(disk, store, path)
        except BusyError:
            draft = path.with_name(f"{path.name}.{draft_suffix}")
            try:
                copy_in_use(disk, store, path, draft)
                return _read_epoch(disk, store, draft)
            finally:
                for part in (draft.with_name(f"{draft.name}-wal"), draft):
                    disk.remove(part)
    except StoreDamagedError:
        return generation
    except FileNotFoundError:
        # Another process moved it.
        return -1


def _read_epoch(disk: Disk, store: StoreId, path: Path) -> int:
    for part in (path, path.with_name(f"{path.name}-wal")):
        if disk.exists(part):
            disk.refresh(part)
    file = StoreFile.open(path, store, disk=disk)
    epoch = file.meta.epoch
    if file.was_left_open:
        file.abandon()
    else:
        # Without a WAL, as it was: the sign that its last owner closed it.
        file.close()
    return epoch
