"""What has arrived at a server and is not executed: the input of the next tick.

Pure. Whoever receives something puts it here; the turn builder (`turn.py`) takes from here. Kept:

- What has arrived and is not answered is bounded: over the bound the answer is `busy`. A read
  counts until it is answered, and so does what waits for its store.
- Tenants have their turns, and none can fill the inbox alone.
- What waits for a file that a thread has is handed back in the order of its arrival.
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

#: What one turn of the loop executes before it lets heartbeats and replies have theirs, in
#: operations.
TURN_OPERATIONS: Final = 2 * MAX_FRAME_OPERATIONS
#: Of a turn, what one tenant may have before the next one's: an eighth.
TENANT_TURN_OPERATIONS: Final = TURN_OPERATIONS // 8
#: Groups that wait for one store while another thread has its file, or while the coordinator is
#: awaited to release it: far above what arrives during a checkpoint, also of a busy store.
MAX_HELD_GROUPS = 16384


@dataclass(frozen=True, slots=True, eq=False)
class Archiving:
    """The values up to `end_seq` are to leave the file of an open store for the archive."""

    store: Store
    end_seq: int
    table: str


class Inbox:
    """What one incarnation has yet to execute."""

    def __init__(self, server: str) -> None:
        self._server = server
        #: Groups of operations whose turn has not come.
        self.groups: FairQueue[Arrival] = FairQueue(TENANT_TURN_OPERATIONS)
        #: What `groups` holds, and what waits for its store or for its turn to be read.
        self.room = SharedRoom(MAX_INBOX_BYTES)
        #: Groups that were refused before they got here: `(reply, index, error)`.
        self.refusals: list[tuple[str, int, HoldfastError]] = []
        #: Where to answer frames without groups.
        self.pings: list[str] = []
        #: Stores of which something may have to go, though nobody asks for them.
        self.overdue: dict[StoreId, Store] = {}
        self.archivings: list[Archiving] = []
        self._held: dict[StoreId, list[Arrival]] = {}
        self._wake: Callable[[], None] = _nobody

    def __bool__(self) -> bool:
        """There is something for a tick to do."""
        return bool(self.groups or self.overdue or self.refusals or self.pings or self.archivings)

    @property
    def is_answered(self) -> bool:
        """Nobody waits for an answer to what is here, but to what waits for a store."""
        return not (self.groups or self.refusals or self.pings)

    def on_work(self, wake: Callable[[], None]) -> None:
        """From now on call `wake` whenever there is something to do."""
        self._wake = wake

    def go_on(self) -> None:
        """What kept the next tick from being built may be over."""
        if self:
            self._wake()

    # What arrives
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
        """Answer a frame without groups, which only asks whether this server is there."""
        if len(self.pings) < MAX_WAITING_REFUSALS:
            self.pings.append(reply)
        self._wake()

    def refuse(self, reply: str, index: int, error: HoldfastError) -> None:
        """Answer a group that was not submitted, or with index -1 a whole frame, with an error."""
        if len(self.refusals) < MAX_WAITING_REFUSALS:
            self.refusals.append((reply, index, error))
        self._wake()

    # What has waited
    def submit_again(self, arrivals: list[Arrival]) -> None:
        """Take groups that have waited for their store."""
        for arrival in reversed(arrivals):
            self.groups.push_front(arrival.store.tenant, arrival)
        self._wake()

    def refuse_waiting(self, arrivals: Iterable[Arrival], error: HoldfastError) -> None:
        """Answer submitted groups, which have waited for their store, with an error."""
        for arrival in arrivals:
            self.waits_no_longer(arrival)
            self.refuse(arrival.reply, arrival.position, error)

    def waits_no_longer(self, arrival: Arrival) -> None:
        """A submitted group is answered."""
        self.room.give_back(arrival.store.tenant, arrival.size_bytes)

    # What waits for a file
    def holds(self, store: StoreId) -> bool:
        """Tell if something waits for the file of a store."""
        return store in self._held

    def hold(self, arrival: Arrival) -> bool:
        """Let a group wait for the file of its store; return False if too many do."""
        held = self._held.setdefault(arrival.store, [])
        if len(held) >= MAX_HELD_GROUPS:
            return False
        held.append(arrival)
        return True

    def unhold(self, store: StoreId) -> None:
        """The store's file is back from the other thread: go on with what waited for it."""
        held = self._held.pop(store, None)
        if held:
            self.submit_again(held)

    def turn_away(self, store: StoreId, error: HoldfastError) -> None:
        """The store's file does not come back: refuse what waited for it."""
        self.refuse_waiting(self._held.pop(store, ()), error)

    # What the server itself wants done
    def expire_due(self, stores: Iterable[Store], time: int) -> None:
        """Look at open stores for what is due at `time` though nobody reads or writes."""
        for store in stores:
            retention, now = store.retention, store.now(time)
            if (retention is not None and retention.is_due(now)) or store.uploads_due_at <= now:
                self.overdue[store.id] = store
        if self.overdue:
            self._wake()

    def archive(self, archiving: Archiving) -> None:
        """Have values leave a store's file in the next tick, as a change like any other."""
        self.archivings.append(archiving)
        self._wake()


def _nobody() -> None:
    return None
