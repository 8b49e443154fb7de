"""Which open stores need maintenance, found without scanning all open stores.

With 10,000 open stores one scan takes milliseconds in which nobody else is served, and
maintenance asks several questions four times a second. Each question has an index of its own,
updated as the stores change:

    segments   the stores by the log segment of their oldest change that is in no durable file
    written    the stores whose files were written to since they were last looked at
    use        a heap of when each store was last seen to be used. A use costs nothing: it only
               makes the entry too early. Such an entry is put back with its true time when it
               comes to the top, so the top that stays is the store unused for longest.
    awake      the stores whose file has a connection of SQLite, which takes most of the memory of
               an open store, looked at in turns
    damaged    the stores that turned out to be damaged, each with what was found
    expiring   the stores in which something may expire; they are looked at in turns

Pure. A store is in these indexes from `opened` to `closed`. Its `used_at` never goes back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count, islice
from math import inf, sqrt

from holdfast.persist.store.states import OpenState
from holdfast.persist.store.store import Store
from holdfast.protocol.errors import StoreDamagedError

#: How many entries of closed stores the heap may hold beyond the number of open stores.
_SPARE_ENTRIES = 1024
#: Steps of this fraction visit a line evenly, without a period (Knuth, TAOCP 3, 6.4).
_GOLDEN_RATIO = (sqrt(5) - 1) / 2
#: How many stores are looked at for each one wanted.
_TRIES = 4
#: The minimum size of a turn: this many stores are too cheap to split further.
_LEAST_TURN = 256


class Upkeep:
    """The indexes of one incarnation. It is the `watcher` of each open store."""

    def __init__(self) -> None:
        #: The open stores, each with the number of its entry in the heap.
        self._entries: dict[Store, int] = {}
        self._numbers = count()
        self._by_use: list[tuple[float, int, Store]] = []
        self._by_segment: dict[int, dict[Store, None]] = {}
        self._written: dict[Store, None] = {}
        self._expiring: dict[Store, None] = {}
        self._awake: dict[Store, None] = {}
        self._damaged: dict[Store, StoreDamagedError] = {}
        #: The expiring stores that had no turn yet in this round.
        self._round: list[Store] = []
        #: Where `spread_unused` stopped, as a fraction of all stores.
        self._place = 0.0

    # Notifications
    def opened(self, store: Store) -> None:
        """Start to watch the store."""
        self._entries[store] = next(self._numbers)
        if len(self._by_use) > 2 * len(self._entries) + _SPARE_ENTRIES:
            self._by_use = [(each.used_at, n, each) for each, n in self._entries.items()]
            heapify(self._by_use)
        else:
            heappush(self._by_use, (store.used_at, self._entries[store], store))
        self.needs_segment(store, None, store.oldest_segment)
        if store.needs_sweep:
            self._written[store] = None
        if store.may_expire:
            self._expiring[store] = None
        store.watcher = self
        self._look_at_file(store)

    def closed(self, store: Store) -> None:
        """Forget the store, if it was watched."""
        if self._entries.pop(store, None) is not None:
            store.watcher = None
            self.needs_segment(store, store.oldest_segment, None)
            self._written.pop(store, None)
            self._expiring.pop(store, None)
            self._awake.pop(store, None)
            self._damaged.pop(store, None)

    def needs_segment(self, store: Store, before: int | None, after: int | None) -> None:
        """Note that a store's oldest change that is in no durable file is in segment `after`, no
        longer in `before`."""
        if before is not None:
            stores = self._by_segment[before]
            del stores[store]
            if not stores:
                del self._by_segment[before]
        if after is not None:
            self._by_segment.setdefault(after, {})[store] = None

    def wrote_file(self, store: Store) -> None:
        """Note that changes went to the store's file and are not synced yet."""
        self._written[store] = None
        if store not in self._awake:
            self._look_at_file(store)

    def rests(self, store: Store) -> None:
        """Note that the store's file has given back its connection."""
        self._awake.pop(store, None)

    def may_expire(self, store: Store) -> None:
        """Note that something in the store may expire from now on."""
        self._expiring[store] = None

    def is_damaged(self, store: Store, error: StoreDamagedError) -> None:
        """Note that the store's file cannot hold its changes."""
        self._damaged.setdefault(store, error)

    # Questions
    def damaged(self) -> list[tuple[Store, StoreDamagedError]]:
        """Return the open stores that are damaged, and what was found."""
        return list(self._damaged.items())

    def oldest_segment(self) -> int | None:
        """Return the oldest segment that an open store needs, or None."""
        return min(self._by_segment, default=None)

    def needing(self, last_segment: int) -> Iterator[Store]:
        """Yield the stores that need segments up to `last_segment`, oldest segment first."""
        for segment in sorted(self._by_segment):
            if segment > last_segment:
                return
            yield from self._by_segment[segment]

    def overgrown(self, limit: int, is_overgrown: Callable[[Store], bool]) -> list[Store]:
        """Look at up to `limit` stores whose file was written to, and return the overgrown ones.
        Overgrown and busy stores will be looked at again."""
        found = []
        for store in list(islice(self._written, limit)):
            if store.state is OpenState.SERVING:
                if not is_overgrown(store):
                    del self._written[store]
                    continue
                found.append(store)
            # Move it behind the stores that still wait for a look.
            del self._written[store]
            self._written[store] = None
        return found

    def longest_unused(
        self, limit: int, may: Callable[[Store], bool], *, last_use: float = inf
    ) -> list[Store]:
        """Return up to `limit` stores that `may` accepts and that were not used after `last_use`,
        longest unused first."""
        found: list[Store] = []
        passed = []
        heap = self._by_use
        while heap and len(found) < limit and heap[0][0] <= last_use:
            seen_at, number, store = heap[0]
            if self._entries.get(store) != number:
                heappop(heap)
            elif store.used_at > seen_at:
                heapreplace(heap, (store.used_at, number, store))
            else:
                passed.append(heappop(heap))
                if may(store):
                    found.append(store)
        for entry in passed:
            heappush(heap, entry)
        return found

    def spread_unused(
        self, limit: int, may: Callable[[Store], bool], *, last_use: float
    ) -> list[Store]:
        """Return up to `limit` stores that `may` accepts and that were not used after `last_use`,
        spread over all open stores.

        Closing the longest unused would be wrong where clients visit more stores in rotation than
        may be open: each store would be closed just before its turn, and every use would open one.
        """
        stores = list(self._entries)
        found: dict[Store, None] = {}
        for _ in range(_TRIES * limit if stores else 0):
            self._place = (self._place + _GOLDEN_RATIO) % 1.0
            store = stores[int(self._place * len(stores))]
            if store.used_at <= last_use and may(store):
                found[store] = None
                if len(found) == limit:
                    break
        return list(found)

    @property
    def awake_count(self) -> int:
        """How many files have a connection, as far as is known."""
        return len(self._awake)

    def unused_awake(self, limit: int, *, last_use: float) -> list[Store]:
        """Return up to `limit` stores whose file has a connection, that were not used after
        `last_use`, and whose file nobody has leased. They are looked at in turns, a few for each
        one wanted."""
        found: list[Store] = []
        for store in list(islice(self._awake, _TRIES * limit)):
            # Move it behind those that still wait for a look.
            del self._awake[store]
            if store.file is None or not store.file.is_awake:
                continue
            self._awake[store] = None
            if store.state is OpenState.SERVING and store.used_at <= last_use:
                found.append(store)
                if len(found) == limit:
                    break
        return found

    def expiring(self, turns: int) -> list[Store]:
        """Return the expiring stores whose turn it is. After about `turns` calls
        each had its turn."""
        if not self._round:
            for store in [each for each in self._expiring if not each.may_expire]:
                del self._expiring[store]
            self._round = list(self._expiring)
        size = max(_LEAST_TURN, -(-len(self._expiring) // turns))
        turn = self._round[-size:]
        del self._round[-size:]
        return [store for store in turn if store in self._expiring]

    def _look_at_file(self, store: Store) -> None:
        """Hear from now on when the store's file gets a connection."""
        file = store.file
        if file is not None and not file.in_memory:
            if file.on_woken is None:
                file.on_woken = partial(self._woken, store)
            if file.is_awake:
                self._awake[store] = None

    def _woken(self, store: Store) -> None:
        if store in self._entries:
            self._awake[store] = None
