"""What a store's file tells whoever has no record of the store."""

from __future__ import annotations

from pathlib import Path

from holdfast.protocol.control import StoreState
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.store_file.pages.page_sizes import LARGE_PAGE_BYTES
from holdfast.shared_fs.store_file.schema import PAGE_BYTES
from holdfast.shared_fs.store_file.store_image import empty_store_image


def state_of_file(disk: Disk, store: StoreId, path: Path) -> StoreState:
    """Tell whether a file may ever have been durable. Raises StorageFailedError.

    The first checkpoint adds the meta row, which is never removed. Without it, everything is in the
    WAL and in the logs.
    """
    kind = StoreKind(store.kind)
    try:
        for page_bytes in (PAGE_BYTES, LARGE_PAGE_BYTES):
            made = empty_store_image(kind, page_bytes)
            if disk.size_bytes(path) == len(made) and disk.read_patiently(path) == made:
                return StoreState.CREATED
    except FileNotFoundError:
        # Its owner replaced it, or it was removed; in both cases it existed.
        pass
    return StoreState.DURABLE
