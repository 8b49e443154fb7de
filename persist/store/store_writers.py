"""The writers of one open store: which are known, how much their outcomes take, and
which are admitted.

The file has the outcomes of all writers. Memory has those of some, loaded when a writer comes back.
The outcomes of all of them are counted, so that a client that invents writers fills neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.persist.store.writers import Admission, WriterState
from holdfast.protocol.limits import MAX_OUTCOME_BYTES, MAX_WRITERS
from holdfast.shared_fs.encryption.store_cipher import StoreCipher
from holdfast.shared_fs.store_file.applying import WriterOutcome
from holdfast.shared_fs.store_file.store_file import StoreFile

#: How many writers' outcomes an open store holds in memory.
_MAX_KNOWN = 1024


class StoreWriters:
    """The writers of one store."""

    __slots__ = ("_is_counted", "_limit", "count", "known", "outcome_bytes")

    def __init__(self) -> None:
        self.known: dict[bytes, WriterState] = {}
        #: The bytes of all outcomes, and the number of their writers. Those in the file are
        #: included once one of them was looked up there.
        self.outcome_bytes = 0
        self.count = 0
        self._is_counted = False
        self._limit = _MAX_KNOWN

    def load(
        self,
        writer: bytes,
        file: StoreFile | None,
        waiting: Iterable[WriterOutcome],
        cipher: StoreCipher | None = None,
    ) -> WriterState:
        """Return a writer, loading it if necessary. `waiting` are the outcomes
        that the file lacks. `cipher` is that of an encrypted store."""
        found = self.known.get(writer)
        if found is None:
            if not self._is_counted:
                self.recount(file, waiting)
            rows = file.outcomes(writer) if file is not None else []
            if cipher is not None:
                rows = [(each, cipher.outcome(writer, each, kept)) for each, kept in rows]
            found = self.known[writer] = WriterState.from_rows(rows)
        return found

    def recount(self, file: StoreFile | None, waiting: Iterable[WriterOutcome]) -> None:
        """Count the outcomes in the file and those that wait for it."""
        count, size_bytes = file.outcome_totals() if file is not None else (0, 0)
        waiting = list(waiting)
        # Some replace others, or belong to writers that the file has: better too many than too few.
        self.count = count + len({outcome.writer for outcome in waiting})
        self.outcome_bytes = size_bytes + sum(len(outcome.outcome) for outcome in waiting)
        self._is_counted = True

    def admit(
        self, writer_id: bytes, writer: WriterState, counter: int, first_unacked: int
    ) -> Admission:
        """Tell if a new writer's group is admitted, or any writer's group while there are too
        many outcomes. The next group of a known writer with nothing else in flight always is: it
        takes no more room."""
        if not writer.last:
            if self.count < MAX_WRITERS and self.outcome_bytes <= MAX_OUTCOME_BYTES:
                self.count += 1
                return Admission.NEW
            del self.known[writer_id]
            return Admission.FULL
        return Admission.NEW if counter == first_unacked else Admission.FULL

    def refuse(
        self,
        writer: WriterState,
        counter: int,
        first_unacked: int,
        outcome: bytes,
        waiting: Callable[[], Iterable[WriterOutcome]],
    ) -> None:
        """Refuse a group for good. An invented writer that is only refused is not counted, and is
        let go like any that the file need not remember."""
        before_bytes = writer.size_bytes
        writer.refuse(counter, first_unacked, outcome)
        self.outcome_bytes += writer.size_bytes - before_bytes
        if not writer.last:
            self.let_go(waiting)

    def take_back(self, outcomes: list[WriterOutcome]) -> None:
        """Forget what a failed tick recorded."""
        for kept in reversed(outcomes):
            writer = self.known[kept.writer]
            writer.forget(kept.counter)
            if not writer.last:
                del self.known[kept.writer]
        self._is_counted = False

    def let_go(self, waiting: Callable[[], Iterable[WriterOutcome]]) -> None:
        """If memory holds many writers, keep only those with outcomes that the file lacks. The file
        has the others, should they come back."""
        if len(self.known) > self._limit:
            kept = {outcome.writer for outcome in waiting()}
            for each in self.known.keys() - kept:
                gone = self.known.pop(each)
                if not gone.last:
                    # It was only refused, so the file has nothing of it.
                    self.outcome_bytes -= gone.size_bytes
            self._limit = max(_MAX_KNOWN, 2 * len(self.known))
