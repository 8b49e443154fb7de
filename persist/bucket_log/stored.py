"""Which changes go to the bucket's log besides the commit log, and which answers wait for that.

A write of level `stored` is acknowledged when the state up to it can be rebuilt from the bucket
alone: from a snapshot and log objects. Most stores never see such a write, and nothing of them goes
there. The first `stored` write makes a store *followed*: from that tick on all of its changes, of
any level, go to the bucket's log. Invariants:

- The bucket's log of a store continues, without a gap, from one of these: a published snapshot of
  the same epoch, one of an earlier epoch at exactly the revision where the log begins, or the
  store's beginning. So a gap in it always means damage.
- A followed store whose earlier changes are not in the bucket needs a snapshot first (its *base*).
  Until that is published, its changes are held here and are not put.
- An answer leaves when the base exists and the slot with the last change that the answer
  reports is committed, or when a snapshot has that change. Within a store answers leave in the
  order of changes.
- Only what the commit log has synced is put: the bucket's log never runs ahead of it.
- All of it is bounded. Beyond MAX_UNSTORED_BYTES the waiting changes are dropped, and stores for
  which answers wait start again with a snapshot: a bucket that is away never delays other levels.

Pure: no clock, no bucket, no NATS.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from holdfast.protocol.limits import MAX_UNSTORED_ANSWERS, MAX_UNSTORED_BYTES
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.bucket_log.log_object import record_bytes
from holdfast.shared_fs.disk.commit_log import LogRecord

#: How many followed stores without waiting answers are remembered. A forgotten one starts again
#: with a snapshot.
MAX_FOLLOWED: Final = 16384


class StoredAnswer(NamedTuple):
    """An answer that promises `stored`: of `store`, at `revision` in `epoch`."""

    store: StoreId
    epoch: int
    revision: int
    reply: str
    element: list[Any]


class Base(NamedTuple):
    """A store that needs a snapshot at or beyond `revision` of `epoch`."""

    store: StoreId
    epoch: int
    revision: int


@dataclass(slots=True)
class _Followed:
    epoch: int
    #: The revision at which the bucket's log begins to have it.
    start: int
    #: The last change that was taken, and the last one that the bucket has.
    taken: int
    stored: int
    based: bool
    held: list[tuple[int, LogRecord]] = field(default_factory=list)
    waiting: deque[StoredAnswer] = field(default_factory=deque)


class StoredWrites:
    """The changes and answers of one incarnation that wait for the bucket."""

    def __init__(self, *, max_bytes: int = MAX_UNSTORED_BYTES) -> None:
        self._max_bytes = max_bytes
        #: In the order of last use.
        self._followed: OrderedDict[StoreId, _Followed] = OrderedDict()
        #: Records of unsynced ticks, and those of synced ticks that wait for the next slot.
        self._unsynced: deque[tuple[int, LogRecord]] = deque()
        self._ready: list[LogRecord] = []
        self._ready_bytes = 0
        self._under_way: list[LogRecord] = []
        self._unstored_bytes = 0
        self._waiting_count = 0
        self._released: list[StoredAnswer] = []
        self._wanted: dict[StoreId, None] = {}
        self._synced_tick = 0

    @property
    def follows(self) -> bool:
        """True if some store's changes go to the bucket."""
        return bool(self._followed)

    @property
    def waiting_count(self) -> int:
        """How many answers wait for the bucket."""
        return self._waiting_count

    @property
    def unstored_bytes(self) -> int:
        """Bytes of changes that are not in the bucket's log yet."""
        return self._unstored_bytes

    @property
    def is_full(self) -> bool:
        """True if no further `stored` write can be taken now."""
        return (
            self._waiting_count >= MAX_UNSTORED_ANSWERS or self._unstored_bytes >= self._max_bytes
        )

    # Called by the write path
    def take(
        self, tick: int, records: Sequence[LogRecord], answers: Sequence[StoredAnswer]
    ) -> None:
        """Note that the commit log has `records` as frame `tick`, and that `answers` wait for the
        bucket. An answer may be for a store without a record in this tick: it then answers a retry
        of an earlier write."""
        new = {answer.store for answer in answers}
        for record in records:
            if record.store in self._followed or record.store in new:
                self._take(tick, record)
                new.discard(record.store)
        for answer in answers:
            followed = self._followed.get(answer.store)
            if followed is None or followed.epoch != answer.epoch:
                followed = self._follow(answer.store, answer.epoch, answer.revision)
            if followed.based and followed.stored >= answer.revision:
                self._released.append(answer)
                continue
            followed.waiting.append(answer)
            self._waiting_count += 1
            if not followed.based:
                self._wanted[answer.store] = None
        if self._unstored_bytes > 2 * self._max_bytes:
            self._drop()
        self._forget()

    def synced(self, tick: int) -> None:
        """Note that the commit log is durable up to `tick`."""
        self._synced_tick = tick
        while self._unsynced and self._unsynced[0][0] <= tick:
            self._make_ready(self._unsynced.popleft()[1])

    def has_in_log(self, store: StoreId) -> bool:
        """Tell if the bucket's log gets all changes of a store that its snapshots lack."""
        followed = self._followed.get(store)
        return followed is not None and followed.based

    # Called by the writer of slots
    @property
    def ready_bytes(self) -> int:
        """Bytes of changes for the next slot."""
        return self._ready_bytes

    def begin_slot(self) -> list[LogRecord]:
        """Return the records for the next slot."""
        assert not self._under_way
        self._under_way, self._ready, self._ready_bytes = self._ready, [], 0
        return self._under_way

    def slot_committed(self) -> None:
        """Note that the records of `begin_slot` are in the bucket."""
        done, self._under_way = self._under_way, []
        touched: dict[StoreId, None] = {}
        for record in done:
            self._unstored_bytes -= record_bytes(record)
            followed = self._followed.get(record.store)
            if followed is not None and followed.epoch == record.epoch:
                followed.stored = max(followed.stored, record.revision)
                touched[record.store] = None
        for store in touched:
            self._release(self._followed[store])

    # Called by snapshots
    @property
    def wants_bases(self) -> bool:
        """True if some store needs a snapshot that was not asked for yet."""
        return bool(self._wanted)

    def wanted_bases(self) -> list[Base]:
        """Return the stores that need a snapshot. Each is returned once, until `base_failed`."""
        bases = []
        for store in self._wanted:
            followed = self._followed.get(store)
            if followed is not None and not followed.based:
                bases.append(Base(store, followed.epoch, followed.start))
        self._wanted.clear()
        return bases

    def base_failed(self, store: StoreId) -> None:
        """Note that no snapshot could be made: it is still wanted."""
        followed = self._followed.get(store)
        if followed is not None and not followed.based and followed.waiting:
            self._wanted[store] = None

    def snapshotted(self, store: StoreId, epoch: int, revision: int) -> None:
        """Note that a snapshot of a store was published."""
        followed = self._followed.get(store)
        if followed is None or followed.epoch != epoch:
            return
        if not followed.based:
            if revision < followed.start:
                self.base_failed(store)
                return
            followed.based = True
            held, followed.held = followed.held, []
            for tick, record in held:
                if record.revision <= revision:
                    self._unstored_bytes -= record_bytes(record)
                elif tick <= self._synced_tick:
                    self._make_ready(record)
                else:
                    # Younger ticks may precede it here. Then it becomes ready with them.
                    self._unsynced.append((tick, record))
        followed.stored = max(followed.stored, revision)
        self._release(followed)

    def released(self) -> list[StoredAnswer]:
        """Return the answers that may leave now, each once."""
        released, self._released = self._released, []
        return released

    def validate(self) -> None:
        """Check the invariants (tests)."""
        waiting = held_bytes = 0
        for followed in self._followed.values():
            waiting += len(followed.waiting)
            assert not (followed.based and followed.held)
            assert followed.taken >= followed.start
            for _, record in followed.held:
                held_bytes += record_bytes(record)
            revisions = [answer.revision for answer in followed.waiting]
            assert not followed.based or all(each > followed.stored for each in revisions)
        assert waiting == self._waiting_count
        queued: Iterable[LogRecord] = [*self._ready, *self._under_way]
        queued_bytes = sum(map(record_bytes, queued))
        queued_bytes += sum(record_bytes(record) for _, record in self._unsynced)
        assert queued_bytes + held_bytes == self._unstored_bytes

    def _take(self, tick: int, record: LogRecord) -> None:
        followed = self._followed.get(record.store)
        if (
            followed is None
            or followed.epoch != record.epoch
            or followed.taken != record.previous_revision
        ):
            followed = self._follow(record.store, record.epoch, record.previous_revision)
        self._followed.move_to_end(record.store)
        followed.taken = record.revision
        self._unstored_bytes += record_bytes(record)
        if followed.based:
            self._unsynced.append((tick, record))
        else:
            followed.held.append((tick, record))

    def _follow(self, store: StoreId, epoch: int, revision: int) -> _Followed:
        """Begin to follow a store after `revision`."""
        before = self._followed.pop(store, None)
        # At the store's beginning there is nothing that a snapshot could add.
        followed = _Followed(epoch, revision, revision, revision, based=revision == 0)
        if before is not None:
            self._unstored_bytes -= sum(record_bytes(record) for _, record in before.held)
            followed.waiting = before.waiting
            if followed.waiting:
                self._wanted[store] = None
        self._followed[store] = followed
        return followed

    def _make_ready(self, record: LogRecord) -> None:
        self._ready.append(record)
        self._ready_bytes += record_bytes(record)

    def _release(self, followed: _Followed) -> None:
        if not followed.based:
            return
        waiting = followed.waiting
        while waiting and waiting[0].revision <= followed.stored:
            self._released.append(waiting.popleft())
            self._waiting_count -= 1

    def _drop(self) -> None:
        """Drop what waits for the bucket, except the slot that is being put."""
        self._unsynced.clear()
        self._ready, self._ready_bytes = [], 0
        self._unstored_bytes = sum(map(record_bytes, self._under_way))
        for store, followed in list(self._followed.items()):
            if not followed.waiting:
                del self._followed[store]
                continue
            followed.held.clear()
            followed.start = followed.stored = followed.taken
            followed.based = False
            self._wanted[store] = None

    def _forget(self) -> None:
        while len(self._followed) > MAX_FOLLOWED:
            store = next(
                (store for store, each in self._followed.items() if not each.waiting), None
            )
            if store is None:
                return
            forgotten = self._followed.pop(store)
            self._unstored_bytes -= sum(record_bytes(record) for _, record in forgotten.held)
