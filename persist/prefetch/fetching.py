"""Fetches under way: in turns of tenants, those that a read waits for first. The shell runs them.

Pure but for the threads that the fetches themselves run in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from holdfast.persist.prefetch.readers import AHEAD_PIECES, Fetch, StoreReaders
from holdfast.persist.store.open_stores import Arrival
from holdfast.persist.store.store import Store
from holdfast.protocol.limits import KIB, MAX_PREFETCH_READERS, START_WINDOW_BYTES
from holdfast.protocol.serving.fair_queue import FairQueue
from holdfast.shared_fs.read_ahead.bringing import CachedPiece, bring
from holdfast.shared_fs.read_ahead.host_cache import CachedFile, HostCache
from holdfast.shared_fs.read_ahead.tree_places import NotATreeError

#: The file of a store is read without any of this after so many failures in a row.
_MAX_FAILURES: Final = 3


class FetchResult(NamedTuple):
    """The result of a fetch: nothing if it failed."""

    file: CachedFile | None
    pieces: Sequence[CachedPiece]
    #: What the system has read from the disk beyond them.
    surplus_bytes: int
    #: How many have failed, one after the other.
    failures: int


@dataclass(slots=True, eq=False)
class PrefetchedStore:
    """An open store that somebody reads from its file."""

    store: Store
    readers: StoreReaders
    #: The number of the first page of its messages.
    root: int
    #: The last seq of its file when this began.
    first_known_seq: int
    #: None until it is found among the files of this process.
    file: CachedFile | None = None
    failures: int = 0
    #: By the seq after a fetch, what the system has read from the disk beyond it.
    surplus_bytes: dict[int, int] = field(default_factory=dict)
    #: What it counts in the room of all.
    held_bytes: int = 0
    fetches: dict[Fetch, RunningFetch] = field(default_factory=dict)

    @property
    def is_given_up(self) -> bool:
        return self.failures >= _MAX_FAILURES

    def ended(self, fetch: Fetch, result: FetchResult) -> None:
        """Note the result of a fetch."""
        self.file, self.failures = result.file, result.failures
        self.surplus_bytes.pop(fetch.start_seq, None)
        if result.surplus_bytes:
            self.surplus_bytes[result.pieces[-1].last_seq + 1] = result.surplus_bytes
            if len(self.surplus_bytes) > MAX_PREFETCH_READERS:
                del self.surplus_bytes[next(iter(self.surplus_bytes))]

    def brings(self, cache: HostCache, fetch: Fetch) -> FetchResult:
        """Make a fetch. For a thread: changes nothing here."""
        file, store_file = self.file, self.store.contents.file
        try:
            if file is None and store_file is not None:
                file = cache.find(store_file.path)
            if file is None:
                return FetchResult(None, (), 0, _MAX_FAILURES)
            surplus_bytes = self.surplus_bytes.get(fetch.start_seq, 0)
            brought = bring(
                file,
                self.root,
                fetch.start_seq,
                fetch.size_bytes,
                surplus_bytes,
                AHEAD_PIECES if fetch.is_ahead else None,
            )
        except (NotATreeError, OSError):
            # Most likely its descriptor is another one now. What is wrong with the disk is found by
            # the read itself.
            return FetchResult(None, (), 0, self.failures + 1)
        return FetchResult(file, *brought, failures=0)


@dataclass(slots=True, eq=False)
class RunningFetch:
    """A fetch, and the reads that wait for it."""

    of: PrefetchedStore
    fetch: Fetch
    waiting: list[WaitingRead] = field(default_factory=list)
    #: Where it waits for a thread.
    queue: FairQueue[RunningFetch] | None = None
    has_begun: bool = False


@dataclass(slots=True, eq=False)
class WaitingRead:
    """A read that runs again once `left` more fetches are done."""

    arrival: Arrival
    left: int
    #: When it came here.
    since: float
    #: They are all its own, so they bring what it wants.
    is_sure: bool = True


class FetchQueue:
    """Fetches that wait for a thread."""

    def __init__(self) -> None:
        share = START_WINDOW_BYTES // KIB
        self._wanted: FairQueue[RunningFetch] = FairQueue(share)
        self._ahead: FairQueue[RunningFetch] = FairQueue(share)
        self._filled = asyncio.Event()

    def __len__(self) -> int:
        return len(self._wanted) + len(self._ahead)

    def push(self, fetch: RunningFetch) -> None:
        """Add a fetch. One that is here already, and that a read has come to wait for, moves up."""
        queue, tenant = self._wanted if fetch.waiting else self._ahead, fetch.of.store.id.tenant
        if fetch.queue is queue:
            return
        if fetch.queue is not None:
            fetch.queue.remove(tenant, fetch)
        fetch.queue = queue
        queue.push(tenant, fetch)
        self._filled.set()

    async def take(self) -> RunningFetch:
        """Return the next fetch, once there is one."""
        while not (queue := self._wanted or self._ahead):
            self._filled.clear()
            await self._filled.wait()
        _, waiting, _ = queue.begin_turn()
        found = waiting.popleft()
        queue.end_turn(max(1, found.fetch.size_bytes // KIB))
        found.queue, found.has_begun = None, True
        return found
