"""Which stores this server has open, and the operations that wait for the others.

Pure. A store is in one of these states:

    absent   nobody asked for it: it costs nothing
    wanted   operations wait or are expected; the coordinator has not been asked for it yet
    asked    as `wanted`, but the question is on its way, or the file is being opened
    open     operations go to its Store

One question to the coordinator covers many stores. The answer opens a store, or refuses what waits
for it. The caller (the inbox) bounds how much waits. Operations come back in the order of arrival.
Tenants take turns.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.persist.ephemeral.memory_use import MemoryUse
from holdfast.persist.store.leases import Leases
from holdfast.persist.store.states import OpenState
from holdfast.persist.store.store import Store
from holdfast.persist.store.upkeep import Upkeep
from holdfast.protocol.frames import Group
from holdfast.protocol.limits import MAX_OPEN_STORES
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.store_file.archived_blocks import Bodies


class Arrival(NamedTuple):
    """One group as it arrived: the subject of its reply, its writer and its store."""

    reply: str
    position: int
    writer: bytes
    store: StoreId
    group: Group
    #: Its share of its frame, plus the memory that its arguments take beyond that.
    size_bytes: int = 0
    #: For a read that waited for the archive: the bodies it lacked.
    archived: Bodies | None = None
    #: How often a read has waited for its part of a file to be in memory.
    waits: int = 0

    @property
    def writes(self) -> bool:
        return self.group.counter > 0


class WantedStore(NamedTuple):
    """A store to ask the coordinator for. With `create` a write waits for it, so
    it may be created."""

    store: StoreId
    create: bool


@dataclass(slots=True)
class _Waiting:
    arrivals: list[Arrival] = field(default_factory=list)
    create: bool = False


class OpenStores:
    """The stores of one incarnation."""

    def __init__(self, max_open_stores: int = MAX_OPEN_STORES) -> None:
        """`max_open_stores` bounds how many of them are ephemeral; `OpenQueue` keeps it."""
        #: The indexes for the maintenance of the open stores.
        self.upkeep = Upkeep()
        #: The leases on their files.
        self.leases = Leases(self.closed, self.in_use)
        #: What the ephemeral ones take.
        self.memory_use = MemoryUse(max_open_stores=max_open_stores)
        self._open: dict[StoreId, Store] = {}
        self._hear_opened: Callable[[Store], None] = _nobody
        self._hear_gone: Callable[[StoreId], None] = _nobody
        self._hear_closed: Callable[[Store], None] = _nobody
        self._waiting: dict[StoreId, _Waiting] = {}
        #: Per tenant, the stores to ask for. The tenant that has waited longest for
        #: its turn is first.
        self._wanted: dict[str, dict[StoreId, None]] = {}
        #: Set when there is a store to ask the coordinator for.
        self.wanted = asyncio.Event()

    @property
    def open_count(self) -> int:
        return len(self._open)

    @property
    def waiting_count(self) -> int:
        """How many groups wait for a store to open."""
        return sum(len(waiting.arrivals) for waiting in self._waiting.values())

    def on_opened(
        self, hear: Callable[[Store], None], hear_gone: Callable[[StoreId], None]
    ) -> None:
        """Call `hear` from now on for each store that is opened, and `hear_gone` for each that is
        closed or will not be opened."""
        self._hear_opened, self._hear_gone = hear, hear_gone

    def on_closed(self, hear: Callable[[Store], None]) -> None:
        """Call `hear` from now on for each store that is closed, or handed over."""
        self._hear_closed = hear

    def find(self, store: StoreId) -> Store | None:
        """Return the open store, or None."""
        return self._open.get(store)

    def in_use(self, store: StoreId) -> bool:
        """Tell if the store is open, or an operation waits for it."""
        return store in self._open or store in self._waiting

    def stores(self) -> Iterator[Store]:
        """Yield the open stores."""
        return iter(list(self._open.values()))

    def wait(self, arrival: Arrival) -> None:
        """Keep `arrival` until its store is open, and ask for the store unless that
        was done before."""
        waiting = self._waiting.get(arrival.store)
        if waiting is None:
            waiting = self._waiting[arrival.store] = _Waiting()
            self._want(arrival.store)
        waiting.arrivals.append(arrival)
        if arrival.writes:
            waiting.create = True

    def expect(self, store: StoreId) -> None:
        """Ask for a store that nobody waits for yet, unless it is in use or others are still to be
        asked for. So at most one that nobody waits for is in their way."""
        if not self._wanted and not self.in_use(store):
            self._waiting[store] = _Waiting()
            self._want(store)

    def take_wanted(self, limit: int) -> list[WantedStore]:
        """Return up to `limit` stores to ask the coordinator for, each once. Tenants take turns, so
        a tenant that wants thousands of stores delays nobody else."""
        taken: list[WantedStore] = []
        while self._wanted and len(taken) < limit:
            share = max(1, (limit - len(taken)) // len(self._wanted))
            for tenant in list(itertools.islice(self._wanted, limit - len(taken))):
                stores = self._wanted.pop(tenant)
                for store in list(itertools.islice(stores, share)):
                    del stores[store]
                    taken.append(WantedStore(store, self._waiting[store].create))
                if stores:
                    self._wanted[tenant] = stores
        return taken

    def _want(self, store: StoreId) -> None:
        self._wanted.setdefault(store.tenant, {})[store] = None
        self.wanted.set()

    def ask_again(self, wanted: list[WantedStore]) -> None:
        """Ask for these again: the coordinator did not answer."""
        for store, _ in wanted:
            if store in self._waiting:
                self._want(store)

    def opened(self, store: Store) -> list[Arrival]:
        """Note that the store is open, and return what waited for it."""
        earlier = self._open.get(store.id)
        if earlier is not None:
            self._end(earlier)
        self._open[store.id] = store
        self.upkeep.opened(store)
        if store.anchor is not None:
            store.anchor.joins(self.memory_use)
        self._hear_opened(store)
        waiting = self._waiting.pop(store.id, None)
        return waiting.arrivals if waiting is not None else []

    def refused(self, store: StoreId) -> list[Arrival]:
        """Note that the store will not be opened, and return what waited for it, to be refused."""
        waiting = self._waiting.pop(store, None)
        if store not in self._open:
            self._hear_gone(store)
        wanted = self._wanted.get(store.tenant)
        if wanted is not None and wanted.pop(store, "absent") is None and not wanted:
            del self._wanted[store.tenant]
        return waiting.arrivals if waiting is not None else []

    def closed(self, store: Store) -> None:
        """Note that the store is closed. If a grant to create it has opened another object in its
        place, that one stays."""
        self._end(store)
        if self._open.get(store.id) is store:
            del self._open[store.id]
            self._hear_gone(store.id)
            self._hear_closed(store)

    def _end(self, store: Store) -> None:
        self.upkeep.closed(store)
        store.end()

    def least_recently_used(self, limit: int) -> list[Store]:
        """Return up to `limit` open stores to hand over, longest unused first. Leased stores and
        stores that are about to be reopened are left out."""
        return self.upkeep.longest_unused(limit, self.may_leave)

    def may_leave(self, store: Store) -> bool:
        """Tell if an open store may be handed over: no job has its file, and it is not about to be
        reopened."""
        return store.state is OpenState.SERVING and store.id not in self._waiting


def _nobody(store: object) -> None:
    return None
