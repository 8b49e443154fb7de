"""The two ways in which a server keeps what it acknowledges, behind one interface.

    shared_disk/    log, fence and store files are on a file system that all servers share
    bucket_only/    log and fence are in the bucket; files are a cache on a disk of the server's own

Which one it is, is decided where a server is composed (`composition.py`), and known nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from holdfast.persist.bucket_log.stored_writer import StoredWriter
from holdfast.persist.store.store import Store
from holdfast.persist.tier.tier import Tier
from holdfast.persist.write_path.output_gate import ConfirmOpen
from holdfast.persist.write_path.pipeline import SyncedLog
from holdfast.persist.write_path.releasing import Releaser
from holdfast.protocol.control import Grant
from holdfast.protocol.errors import StoreDamagedError
from holdfast.protocol.messages import Durability
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk.tombstone import Grave
from holdfast.shared_fs.snapshots.manifest import SnapshotVersion


class DeadLogReader(Protocol):
    """The logs of fenced incarnations."""

    def refresh(self) -> None:
        """Read the logs of incarnations that were fenced since the last call. Blocking. Raises
        StorageError."""


class Opener(Protocol):
    """Opens stores that the coordinator has granted."""

    async def open(self, store: StoreId, grant: Grant, *, to_read: bool = False) -> Store: ...


class Tombstones(Protocol):
    """The tombstones that void the files of deleted stores. Each method blocks."""

    def epoch(self, store: StoreId) -> int:
        """Return the epoch of a store's tombstone, 0 without one. Raises StorageError."""

    def put(self, store: StoreId, grave: Grave) -> None:
        """Put a tombstone, in addition to the one in the manifest. Raises StorageFailedError."""


#: Makes a closed file the newest version of its store in the bucket. Blocks, raises BucketError.
Publish = Callable[[Path, StoreId], SnapshotVersion]


class Placement(Protocol):
    """Makes a restored state the state of its store."""

    def place(self, store: StoreId, draft: Path, epoch: int) -> None:
        """Let a finished draft take effect. Blocks. Raises StorageError."""

    async def announce(self, store: StoreId, epoch: int, revision: int) -> None:
        """Tell others of a state that was placed. Raises UnavailableError."""


class StorageMode(Protocol):
    """The storage of one incarnation."""

    @property
    def synced_log(self) -> SyncedLog: ...

    @property
    def dead_logs(self) -> DeadLogReader: ...

    @property
    def log_level(self) -> Durability:
        """What a sync of the log achieves."""

    @property
    def stall_seconds(self) -> float:
        """A sync that takes longer is one of a disk, or a bucket, that hangs."""

    @property
    def hands_over(self) -> bool:
        """Stores can be given to other servers one by one, while this incarnation lives on."""

    @property
    def confirm_open(self) -> ConfirmOpen | None:
        """Asks if the fence is open, where looking at it does not."""

    async def begin(self) -> None:
        """Do what has to be done before the incarnation is registered. Raises StorageError."""

    async def confirm(self, stores: Sequence[tuple[StoreId, int]]) -> None:
        """Tell the coordinator that the files of stores are durable at a revision each, if that
        says anything of what others can have. Raises UnavailableError."""

    async def tell_closed(self, stores: Sequence[tuple[StoreId, int, int]]) -> None:
        """Tell it likewise of files that were closed, durable: store, epoch, revision."""

    async def withdraw(self, store: Store, error: StoreDamagedError) -> bool:
        """Take the damaged file of a store, which is leased, out of service. Returns if the store
        can be opened anew: nothing of it is lost. Raises StorageError."""

    def opener(self, tier: Tier | None) -> Opener:
        """Return what opens stores. `tier` is None of a server without a bucket."""

    def stored_writer(self, tier: Tier | None, releaser: Releaser) -> StoredWriter | None:
        """Return the way into the bucket of writes that are to be `stored`, if that is beside the
        log."""

    def tombstones(self, tier: Tier | None) -> Tombstones:
        """Return the tombstones that deletions put."""

    def placement(self, publish: Publish) -> Placement:
        """Return what puts restored states in place."""

    def work(self, tier: Tier | None) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield what is to run beside everything else, until cancelled."""

    async def end(self, left: int) -> bool:
        """Nothing more is written; so many stores could not be made durable. Returns if that is a
        clean end. Raises BucketError."""

    def leave(self) -> None:
        """Close the log, after a clean end, and leave nothing behind that nobody needs."""

    def close(self) -> None:
        """End the threads."""
