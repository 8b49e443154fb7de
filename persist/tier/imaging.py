"""Images of store files, from which snapshots are made.

An image has only changes that are durable and acknowledged, or about to be: its file is
checkpointed first, and the fence is read after the image was taken. So even a zombie's snapshot is
a prefix of the truth. All of it blocks.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.persist.incarnation import Incarnation
from holdfast.protocol.errors import BusyError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.generations.generations import current_generation
from holdfast.shared_fs.snapshots.snapshot import Image, take_image
from holdfast.shared_fs.store_file.store_file import StoreFile


class Imager:
    """Takes the images of one incarnation."""

    def __init__(self, life: Incarnation) -> None:
        self._incarnation = life.id
        self._disk = life.disk
        self._layout = life.layout
        self._gate = life.gate

    def of_closed(self, store: StoreId) -> Image | None:
        """Return the image of a leased store, or None if another process has its file or there is
        nothing to take."""
        file = self.open_closed(store)
        if file is None:
            return None
        try:
            return self.take(file)
        finally:
            file.close()

    def open_closed(self, store: StoreId) -> StoreFile | None:
        """Open the file of a store if its last owner closed it, or return None."""
        generation = current_generation(self._disk, self._layout, store, self._incarnation)
        if generation is None:
            return None
        path = self._layout.store(store, generation)
        if self._disk.exists(path.with_name(path.name + "-wal")):
            # Even an empty WAL means that the owner died: the next owner brings the
            # file up to date.
            return None
        try:
            return StoreFile.open(path, store, disk=self._disk)
        except (BusyError, FileNotFoundError):
            return None

    def take(self, file: StoreFile) -> Image | None:
        """Return the image of an open file. Raises FencedError, StorageError."""
        if file.in_memory:
            return None
        # If the file only changed owners, the new owner is in the WAL, whose pages have no
        # checksums: so checkpoint it. A zombie must not.
        self._gate.check()
        file.checkpoint()
        draft = Path(f"{file.path}.{self._incarnation}")
        image = take_image(file, draft)
        try:
            # Not earlier: a fenced incarnation may hold more than the truth.
            self._gate.check()
        except BaseException:
            self._disk.remove(draft)
            raise
        return image
