"""Archived messages are fetched before those who page through them ask. The shell around
`archive_readers.py`.

    ahead = ArchiveAhead(archive, life)
    ahead.at_hand(store)                  # the bodies that a read may use
    await ahead.bodies(id, messages)      # what it lacks, some of which may be on its way

A read of archived messages is put aside until their bodies are there, and then runs again. Here
they are there before: the read runs once, as if they were in the file. Invariants:

- A body is named by seq and revision, and was compared with its checksum. The read looks in the
  file which of them the store still has, so nothing has to be invalidated.
- What is held or on its way is bounded by `MAX_ARCHIVE_AHEAD_BYTES` for a server, half of that for
  a tenant, and streams with readers by `MAX_PREFETCH_STORES` likewise. Without room a reader waits
  for each page, as the first ones of each reader do.
- The loop waits for nothing here. A table or a server of the archive that is slow or away holds
  back tasks of their own, none that a read waits for.
- What a read waits for is not fetched twice: it joins a fetch that has begun, and does itself what
  has not.
"""

from __future__ import annotations

import asyncio
import logging
from collections import ChainMap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.persist.archive_reading.archive_access import ArchiveAccess
from holdfast.persist.incarnation import Incarnation
from holdfast.persist.prefetch.archive_readers import AheadFetch, AheadPart, ArchiveReaders
from holdfast.persist.prefetch.asked import asked, next_seq
from holdfast.persist.store.states import OpenState
from holdfast.persist.store.store import Store
from holdfast.protocol.errors import HoldfastError, StorageError
from holdfast.protocol.limits import (
    ARCHIVE_READ_SECONDS,
    KIB,
    MAX_ARCHIVE_AHEAD_BYTES,
    MAX_PREFETCH_STORES,
    PAGE_ROWS,
    START_WINDOW_BYTES,
)
from holdfast.protocol.monitoring import metrics
from holdfast.protocol.names import StoreId
from holdfast.protocol.serving.fair_queue import FairQueue, SharedRoom
from holdfast.protocol.serving.mishaps import Mishaps
from holdfast.shared_fs.store_file.archived_blocks import ArchivedMessage, Bodies, Body

logger = logging.getLogger("holdfast.persist")

PARALLEL_AHEAD: Final = 2
#: How many groups of rows are read at once before any of their messages is fetched.
PARALLEL_WARM: Final = 2
_SWEEP_SECONDS: Final = 1.0
#: What a body takes in memory besides its bytes: a tuple, two objects, and its place in a map.
_BODY_BYTES: Final = 256


@dataclass(slots=True, eq=False)
class _ReadStore:
    """An open stream whose archived messages somebody pages through."""

    store: Store
    readers: ArchiveReaders
    #: What is held of it.
    bodies: dict[tuple[int, int], Body] = field(default_factory=dict)
    running: list[_Running] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Running:
    """A fetch that is to be made, or is under way."""

    of: _ReadStore
    fetch: AheadFetch
    messages: Sequence[ArchivedMessage]
    #: All that it asks for.
    keys: frozenset[tuple[int, int]]
    #: What it takes of the room.
    room_bytes: int
    has_begun: bool = False
    done: asyncio.Event = field(default_factory=asyncio.Event)


