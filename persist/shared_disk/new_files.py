"""Creates files for stores that have none. Each file is a generation of its owner's epoch, which no
other owner uses.

A store that is written for the first time gets its file when its first changes reach the disk:
whole, with all of them, if they are few. A store that replaces a deleted one continues above the
deleted one's last revision, and gets its name only once that is durable in the file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.persist.incarnation import Incarnation
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk.tombstone import Grave
from holdfast.shared_fs.store_file.applying import AppliedBatch, WriterOutcome
from holdfast.shared_fs.store_file.store_file import StoreFile
from holdfast.shared_fs.store_file.store_image import NewStore, new_store_image


class NewFiles:
    """Creates files of stores for one incarnation."""

    def __init__(self, life: Incarnation) -> None:
        self._life = life

    def create_as_mine(self, store: StoreId, epoch: int, page_bytes: int) -> StoreFile:
        """Create the file of a store that this incarnation owns."""
        owner = (epoch, self._life.server, self._life.id)
        return self.create(store, epoch, page_bytes, owner)

    def create(
        self,
        store: StoreId,
        epoch: int,
        page_bytes: int,
        owner: tuple[int, str, str] = (0, "", ""),
    ) -> StoreFile:
        """Create an empty file. Until it has an owner, records from before `epoch` may
        be applied to it."""
        life = self._life
        life.gate.check()
        path = life.layout.store(store, epoch)
        life.disk.make_directory(path.parent)
        time = life.clock_ms()
        return StoreFile.create(
            path, store, time=time, owner=owner, page_bytes=page_bytes, disk=life.disk
        )

    def create_after(self, grave: Grave, store: StoreId, epoch: int) -> Path:
        """Create the file of a store that replaces a deleted one, whole and durable, and return its
        path. The file is closed. Blocking."""
        life = self._life
        path = life.layout.store(store, epoch)
        life.disk.make_directory(path.parent)
        draft = path.with_name(f"{path.name}.{life.id}")
        life.disk.remove(draft)
        time = life.clock_ms()
        file = StoreFile.create(draft, store, time=time, disk=life.disk)
        try:
            file.go_on_from(grave.revision + 1, time=time)
            # The owner is recorded later, after the store's changes in the logs.
        finally:
            file.close()
        life.gate.check()
        life.disk.place(draft, path)
        return path

    def prepare_as_mine(
        self,
        store: StoreId,
        epoch: int,
        batches: Sequence[AppliedBatch],
        outcomes: Sequence[WriterOutcome],
    ) -> Callable[[], StoreFile] | None:
        """Return a function that writes a small file with these changes and outcomes, in any
        thread. Return None if `create_as_mine` must be used."""
        life = self._life
        path = life.layout.store(store, epoch)
        if life.disk.exists(wal_of(path)):
            # It belongs to a file that is gone. `create` fails, and removes it.
            return None
        new = new_store_image(
            store,
            time=life.clock_ms(),
            owner=(epoch, life.server, life.id),
            batches=batches,
            outcomes=outcomes,
        )
        return None if new is None else lambda: self._write(path, new)

    def _write(self, path: Path, new: NewStore) -> StoreFile:
        self._life.gate.check()
        self._life.disk.make_directory(path.parent)
        return StoreFile.new(path, new, disk=self._life.disk)


def wal_of(path: Path) -> Path:
    """Return where SQLite keeps the WAL of a file."""
    return path.with_name(path.name + "-wal")
