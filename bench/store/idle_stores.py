"""Makes hundreds of thousands of idle stores fast, by recording them like the coordinator.

Writing a million stores through the client takes most of an hour, and all that remains of each is a
row in the coordinator's state file and a file that nobody opens. So only a sample is written
through the client. The other stores only get their rows, written with the coordinator's own code:
as stores that an earlier server created, made durable and released. Nobody may ever ask for one of
them, because a missing file would be reported as damage.
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
    """Record the stores `first` to `last` under `root`, where no coordinator runs. With a
    `cold_revision` they are cold.

    Raises AlreadyRunningError if a coordinator runs, StorageError.
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
    """Return the size of the coordinator's state file with its WAL."""
    folder = Layout(root).coordinator
    return sum(path.stat().st_size for path in folder.glob("state.db*"))


def disk_bytes(folder: Path) -> int:
    """Return the disk space of the files under `folder`, without folders."""
    total_bytes = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            total_bytes += (Path(parent) / name).stat().st_blocks * _BLOCK_BYTES
    return total_bytes


def drop_from_cache(path: Path) -> None:
    """Ask Linux to drop a file that nobody writes from the page cache, so that it is read
    from disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
