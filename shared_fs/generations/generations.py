"""Decides which of several files of a store counts.

Nearly always there is only one. There are several in two cases. After a file was restored, or
copied away from an owner that is fenced but holds its lock, the earlier files remain until they are
removed. And a server that was stopped in the middle of a copy or a restore may resume after its
stores have got other owners, and name its file then; no check before a rename can exclude that.
Such a file must never replace the next owner's.

So a file never takes the name of another (`Disk.place`). Each owner names its files by its own
epoch, which nobody else has, or a higher number. A named file is complete and contains that epoch
(except files of new stores, and snapshots that replace a cold store's file). The content of the
files decides: the highest epoch counts, and among equal epochs the highest generation.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.protocol.errors import BusyError, StoreDamagedError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.generations.copying import copy_in_use
from holdfast.shared_fs.store_file.store_file import StoreFile


def current_generation(disk: Disk, layout: Layout, store: StoreId, draft_suffix: str) -> int | None:
    """Return the generation of the file that counts; None without a file.

    Blocking if there are several. To read a file that another process has open, it is copied to a
    name that ends in `draft_suffix`. Raises StorageFailedError, NewerFormatError.
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
    """Return the epoch of the last owner of a file.

    For a file that cannot be read, it is the lowest that it can be.
    """
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
        # Closed without a WAL, as it was found: this shows that its last owner closed it.
        file.close()
    return epoch
