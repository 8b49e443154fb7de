"""The storage of a server on a file system that all servers share.

    log     `commit_log.py`, synced in a thread of its own or in the loop
    fence   a file, read after each sync and watched (`fence_watch.py`), once the server has shown
            that it reads fresh (`freshness.py`)
    others  the logs of fenced incarnations, which must show their seals (`sealed_logs.py`), reaped
            once they are not needed (`log_reaper.py`)

With a bucket, writes of level `stored` also go to a log there, and the logs that dead servers left
in the bucket are reaped too.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Final

from holdfast.persist.bucket_log.stored_writer import StoredWriter
from holdfast.persist.bucket_only.bucket_reaper import BucketReaper
from holdfast.persist.incarnation import Incarnation
from holdfast.persist.peers.coordination import Coordination
from holdfast.persist.peers.owners import Owners
from holdfast.persist.recovery.takeover import DeadLogs
from holdfast.persist.shared_disk.fence_watch import Watch
from holdfast.persist.shared_disk.freshness import Freshness
from holdfast.persist.shared_disk.job_results import FilePlacement, FileTombstones
from holdfast.persist.shared_disk.log_reaper import LogReaper
from holdfast.persist.shared_disk.opening import StoreOpener
from holdfast.persist.shared_disk.sealed_logs import SealedLogs
from holdfast.persist.shared_disk.withdrawing import Withdrawal
from holdfast.persist.storage_mode import Opener, Publish
from holdfast.persist.store.open_stores import OpenStores
from holdfast.persist.store.store import Store
from holdfast.persist.threads.run_in_thread import RunInThread
from holdfast.persist.tier.claims import Claims
from holdfast.persist.tier.tier import Tier
from holdfast.persist.write_path.pipeline import SyncedLog
from holdfast.persist.write_path.releasing import Releaser
from holdfast.protocol.control import StoreTotals
from holdfast.protocol.errors import (
    FencedError,
    StaleFileSystemError,
    StorageError,
    StoreDamagedError,
    UnavailableError,
)
from holdfast.protocol.limits import SYNC_STALL_SECONDS
from holdfast.protocol.messages import Durability
from holdfast.protocol.names import StoreId
from holdfast.protocol.serving.mishaps import Mishaps
from holdfast.protocol.serving.trouble import Trouble
from holdfast.protocol.work.cold_work import REAP
from holdfast.shared_fs.bucket_log.bucket_log import BucketLog
from holdfast.shared_fs.disk.commit_log import CommitLog
from holdfast.shared_fs.disk.dead_incarnation import let_go
from holdfast.shared_fs.disk.fence import is_open
from holdfast.shared_fs.disk.log_pace import LogPace

logger = logging.getLogger("holdfast.persist")

#: Dead logs are reaped in the background, well after the failover that made them: those of many
#: stores every so many looks, those of few at the next look.
_REAP_SECONDS: Final = 1.0
_LOOKS: Final = 5


class SharedDiskMode:
    """The storage of one incarnation; see `StorageMode`."""

    log_level = Durability.SYNCED
    stall_seconds = SYNC_STALL_SECONDS
    hands_over = True
    shares_files = True
    #: Reading the fence file is enough.
    confirm_open = None

    def __init__(
        self,
        life: Incarnation,
        sync_in_thread: RunInThread,
        watch: Watch,
        open_stores: OpenStores,
        coordination: Coordination,
        owners: Owners,
    ) -> None:
        """The fence of `life` exists. `sync_in_thread` is for its log, `watch` for its folder."""
        self._life = life
        self._watch = watch
        self._open_stores = open_stores
        self._coordination = coordination
        self._owners = owners
        self._log = CommitLog(life.disk, life.layout.log(life.server, life.id))
        self.synced_log = SyncedLog(self._log, sync_in_thread)
        self.log_pace = LogPace()
        self.dead_logs = DeadLogs(life.disk, life.layout, life.id)
        self._sealed_logs = SealedLogs(life, coordination, self.dead_logs)
        self._freshness = Freshness(life, coordination, open_stores)
        self._withdrawal = Withdrawal(life)
        self._stored: StoredWriter | None = None
        self._bucket_reaper: BucketReaper | None = None
        self._mishaps = Mishaps(logger)
        self._unreadable = Trouble(logger, "fence.unreadable", logging.ERROR)
        self._reap_failing = Trouble(logger, "log.reap_failed")

    async def begin(self) -> None:
        """Create the file beside the fence by which the server shows that it reads fresh. Raises
        StorageFailedError."""
        await self._freshness.begin()

    async def prove(self, give_up: Callable[[], bool]) -> None:
        """Show that this server reads fresh. Raises StaleFileSystemError, which leaves nothing of
        this incarnation behind, StorageError."""
        try:
            await self._freshness.prove(give_up)
        except StaleFileSystemError:
            self.leave()
            raise

    async def read_dead_logs(self) -> None:
        """Read the logs of incarnations that were fenced since the last call. Raises
        StaleFileSystemError, StorageError, UnavailableError."""
        await self._sealed_logs.read()

    async def confirm(self, stores: Sequence[tuple[StoreId, int, StoreTotals | None]]) -> None:
        """Tell the coordinator that the files of stores are durable, each at a revision."""
        await self._coordination.created(stores)

    async def tell_closed(self, stores: Sequence[tuple[StoreId, int, int, StoreTotals]]) -> None:
        """Tell the coordinator of durable files that were closed: store, epoch, revision, what they
        hold."""
        await self._coordination.closed(stores)

    async def withdraw(self, store: Store, error: StoreDamagedError) -> bool:
        """Move the file to quarantine, with the acknowledged changes that it lacks.
        Raises StorageError."""
        await self._withdrawal.withdraw(store, error)
        return False

    def opener(self, tier: Tier | None) -> Opener:
        """Return the opener of stores' files, which also fetches cold ones."""
        return StoreOpener(
            self._life,
            self.dead_logs,
            raise_epoch=self._coordination.raise_epoch,
            confirm=self._coordination.created,
            cold_stores=tier.cold_stores if tier is not None else None,
        )

    def stored_writer(self, tier: Tier | None, releaser: Releaser) -> StoredWriter | None:
        """Return the writer of the log in the bucket, or None without a bucket."""
        if tier is None:
            return None
        life = self._life
        log = BucketLog(tier.bucket, life.server, life.id)
        self._stored = StoredWriter(life, log, tier, releaser, self.log_pace)
        tier.snapshotter.on_published(self._stored.published)
        return self._stored

    def tombstones(self, tier: Tier | None) -> FileTombstones:
        """Return the tombstones beside the files."""
        return FileTombstones(self._life)

    def placement(self, publish: Publish | None) -> FilePlacement:
        """Return what renames restored files to their places."""
        return FilePlacement(self._life, self._coordination, publish)

    def work(self, tier: Tier | None, claims: Claims) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield the tasks that run beside everything else, until cancelled."""
        yield self._watch_fence()
        yield self._freshness.watch()
        yield self._reap_loop(claims)
        if tier is None or self._stored is None:
            return
        yield self._stored.run()
        self._bucket_reaper = BucketReaper(
            tier.bucket,
            self._life,
            self._owners,
            claims,
            self._is_dead,
        )
        yield self._bucket_reaper.run()

    async def end(self, left: int) -> bool:
        """Return whether everything is in durable files."""
        return not left

    async def turn_over(self) -> None:
        """Make the slots of the log in the bucket needless, and remove those of dead servers."""
        if self._stored is not None:
            await self._stored.turn_over()
        if self._bucket_reaper is not None:
            await self._bucket_reaper.run_pass()

    def leave(self) -> None:
        """Close the log and remove the folder of this incarnation."""
        self._log.close()
        life = self._life
        let_go(life.disk, life.layout, life.server, life.id)

    def close(self) -> None:
        """Do nothing: the threads belong to the caller."""

    def _is_dead(self, server: str, incarnation: str) -> bool:
        return not is_open(self._life.disk, self._life.layout.fence(server, incarnation))

    async def _watch_fence(self) -> None:
        changed = asyncio.Event()
        folder = self._life.layout.incarnation(self._life.server, self._life.id)
        with self._watch(folder, changed.set):
            while True:
                # Also at first, for a change that came before the watch.
                try:
                    self._life.gate.check()
                except FencedError:
                    raise
                except StorageError as error:
                    self._unreadable.note("reason=%s", error)
                else:
                    self._unreadable.over()
                await changed.wait()
                changed.clear()

    async def _reap_loop(self, claims: Claims) -> None:
        life = self._life
        reaper = LogReaper(life, self.dead_logs, self._owners)
        for look in itertools.count(1):
            await asyncio.sleep(_REAP_SECONDS)
            try:
                is_small = look % _LOOKS
                if not is_small:
                    reaper.end_unknown_lives()
                    await self.read_dead_logs()
                with claims.doing(REAP) as mine:
                    for claim in mine.values():
                        if not is_small:
                            await reaper.run_pass(claim)
                            continue
                        # The takeover that read it may have been another server's.
                        await self.read_dead_logs()
                        await reaper.run_small_pass(claim)
            except (StorageError, UnavailableError) as error:
                self._reap_failing.note("server=%s reason=%s", life.server, error)
            except Exception as error:  # noqa: BLE001 (a bug in one pass ends no server)
                self._mishaps.note("log.reap_failed", life.server, error)
            else:
                self._reap_failing.over()