class ArchiveAhead:
    """Fetching ahead for the readers of archived messages of one incarnation."""

    def __init__(self, archive: ArchiveAccess, life: Incarnation) -> None:
        self._archive = archive
        self._stores: dict[StoreId, _ReadStore] = {}
        self._queue: FairQueue[_Running] = FairQueue(START_WINDOW_BYTES // KIB)
        self._filled = asyncio.Event()
        self._warmings: asyncio.Queue[tuple[StoreId, list[ArchivedMessage]]]
        self._warmings = asyncio.Queue(PARALLEL_WARM)
        self._has_stores = asyncio.Event()
        self._room = SharedRoom(MAX_ARCHIVE_AHEAD_BYTES)
        self._places = SharedRoom(MAX_PREFETCH_STORES)
        self._mishaps = Mishaps(logger)
        statistics = life.statistics
        self._reads = statistics.counters(metrics.ARCHIVE_AHEAD_READS)
        statistics.read(metrics.ARCHIVE_AHEAD_HELD, lambda: self.held_bytes)

    @property
    def store_count(self) -> int:
        """How many streams have readers."""
        return len(self._stores)

    @property
    def held_bytes(self) -> int:
        """What is held or on its way."""
        return self._room.taken

    # Around a read
    def at_hand(self, store: Store, fetched: Bodies | None) -> Bodies | None:
        """Return the bodies that a read of a store may use, `fetched` among them."""
        of = self._stores.get(store.id)
        if of is None or of.store is not store or not of.bodies:
            return fetched
        return ChainMap(dict(fetched), of.bodies) if fetched else of.bodies

    def has_read(
        self, store: Store, operations: list[list[Any]], results: list[Any], *, missed: bool
    ) -> None:
        """Note the results of the first of `operations`; `missed` if the read had to wait for the
        archive."""
        of = self._known(store, begins=missed)
        file = store.contents.file
        if of is None or file is None:
            return
        now = asyncio.get_running_loop().time()
        reads_on = False
        for operation, result in zip(operations, results, strict=False):
            places = asked([operation], file.meta.last_seq, PAGE_ROWS)
            # Nobody goes on where seqs here and there end.
            after = next_seq(operation, result) if len(places) == 1 else None
            if after is None:
                continue
            start_seq = places[0].start_seq
            size_bytes = max(0, after - start_seq) * of.readers.message_bytes
            reads_on |= of.readers.has_read(start_seq, after, size_bytes, now, missed=missed)
        if reads_on:
            self._reads.add("waited" if missed else "found")
        self._pass_on(of)
        self._go_ahead(of)
        self._go_far_ahead(of)

    async def bodies(self, store: StoreId, messages: Sequence[ArchivedMessage]) -> Bodies:
        """Return values and headers of archived messages that a read waits for. Raises as
        `ArchiveAccess.bodies`."""
        of = self._stores.get(store)
        if of is None:
            return await self._archive.bodies(messages)
        wanted = {(each.seq, each.revision) for each in messages}
        for running in list(of.running):
            if running.keys.isdisjoint(wanted):
                continue
            if running.has_begun:
                await running.done.wait()
            elif running in of.running:
                # Another read may have taken it back, while this one waited for an earlier fetch.
                self._withdraw(running)
        found = {key: of.bodies[key] for key in wanted if key in of.bodies}
        rest = [each for each in messages if (each.seq, each.revision) not in found]
        return {**found, **await self._archive.bodies(rest)} if rest else found

    # Fetches
    async def run(self) -> None:
        """Fetch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(PARALLEL_AHEAD):
                tasks.create_task(self._work())
            for _ in range(PARALLEL_WARM):
                tasks.create_task(self._warm())
            tasks.create_task(self._sweep())

    def _known(self, store: Store, *, begins: bool) -> _ReadStore | None:
        """Return what is known of a store's readers, from its first read of the archive on."""
        of = self._stores.get(store.id)
        if of is not None:
            return of if of.store is store else None
        if not begins or not store.is_stream or not self._places.has(store.id.tenant, 1):
            return None
        of = self._stores[store.id] = _ReadStore(
            store, ArchiveReaders(store.bytes // max(1, store.count))
        )
        self._places.take(store.id.tenant, 1)
        self._has_stores.set()
        return of

    def _go_ahead(self, of: _ReadStore) -> None:
        """Fetch a page ahead of a reader that wants it, if there is room."""
        fetch, tenant = of.readers.ahead(), of.store.id.tenant
        file = of.store.contents.file
        if (
            fetch is None
            or file is None
            or of.store.state is not OpenState.SERVING
            or not self._room.has(tenant, fetch.size_bytes)
        ):
            return
        try:
            messages, more = file.archived_page(
                fetch.start_seq,
                fetch.before_seq,
                max_rows=PAGE_ROWS,
                max_bytes=fetch.size_bytes,
            )
        except StorageError:
            # A read finds it out, and tells.
            return
        if not messages and fetch.before_seq is None:
            of.readers.ends_at(fetch)
            return
        last_seq = messages[-1].seq if messages else fetch.start_seq
        if not more and fetch.before_seq is not None:
            last_seq = fetch.before_seq - 1
        size_bytes = sum(each.size_bytes + _BODY_BYTES for each in messages)
        keys = frozenset((each.seq, each.revision) for each in messages)
        fetch = fetch._replace(last_seq=last_seq)
        running = _Running(of, fetch, messages, keys, size_bytes)
        of.readers.fetches(fetch)
        of.running.append(running)
        self._room.take(tenant, size_bytes)
        self._queue.push(tenant, running)
        self._filled.set()

    def _go_far_ahead(self, of: _ReadStore) -> None:
        """Tell whoever reads the table where a reader will come, unless others are just told."""
        if self._warmings.full() or of.store.state is not OpenState.SERVING:
            return
        warming, file = of.readers.far_ahead(), of.store.contents.file
        if warming is None or file is None:
            return
        messages: list[ArchivedMessage] = []
        try:
            for seq in warming:
                messages += file.archived_page(seq, None, max_rows=1, max_bytes=0)[0]
        except StorageError:
            return
        if len(messages) == len(warming):
            self._warmings.put_nowait((of.store.id, messages))

    async def _warm(self) -> None:
        while True:
            store, messages = await self._warmings.get()
            try:
                async with asyncio.timeout(ARCHIVE_READ_SECONDS):
                    await self._archive.warm(messages)
            except (HoldfastError, TimeoutError) as error:
                logger.debug("archive.not_warm store=%s reason=%s", store, error)
            except Exception as error:  # noqa: BLE001 (nobody waits for it)
                self._mishaps.note("archive.warm_failed", store, error)

    async def _work(self) -> None:
        while True:
            while not self._queue:
                self._filled.clear()
                await self._filled.wait()
            _, waiting, _ = self._queue.begin_turn()
            running = waiting.popleft()
            self._queue.end_turn(max(1, running.room_bytes // KIB))
            running.has_begun = True
            self._end(running, await self._fetched(running))

    async def _fetched(self, running: _Running) -> Bodies | None:
        """Return what a fetch brings; None if it fails: the read itself finds out why."""
        if not running.messages:
            return {}
        try:
            async with asyncio.timeout(ARCHIVE_READ_SECONDS):
                return await self._archive.bodies(running.messages)
        except (HoldfastError, TimeoutError) as error:
            logger.debug("archive.not_ahead store=%s reason=%s", running.of.store.id, error)
        except Exception as error:  # noqa: BLE001 (nobody waits for it)
            self._mishaps.note("archive.ahead_failed", running.of.store.id, error)
        return None

    def _withdraw(self, running: _Running) -> None:
        """Take back a fetch that has not begun: a read does it itself."""
        of, tenant = running.of, running.of.store.id.tenant
        self._queue.remove(tenant, running)
        of.running.remove(running)
        of.readers.withdrawn(running.fetch)
        self._room.give_back(tenant, running.room_bytes)

    def _end(self, running: _Running, bodies: Bodies | None) -> None:
        of, fetch, tenant = running.of, running.fetch, running.of.store.id.tenant
        of.running.remove(running)
        self._room.give_back(tenant, running.room_bytes)
        part = None
        if bodies is not None and self._stores.get(of.store.id) is of:
            # A body may be larger than the file's: that one may be compressed.
            size_bytes = sum(_BODY_BYTES + _size_of(body) for body in bodies.values())
            now = asyncio.get_running_loop().time()
            keys = tuple(bodies)
            part = AheadPart(fetch.start_seq, fetch.last_seq, size_bytes, now, keys)
            of.bodies.update(bodies)
            self._room.take(tenant, size_bytes)
        of.readers.fetched(fetch, part)
        running.done.set()
        self._pass_on(of)
        self._go_ahead(of)

    # What nobody needs any more
    async def _sweep(self) -> None:
        while True:
            if not self._stores:
                self._has_stores.clear()
                await self._has_stores.wait()
            await asyncio.sleep(_SWEEP_SECONDS)
            for of in list(self._stores.values()):
                self._pass_on(of)
                if of.store.state is OpenState.CLOSED or not of.readers.readers:
                    self._forget(of)

    def _pass_on(self, of: _ReadStore) -> None:
        now = asyncio.get_running_loop().time()
        for part in of.readers.pass_on(now):
            self._drop(of, part)

    def _drop(self, of: _ReadStore, part: AheadPart) -> None:
        for key in part.keys:
            del of.bodies[key]
        self._room.give_back(of.store.id.tenant, part.size_bytes)

    def _forget(self, of: _ReadStore) -> None:
        for part in of.readers.parts:
            self._drop(of, part)
        of.readers.parts.clear()
        of.readers.readers.clear()
        del self._stores[of.store.id]
        self._places.give_back(of.store.id.tenant, 1)


def _size_of(body: Body) -> int:
    value, headers = body
    if type(headers) is dict:
        return len(value) + sum(len(name) + len(text) for name, text in headers.items())
    return len(value) + len(headers or b"")
