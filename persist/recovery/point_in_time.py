"""Point in time: the state of a store at a revision or a time, as far as snapshots
and logs can tell.

Pure. Given the kept versions and the records of all logs, `course` tells which version to start
from and what to apply. The state it reaches is either exact, or `course` names the two points
between which the target lies. A revision is exact if it is reached. A time is exact if nothing can
have happened between the reached state and that time: the next change is known and later, or the
store was seen unchanged after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple, overload

from holdfast.persist.recovery.takeover import batches_of, following
from holdfast.protocol import changes, frames
from holdfast.protocol.errors import (
    InvalidArgumentError,
    PointNotReachedError,
    StoreDamagedError,
)
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk.commit_log import LogRecord
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion, StoreEntry
from holdfast.shared_fs.store_file.applying import AppliedBatch, WriterOutcome


class RestoreTarget(NamedTuple):
    """Exactly one of the two is set. A time is milliseconds since the epoch."""

    time: int | None = None
    revision: int | None = None

    def check(self) -> None:
        """Raise InvalidArgumentError unless exactly one is set."""
        if (self.time is None) == (self.revision is None):
            raise InvalidArgumentError(argument="target", reason="must be a time or a revision")

    def covers(self, revision: int, time: int) -> bool:
        """Tell if a change with this revision and time is at or before the target."""
        return (self.time is None or time <= self.time) and (
            self.revision is None or revision <= self.revision
        )

    def __str__(self) -> str:
        return f"revision {self.revision}" if self.time is None else _shown(self.time)


def _shown(time_ms: int) -> str:
    """A time as people give it to `holdfast restore --to-time`."""
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        # Beyond all years: a request may have any number.
        return f"{time_ms} ms"
    return moment.isoformat(timespec="milliseconds")


class Point(NamedTuple):
    """A state of the store, which it still had at `until`."""

    epoch: int
    revision: int
    time: int
    until: int


class Steps(Sequence[AppliedBatch]):
    """Batches to apply. Each is decoded when it is used, because large values in the log may take
    more memory than there should be."""

    def __init__(self) -> None:
        #: The record, the index of one of its payloads, and how many changes of
        #: that payload to use.
        self._steps: list[tuple[LogRecord, int, int]] = []
        self.change_count = 0

    def add(self, record: LogRecord, payload: int, change_count: int) -> None:
        """Add the first `change_count` changes of one payload of a record."""
        self._steps.append((record, payload, change_count))
        self.change_count += change_count

    def __len__(self) -> int:
        return len(self._steps)

    @overload
    def __getitem__(self, index: int) -> AppliedBatch: ...
    @overload
    def __getitem__(self, index: slice) -> list[AppliedBatch]: ...
    def __getitem__(self, index: int | slice) -> AppliedBatch | list[AppliedBatch]:
        if isinstance(index, slice):
            return [_batch(*step) for step in self._steps[index]]
        return _batch(*self._steps[index])

    def __iter__(self) -> Iterator[AppliedBatch]:
        return (_batch(*step) for step in self._steps)


@dataclass(slots=True)
class Course:
    """The way to a state: a version, then batches. Without a version it starts from an empty store
    at revision `beginning`."""

    version: SnapshotVersion | None
    beginning: int = 0
    #: Valid as long as the records exist that they come from.
    batches: Steps = field(default_factory=Steps)
    outcomes: list[WriterOutcome] = field(default_factory=list)
    #: The state that is reached.
    revision: int = 0
    time: int = 0
    exact: bool = False
    #: The first reachable point beyond the target: its revision and time.
    after: tuple[int, int] | None = None


def course(
    store: StoreId,
    entry: StoreEntry | None,
    records: Sequence[LogRecord],
    target: RestoreTarget,
    seen: Iterable[Point] = (),
) -> Course:
    """Return the way to `target`, or to the nearest reachable state before it. `seen` are states
    that were seen besides the snapshotted ones."""
    entry = entry or StoreEntry()
    deleted_epoch = entry.deleted.epoch if entry.deleted is not None else 0
    records = [record for record in records if record.epoch > deleted_epoch]
    version = entry.at(time=target.time, revision=target.revision)
    found = Course(version)
    epoch = deleted_epoch + 1
    if version is not None:
        epoch, found.revision, found.time = version.epoch, version.revision, version.time
    elif entry.deleted is not None:
        found.beginning = found.revision = entry.deleted.revision + 1
    reached = (epoch, found.revision)
    try:
        for record in following(store, records, file_epoch=epoch, file_revision=found.revision):
            for payload, batch in enumerate(batches_of(record)):
                kept = _covered(batch, target)
                if kept:
                    found.batches.add(record, payload, len(kept))
                    found.revision = changes.end_of(batch.previous_revision, kept)
                    found.time = batch.time
                    reached = (record.epoch, found.revision)
                if len(kept) < len(batch.changes):
                    found.after = (found.revision + 1, batch.time)
                    break
            if found.after is not None:
                break
            found.outcomes.extend(WriterOutcome(*outcome) for outcome in record.outcomes)
    except StoreDamagedError:
        # What lies beyond the gap does not follow from what is known.
        pass
    points = [Point(*each.order, each.time, each.taken) for each in entry.versions]
    found.exact = _is_exact(found, reached, target, [*points, *seen])
    if found.after is None:
        later = [
            (point.revision, point.time)
            for point in points
            if not target.covers(point.revision, point.time)
        ]
        found.after = min(later, default=None)
    return found


def _batch(record: LogRecord, payload: int, change_count: int) -> AppliedBatch:
    changes = frames.decode_changes(record.payloads[payload])
    is_whole = change_count == len(changes.changes)
    return AppliedBatch(
        changes.previous_revision,
        changes.time,
        changes.changes[:change_count],
        changes.chain if is_whole else None,
    )


def _covered(batch: AppliedBatch, target: RestoreTarget) -> Sequence[frames.WireChange]:
    if target.time is not None and batch.time > target.time:
        return []
    if target.revision is None:
        return batch.changes
    return batch.changes[: max(0, target.revision - batch.previous_revision)]


def _is_exact(
    found: Course, reached: tuple[int, int], target: RestoreTarget, points: Iterable[Point]
) -> bool:
    if target.time is None:
        return found.revision == target.revision
    if found.revision == 0:
        return False
    if found.after is not None:
        return True
    return any(
        ((point.epoch, point.revision) == reached and point.until >= target.time)
        or (point.revision == found.revision + 1 and point.time > target.time)
        for point in points
    )


def not_reached(store: StoreId, target: RestoreTarget, found: Course) -> PointNotReachedError:
    """Return the error that refuses a course that is not exact."""
    before = [found.revision, found.time] if found.revision else None
    after = list(found.after) if found.after is not None else None
    near = [
        f"revision {point[0]} ({_shown(point[1])})"
        for point in (before, after)
        if point is not None
    ]
    reason = f"you can restore {' or '.join(near)}" if near else "no snapshot or log reaches it"
    return PointNotReachedError(
        store=str(store), target=str(target), reason=reason, before=before, after=after
    )
