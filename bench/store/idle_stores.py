"""Idle stores by the hundred thousand, made fast: recorded as the coordinator records them.

Writing a million stores through the client takes most of an hour, and what their servers leave of
them is a row in the coordinator's state file and a file that nobody opens. So a sample goes the
whole way, and those beyond it are given their rows alone, by the coordinator's own state file: as
stores that a server of an earlier life created, made durable and released. Nothing may ever ask for
one of these: that they have no file would be damage, and reported so.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from holdfast.coordinator.state.server_records import IncarnationState
from holdfast.coordinator.state.state_file import open_state_file
from holdfast.protocol.control import Owner, StoreState
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout

TENANT: Final = "idle"
_EARLIER_LIFE: Final = "earlier"
_TRANSACTION_STORES: Final = 8192
_SAY_STORES: Final = 40 * _TRANSACTION_STORES
_TIME_MS: Final = 1_700_000_000_000
_BLOCK_BYTES: Final = 512


def store_named(number: int) -> StoreId:
    return StoreId(TENANT, StoreKind.STREAM, f"project.{number}.patches")


def record_stores(
    root: Path,
    server: str,
    first: int,
    last: int,
    say: Callable[[str], None],
    *,
    cold_revision: int | None = None,
) -> None:
    """Record the stores `first` to `last` under `root`, where no coordinator runs; as cold ones if
    they are at a `cold_revision`.

    Raises AlreadyRunningError if one does, StorageError.
    """
    disk, layout = Disk(), Layout(root)
    lock = disk.lock(layout.coordinator / "lock", "a coordinator")
    try:
        with closing(open_state_file(layout.coordinator / "state.db", disk)) as state:
            with state.transaction():
                state.servers.add(server, _EARLIER_LIFE, _TIME_MS)
            owner = Owner(server, _EARLIER_LIFE, 1)
            for start in range(first, last + 1, _TRANSACTION_STORES):
                with state.transaction():
                    for number in range(start, min(start + _TRANSACTION_STORES, last + 1)):
                        store = store_named(number)
                        state.stores.assign(store, owner)
                        state.stores.raise_state(store, StoreState.DURABLE)
                        if cold_revision is not None:
                            state.stores.set_cold(store, cold_revision)
                if (start - first) % _SAY_STORES == 0:
                    say(f"  recorded {start - first:,} of {last - first + 1:,} stores")
            with state.transaction():
                state.servers.end(server, _EARLIER_LIFE, IncarnationState.RELEASED, _TIME_MS)
    finally:
        lock.release()


def state_bytes(root: Path) -> int:
    """Return the size of the coordinator's state file, its log among it."""
    folder = Layout(root).coordinator
    return sum(path.stat().st_size for path in folder.glob("state.db*"))


def disk_bytes(folder: Path) -> int:
    """Return what the files under `folder` take on the disk, folders left out."""
    total_bytes = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            total_bytes += (Path(parent) / name).stat().st_blocks * _BLOCK_BYTES
    return total_bytes


def drop_from_cache(path: Path) -> None:
    """Let the next read of a file that nobody writes come from the disk; a request, on Linux."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
