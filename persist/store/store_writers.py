"""The writers of one open store: which are known, what their outcomes take, and who gets in.

The file has the outcomes of all writers; memory has those of some, loaded when they come again.
What all of them take is counted, so that whoever makes up writers fills neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.persist.store.writers import Admission, WriterState
from holdfast.protocol.limits import MAX_OUTCOME_BYTES, MAX_WRITERS
from holdfast.shared_fs.store_file.applying import WriterOutcome
from holdfast.shared_fs.store_file.store_file import StoreFile

#: Writers whose outcomes an open store holds in memory.
_MAX_KNOWN = 1024


class StoreWriters:
    """What is known of the writers of one store."""

    __slots__ = ("_is_counted", "_limit", "count", "known", "outcome_bytes")

    def __init__(self) -> None:
        self.known: dict[bytes, WriterState] = {}
        #: The outcomes of all writers, and how many writers they are of: those in the file too,
        #: once one was looked for there.
        self.outcome_bytes = 0
        self.count = 0
        self._is_counted = False
        self._limit = _MAX_KNOWN

    def load(
        self, writer: bytes, file: StoreFile | None, waiting: Iterable[WriterOutcome]
    ) -> WriterState:
        """Return a writer that may not be known; `waiting` are the outcomes that the file lacks."""
        found = self.known.get(writer)
        if found is None:
            if not self._is_counted:
                self.recount(file, waiting)
            rows = file.outcomes(writer) if file is not None else ()
            found = self.known[writer] = WriterState.from_rows(rows)
        return found

    def recount(self, file: StoreFile | None, waiting: Iterable[WriterOutcome]) -> None:
        """Count the outcomes in the file, and those that are to be there."""
        count, size_bytes = file.outcome_totals() if file is not None else (0, 0)
        waiting = list(waiting)
        # Some replace others, or are of writers that the file has: rather too many than too few.
        self.count = count + len({outcome.writer for outcome in waiting})
        self.outcome_bytes = size_bytes + sum(len(outcome.outcome) for outcome in waiting)
        self._is_counted = True

    def admit(
        self, writer_id: bytes, writer: WriterState, counter: int, first_unacked: int
    ) -> Admission:
        """Tell if the group of a writer that is new, or of any while the outcomes are too many,
        gets in. One that is known and waits for nothing else does: it takes no more room."""
        if not writer.last:
            if self.count < MAX_WRITERS and self.outcome_bytes <= MAX_OUTCOME_BYTES:
                self.count += 1
                return Admission.NEW
            del self.known[writer_id]
            return Admission.FULL
        return Admission.NEW if counter == first_unacked else Admission.FULL

    def take_back(self, outcomes: list[WriterOutcome]) -> None:
        """Forget what a tick that has failed noted."""
        for kept in reversed(outcomes):
            writer = self.known[kept.writer]
            writer.forget(kept.counter)
            if not writer.last:
                del self.known[kept.writer]
        self._is_counted = False

    def let_go(self, waiting: Callable[[], Iterable[WriterOutcome]]) -> None:
        """Keep in memory, if there are many, only the writers of which the file has not all: it has
        the others, for those that come again."""
        if len(self.known) > self._limit:
            kept = {outcome.writer for outcome in waiting()}
            self.known = {each: self.known[each] for each in kept if each in self.known}
            self._limit = max(_MAX_KNOWN, 2 * len(self.known))
