"""The two ways in which a server keeps what it acknowledges, behind one interface.

    shared_disk/    log, fence and store files are on a file system that all servers share
    bucket_only/    log and fence are in the bucket; files are a cache on a disk of the server's own

The composition root (`composition.py`) chooses one, and no other module knows which.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from holdfast.persist.bucket_log.stored_writer import StoredWriter
from holdfast.persist.store.store import Store
from holdfast.persist.tier.claims import Claims
from holdfast.persist.tier.tier import Tier
from holdfast.persist.write_path.output_gate import ConfirmOpen
from holdfast.persist.write_path.pipeline import SyncedLog
from holdfast.persist.write_path.releasing import Releaser
from holdfast.protocol.control import Grant, StoreTotals
from holdfast.protocol.errors import StoreDamagedError
from holdfast.protocol.messages import Durability
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk.log_pace import LogPace
from holdfast.shared_fs.disk.tombstone import Grave
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion


class Opener(Protocol):
    """Opens stores that the coordinator has granted."""

    async def open(self, store: StoreId, grant: Grant, *, to_read: bool = False) -> Store: ...


class Tombstones(Protocol):
    """The tombstones that void the files of deleted stores. Each method blocks."""

    def epoch(self, store: StoreId) -> int:
        """Return the epoch of a store's tombstone, 0 without one. Raises StorageError."""

    def put(self, store: StoreId, grave: Grave) -> None:
        """Put a tombstone, in addition to the one in the manifest. Its revision is not lower than
        that of an earlier one. Raises StorageError."""


#: Makes a closed file the newest version of its store in the bucket. Blocks, raises BucketError.
Publish = Callable[[Path, StoreId], SnapshotVersion]


class Placement(Protocol):
    """Makes a restored state the state of its store."""

    def place(self, store: StoreId, draft: Path, epoch: int) -> None:
        """Let a finished draft take effect. Blocks. Raises StorageError."""

    async def announce(self, store: StoreId, epoch: int, revision: int) -> None:
        """Tell others of a state that was placed. Raises UnavailableError."""

    async def announce_cold(self, store: StoreId, version: SnapshotVersion) -> None:
        """Tell others of a store that only the bucket has. Raises UnavailableError."""


class StorageMode(Protocol):
    """The storage of one incarnation."""

    @property
    def synced_log(self) -> SyncedLog: ...

    @property
    def log_pace(self) -> LogPace:
        """When objects of the log are put into the bucket, if there is one."""

    @property
    def log_level(self) -> Durability:
        """The level of durability that a sync of the log achieves."""

    @property
    def stall_seconds(self) -> float:
        """A sync that takes longer than this means that the disk or the bucket hangs."""

    @property
    def shares_files(self) -> bool:
        """True if the store files that this server sees are those of all servers."""

    @property
    def hands_over(self) -> bool:
        """True if stores can be handed to other servers one by one while this
        incarnation lives on."""

    @property
    def confirm_open(self) -> ConfirmOpen | None:
        """Asks if the fence is open, where reading it locally is not enough."""

    async def begin(self) -> None:
        """Prepare the storage, before the incarnation is registered. Raises StorageError."""

    async def prove(self, give_up: Callable[[], bool]) -> None:
        """Show that this server would see its fence at once, before it may own anything. Return
        early if `give_up` returns True. Raises StaleFileSystemError, StorageError."""

    async def read_dead_logs(self) -> None:
        """Read the logs of incarnations that were fenced since the last call. Raises StorageError,
        which is StaleFileSystemError if they cannot be shown to be read whole, UnavailableError."""

    async def confirm(self, stores: Sequence[tuple[StoreId, int, StoreTotals | None]]) -> None:
        """Tell the coordinator that the files of stores are durable, each at a revision and size,
        if other servers can use those files. Raises UnavailableError."""

    async def tell_closed(self, stores: Sequence[tuple[StoreId, int, int, StoreTotals]]) -> None:
        """Tell the coordinator likewise of durable files that were closed: store,
        epoch, revision, bytes."""

    async def withdraw(self, store: Store, error: StoreDamagedError) -> bool:
        """Take the damaged file of a leased store out of service. Return whether the store can be
        opened again, because nothing of it is lost. Raises StorageError."""

    def opener(self, tier: Tier | None) -> Opener:
        """Return the opener of stores. `tier` is None if the server has no bucket."""

    def stored_writer(self, tier: Tier | None, releaser: Releaser) -> StoredWriter | None:
        """Return the writer of `stored` writes to the bucket, if it is separate from the log."""

    def tombstones(self, tier: Tier | None) -> Tombstones:
        """Return the tombstones that deletions put."""

    def placement(self, publish: Publish | None) -> Placement:
        """Return what puts restored states in place."""

    def work(self, tier: Tier | None, claims: Claims) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield the tasks that run beside everything else, until cancelled. `claims` says which
        cold work is this server's."""

    async def end(self, left: int) -> bool:
        """End after the last write. `left` stores could not be made durable. Return whether that is
        a clean end. Raises BucketError."""

    async def turn_over(self) -> None:
        """Have the logs in the bucket hold nothing that is durable elsewhere. What this makes
        needless goes with later passes. Raises BucketError, FencedError, UnavailableError."""

    def leave(self) -> None:
        """Close the log after a clean end, and leave nothing unnecessary behind."""

    def close(self) -> None:
        """End the threads."""
