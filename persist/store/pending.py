"""The changes of an open store that wait for its file, tick by tick, in revision order.

The commit log already has them. Many ticks of one store cost its file one transaction. Trims are
listed separately, because a large one is applied in parts and in a thread. Pure but for the file
that it is given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from holdfast.persist.tail.tail import StreamTail
from holdfast.protocol import changes
from holdfast.protocol.limits import MAX_TRIMMED_BYTES, MAX_TRIMMED_ROWS
from holdfast.shared_fs.store_file.applying import AppliedBatch, WriterOutcome
from holdfast.shared_fs.store_file.store_file import StoreFile


class PendingTick(NamedTuple):
    """What one tick did to the store."""

    tick: int
    #: That of the log; None if the change is for memory alone.
    segment: int | None
    batch: AppliedBatch
    outcomes: Sequence[WriterOutcome]
    #: About how much memory the changes take.
    size_bytes: int


class PendingTrim(NamedTuple):
    """A trim that the file may lack."""

    revision: int
    end_seq: int
    message_count: int
    size_bytes: int


class Pending:
    """The ticks that wait for one store's file."""

    __slots__ = ("_logged", "_looked_at", "_trims", "size_bytes", "tail", "ticks")

    def __init__(self) -> None:
        self.ticks: deque[PendingTick] = deque()
        self.size_bytes = 0
        #: What these ticks append, once a read has wanted it.
        self.tail: StreamTail | None = None
        #: In revision order, including those of the running tick.
        self._trims: list[PendingTrim] = []
        #: Of how many of the last ticks `logged_count` knows, and what it knows.
        self._looked_at = self._logged = 0

    @property
    def oldest_segment(self) -> int | None:
        """The log segment of the first pending tick that is in the log."""
        for kept in self.ticks:
            if kept.segment is not None:
                return kept.segment
        return None

    @property
    def logged_count(self) -> int:
        """How many of the changes set nothing, so that the file keeps each of them for followers.
        It looks at each tick once."""
        for _ in range(len(self.ticks) - self._looked_at):
            self._looked_at += 1
            # Of a deque, only the ends are near.
            made = self.ticks[self._looked_at - len(self.ticks) - 1].batch.changes
            numbers = list(map(changes.number_of, made))
            self._logged += len(numbers) - sum(map(numbers.count, changes.SETS))
        return self._logged

    def batches(self) -> Iterator[AppliedBatch]:
        """Yield the pending changes."""
        for kept in self.ticks:
            yield kept.batch

    def outcomes(self) -> list[WriterOutcome]:
        """Return the pending outcomes of writers."""
        return [outcome for kept in self.ticks for outcome in kept.outcomes]

    def ready(self, synced_tick: int) -> list[PendingTick]:
        """Return the pending ticks that are synced."""
        if not self.has_ready(synced_tick):
            return []
        if self.ticks[-1].tick <= synced_tick:
            return list(self.ticks)
        return [pending for pending in self.ticks if pending.tick <= synced_tick]

    def has_ready(self, synced_tick: int) -> bool:
        """Tell if a pending tick is synced. They come in order."""
        return bool(self.ticks) and self.ticks[0].tick <= synced_tick

    def first_ready(
        self, synced_tick: int, max_changes: int, max_bytes: int, tick_changes: int = 0
    ) -> list[PendingTick]:
        """Return the first of the `ready` ticks, at least one if there is any, within bounds. A
        tick counts `tick_changes` beside its changes."""
        found: list[PendingTick] = []
        for pending in self.ticks:
            max_changes -= len(pending.batch.changes) + tick_changes
            max_bytes -= pending.size_bytes
            if pending.tick > synced_tick or (found and (max_changes < 0 or max_bytes < 0)):
                break
            found.append(pending)
        return found

    def trims(self, trim: PendingTrim) -> None:
        """Note a trim of the running tick."""
        self._trims.append(trim)

    def go_back(self, revision: int) -> None:
        """Forget the trims that the running tick made after `revision`."""
        self._trims = [trim for trim in self._trims if trim.revision <= revision]

    def removes_much(self, synced_tick: int) -> bool:
        """Tell if the `ready` ticks remove more messages than the loop should remove at once."""
        if not self._trims:
            return False
        ready = self.ready(synced_tick)
        if not ready:
            return False
        up_to = _end_of(ready[-1])
        trims = [trim for trim in self._trims if trim.revision <= up_to]
        return (
            sum(trim.message_count for trim in trims) > MAX_TRIMMED_ROWS
            or sum(trim.size_bytes for trim in trims) > MAX_TRIMMED_BYTES
        )

    def apply_in_parts(
        self, file: StoreFile, ready: list[PendingTick], done: list[PendingTick]
    ) -> None:
        """Apply the `ready` ticks to the file in transactions of bounded length, with large trims
        in parts. Each applied tick is added to `done`.

        Runs in a thread while nothing else uses the file. Raises
        StorageFailedError, StoreDamagedError.
        """
        start = 0
        gone = gone_bytes = 0
        for revision, end_seq, count, size_bytes in list(self._trims):
            gone, gone_bytes = gone + count, gone_bytes + size_bytes
            if gone <= MAX_TRIMMED_ROWS and gone_bytes <= MAX_TRIMMED_BYTES:
                continue
            gone = gone_bytes = 0
            at = start
            while at < len(ready) and _end_of(ready[at]) < revision:
                at += 1
            if at == len(ready):
                break
            end_seq = _end_of_trims(ready[at:], end_seq)
            if at > start:
                file.apply(*contents_of(ready[start:at]))
                done += ready[start:at]
                start = at
            while file.trim_some(end_seq):
                pass
        file.apply(*contents_of(ready[start:]))
        done += ready[start:]

    def applied(self, ready: list[PendingTick], file_revision: int) -> None:
        """Drop the `ready` ticks: the file holds them and has reached `file_revision`."""
        self.tail = None
        self._looked_at = self._logged = 0
        if len(ready) == len(self.ticks):
            self.ticks.clear()
            self.size_bytes = 0
        else:
            for applied in ready:
                self.ticks.popleft()
                self.size_bytes -= applied.size_bytes
        if self._trims:
            self._trims = [trim for trim in self._trims if trim.revision > file_revision]


def contents_of(ready: list[PendingTick]) -> tuple[list[AppliedBatch], list[WriterOutcome]]:
    """Return the changes and outcomes of ticks in the form that a file takes."""
    return (
        [pending.batch for pending in ready if pending.batch.changes],
        [outcome for pending in ready for outcome in pending.outcomes],
    )


def lasting_count(ready: Iterable[PendingTick], after_seq: int) -> int:
    """Return about how many messages beyond `after_seq`, which the file has, last: limits delete
    others again, by the last change of a tick."""
    found = 0
    for pending in ready:
        found += len(pending.batch.changes)
        for change in pending.batch.changes[-1:]:
            if changes.number_of(change) == changes.CHANGE_DELETE_MESSAGES:
                found -= 1 + sum([seq > after_seq for seq in changes.deleted(change)])
    return found


def _end_of_trims(ready: Sequence[PendingTick], end_seq: int) -> int:
    """Return the end of the last of the trims that `ready` begins with. Removing what has expired
    makes one after the other, and what all of them remove goes in the same parts."""
    for pending in ready:
        made = pending.batch.changes
        if any(changes.number_of(change) != changes.CHANGE_TRIM for change in made):
            break
        end_seq = max([end_seq, *map(changes.trimmed_to, made)])
    return end_seq


def _end_of(pending: PendingTick) -> int:
    return pending.batch.previous_revision + len(pending.batch.changes)
