"""What has arrived at a server and is not executed yet: the input of the next tick.

Pure. Receivers put groups here; the turn builder (`turn.py`) takes them out. Invariants:

- Groups that have arrived and are not answered are bounded: beyond the bound the answer is `busy`.
  A read counts until it is answered, and so does a group that waits for its store.
- Tenants take turns, and none can fill the inbox alone.
- Groups that wait for a leased file, or until what is due in their store is removed, come back in
  the order of their arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from holdfast.persist.store.open_stores import Arrival
from holdfast.persist.store.store import Store
from holdfast.protocol.errors import BusyError, HoldfastError
from holdfast.protocol.limits import MAX_FRAME_OPERATIONS, MAX_INBOX_BYTES, MAX_WAITING_REFUSALS
from holdfast.protocol.names import StoreId
from holdfast.protocol.serving.fair_queue import FairQueue, SharedRoom

#: How many operations one turn of the loop executes before heartbeats and replies get theirs.
TURN_OPERATIONS: Final = 2 * MAX_FRAME_OPERATIONS
#: How much of a turn one tenant may use before the next one's share: an eighth.
TENANT_TURN_OPERATIONS: Final = TURN_OPERATIONS // 8
#: How many groups may wait for one store while its file is leased or while the coordinator is asked
#: to release it. Far more than arrive during a checkpoint, even of a busy store.
MAX_HELD_GROUPS = 16384


@dataclass(frozen=True, slots=True, eq=False)
class Archiving:
    """A request to move an open store's values up to `end_seq` from its file to the archive."""

    store: Store
    end_seq: int
    table: str


class Inbox:
    """What one incarnation has yet to execute."""

    def __init__(self, server: str) -> None:
        self._server = server
        #: Groups of operations that wait for their turn.
        self.groups: FairQueue[Arrival] = FairQueue(TENANT_TURN_OPERATIONS)
        #: Bounds the groups here, those that wait for their stores, and reads that
        #: are not answered.
        self.room = SharedRoom(MAX_INBOX_BYTES)
        #: Groups that were refused before they got here: `(reply, index, error)`.
        self.refusals: list[tuple[str, int, HoldfastError]] = []
        #: The reply subjects of frames without groups.
        self.pings: list[str] = []
        #: Stores in which something may be due for removal.
        self.overdue: dict[StoreId, Store] = {}
        self.archivings: list[Archiving] = []
        self._held: dict[StoreId, list[Arrival]] = {}
        #: Of those stores the ones whose groups wait for removals, which turns go on with.
        self._removing: set[StoreId] = set()
        self._wake: Callable[[], None] = _nobody

    def __bool__(self) -> bool:
        """True if a tick would have something to do."""
        return bool(self.groups or self.overdue or self.refusals or self.pings or self.archivings)

    @property
    def is_answered(self) -> bool:
        """True if no caller waits for an answer to what is here. Groups that wait for a leased file
        are not counted."""
        return not (self.groups or self.refusals or self.pings or self._removing)

    def on_work(self, wake: Callable[[], None]) -> None:
        """Call `wake` from now on whenever there is something to do."""
        self._wake = wake

    def go_on(self) -> None:
        """Wake the turn if there is work: what delayed the next tick may be over."""
        if self:
            self._wake()

    # Arrivals
    def submit(self, arrivals: list[Arrival]) -> None:
        """Take the groups of one frame."""
        size_bytes = sum([arrival.size_bytes for arrival in arrivals])
        tenant = arrivals[0].store.tenant
        if not self.room.has(tenant, size_bytes):
            error = BusyError(what=f"the inbox of server {self._server!r}")
            for each in arrivals:
                self.refuse(each.reply, each.position, error)
        else:
            self.room.take(tenant, size_bytes)
            self.groups.extend(tenant, arrivals)
        self._wake()

    def answer_empty(self, reply: str) -> None:
        """Answer a frame without groups: such a frame only asks whether the server is there."""
        if len(self.pings) < MAX_WAITING_REFUSALS:
            self.pings.append(reply)
        self._wake()

    def refuse(self, reply: str, index: int, error: HoldfastError) -> None:
        """Refuse a group that was not submitted, or a whole frame if `index` is -1."""
        if len(self.refusals) < MAX_WAITING_REFUSALS:
            self.refusals.append((reply, index, error))
        self._wake()

    # Groups that have waited
    def submit_again(self, arrivals: list[Arrival]) -> None:
        """Take groups back that have waited for their store. They go to the front."""
        for arrival in reversed(arrivals):
            self.groups.push_front(arrival.store.tenant, arrival)
        self._wake()

    def refuse_waiting(self, arrivals: Iterable[Arrival], error: HoldfastError) -> None:
        """Refuse submitted groups that have waited for their store."""
        for arrival in arrivals:
            self.waits_no_longer(arrival)
            self.refuse(arrival.reply, arrival.position, error)

    def waits_no_longer(self, arrival: Arrival) -> None:
        """Note that a submitted group is answered."""
        self.room.give_back(arrival.store.tenant, arrival.size_bytes)

    # Groups that wait for a file, or for removals
    def holds(self, store: StoreId) -> bool:
        """Tell if a group waits for a store that is open."""
        return store in self._held

    def hold(self, arrival: Arrival) -> bool:
        """Keep a group until the file of its store is free. Return False if too
        many wait already."""
        held = self._held.setdefault(arrival.store, [])
        if len(held) >= MAX_HELD_GROUPS:
            return False
        held.append(arrival)
        return True

    def hold_for_removals(self, arrival: Arrival) -> bool:
        """Keep a group until what is due in its store is removed. Return False if too many wait
        already."""
        self._removing.add(arrival.store)
        return self.hold(arrival)

    def unhold(self, store: StoreId) -> None:
        """Resume the groups that waited for a store."""
        self._removing.discard(store)
        held = self._held.pop(store, None)
        if held:
            self.submit_again(held)

    def turn_away(self, store: StoreId, error: HoldfastError) -> None:
        """Refuse the groups that waited for the file of a store: it will not come back."""
        self._removing.discard(store)
        self.refuse_waiting(self._held.pop(store, ()), error)

    # The server's own work
    def expire_due(self, stores: Iterable[Store], time: int) -> None:
        """Look in open stores for what is due at `time`, without anybody reading or writing."""
        for store in stores:
            retention, now = store.retention, store.now(time)
            if (retention is not None and retention.is_due(now)) or store.uploads_due_at <= now:
                self.overdue[store.id] = store
        if self.overdue:
            self._wake()

    def look_again(self, store: Store) -> None:
        """Go on with what is due in a store."""
        self.overdue[store.id] = store
        self._wake()

    def archive(self, archiving: Archiving) -> None:
        """Let the next tick archive values, as a change like any other."""
        self.archivings.append(archiving)
        self._wake()


def _nobody() -> None:
    return None
