"""The changes of an open store that wait for its file, tick by tick, in the order of revision.

The commit log has them; many ticks of one store cost its file one transaction. Trims are noted
beside them: one that removes much is applied in parts, in a thread. Pure but for the file that it
is given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from holdfast.protocol.limits import MAX_TRIMMED_BYTES, MAX_TRIMMED_ROWS
from holdfast.shared_fs.store_file.applying import AppliedBatch, WriterOutcome
from holdfast.shared_fs.store_file.store_file import StoreFile


class PendingTick(NamedTuple):
    """What one tick did to the store."""

    tick: int
    segment: int
    batch: AppliedBatch
    outcomes: Sequence[WriterOutcome]
    #: What the changes take in memory, about.
    size_bytes: int


class PendingTrim(NamedTuple):
    """A trim that the file may not have yet."""

    revision: int
    end_seq: int
    message_count: int
    size_bytes: int


class Pending:
    """What waits for the file of one store."""

    __slots__ = ("_trims", "size_bytes", "ticks")

    def __init__(self) -> None:
        self.ticks: deque[PendingTick] = deque()
        self.size_bytes = 0
        #: In the order of revision; those of the running tick too.
        self._trims: list[PendingTrim] = []

    @property
    def oldest_segment(self) -> int | None:
        """The segment of the log that has the first of them."""
        return self.ticks[0].segment if self.ticks else None

    def batches(self) -> Iterator[AppliedBatch]:
        """Yield the changes."""
        for kept in self.ticks:
            yield kept.batch

    def outcomes(self) -> list[WriterOutcome]:
        """Return what writers were answered."""
        return [outcome for kept in self.ticks for outcome in kept.outcomes]

    def ready(self, synced_tick: int) -> list[PendingTick]:
        """Return what is pending of synced ticks."""
        if not self.ticks or self.ticks[0].tick > synced_tick:
            return []
        if self.ticks[-1].tick <= synced_tick:
            return list(self.ticks)
        return [pending for pending in self.ticks if pending.tick <= synced_tick]

    def trims(self, trim: PendingTrim) -> None:
        """The running tick trims the store."""
        self._trims.append(trim)

    def go_back(self, revision: int) -> None:
        """What the running tick trimmed after a revision is there again."""
        self._trims = [trim for trim in self._trims if trim.revision <= revision]

    def removes_much(self, synced_tick: int) -> bool:
        """Tell if what is `ready` removes more messages than the loop should."""
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
        """Apply what is `ready` to the file in transactions of bounded length, with large trims in
        parts; `done` gets what was applied.

        Runs in another thread while nothing else uses the file. Raises StorageFailedError,
        StoreDamagedError.
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
            if at > start:
                file.apply(*contents_of(ready[start:at]))
                done += ready[start:at]
                start = at
            while file.trim_some(end_seq):
                pass
        file.apply(*contents_of(ready[start:]))
        done += ready[start:]

    def applied(self, ready: list[PendingTick], file_revision: int) -> None:
        """The file holds what was `ready`, and is of a revision now."""
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
    """Return the changes and the outcomes of ticks, as a file takes them."""
    return (
        [pending.batch for pending in ready if pending.batch.changes],
        [outcome for pending in ready for outcome in pending.outcomes],
    )


def _end_of(pending: PendingTick) -> int:
    return pending.batch.previous_revision + len(pending.batch.changes)
