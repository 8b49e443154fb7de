"""Reads that would wait for the disk wait beside the loop, and readers that are behind have what
comes next brought into memory meanwhile. The shell around `readers.py`.

A read of a large stream asks before it runs. If what it wants is not known to be in memory, it is
put aside like one that needs the archive: a thread reads those bytes of the file, and the read goes
through the pipeline once more, so order and gate are those of any other read. The bytes themselves
are dropped: what counts is that Linux has them now. Invariants:

- Nothing that is fetched is ever part of an answer. If all of this is wrong, or off, reads are as
  right as without, and wait for the disk in the loop.
- Waiting reads count as part of the inbox, which bounds them. A read that waits for longer than
  `PREFETCH_SECONDS` is refused, whether it waits for the disk or for a thread. A read waits for
  what is fetched for it once, for fetches of others `_MAX_WAITS` times at most, and then runs: it
  comes to an end however little memory the host has.
- What is fetched ahead and still held is bounded, for the server and for a tenant, by
  `MAX_PREFETCHED_BYTES`; what a read itself needs is fetched in any case, as it would be anyway.
- `PARALLEL_FETCHES` threads read. Tenants take turns, and what a read waits for goes first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final, Protocol

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.operations.read_rows import ReadBounds
from holdfast.persist.prefetch.asked import WantedRange, asked, next_seq
from holdfast.persist.prefetch.fetching import (
    FetchQueue,
    FetchResult,
    PrefetchedStore,
    RunningFetch,
    WaitingRead,
)
from holdfast.persist.prefetch.readers import Fetch, StoreReaders
from holdfast.persist.store.open_stores import Arrival
from holdfast.persist.store.states import OpenState
from holdfast.persist.store.store import Store
from holdfast.persist.threads.run_in_thread import RunInThread
from holdfast.protocol.errors import HoldfastError, StorageError, UnavailableError
from holdfast.protocol.limits import (
    MAX_PREFETCH_STORES,
    MAX_PREFETCHED_BYTES,
    PREFETCH_SECONDS,
    PREFETCHED_STORE_BYTES,
    RECENT_BYTES,
)
from holdfast.protocol.monitoring import metrics
from holdfast.protocol.names import StoreId
from holdfast.protocol.serving.fair_queue import SharedRoom
from holdfast.protocol.serving.trouble import Trouble
from holdfast.shared_fs.read_ahead.bringing import CachedPiece
from holdfast.shared_fs.read_ahead.host_cache import CachedFile, HostCache

logger = logging.getLogger("holdfast.persist")

PARALLEL_FETCHES: Final = 2
_MAX_WAITS: Final = 4
_SWEEP_SECONDS: Final = 1.0
#: What a row of the table takes beside value and headers, about.
_ROW_BYTES: Final = 16


class ReadsInbox(Protocol):
    """Where reads go back to."""

    def submit_again(self, arrivals: list[Arrival]) -> None: ...
    def refuse_waiting(self, arrivals: Iterable[Arrival], error: HoldfastError) -> None: ...


class Prefetcher:
    """Reading ahead for the readers of one incarnation."""

    def __init__(
        self,
        life: Incarnation,
        cache: HostCache | None,
        inbox: ReadsInbox,
        run_in_thread: RunInThread,
    ) -> None:
        """`cache` is None where nothing is known of the host's memory: then this does nothing."""
        disk = life.disk
        self._cache = None if disk.remote or disk.direct else cache
        self._inbox = inbox
        self._run_in_thread = run_in_thread
        self._stores: dict[StoreId, PrefetchedStore] = {}
        self._queue = FetchQueue()
        self._room = SharedRoom(MAX_PREFETCHED_BYTES)
        self._places = SharedRoom(MAX_PREFETCH_STORES)
        self._leaving: list[tuple[CachedFile, CachedPiece]] = []
        self._has_leaving = asyncio.Event()
        #: How many reads are put aside.
        self.waiting_count = 0
        self._failing = Trouble(logger, "store.prefetch_failed")
        statistics = life.statistics
        self._hits = statistics.counter(metrics.PREFETCH_HITS)
        self._misses = statistics.counter(metrics.PREFETCH_MISSES)
        self._disk_waits = statistics.counter(metrics.READ_DISK_WAITS)
        self._lost = statistics.counter(metrics.PREFETCH_LOST)
        self._fetched_bytes = statistics.counter(metrics.PREFETCHED)
        self._given_back_bytes = statistics.counter(metrics.PREFETCH_GIVEN_BACK)
        statistics.read(metrics.PREFETCH_HELD, lambda: self.held_bytes)
        statistics.read(metrics.PREFETCH_WINDOWS, lambda: self.window_bytes)

    @property
    def store_count(self) -> int:
        """How many stores have readers."""
        return len(self._stores)

    @property
    def held_bytes(self) -> int:
        """What is fetched ahead, or being so, and not given back."""
        return self._room.taken

    @property
    def window_bytes(self) -> int:
        """The windows of all readers."""
        return sum(each.readers.window_bytes for each in self._stores.values())

    def concerns(self, store: Store) -> bool:
        """Tell if reads of a store may wait for the disk."""
        return self._cache is not None and store.bytes >= PREFETCHED_STORE_BYTES

    def disk_reads(self) -> int:
        """Return how much the loop's thread has read from disks. Its unit is not told."""
        return 0 if self._cache is None else self._cache.disk_reads()

    # Before and after a read
    def is_ready(self, store: Store, arrival: Arrival, bounds: ReadBounds) -> bool:
        """Tell if a group of reads may run now. If not, it comes back to the inbox."""
        of = self._known(store)
        if of is None or of.readers.is_trusted or of.is_given_up or arrival.waits >= _MAX_WAITS:
            return True
        file = store.contents.file
        if file is None or not file.is_awake:
            return True
        wanted = asked(arrival.group.operations, file.meta.last_seq, bounds.page_rows)
        fetches = self._lacking(of, wanted, bounds)
        if not fetches:
            self._hits.value += len(wanted) > 0
            return True
        self._misses.value += 1
        self.waiting_count += 1
        read = WaitingRead(arrival, len(fetches), asyncio.get_running_loop().time())
        for fetch in fetches:
            running = of.fetches.get(fetch)
            if running is None:
                running = self._begin(of, fetch)
            else:
                read.is_sure = False
            running.waiting.append(read)
            if not running.has_begun:
                # Or it moves up: nobody has waited for it before.
                self._queue.push(running)
        return False

    def has_read(
        self, store: Store, operations: list[list[Any]], results: list[Any], disk_reads: int
    ) -> None:
        """Note the results of the first of `operations`, before which `disk_reads` were counted."""
        waited = self.disk_reads() != disk_reads
        self._disk_waits.value += waited
        of = self._stores.get(store.id)
        if of is None or of.store is not store or of.is_given_up:
            return
        if waited:
            of.readers.waited_for_disk()
        if of.readers.is_trusted:
            return
        now = asyncio.get_running_loop().time()
        file = store.contents.file
        last_seq = 0 if file is None else file.meta.last_seq
        for operation, result in zip(operations, results, strict=False):
            places = asked([operation], last_seq, 1)
            # Nobody goes on where seqs here and there end.
            after = next_seq(operation, result) if len(places) == 1 else None
            if after is not None:
                size_bytes = (after - places[0].start_seq) * of.readers.message_bytes
                of.readers.has_read(places[0].start_seq, after, size_bytes, now)
        self._go_ahead(of)

    def _known(self, store: Store) -> PrefetchedStore | None:
        """Return what is known of a store; None if its reads cannot be prefetched."""
        of = self._stores.get(store.id)
        if of is not None and of.store is store:
            return of
        file = store.contents.file
        if (
            not store.is_stream
            or file is None
            or file.in_memory
            or not file.is_awake
            or store.anchor is not None
            or of is not None
            or not self._places.has(store.id.tenant, 1)
        ):
            return None
        try:
            root = file.messages_root()
        except StorageError:
            # The read itself will find out.
            return None
        message_bytes = store.bytes // max(1, store.count) + _ROW_BYTES
        of = PrefetchedStore(store, StoreReaders(message_bytes), root, file.meta.last_seq)
        self._stores[store.id] = of
        self._places.take(store.id.tenant, 1)
        return of

    def _lacking(
        self, of: PrefetchedStore, wanted: Sequence[WantedRange], bounds: ReadBounds
    ) -> list[Fetch]:
        """Return what must be fetched before a read that wants this."""
        now = asyncio.get_running_loop().time()
        message_bytes = of.readers.message_bytes
        file = of.store.contents.file
        assert file is not None
        recent_seq = max(of.first_known_seq, file.meta.last_seq - RECENT_BYTES // message_bytes)
        lacking: dict[Fetch, None] = {}
        for start_seq, row_count in wanted:
            if start_seq > recent_seq:
                continue
            size_bytes = min(bounds.page_bytes, row_count * message_bytes)
            found = of.readers.asks(start_seq, size_bytes, now)
            if isinstance(found, list):
                offsets = _probes(found, start_seq, start_seq + size_bytes // message_bytes)
                if of.file is None or of.file.holds(offsets):
                    continue
                self._lost.value += 1
                found = of.readers.lost(start_seq, size_bytes, found)
                self._account(of)
            lacking[found] = None
        return list(lacking)

    # Fetches
    async def run(self) -> None:
        """Make fetches until cancelled, if there may be any."""
        if self._cache is None:
            return
        async with asyncio.TaskGroup() as tasks:
            for _ in range(PARALLEL_FETCHES):
                tasks.create_task(self._work())
            tasks.create_task(self._sweep())
            tasks.create_task(self._let_go())

    async def _work(self) -> None:
        while True:
            await self._make(await self._queue.take())

    def _begin(self, of: PrefetchedStore, fetch: Fetch) -> RunningFetch:
        running = of.fetches[fetch] = RunningFetch(of, fetch)
        of.readers.fetches(fetch)
        if fetch.is_ahead:
            self._room.take(of.store.id.tenant, fetch.size_bytes)
        return running

    def _go_ahead(self, of: PrefetchedStore) -> None:
        """Fetch a step ahead of a reader that wants it, if there is room."""
        if of.is_given_up:
            return
        fetch = of.readers.ahead()
        if fetch is None or not self._room.has(of.store.id.tenant, fetch.size_bytes):
            return
        self._queue.push(self._begin(of, fetch))

    async def _make(self, running: RunningFetch) -> None:
        of, fetch, cache = running.of, running.fetch, self._cache
        assert cache is not None
        store = of.store.id
        try:
            async with asyncio.timeout(PREFETCH_SECONDS):
                brought: FetchResult = await self._run_in_thread(lambda: of.brings(cache, fetch))
        except TimeoutError:
            self._failing.note("store=%s reason=%s", store, "the disk is slow", of=store)
            brought = FetchResult(of.file, (), 0, of.failures + 1)
            self._refuse(of, running.waiting)
        else:
            self._failing.over(store)
        of.ended(fetch, brought)
        self._end(running, brought.pieces)

    def _end(self, running: RunningFetch, brought: Sequence[CachedPiece]) -> None:
        of, fetch = running.of, running.fetch
        del of.fetches[fetch]
        if fetch.is_ahead:
            self._room.give_back(of.store.id.tenant, fetch.size_bytes)
        self._fetched_bytes.value += sum(piece.disk_bytes for piece in brought)
        self._give_back(of, of.readers.fetched(fetch, brought))
        for read in running.waiting:
            read.left -= 1
            if read.left == 0:
                self.waiting_count -= 1
                arrival = read.arrival
                waits = _MAX_WAITS if read.is_sure else arrival.waits + 1
                self._inbox.submit_again([arrival._replace(waits=waits)])
        self._pass_on(of)
        self._go_ahead(of)

    def _refuse(self, of: PrefetchedStore, reads: Iterable[WaitingRead]) -> None:
        """Refuse those of these reads that still wait."""
        refused = [read for read in reads if read.left > 0]
        for read in refused:
            read.left = 0
        self.waiting_count -= len(refused)
        error = UnavailableError(reason=f"the disk does not answer reads of {of.store.id}")
        self._inbox.refuse_waiting([read.arrival for read in refused], error)

    # What nobody needs any more
    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            late = asyncio.get_running_loop().time() - PREFETCH_SECONDS
            for of in list(self._stores.values()):
                self._pass_on(of)
                for running in of.fetches.values():
                    self._refuse(of, [read for read in running.waiting if read.since < late])
                if of.fetches:
                    continue
                if of.store.state is OpenState.CLOSED or not of.readers.readers:
                    self._forget(of)

    def _pass_on(self, of: PrefetchedStore) -> None:
        self._give_back(of, of.readers.pass_on(asyncio.get_running_loop().time()))

    def _forget(self, of: PrefetchedStore) -> None:
        of.readers.pieces.clear()
        self._account(of)
        del self._stores[of.store.id]
        self._places.give_back(of.store.id.tenant, 1)

    def _give_back(self, of: PrefetchedStore, pieces: Iterable[CachedPiece]) -> None:
        if of.file is not None:
            self._leaving += [(of.file, piece) for piece in pieces]
        if self._leaving:
            self._has_leaving.set()
        self._account(of)

    async def _let_go(self) -> None:
        """Let what nobody needs any more leave memory, until cancelled: in a thread, since Linux
        may wait for all processors meanwhile."""
        while True:
            await self._has_leaving.wait()
            self._has_leaving.clear()
            leaving, self._leaving = self._leaving, []
            await self._run_in_thread(partial(_give_back, leaving))
            self._given_back_bytes.value += sum(piece.disk_bytes for _, piece in leaving)

    def _account(self, of: PrefetchedStore) -> None:
        """Let the room of all have what a store holds."""
        held_bytes, tenant = of.readers.held_bytes, of.store.id.tenant
        self._room.give_back(tenant, of.held_bytes)
        self._room.take(tenant, held_bytes)
        of.held_bytes = held_bytes


def _give_back(leaving: list[tuple[CachedFile, CachedPiece]]) -> None:
    for file, piece in leaving:
        file.give_back(piece.offset, piece.size_bytes)


def _probes(pieces: Sequence[CachedPiece], start_seq: int, end_seq: int) -> list[int]:
    """Return offsets in `pieces` where the messages of a range begin and end, about."""
    offsets = []
    for piece in pieces:
        last_seq = min(piece.last_seq, max(end_seq, piece.first_seq))
        count = max(1, piece.last_seq - piece.first_seq + 1)
        for seq in (max(start_seq, piece.first_seq), last_seq):
            part = (seq - piece.first_seq) / count
            offsets.append(piece.offset + int(part * (piece.size_bytes - 1)))
    return offsets
