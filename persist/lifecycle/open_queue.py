"""From a store that somebody asked for to one that is open, or a refusal.

    wanted ──▶ room made ──▶ coordinator asked, many at once ──▶ dead logs read ──▶ opened, a few at
    a time

A store that takes long, because gigabytes of it are checked or copied, holds up none that come
after it: it gives its place among the few back.

What waits for a store is kept by `open_stores.py` and handed back in the order of arrival. A store
that cannot be opened now (its file is locked, the bucket or the coordinator is away, it is cold) is
asked for again later; everything else that goes wrong is the answer of whoever waits. A server that
opens nothing any more releases what it was granted and sends the clients elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Final, Protocol

from holdfast.persist.peers.coordination import Coordination
from holdfast.persist.store.open_stores import OpenStores, WantedStore
from holdfast.persist.store.store import Store
from holdfast.persist.tier.cold_stores import StoreIsColdError
from holdfast.persist.tier.tier import Tier
from holdfast.persist.write_path.checkpointing import Checkpointer
from holdfast.persist.write_path.inbox import Inbox
from holdfast.protocol.control import Grant
from holdfast.protocol.errors import (
    BusyError,
    FencedError,
    HoldfastError,
    NotOwnerError,
    UnavailableError,
    error_from_wire,
)
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.bucket.bucket_errors import BucketUnavailableError

logger = logging.getLogger("holdfast.persist")

#: Stores asked for in one `open` request.
_OPEN_BATCH: Final = 512
#: Files being opened at once: bounds the syncs of a takeover that queue on one disk.
_PARALLEL_OPENS: Final = 8
#: An opening that takes longer than this (a large file is checked or copied) lets another begin.
_LONG_OPEN_SECONDS: Final = 0.25
#: Stores that do not exist and were given back, without a word yet that they are: beyond it they
#: stay this server's until it ends.
_MAX_GIVEN_BACK: Final = 4096
#: How long stores that are asked for wait until others can be closed for them.
_ROOM_SECONDS: Final = 2.0
_ROOM_LOOK_SECONDS: Final = 0.01
#: Between two tries to open a file whose lock another process still holds.
_LOCK_RETRY_SECONDS: Final = 0.05
_RETRY_SECONDS: Final = 0.1


class Opener(Protocol):
    """`StoreOpener`, or `StoreRestorer` without a shared file system."""

    async def open(self, store: StoreId, grant: Grant, *, to_read: bool = False) -> Store: ...


class Opens:
    """What is being opened, and who wants nothing to be: `async with opens` waits for that to end,
    and lets nothing begin meanwhile."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()
        #: Set by the next one that ends, and then replaced.
        self._next_end = asyncio.Event()

    @property
    def count(self) -> int:
        """Stores that are being opened."""
        return self._count

    @property
    def may_begin(self) -> asyncio.Lock:
        """Held while openings are begun."""
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
        """Return when fewer than `count` are being opened."""
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
    """So many at once, but for those that take long."""

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


