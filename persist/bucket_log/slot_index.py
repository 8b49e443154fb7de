"""Which slots of a server's own log in the bucket are still needed, and by which stores.

A slot is needed until every store in it has a published snapshot beyond the slot's changes. Slots
are removed oldest first, so the remaining ones always show where the log ends. Pure.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable

from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk.commit_log import LogRecord

_Order = tuple[int, int]


class SlotIndex:
    """The slots of one incarnation. Takes memory for each pair of a slot and a store in it."""

    def __init__(self) -> None:
        #: For each slot, oldest first: the stores that still need it, and its size.
        self._slots: OrderedDict[int, dict[StoreId, None]] = OrderedDict()
        self._sizes: dict[int, int] = {}
        #: For each store: the slots that it needs, each with the last (epoch, revision)
        #: that it has of it.
        self._stores: dict[StoreId, deque[tuple[int, _Order]]] = {}
        self._next_slot = 0
        self.size_bytes = 0

    @property
    def count(self) -> int:
        """The number of slots that are needed, or lie between needed ones."""
        return len(self._slots)

    @property
    def needless_below(self) -> int:
        """No store needs a slot below this one."""
        return next(iter(self._slots), self._next_slot)

    def added(self, slot: int, records: Iterable[LogRecord], size_bytes: int) -> None:
        """Note that a slot was put with these records."""
        self._next_slot = slot + 1
        last: dict[StoreId, _Order] = {}
        for record in records:
            last[record.store] = (record.epoch, record.revision)
        for store, order in last.items():
            self._stores.setdefault(store, deque()).append((slot, order))
        if last or self._slots:
            self._slots[slot] = dict.fromkeys(last)
            self._sizes[slot] = size_bytes
            self.size_bytes += size_bytes

    def snapshotted(self, store: StoreId, epoch: int, revision: int) -> None:
        """Note that a snapshot of a store was published, or a newer one existed already."""
        needed = self._stores.get(store)
        if needed is None:
            return
        while needed and needed[0][1] <= (epoch, revision):
            slot, _ = needed.popleft()
            self._slots[slot].pop(store, None)
        if not needed:
            del self._stores[store]
        while self._slots:
            slot, stores = next(iter(self._slots.items()))
            if stores:
                return
            del self._slots[slot]
            self.size_bytes -= self._sizes.pop(slot)

    def last(self, store: StoreId) -> _Order | None:
        """Return the last (epoch, revision) of a store in the slots, or None if
        it needs no slot."""
        needed = self._stores.get(store)
        return needed[-1][1] if needed else None

    def oldest(self, limit: int) -> list[StoreId]:
        """Return up to `limit` stores to snapshot, starting with those that need
        the oldest slots."""
        found: dict[StoreId, None] = {}
        for stores in self._slots.values():
            for store in stores:
                found[store] = None
                if len(found) >= limit:
                    return list(found)
        return list(found)
