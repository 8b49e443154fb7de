"""The turn builder: arrivals in the inbox go in, a tick comes out.

Pure but for look-ups in store files: no loop, no clock, no log. The shell around it (`pipeline.py`)
decides when and how much, writes the tick's records to the log, and answers. Invariants:

- A group is executed once, or waits: for its store, for the file of its store, or until what is due
  in its store is removed.
- Whatever is due in a store is removed before a group that could see it. However long that takes,
  groups of other stores go on.
- What an encrypted store is asked without its keys is refused, but for its head.
- An unexpected exception becomes the answer of the group that raised it, and takes back what the
  tick did to that store. It stops nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from holdfast.persist.bucket_log.stored import StoredWrites
from holdfast.persist.operations import eviction, operations
from holdfast.persist.operations.without_file import needs_file
from holdfast.persist.peers.store_loads import StoreLoads
from holdfast.persist.quotas.log_shares import LOG_FULL_BYTES, LogShares
from holdfast.persist.quotas.quota_book import QuotaBook
from holdfast.persist.quotas.tenant_quota import adds
from holdfast.persist.store.open_stores import Arrival, OpenStores
from holdfast.persist.store.states import OpenState, Standing
from holdfast.persist.store.store import Store
from holdfast.persist.write_path.inbox import TURN_OPERATIONS, Archiving, Inbox
from holdfast.persist.write_path.tick import Tick
from holdfast.protocol import frames
from holdfast.protocol.errors import (
    BusyError,
    HoldfastError,
    StorageError,
    internal_error,
)
from holdfast.protocol.limits import MAX_FRAME_OPERATIONS
from holdfast.protocol.messages import Durability
from holdfast.protocol.names import StoreId
from holdfast.protocol.store_config import Discard
from holdfast.shared_fs.encryption.store_cipher import StoreCipher

#: The cost of a group besides its operations, in operations.
_GROUP_OPERATIONS: Final = 24
#: A KiB costs as much as an operation: both are logged, packed and applied in about 1 µs. Otherwise
#: a tenant with large values would take turns of many MiB.
_OPERATION_SHIFT: Final = 10
#: The cost of bringing a store's file up to date, in operations.
MATERIALISE_OPERATIONS: Final = 64
#: The cost of a turn's part of removing what is due in a store, in operations.
_REMOVAL_OPERATIONS: Final = 512
#: The size of a turn while a sync runs in its thread: what waits for the sync should not wait more
#: than about 2 ms for this.
_TURN_OPERATIONS_BESIDE: Final = MAX_FRAME_OPERATIONS // 2
_SERVING: Final = OpenState.SERVING
_UNWRITTEN: Final = Standing.UNWRITTEN


@dataclass(frozen=True, slots=True)
class Promises:
    """The levels of durability that a server promises."""

    #: For writes that ask for no level.
    default: Durability = Durability.SYNCED
    #: What a sync of the log achieves.
    log: Durability = Durability.SYNCED
    #: Keeps the answers that promise `stored`, if the server offers that level.
    stored: StoredWrites | None = None


class Conditions(NamedTuple):
    """The conditions under which a tick is built."""

    #: Int milliseconds since the epoch.
    time: int
    #: On the clock of `Store.used_at`.
    now: float
    #: A sync is under way in its thread.
    beside_sync: bool = False
    #: The length of the log.
    log_bytes: int = 0


class StoreWork(StrEnum):
    """The work of a tick on one store. An error of the store's file can stop any of it."""

    WRITE = "write"
    EXPIRE = "expire"
    ARCHIVE = "archive"


class Failure(NamedTuple):
    """A failure of a store's file."""

    work: StoreWork
    store: StoreId
    error: StorageError