class OpenQueue:
    """Opens the stores of one incarnation. `run` it in a task."""

    def __init__(
        self,
        *,
        server: str,
        open_stores: OpenStores,
        inbox: Inbox,
        coordination: Coordination,
        checkpointer: Callable[[], Checkpointer],
        opener: Callable[[], Opener],
        tier: Callable[[], Tier | None],
        refresh_logs: Callable[[], Awaitable[None]],
        opens_nothing: Callable[[], bool],
        release: Callable[[list[tuple[StoreId, int]]], Awaitable[object]],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        max_open_stores: int,
    ) -> None:
        """What is asked for by a function is made later than this. `refresh_logs` reads the logs of
        incarnations that were fenced since; `release` tells the coordinator of stores that it
        granted and that are not open."""
        self._server = server
        self._open_stores = open_stores
        self._inbox = inbox
        self._coordination = coordination
        self._checkpointer = checkpointer
        self._opener = opener
        self._tier = tier
        self._refresh_logs = refresh_logs
        self._opens_nothing = opens_nothing
        self._release = release
        self._spawn = spawn
        self._max_open_stores = max_open_stores
        self.opens = Opens()
        self._places = _Places(_PARALLEL_OPENS)
        self.has_opened = False
        #: The epochs of stores that were given back and may still be this server's: a release that
        #: is late must not be of the epoch that they are opened with again.
        self._given_back: dict[StoreId, int] = {}
        #: Those of them that the coordinator is yet to be told of.
        self._untold: list[StoreId] = []

    def give_back(self, store: Store) -> None:
        """A store was closed that does not exist, so nobody has to own it."""
        if len(self._given_back) >= _MAX_GIVEN_BACK:
            return
        self._given_back[store.id] = store.epoch
        self._untold.append(store.id)
        if len(self._untold) == 1:
            self._spawn(self._tell_given_back())

    async def _tell_given_back(self) -> None:
        # What is closed in one pass goes in one request.
        await asyncio.sleep(0)
        while untold := self._untold[:_OPEN_BATCH]:
            stores = [(each, self._given_back[each]) for each in untold if each in self._given_back]
            try:
                await self._coordination.release(stores, nothing=True)
            except HoldfastError as error:
                # They stay this server's, or not: whoever opens one again asks for a higher epoch.
                logger.info("store.not_given_back stores=%d reason=%s", len(stores), error)
            else:
                for store, epoch in stores:
                    if self._given_back.get(store) == epoch:
                        del self._given_back[store]
            del self._untold[: len(untold)]

    def ask_again(self, wanted: WantedStore) -> None:
        """What kept a store from being opened may be over."""
        self._open_stores.ask_again([wanted])

    def refuse(self, store: StoreId, error: HoldfastError) -> None:
        """Answer what waits for a store with an error."""
        tier = self._tier()
        if tier is not None:
            tier.cold_stores.forget(store)
        self._inbox.refuse_waiting(self._open_stores.refused(store), error)

    async def run(self) -> None:
        """Open what is wanted until cancelled. Raises FencedError: the end."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._open_stores.wanted.wait()
                self._open_stores.wanted.clear()
                batch = max(1, min(_OPEN_BATCH, self._max_open_stores // 4))
                while True:
                    # What is taken waits for those before it, so turns are taken as late as can be.
                    await self.opens.wait_below(_OPEN_BATCH)
                    wanted = self._open_stores.take_wanted(batch)
                    if not wanted:
                        break
                    async with self.opens.may_begin:
                        await self._open_batch(wanted, tasks)

    async def _open_batch(self, wanted: list[WantedStore], tasks: asyncio.TaskGroup) -> None:
        try:
            await self._make_room(len(wanted))
            wanted = self._free(wanted)
            if not wanted:
                return
            grants = await self._coordination.open(wanted, self._given_back)
            for each, grant in zip(wanted, grants, strict=True):
                if grant[0] is not None:
                    self._given_back.pop(each.store, None)
            if self._opens_nothing():
                await self._turn_away(wanted, grants)
                return
            await self._refresh_logs()
        except BusyError as error:
            for each in wanted:
                self.refuse(each.store, error)
            return
        except (UnavailableError, BucketUnavailableError) as error:
            # Whoever waits gets its answer when the coordinator is back, or gives up by itself.
            logger.warning("store.open_waits stores=%d reason=%s", len(wanted), error)
            await asyncio.sleep(_RETRY_SECONDS)
            self._open_stores.ask_again(wanted)
            return
        except FencedError:
            raise
        except HoldfastError as error:
            for each in wanted:
                self.refuse(each.store, error)
            return
        for each, grant in zip(wanted, grants, strict=True):
            if grant[0] is None:
                self.refuse(each.store, error_from_wire(grant[1], grant[2]))
            else:
                self.opens.begun()
                opening = tasks.create_task(self._open_store(each, Grant(*grant[:5])))
                opening.add_done_callback(lambda task: self.opens.ended())

    def _free(self, wanted: list[WantedStore]) -> list[WantedStore]:
        """Return what can be opened now; the rest has its turn once the tier is done with it.
        Before the coordinator is asked: it may be about to hear that a file leaves, and what it has
        granted before that says that there is one."""
        leases = self._open_stores.leases
        leased = [each for each in wanted if leases.is_leased(each.store)]
        for each in leased:
            self._spawn(self._open_when_free(each))
        return [each for each in wanted if each not in leased]

    async def _make_room(self, count: int) -> None:
        """Close what is not in use until `count` more stores may be open. Raises BusyError
        if they are all in use, or cannot be made durable."""
        clock = asyncio.get_running_loop().time
        give_up_at = clock() + _ROOM_SECONDS
        while (excess := self._excess(count)) > 0:
            if await self._checkpointer().make_room(excess, clock()):
                continue
            if clock() > give_up_at:
                raise BusyError(what=f"the open stores of server {self._server!r}")
            await asyncio.sleep(_ROOM_LOOK_SECONDS)

    def _excess(self, count: int) -> int:
        opened = self._open_stores.open_count + self.opens.count
        return opened + count - self._max_open_stores

    async def _turn_away(self, wanted: list[WantedStore], grants: list[list[Any]]) -> None:
        """Release what was asked of this server but is not open, and send the clients elsewhere."""
        granted = []
        for each, grant in zip(wanted, grants, strict=True):
            if grant[0] is not None:
                granted.append((each.store, int(grant[0])))
                # Open at the most as one that nobody ever wrote to, for reads.
                opened = self._open_stores.find(each.store)
                if opened is not None:
                    if opened.file is not None:
                        opened.file.abandon()
                    self._open_stores.closed(opened)
        if granted:
            await self._release(granted)
        error = NotOwnerError(server=self._server)
        for each in wanted:
            self.refuse(each.store, error)

    async def _open_store(self, wanted: WantedStore, grant: Grant) -> None:
        tier = self._tier()
        try:
            async with self._places.taken():
                # A new store opens without waiting for anything; hundreds of them in one turn of
                # the loop would keep heartbeats back.
                await asyncio.sleep(0)
                store = await self._opener().open(wanted.store, grant, to_read=not wanted.create)
        except (UnavailableError, BucketUnavailableError):
            self._spawn(self._open_later(wanted))
            return
        except StoreIsColdError:
            assert tier is not None
            self._spawn(tier.cold_stores.bring(wanted, grant))
            return
        except FencedError:
            raise
        except HoldfastError as error:
            logger.error("store.open_failed store=%s reason=%s", wanted.store, error)
            self.refuse(wanted.store, error)
            return
        store.used_at = asyncio.get_running_loop().time()
        self.has_opened = True
        earlier = self._open_stores.find(wanted.store)
        if earlier is not None and earlier.file is not None:
            assert earlier.file.in_memory
            earlier.file.abandon()
        self._inbox.submit_again(self._open_stores.opened(store))

    async def _open_later(self, wanted: WantedStore) -> None:
        """Another process still has the file, or the coordinator's answer is to be had later."""
        await asyncio.sleep(_LOCK_RETRY_SECONDS)
        self.ask_again(wanted)

    async def _open_when_free(self, wanted: WantedStore) -> None:
        """The file is being snapshotted, or leaves."""
        await self._open_stores.leases.free(wanted.store)
        self.ask_again(wanted)
