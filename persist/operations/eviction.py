"""Removes from a store what its limits and the passing of time no longer allow.

Pure but for look-ups in the store's file. All removals are changes that the owner makes, so the log
has them, followers see them, and nobody else decides by its own clock. Invariants:

- A stream loses its lowest seqs first, a kv the keys that were set longest ago, after the former
  values of its history, and neither loses more than the limit requires. The front of a stream is
  removed by one trim, however long it is.
- Expired rows are removed before the owner gives an answer that could show them.
- One turn of the loop removes at most MAX_EVICTED_ROWS of what exceeds limits, and MAX_EXPIRED_ROWS
  of what has expired. If there is more, `due_at` is 0, and the next turn continues.
- If much more of a front has expired, a thread can count it (`begin_measuring`), and the next turn
  then removes all that was counted.

The file and the pending changes are examined together. Scanning the pending changes costs at most
as much as a transaction, and is done once for all that a turn removes from a store. The front of a
stream that is trimmed already, but still in the file, is not read again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from heapq import merge
from itertools import takewhile
from typing import Any, Final, NamedTuple

from holdfast.persist.operations import subject_limits
from holdfast.persist.operations.history import former_values
from holdfast.persist.operations.purging import remove_messages
from holdfast.persist.store.change_sizes import entry_bytes_of, message_bytes_of
from holdfast.persist.store.retention import NEVER, MeasuredFront, UncountedFront
from holdfast.persist.store.store import Store
from holdfast.protocol import changes, frames
from holdfast.protocol.changes import REASON_LIMIT, REASON_TTL
from holdfast.protocol.limits import (
    MAX_DELETE_COUNT,
    MAX_EVICTED_ROWS,
    MAX_EXPIRED_ROWS,
    MAX_INTEGER,
    PAGE_BYTES,
)
from holdfast.protocol.store_config import Discard
from holdfast.shared_fs.store_file.reading.going_rows import GoingOrder, GoingRow

_ROUNDS: Final = MAX_EVICTED_ROWS // MAX_DELETE_COUNT
#: A thread counts the rest of a front that is longer than this many turns.
_TURNS_IN_LOOP: Final = 4
#: The rows of a turn that are looked at one by one, since some of a front may not be due.
_LOOKED_AT_ROWS: Final = MAX_EXPIRED_ROWS // 4

_Rows = Generator[GoingRow, None, None]
_TimedRows = Generator[tuple[int, GoingRow], None, None]


class Eviction(NamedTuple):
    """One removal: of a stream's messages up to and including `end_seq`, or else of `keys` one by
    one (seqs, if it is a stream)."""

    end_seq: int
    message_count: int
    size_bytes: int
    keys: list[Any]
    #: The seqs of a stream's messages that have expired.
    expired: list[int] = []  # noqa: RUF012 (never changed)
    #: Of a kv: why its keys are removed, and the revisions of former values, of `size_bytes`.
    how: changes.Removal = changes.Removal.EVICTED
    versions: list[int] = []  # noqa: RUF012 (never changed)


def expire(store: Store, now: int) -> bool:
    """Remove what is due at `now`. If there is something, the store's tick begins.

    Returns False if there may be more: call it again in the next turn. Raises StorageError.
    """
    retention = store.retention
    assert retention is not None
    removal, reason = None, REASON_TTL
    if retention.is_due(now) or _exceeds(store):
        unwritten = Unwritten(store)
        if retention.is_due(now):
            removal = aged_front(store, now, unwritten) or due(store, now, unwritten)
        if removal is None:
            removal, reason = over(store, unwritten), REASON_LIMIT
    if removal is not None:
        _begin(store, now)
        unmarked = subject_limits.bereft(store, removal.expired) if removal.expired else []
        _remove(store, removal, reason)
        subject_limits.mark(store, unmarked)
        if retention.is_due(now) or _exceeds(store):
            retention.due_at = 0
            return False
    if excess := subject_limits.excess(store, retention):
        _begin(store, now)
        remove_messages(store, list(excess), excess, REASON_LIMIT)
    return retention.due_at > 0


def _begin(store: Store, now: int) -> None:
    store.begin()
    store.time = max(store.time, now)


def evict(store: Store) -> None:
    """Remove what exceeds the limits of the total, at the end of the store's tick.

    If that is more than one turn may remove, the store becomes due. Raises StorageError.
    """
    assert store.retention is not None
    excess = subject_limits.excess(store, store.retention)
    remove_messages(store, list(excess), excess, REASON_LIMIT)
    if not _exceeds(store):
        return
    unwritten = Unwritten(store)
    for _ in range(_ROUNDS):
        removal = over(store, unwritten)
        if removal is None:
            return
        _remove(store, removal, REASON_LIMIT)
        unwritten.remove(removal)
    store.retention.due_at = 0


def _exceeds(store: Store) -> bool:
    """Tell if a store exceeds limits that remove something."""
    assert store.retention is not None
    excess, excess_bytes = _excess(store)
    return store.retention.config.discard is not Discard.NEW and (excess > 0 or excess_bytes > 0)


def _excess(store: Store) -> tuple[int, int]:
    assert store.retention is not None
    config = store.retention.config
    return (
        store.count - (config.max_messages or store.count),
        store.bytes - (config.max_bytes or store.bytes),
    )


def over(store: Store, unwritten: Unwritten) -> Eviction | None:
    """Return the next removal for a store that exceeds its limits, or None."""
    if not _exceeds(store):
        return None
    excess, excess_bytes = _excess(store)
    if excess_bytes > 0 and store.keeps_history:
        found = former_values.over(store, excess_bytes)
        if found is not None:
            return _of_history(found)
    going: list[GoingRow] = []
    with closing(_by_limits(store, unwritten)) as rows:
        for row in rows:
            going.append(row)
            excess -= 1
            excess_bytes -= row.size_bytes
            if (excess <= 0 and excess_bytes <= 0) or len(going) == MAX_DELETE_COUNT:
                break
    return _up_to(going) if store.is_stream else _one_by_one(going)


def aged_front(store: Store, now: int, unwritten: Unwritten) -> Eviction | None:
    """Return the removal of the front of a stream if all of it, as much as a turn removes, has
    reached the maximum age, at the price of one statement. Looking at each message would keep the
    loop for ten times as long. None: look at them."""
    retention = store.retention
    assert retention is not None
    age_ms, file = retention.max_age_ms, store.contents.file
    if age_ms is None or file is None or not store.is_stream:
        return None
    if store.config.subject_marker_seconds is not None:
        return None
    front = retention.take_measured()
    if front is None:
        front = file.front(unwritten.trimmed_to, MAX_EXPIRED_ROWS)
        if front is None or front.lasts or front.time + age_ms > now:
            return None
        far_seq = front.last_seq + _TURNS_IN_LOOP * MAX_EXPIRED_ROWS
        time = file.time_from(far_seq)
        is_due = time is not None and time + age_ms <= now
        end_seq = file.meta.last_seq
        if is_due and not unwritten.touches(end_seq):
            # This removal is one more change.
            changes_before = retention.front_changes + 1
            retention.uncounted = UncountedFront(front.last_seq, end_seq, changes_before)
    if unwritten.touches(front.last_seq):
        return None
    retention.due_at = 0
    return Eviction(front.last_seq, front.message_count, front.size_bytes, [])


def begin_measuring(store: Store, now: int) -> Callable[[], None] | None:
    """Return a function that counts, in a thread that has the file, how much of the store has
    reached the maximum age at `now`, for the next `expire`. None if that is not much.

    It raises StorageError.
    """
    retention, file = store.retention, store.contents.file
    if retention is None or retention.uncounted is None or file is None:
        return None
    (after_seq, end_seq, changes_before), retention.uncounted = retention.uncounted, None
    assert retention.max_age_ms is not None
    written_before = now - retention.max_age_ms

    def measure() -> None:
        front = file.aged_front(after_seq, end_seq, written_before)
        if front is not None:
            retention.measured = MeasuredFront(front, changes_before)

    return measure


def due(store: Store, now: int, unwritten: Unwritten) -> Eviction | None:
    """Return what has expired, or the first part of it, and note when the next row expires."""
    retention = store.retention
    assert retention is not None
    going: dict[Any, GoingRow] = {}
    next_at = NEVER
    if store.keeps_history:
        found, next_at = former_values.due(store, now)
        if found is not None:
            retention.due_at = 0
            return _of_history(found)
    for source in _by_time(store, unwritten):
        with closing(source) as rows:
            for at, row in rows:
                if at > now:
                    next_at = min(next_at, at)
                    break
                if len(going) == _LOOKED_AT_ROWS:
                    next_at = 0
                    break
                going[row.key] = row
    retention.due_at = next_at
    if not going:
        return None
    if not store.is_stream:
        return _fitting(store, list(going.values()), now)
    with closing(_by_limits(store, unwritten)) as rows:
        front = list(takewhile(lambda row: row.key in going, rows))
    if not front:
        removal = _one_by_one(sorted(going.values()))
        return removal._replace(expired=removal.keys)
    if len(front) < len(going):
        retention.due_at = 0
    return _up_to(front)._replace(expired=[row.key for row in front])


def _fitting(store: Store, going: list[GoingRow], now: int) -> Eviction:
    """Return the removal of as many keys as one broadcast can name. With a history, of those whose
    ttl has ended, or else of those that are too old."""
    expired: list[GoingRow] = []
    if store.keeps_history:
        expired = [row for row in going if row.expires is not None and row.expires <= now]
    removal = _one_by_one(expired or going)
    if expired:
        removal = removal._replace(how=changes.Removal.EXPIRED)
    if len(removal.keys) < len(going):
        assert store.retention is not None
        store.retention.due_at = 0
    return removal


def _up_to(going: list[GoingRow]) -> Eviction:
    size_bytes = sum(row.size_bytes for row in going)
    return Eviction(going[-1].key, len(going), size_bytes, [])


def _one_by_one(going: list[GoingRow]) -> Eviction:
    keys: list[Any] = []
    room_bytes = PAGE_BYTES
    for row in going[:MAX_DELETE_COUNT]:
        room_bytes -= len(row.key.encode()) if type(row.key) is str else 0
        if keys and room_bytes < 0:
            break
        keys.append(row.key)
    return Eviction(0, len(keys), 0, keys)


def _of_history(found: former_values.FormerValues) -> Eviction:
    versions, size_bytes, how = found
    return Eviction(0, 0, size_bytes, [], how=how, versions=versions)


def _remove(store: Store, removal: Eviction, reason: int) -> None:
    if not store.is_stream:
        _, _, size_bytes, keys, _, how, versions = removal
        store.delete_entries(keys, reason, how, versions, size_bytes)
    elif removal.end_seq:
        store.trim(removal.end_seq, removal.message_count, removal.size_bytes, reason)
    else:
        store.delete_messages(removal.keys, reason=reason)


# Rows of the file, and of the changes it lacks
class Unwritten:
    """The effect of the changes that the file lacks: the rows they set, in that order, and which
    rows of the file no longer count."""

    def __init__(self, store: Store) -> None:
        self.rows: dict[Any, GoingRow] = {}
        self._touched: set[Any] = set()
        #: No row of a stream is below this seq.
        self._lowest_seq = MAX_INTEGER
        self._trimmed_to = 0
        self._cleared = False
        for batch in store.unwritten():
            revision = batch.previous_revision
            for change in batch.changes:
                revision += 1
                self._learn(change, revision, batch.time)
        self._touched.update(self.rows)

    @property
    def trimmed_to(self) -> int:
        """The end of the front that is gone, of a stream."""
        return self._trimmed_to

    def touches(self, end_seq: int) -> bool:
        """Tell if rows of the file up to `end_seq`, besides the front that is gone, have changed,
        or there are more of them."""
        return any(self._trimmed_to < key <= end_seq for key in self._touched)

    def remove(self, removal: Eviction) -> None:
        """Take note of a removal that has just become a pending change."""
        if removal.end_seq:
            self._trim(removal.end_seq)
        for key in removal.keys:
            self.rows.pop(key, None)
        self._touched.update(removal.keys)

    def hides(self, row: GoingRow) -> bool:
        """Tell if a row of the file no longer belongs to the store."""
        if type(row.key) is int and row.key <= self._trimmed_to:
            return True
        return self._cleared or row.key in self._touched

    def _learn(self, change: frames.WireChange, revision: int, time: int) -> None:
        number, rows = changes.number_of(change), self.rows
        if number == changes.CHANGE_SET_MESSAGE:
            said = changes.message_set(change)
            written = time if said.time is None else said.time
            self._set(said.seq, revision, written, message_bytes_of(change), said.expires)
        elif number == changes.CHANGE_SET_ENTRY:
            entry = changes.entry_set(change)
            written = time if entry.time is None else entry.time
            self._set(entry.key, revision, written, entry_bytes_of(change), entry.expires)
        elif number in changes.DELETES:
            for key in changes.deleted(change):
                rows.pop(key, None)
            self._touched.update(changes.deleted(change))
        elif number == changes.CHANGE_TRIM:
            self._trim(changes.trimmed_to(change))
        elif number == changes.CHANGE_CLEAR:
            self._cleared = True
            rows.clear()

    def _trim(self, end_seq: int) -> None:
        self._trimmed_to = max(self._trimmed_to, end_seq)
        if end_seq < self._lowest_seq:
            # A front that expires is trimmed in very many parts.
            return
        for seq in [seq for seq in self.rows if seq <= end_seq]:
            del self.rows[seq]

    def _set(
        self, key: Any, revision: int, time: int, size_bytes: int, expires: int | None
    ) -> None:
        if type(key) is int:
            self._lowest_seq = min(self._lowest_seq, key)
        # Move it to the end: rows are in the order of their last set.
        self.rows.pop(key, None)
        self.rows[key] = GoingRow(key, revision, time, size_bytes, expires)


def _written(store: Store, unwritten: Unwritten, order: GoingOrder) -> _Rows:
    if store.contents.file is None:
        return
    with closing(store.contents.file.going(order, unwritten.trimmed_to)) as rows:
        for row in rows:
            if not unwritten.hides(row):
                yield row


def _by_limits(store: Store, unwritten: Unwritten) -> _Rows:
    """Yield the rows of the store in the order in which limits remove them."""
    with closing(_written(store, unwritten, GoingOrder.LIMITS)) as written:
        if store.is_stream:
            # Merge by seq: a low seq that was set again may be among the pending rows.
            yield from merge(written, sorted(unwritten.rows.values()))
        else:
            yield from written
            yield from unwritten.rows.values()


def _by_time(store: Store, unwritten: Unwritten) -> Iterator[_TimedRows]:
    """Yield sources of rows, each in the order of expiry and with the time of it."""
    retention = store.retention
    assert retention is not None
    rows = unwritten.rows.values()
    age_ms = retention.max_age_ms
    if age_ms is not None:
        for order in (GoingOrder.TIME, GoingOrder.TIME_REPLACED):
            yield _aging(_written(store, unwritten, order), age_ms)
        yield _aging(rows, age_ms)
    if retention.has_ttl:
        yield _expiring(_written(store, unwritten, GoingOrder.EXPIRES))
        expiring = [row for row in rows if row.expires is not None]
        yield _expiring(sorted(expiring, key=lambda row: row.expires or 0))


def _aging(rows: Iterable[GoingRow], age_ms: int) -> _TimedRows:
    for row in rows:
        if row.expires != changes.NEVER_EXPIRES:
            yield row.time + age_ms, row


def _expiring(rows: Iterable[GoingRow]) -> _TimedRows:
    for row in rows:
        assert row.expires is not None
        yield row.expires, row