class TurnBuilder:
    """Builds the ticks of one incarnation."""

    def __init__(
        self,
        server: str,
        inbox: Inbox,
        open_stores: OpenStores,
        promises: Promises,
        quotas: QuotaBook | None = None,
        loads: StoreLoads | None = None,
    ) -> None:
        """`loads` counts what each store is asked for."""
        self._server = server
        self._inbox = inbox
        self._open_stores = open_stores
        self._promises = promises
        self._quotas = quotas or QuotaBook()
        self._loads = loads or StoreLoads()
        #: What went wrong in the last tick, to be logged.
        self.failures: list[Failure] = []
        #: Stores in which so much has expired that a thread should count it.
        self.uncounted: list[Store] = []
        #: The values that the last tick was to archive, and the number of its operations.
        self.archivings: list[Archiving] = []
        self.operation_count = 0
        #: The bytes of the groups that the last tick executed, turn by turn. Reads are not counted.
        self.written: list[tuple[str, int]] = []
        self.log_shares = LogShares()

    def build(self, number: int, conditions: Conditions) -> Tick:
        """Build tick `number` from what has waited longest."""
        promises, inbox = self._promises, self._inbox
        tick = Tick(
            number,
            conditions.time,
            promises.default,
            stored=promises.stored,
            log_level=promises.log,
        )
        tick.now = conditions.now
        self.failures.clear()
        self.uncounted.clear()
        for reply, index, error in inbox.refusals:
            tick.refuse_at(reply, index, error)
        inbox.refusals.clear()
        for reply in inbox.pings:
            tick.synced.setdefault(reply, [])
        inbox.pings.clear()
        room = _TURN_OPERATIONS_BESIDE if conditions.beside_sync else TURN_OPERATIONS
        room -= self._remove_due(tick, room // 2)
        self.archivings, inbox.archivings = inbox.archivings, []
        for archiving in self.archivings:
            self._archive(tick, archiving)
        self._take_turns(tick, conditions, room)
        self._evict(tick)
        return tick

    def _remove_due(self, tick: Tick, room: int) -> int:
        """Remove what is due in stores that are overdue, store by store, until `room` is spent.
        Return what was spent. What a store has beyond a turn is overdue again at its end."""
        overdue, spent = self._inbox.overdue, 0
        while overdue and spent < room:
            # The oldest first: those that are overdue again come behind the others.
            store = overdue.pop(next(iter(overdue)))
            if self._expire(tick, store):
                spent += MATERIALISE_OPERATIONS
                self._inbox.unhold(store.id)
            else:
                spent += _REMOVAL_OPERATIONS
        return spent

    def _take_turns(self, tick: Tick, conditions: Conditions, room: int) -> None:
        """Execute waiting groups, tenant by tenant, until `room` is spent."""
        inbox = self._inbox
        groups, now, log_bytes = inbox.groups, conditions.now, conditions.log_bytes
        operation_count = 0
        loads = self._loads
        loads.begin(now)
        self.written.clear()
        while groups and room > 0:
            tenant, arrivals, allowance = groups.begin_turn()
            tick.quota = self._quotas.of(tenant)
            full = self._full_log(tenant, log_bytes)
            is_free = full is None and tick.quota is None
            allowance = min(allowance, room)
            spent = answered_bytes = 0
            while arrivals and spent < allowance:
                arrival = arrivals.popleft()
                length = len(arrival.group.operations)
                operation_count += length
                loads.count(arrival.store, length, arrival.size_bytes)
                spent += length + _GROUP_OPERATIONS + (arrival.size_bytes >> _OPERATION_SHIFT)
                try:
                    is_done = is_free and length == 1 and self._write_alone(tick, arrival, now)
                    waits = not (is_done or self._execute(tick, arrival, now, full))
                except Exception as error:  # noqa: BLE001 (answered to this group)
                    waits = False
                    self._give_up(tick, arrival, error)
                if not waits:
                    answered_bytes += arrival.size_bytes
            groups.end_turn(spent)
            if full is None:
                self.written.append((tenant, answered_bytes))
            inbox.room.give_back(tenant, answered_bytes)
            room -= spent
        self.operation_count = operation_count

    def _full_log(self, tenant: str, log_bytes: int) -> BusyError | None:
        """Return why the log takes no writes of a tenant, or None."""
        if log_bytes > LOG_FULL_BYTES:
            return BusyError(what=f"the commit log of server {self._server!r}")
        if self.log_shares.refuses(tenant, log_bytes):
            return BusyError(what=f"the tenant's share of the commit log of {self._server!r}")
        return None

    def _execute(
        self, tick: Tick, arrival: Arrival, now: float, full_log: BusyError | None
    ) -> bool:
        """Execute one group. Return False if it still counts as waiting: for its store or, if it is
        a read, for its turn after the sync."""
        store = self._open_stores.find(arrival.store)
        if store is not None and store.state is not _SERVING and not self._goes_on(store, arrival):
            return self._wait(tick, arrival, self._inbox.hold)
        if store is not None and store.retention is not None and store.becomes_ephemeral:
            # It is about to be closed, and opened anew.
            return self._wait(tick, arrival, self._inbox.hold)
        if store is not None and store.cipher is not None:
            refusal = _refusal_of(store.cipher, arrival)
            if refusal is not None:
                tick.refuse(arrival, refusal)
                return True
        writes = arrival.group.counter > 0
        if store is None or (writes and store.standing is _UNWRITTEN):
            self._open_stores.wait(arrival)
            return False
        store.used_at = now
        if store.retention is not None and (
            self._inbox.holds(store.id) or not self._expires_first(tick, store, arrival)
        ):
            self._inbox.overdue[store.id] = store
            return self._wait(tick, arrival, self._inbox.hold_for_removals)
        if not writes:
            if tick.refuses_read(store, arrival):
                return True
            tick.read(store, arrival)
            return False
        if store.anchor is not None:
            is_full = store.anchor.is_full and any(map(adds, arrival.group.operations))
            if is_full or not store.anchor.takes_place():
                what = f"the memory for ephemeral stores of server {self._server!r}"
                tick.refuse(arrival, BusyError(what=what))
                return True
            if store.anchor.has_reserved and not any(map(_configures, arrival.group.operations)):
                full_log = None
        if full_log is not None:
            tick.refuse(arrival, full_log)
        else:
            try:
                tick.write(store, arrival)
            except StorageError as error:
                self._fail_write(tick, store, arrival, error)
        return True

    def _write_alone(self, tick: Tick, arrival: Arrival, now: float) -> bool:
        """Execute a group of one plain append. Return False if it needs `_execute`."""
        store = self._open_stores.find(arrival[3])
        if store is None:
            return False
        try:
            is_written = tick.write_alone(store, arrival)
        except StorageError as error:
            self._fail_write(tick, store, arrival, error)
            return True
        if is_written:
            store.used_at = now
        return is_written

    def _fail_write(self, tick: Tick, store: Store, arrival: Arrival, error: StorageError) -> None:
        self.failures.append(Failure(StoreWork.WRITE, store.id, error))
        tick.refuse(arrival, error)
        tick.abort(store, error)

    def _give_up(self, tick: Tick, arrival: Arrival, error: Exception) -> None:
        """Refuse a group that raised an unexpected exception."""
        refusal = error if isinstance(error, HoldfastError) else internal_error("a group", error)
        tick.mishaps.append(error)
        tick.refuse(arrival, refusal)
        store = self._open_stores.find(arrival.store)
        if store is not None and store.mark is not None:
            tick.abort(store, refusal)

    def _goes_on(self, store: Store, arrival: Arrival) -> bool:
        """Tell if a group need not wait for the store's file. A checkpoint of a large file takes a
        while, and until it is done the log and memory have what is written."""
        return (
            store.state is OpenState.LENT
            and not self._inbox.holds(store.id)
            and arrival.writes
            and not needs_file(store, arrival.writer, arrival.group.operations)
        )

    def _wait(self, tick: Tick, arrival: Arrival, hold: Callable[[Arrival], bool]) -> bool:
        if hold(arrival):
            return False
        tick.refuse(arrival, BusyError(what=f"the queue of {arrival.store}"))
        return True

    # Limits of a store
    def _expires_first(self, tick: Tick, store: Store, arrival: Arrival) -> bool:
        """Remove what is due before a group that could see it. Return False if that takes more than
        this turn."""
        retention = store.retention
        assert retention is not None
        if not retention.is_due(store.now(tick.time)) or (
            arrival.writes
            and store.is_stream
            and retention.config.discard is Discard.OLD
            and not operations.sees_expired(store, arrival.group.operations)
        ):
            return True
        return self._expire(tick, store)

    def _expire(self, tick: Tick, store: Store) -> bool:
        """Remove what is due from an open store. Return False if there may be more."""
        if store.state is not _SERVING:
            return True
        self._quotas.touched(store)
        try:
            is_complete = tick.expire(store)
            if store.retention is not None and store.retention.uncounted is not None:
                self.uncounted.append(store)
            return is_complete
        except StorageError as error:
            self._fail(tick, StoreWork.EXPIRE, store, error)
        except Exception as error:  # noqa: BLE001 (concerns this store alone)
            tick.give_up(store, error)
        return True

    def _archive(self, tick: Tick, archiving: Archiving) -> None:
        store = archiving.store
        if store.state is not _SERVING or store.standing is _UNWRITTEN:
            return
        try:
            tick.archive(store, archiving.end_seq, archiving.table)
        except StorageError as error:
            self._fail(tick, StoreWork.ARCHIVE, store, error)
        except Exception as error:  # noqa: BLE001 (concerns this store alone)
            tick.give_up(store, error)

    def _evict(self, tick: Tick) -> None:
        """Bring the stores that were written within their limits, in the same tick."""
        for store in tick.limited():
            try:
                eviction.evict(store)
            except StorageError as error:
                self._fail(tick, StoreWork.EXPIRE, store, error)
                continue
            except Exception as error:  # noqa: BLE001 (concerns this store alone)
                tick.give_up(store, error)
                continue
            if store.retention is not None and store.retention.due_at == 0:
                self._inbox.overdue[store.id] = store

    def _fail(self, tick: Tick, work: StoreWork, store: Store, error: StorageError) -> None:
        """Take back what the tick did to a store whose file has failed."""
        self.failures.append(Failure(work, store.id, error))
        tick.abort(store, error)


def _refusal_of(cipher: StoreCipher, arrival: Arrival) -> HoldfastError | None:
    """Return why an encrypted store takes a group neither now nor until something is done."""
    if cipher.problem is None or all(map(_asks_for_head, arrival.group.operations)):
        # So operators can list such a store, and remove it.
        return None
    return cipher.problem


def _configures(operation: Any) -> bool:
    return type(operation) is list and operation[:1] == [frames.CONFIGURE]


def _asks_for_head(operation: Any) -> bool:
    return type(operation) is list and operation[:1] == [frames.HEAD]
