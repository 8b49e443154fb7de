"""Which open stores maintenance has to look at, found without a walk through all that are open.

With 10,000 stores open one walk takes milliseconds in which nobody else is served, and there are
several questions four times a second. Each has an index of its own, kept as the stores change:

    segments   the stores by the log segment of their oldest change that is in no durable file
    written    the stores whose files were written to since they were last looked at
    use        a heap of when each store was last seen to be used. A use costs nothing: it only
               makes the entry too early, and such an entry is put back with the time that is true
               now when it comes to the top, so what stays at the top is the store unused for
               longest.
    damaged    the stores that turned out to be damaged, each with what was found
    expiring   the stores of which something may expire; they are looked at by turns

Pure. A store has part in all of this from `opened` to `closed`; its `used_at` never goes back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count, islice
from math import inf, sqrt

from holdfast.persist.store.states import OpenState
from holdfast.persist.store.store import Store
from holdfast.protocol.errors import StoreDamagedError

#: Entries of closed stores that the heap may hold besides as many as stores are open.
_SPARE_ENTRIES = 1024
#: Steps of this share of a line visit it evenly, without a period (Knuth, TAOCP 3, 6.4).
_GOLDEN_RATIO = (sqrt(5) - 1) / 2
#: Stores looked at for each that is wanted.
_TRIES = 4
#: Stores of one turn at the least: so many cost nothing worth sharing out.
_LEAST_TURN = 256


class Upkeep:
    """The indexes of one incarnation. Each of its stores has it as `watcher`."""

    def __init__(self) -> None:
        #: The open stores, each with the number of its entry in the heap.
        self._entries: dict[Store, int] = {}
        self._numbers = count()
        self._by_use: list[tuple[float, int, Store]] = []
        self._by_segment: dict[int, dict[Store, None]] = {}
        self._written: dict[Store, None] = {}
        self._expiring: dict[Store, None] = {}
        self._damaged: dict[Store, StoreDamagedError] = {}
        #: Those of them that had no turn yet in this round.
        self._round: list[Store] = []
        #: Where `spread_unused` was last, as a share of all stores.
        self._place = 0.0

    # What is told
    def opened(self, store: Store) -> None:
        """From now on the store is watched."""
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

    def closed(self, store: Store) -> None:
        """The store is nothing to us any more, if it ever was."""
        if self._entries.pop(store, None) is not None:
            store.watcher = None
            self.needs_segment(store, store.oldest_segment, None)
            self._written.pop(store, None)
            self._expiring.pop(store, None)
            self._damaged.pop(store, None)

    def needs_segment(self, store: Store, before: int | None, after: int | None) -> None:
        """The oldest change of a store that is in no durable file is in segment `after`, not
        `before`."""
        if before is not None:
            stores = self._by_segment[before]
            del stores[store]
            if not stores:
                del self._by_segment[before]
        if after is not None:
            self._by_segment.setdefault(after, {})[store] = None

    def wrote_file(self, store: Store) -> None:
        """Changes went to the store's file, which no sync covers yet."""
        self._written[store] = None

    def may_expire(self, store: Store) -> None:
        """Something of the store may expire from now on."""
        self._expiring[store] = None

    def is_damaged(self, store: Store, error: StoreDamagedError) -> None:
        """The store's file cannot hold its changes."""
        self._damaged.setdefault(store, error)

    # What is asked
    def damaged(self) -> list[tuple[Store, StoreDamagedError]]:
        """Return the open stores that are damaged."""
        return list(self._damaged.items())

    def oldest_segment(self) -> int | None:
        """Return the oldest segment that an open store needs, None if none needs any."""
        return min(self._by_segment, default=None)

    def needing(self, last_segment: int) -> Iterator[Store]:
        """Yield the stores that need segments up to `last_segment`, those of the oldest first."""
        for segment in sorted(self._by_segment):
            if segment > last_segment:
                return
            yield from self._by_segment[segment]

    def overgrown(self, limit: int, is_overgrown: Callable[[Store], bool]) -> list[Store]:
        """Look at up to `limit` stores of which the file was written to, and return those of which
        it is overgrown: they are looked at again, as are those that are busy."""
        found = []
        for store in list(islice(self._written, limit)):
            if store.state is OpenState.SERVING:
                if not is_overgrown(store):
                    del self._written[store]
                    continue
                found.append(store)
            # Behind those that are still to be looked at.
            del self._written[store]
            self._written[store] = None
        return found

    def longest_unused(
        self, limit: int, may: Callable[[Store], bool], *, last_use: float = inf
    ) -> list[Store]:
        """Return up to `limit` of the stores that `may` be chosen and were not used after
        `last_use`, longest unused first."""
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
        """Return up to `limit` of the stores that `may` be chosen and were not used after
        `last_use`, from all over the order of their use.

        To close what was unused for longest would be wrong where more stores are used by turns than
        may be open: each would be closed just before its turn, and every use would open one.
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

    def expiring(self, turns: int) -> list[Store]:
        """Return those of which something may expire whose turn it is; after about `turns` calls
        each had its own."""
        if not self._round:
            for store in [each for each in self._expiring if not each.may_expire]:
                del self._expiring[store]
            self._round = list(self._expiring)
        size = max(_LEAST_TURN, -(-len(self._expiring) // turns))
        turn = self._round[-size:]
        del self._round[-size:]
        return [store for store in turn if store in self._expiring]
