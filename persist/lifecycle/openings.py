"""The openings of a server: each store that the coordinator has granted becomes
open, or is refused.

A few stores are opened at once. One that takes long, because gigabytes are checked or copied, gives
up its place so that it delays no other. A store that cannot be opened now is asked for again later:
its file is locked, it is cold, or the bucket or the coordinator is away. Any other failure is the
answer to the operations that wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from holdfast.persist.storage_mode import Opener
from holdfast.persist.store.open_stores import OpenStores, WantedStore
from holdfast.persist.threads.spawned_tasks import SpawnedTasks
from holdfast.persist.tier.cold_stores import ColdStores, StoreIsColdError
from holdfast.persist.write_path.inbox import Inbox
from holdfast.protocol.control import Grant
from holdfast.protocol.errors import FencedError, HoldfastError, UnavailableError
from holdfast.protocol.monitoring import metrics
from holdfast.protocol.monitoring.counting import Statistics
from holdfast.protocol.names import StoreId
from holdfast.protocol.serving.trouble import Trouble
from holdfast.shared_fs.bucket.bucket_errors import BucketUnavailableError

logger = logging.getLogger("holdfast.persist")

#: How many files are opened at once: bounds the syncs of takeovers that queue on one disk.
_PARALLEL_OPENS: Final = 8
#: An opening that takes longer than this, because a large file is checked or copied,
#: lets another begin.
_LONG_OPEN_SECONDS: Final = 0.25
#: The delay before trying again to open a file that another process has locked.
_LOCK_RETRY_SECONDS: Final = 0.05


class Opens:
    """Counts the openings. `async with opens` waits until there are none, and keeps others from
    beginning meanwhile."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()
        #: The next opening that ends sets it; then it is replaced.
        self._next_end = asyncio.Event()

    @property
    def count(self) -> int:
        """How many stores are being opened."""
        return self._count

    @property
    def may_begin(self) -> asyncio.Lock:
        """Held while openings begin."""
        return self._lock

    async def __aenter__(self) -> None:
        await self._lock.acquire()
        try:
            await self._none.wait()
        except BaseException:
            self._lock.release()
            raise

    async def __aexit__(self, *exception: object) -> None:
        self._lock.release()

    async def wait_below(self, count: int) -> None:
        """Return when fewer than `count` stores are being opened."""
        while self._count >= count:
            await self._next_end.wait()

    def begun(self) -> None:
        self._count += 1
        self._none.clear()

    def ended(self) -> None:
        self._count -= 1
        self._next_end.set()
        self._next_end = asyncio.Event()
        if not self._count:
            self._none.set()


class _Places:
    """Limits how many run at once, without counting those that take long."""

    def __init__(self, count: int) -> None:
        self._free = asyncio.Semaphore(count)

    @contextlib.asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        await self._free.acquire()
        given_back = False

        def give_back() -> None:
            nonlocal given_back
            given_back = True
            self._free.release()

        timer = asyncio.get_running_loop().call_later(_LONG_OPEN_SECONDS, give_back)
        try:
            yield
        finally:
            timer.cancel()
            if not given_back:
                give_back()


class Openings:
    """Opens the stores of one incarnation."""

    def __init__(
        self,
        open_stores: OpenStores,
        inbox: Inbox,
        opener: Opener,
        read_dead_logs: Callable[[], Awaitable[None]],
        cold_stores: ColdStores | None,
        tasks: SpawnedTasks,
        statistics: Statistics,
    ) -> None:
        """`cold_stores` is None if the server has no bucket."""
        self._open_stores = open_stores
        self._inbox = inbox
        self._opener = opener
        #: Reads the logs of incarnations that were fenced since the last call. Raises
        #: StorageError, UnavailableError.
        self.read_dead_logs = read_dead_logs
        self._cold_stores = cold_stores
        self._tasks = tasks
        self.opens = Opens()
        self._places = _Places(_PARALLEL_OPENS)
        self.has_opened = False
        self._failing = Trouble(logger, "store.open_failed", logging.ERROR)
        self._opened = statistics.counter(metrics.OPENED)
        self._durations = statistics.histogram(metrics.OPENINGS)

    def begin(self, wanted: WantedStore, grant: Grant, tasks: asyncio.TaskGroup) -> None:
        """Open a granted store, in a task."""
        self.opens.begun()
        opening = tasks.create_task(self._open_store(wanted, grant))
        opening.add_done_callback(self._ended)

    def ask_when_free(self, wanted: WantedStore) -> None:
        """Ask for a store again once the lease on its file ends."""
        self._tasks.spawn(self._open_when_free(wanted))

    def refuse(self, store: StoreId, error: HoldfastError) -> None:
        """Refuse the operations that wait for a store."""
        if self._cold_stores is not None:
            self._cold_stores.forget(store)
        self._inbox.refuse_waiting(self._open_stores.refused(store), error)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.opens.ended()

    async def _open_store(self, wanted: WantedStore, grant: Grant) -> None:
        began_at = asyncio.get_running_loop().time()
        try:
            async with self._places.taken():
                # Opening a new store waits for nothing, and hundreds of them in one turn of the
                # loop would delay heartbeats.
                await asyncio.sleep(0)
                store = await self._opener.open(wanted.store, grant, to_read=not wanted.create)
        except (UnavailableError, BucketUnavailableError):
            self._tasks.spawn(self._open_later(wanted))
            return
        except StoreIsColdError:
            assert self._cold_stores is not None
            self._tasks.spawn(self._cold_stores.bring(wanted, grant))
            return
        except FencedError:
            raise
        except HoldfastError as error:
            self._failing.note("store=%s reason=%s", wanted.store, error, of=wanted.store)
            self.refuse(wanted.store, error)
            return
        self._failing.over(wanted.store)
        store.used_at = asyncio.get_running_loop().time()
        self._opened.value += 1
        self._durations.observe(store.used_at - began_at)
        self.has_opened = True
        earlier = self._open_stores.find(wanted.store)
        if earlier is not None and earlier.file is not None:
            assert earlier.file.in_memory
            earlier.file.abandon()
        arrivals = self._open_stores.opened(store)
        if arrivals:
            self._inbox.submit_again(arrivals)

    async def _open_later(self, wanted: WantedStore) -> None:
        """Ask again: another process still has the file, or the coordinator or
        the bucket is away."""
        await asyncio.sleep(_LOCK_RETRY_SECONDS)
        self._open_stores.ask_again([wanted])

    async def _open_when_free(self, wanted: WantedStore) -> None:
        """Ask again after the lease: the file is being snapshotted or removed."""
        await self._open_stores.leases.free(wanted.store)
        self._open_stores.ask_again([wanted])
