"""The subjects of a stream's messages, as of the last accepted change.

The file knows the messages that it holds, by subject; the memtable has those of the changes that
the file lacks. Invariants:

- A message that is appended keeps its subject until it is removed. So a seq that the file does not
  hold yet is in `by_subject` of the memtable if and only if such a message is there now.
- A message of the file no longer counts if its seq is trimmed, or in `removed` of the memtable.

Work in proportion to the number of subjects or messages takes from `looks_left`, which a tick
renews: one tick never looks at more, however many operations ask for it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, Sequence
from typing import Final

from holdfast.persist.store.memtable import Memtable
from holdfast.protocol.errors import RateLimitedError
from holdfast.protocol.limits import MAX_LOOKS
from holdfast.protocol.subject_filters import Filters, is_literal
from holdfast.shared_fs.store_file.store_file import StoreFile
from holdfast.shared_fs.store_file.subject_rows import StoredSubjects

_LARGEST_SEQ: Final = (1 << 63) - 1
#: Counts that are remembered; all are forgotten beyond it.
_MAX_COUNTS: Final = 65_536
#: Filters of which is remembered from where on messages match.
_MAX_PLACES: Final = 64
#: Seqs of one subject that are read at once, at first and at most.
_FIRST_SEQS: Final = 8
_MAX_SEQS: Final = 1024
_RETRY_SECONDS: Final = 0.1


class MessageSubjects:
    """Which message has which subject, in a file and the changes that it lacks."""

    __slots__ = (
        "_counts",
        "_find_file",
        "_firsts",
        "_has_pending",
        "_memtable",
        "_pending",
        "_places",
        "_tick",
        "looks_left",
    )

    def __init__(self, memtable: Memtable, file: Callable[[], StoreFile | None]) -> None:
        """`file` returns the file of the store, once there is one."""
        self._memtable = memtable
        self._pending = memtable.subjects
        self._find_file = file
        self._has_pending = False
        self._tick: object = None
        self._counts: dict[str, int] = {}
        #: The first message of some of the subjects that are counted: its seq and size. The key of
        #: a bucket that keeps one value has it whenever it is set again.
        self._firsts: dict[str, tuple[int, int]] = {}
        #: By filter: every message that matches is at this seq or later.
        self._places: dict[str, int] = {}
        self.looks_left = MAX_LOOKS

    def in_tick(self, tick: object) -> MessageSubjects:
        """Return itself for the operations of a tick, which is any object of its own."""
        if self._tick is not tick:
            self._tick = tick
            self.looks_left = MAX_LOOKS
        return self

    @property
    def exists(self) -> bool:
        """Some message has or had a subject. Without one, nothing here needs to be asked."""
        file = self._find_file()
        return self._has_pending or (file is not None and file.subjects.exists)

    @property
    def with_first(self) -> KeysView[str]:
        """Some of the subjects that messages have."""
        return self._firsts.keys()

    # Changes
    def set(self, seq: int, subject: str | None, *, is_new: bool) -> None:
        """Note that message `seq` was set; `is_new` if there was none."""
        if subject is None:
            return
        self._has_pending = True
        first = self._firsts.get(subject)
        if first is not None and (seq < first[0] or not is_new):
            del self._firsts[subject]
        self._pending.set(seq, subject)
        if is_new and subject in self._counts:
            self._counts[subject] += 1

    def append(self, seqs: Sequence[int], subjects: Sequence[str]) -> None:
        """Note new messages that all have a subject. They belong to no batch."""
        self._has_pending = True
        self._pending.append(seqs, subjects)
        if self._counts:
            for subject in subjects:
                if subject in self._counts:
                    self._counts[subject] += 1

    def remove(self, removed: Mapping[int, str], revision: int) -> None:
        """Note that the change with `revision` removed messages that have a subject, by seq."""
        counts, firsts = self._counts, self._firsts
        sizes, by_subject = self._memtable.messages, self._pending.by_subject
        self._pending.remove_all(removed, revision)
        for subject in removed.values():
            count = counts.get(subject)
            if count is not None:
                counts[subject] = count - 1
                if count == 2 and (mine := by_subject.get(subject)):
                    # What the memtable has of it counts still, so this is the one that is left.
                    size_bytes = sizes[mine[0]]
                    assert size_bytes is not None, "it was not removed"
                    firsts[subject] = (mine[0], size_bytes)
                    continue
            firsts.pop(subject, None)

    def trimmed(self) -> None:
        """Note that the front of the stream was removed. The memtable knows it already."""
        self._forget_counts()

    def went_back(self) -> None:
        """Note that changes were taken back."""
        self._forget_counts()
        self._places.clear()

    # Questions about one subject
    def subject_of(self, seq: int) -> str | None:
        """Return the subject of a message; None if it has none or does not exist."""
        memtable = self._memtable
        if seq in memtable.messages:
            return self._pending.subject_of.get(seq)
        file = self._file
        if file is None or seq <= memtable.trimmed_to or seq > file.meta.last_seq:
            return None
        return file.subjects.subject_of(seq)

    def count(self, subject: str) -> int:
        """Return how many messages have a subject."""
        found = self._counts.get(subject)
        if found is None:
            if len(self._counts) >= _MAX_COUNTS:
                self._forget_counts()
            found = self._counts[subject] = self._count(subject)
        return found

    def last_seq(self, subject: str) -> int:
        """Return the last seq of a subject; 0 if no message has it."""
        pending = self._pending_seqs(subject)
        if pending:
            return pending[-1]
        return next(self._written_seqs(subject, backwards=True), 0)

    def seqs(self, subject: str) -> Iterator[int]:
        """Yield the seqs of a subject. Nothing may change meanwhile."""
        pending = self._pending_seqs(subject)
        if len(pending) < self.count(subject):
            yield from self._written_seqs(subject)
        yield from pending

    def first_seqs(self, subjects: Sequence[str]) -> dict[str, int]:
        """Return the first seq of those of the subjects of which one look at the file tells it, or
        none: of a key that is set again and again, the file may have nothing that still counts."""
        stored, file, removed_of = self._stored, self._file, self._pending.removed_of
        revision = 0 if file is None else file.meta.revision
        firsts = self._firsts
        found = {each: firsts[each][0] for each in subjects if each in firsts}
        as_in_file: list[str] = []
        for subject in subjects:
            if subject in found:
                continue
            pending = self._pending_seqs(subject)
            if pending and len(pending) == self.count(subject):
                found[subject] = pending[0]
                continue
            removed = removed_of.get(subject)
            if removed is None or next(reversed(removed.values())) <= revision:
                as_in_file.append(subject)
        if stored is not None and as_in_file:
            found |= stored.first_seqs(as_in_file, self._memtable.trimmed_to)
        return found

    def known_firsts(self, subjects: Iterable[str], count: int) -> dict[int, str]:
        """Return the first message of those of the subjects that have `count` messages, each seq
        with its subject, where both are known without a look at the file."""
        counts, firsts = self._counts, self._firsts
        return {
            first[0]: each
            for each in subjects
            if (first := firsts.get(each)) is not None and counts.get(each) == count
        }

    def sizes_of_firsts(self, subject_of: Mapping[int, str]) -> dict[int, int]:
        """Return the size of each of these messages, seq by subject, that is known without a look
        at the file because it is the first of its subject."""
        firsts = self._firsts
        return {
            seq: first[1]
            for seq, subject in subject_of.items()
            if (first := firsts.get(subject)) is not None and first[0] == seq
        }

    # Questions about filters
    def last_matching(self, wanted: str) -> int:
        """Return the last seq of a message that matches a filter; 0 if there is none.

        Raises RateLimitedError if it would look at too much.
        """
        if is_literal(wanted):
            return self.last_seq(wanted)
        filters = Filters([wanted])
        pending = self._pending_matching(filters)
        if pending:
            return pending[-1]
        subjects = self._stored_matching(filters)
        self._look(2 * len(subjects))
        lasts = (next(self._written_seqs(each, backwards=True), 0) for each in subjects)
        return max(lasts, default=0)

    def count_matching(self, wanted: str) -> int:
        """Return how many messages match a filter. Raises RateLimitedError as `last_matching`."""
        if is_literal(wanted):
            return self.count(wanted)
        filters = Filters([wanted])
        subjects = set(self._stored_matching(filters))
        subjects.update(filter(filters.matches, self._pending.by_subject))
        self._look(2 * len(subjects))
        return sum(map(self.count, subjects))

    def seqs_matching(self, wanted: str, end_seq: int, limit: int) -> tuple[list[int], bool]:
        """Return the first seqs below `end_seq` of messages that match a filter, at most `limit`,
        and whether there may be more. What it returns may be empty all the same: ask again."""
        seqs: list[int] = []
        if is_literal(wanted):
            for seq in self.seqs(wanted):
                if seq >= end_seq or len(seqs) == limit:
                    return seqs, seq < end_seq
                seqs.append(seq)
            return seqs, False
        filters = Filters([wanted])
        file = self._file
        if file is not None and self._stored is not None:
            last_seq = min(end_seq - 1, file.meta.last_seq)
            start_seq = max(self._places.get(wanted, 1), self._memtable.trimmed_to + 1)
            while start_seq <= last_seq and len(seqs) < limit and self.looks_left > 0:
                page = file.subject_reads.seqs(filters, start_seq, last_seq, limit, _never)
                self.looks_left -= page.looked_at + 1
                seqs += [seq for seq in page.seqs if seq not in self._pending.removed]
                start_seq = last_seq + 1 if page.next_seq is None else page.next_seq
            self._note_place(wanted, seqs[0] if seqs else start_seq)
            if len(seqs) > limit or start_seq <= last_seq:
                return seqs[:limit], True
        pending = [seq for seq in self._pending_matching(filters) if seq < end_seq]
        room = limit - len(seqs)
        return seqs + pending[:room], len(pending) > room

    def crowded(self, after_id: int, limit: int, most: int) -> tuple[list[str], int | None]:
        """Return the subjects that have more than `most` messages, of the file's next `limit` ones
        after an id, and from 0 on of the pending ones. The second is the last id, if there are
        more."""
        stored = self._stored
        rows = [] if stored is None else stored.after_id(after_id, limit)
        subjects = {row.subject for row in rows if row.message_count > most}
        if not after_id:
            subjects.update(self._pending.by_subject)
        found = [each for each in subjects if self.count(each) > most]
        return found, rows[-1].id if len(rows) == limit else None

    # Inside
    def _forget_counts(self) -> None:
        self._counts.clear()
        self._firsts.clear()

    @property
    def _file(self) -> StoreFile | None:
        return self._find_file()

    @property
    def _stored(self) -> StoredSubjects | None:
        file = self._find_file()
        return None if file is None or not file.subjects.exists else file.subjects

    def _count(self, subject: str) -> int:
        count = len(self._pending_seqs(subject))
        stored, file = self._stored, self._file
        row = None if stored is None else stored.find(subject)
        if stored is None or row is None or file is None:
            return count
        trimmed_to = self._memtable.trimmed_to
        count += row.message_count
        if trimmed_to:
            count -= stored.count_up_to(row.id, trimmed_to)
        removed = self._pending.removed_of.get(subject)
        if removed:
            # Those that the file has made too are not in its count, nor are messages that never
            # reached it. A trim forgets what it removes.
            revision, last_seq = file.meta.revision, file.meta.last_seq
            count -= sum(
                1
                for seq, removed_at in removed.items()
                if removed_at > revision and seq <= last_seq
            )
        return count

    def _look(self, count: int) -> None:
        """Take so many looks. Raises RateLimitedError if the tick has not got as many."""
        self.looks_left -= count
        if self.looks_left < 0:
            raise RateLimitedError(
                what="what a turn looks through for filters",
                limit=MAX_LOOKS,
                retry_after_seconds=_RETRY_SECONDS,
            )

    def _stored_matching(self, filters: Filters) -> list[str]:
        """Return the subjects of the file that match. Raises RateLimitedError."""
        stored = self._stored
        if stored is None:
            return []
        rows = stored.matching(filters, most=max(0, self.looks_left))
        self._look(MAX_LOOKS if rows is None else len(rows))
        return [row.subject for row in rows or ()]

    def _note_place(self, wanted: str, seq: int) -> None:
        if len(self._places) >= _MAX_PLACES:
            self._places.clear()
        self._places[wanted] = seq

    def _pending_seqs(self, subject: str) -> list[int]:
        """Return the seqs of a subject that the file does not hold."""
        seqs = self._pending.by_subject.get(subject)
        if seqs is None:
            return []
        file = self._file
        return seqs if file is None else seqs[bisect_right(seqs, file.meta.last_seq) :]

    def _pending_matching(self, filters: Filters) -> list[int]:
        found = [
            seq
            for subject in self._pending.by_subject
            if filters.matches(subject)
            for seq in self._pending_seqs(subject)
        ]
        self._look(len(self._pending.by_subject) + len(found))
        return sorted(found)

    def _written_seqs(self, subject: str, *, backwards: bool = False) -> Iterator[int]:
        """Yield the seqs of a subject that the file holds and that still count."""
        stored = self._stored
        row = None if stored is None else stored.find(subject)
        if stored is None or row is None:
            return
        removed = self._pending.removed_of.get(subject, ())
        after, before = self._memtable.trimmed_to, _LARGEST_SEQ
        limit = 1 if backwards else _FIRST_SEQS
        while True:
            if backwards:
                seqs = stored.seqs_from_end(row.id, after, before, limit)
            else:
                seqs = stored.seqs(row.id, after, before, limit)
            for seq in seqs:
                if seq not in removed:
                    yield seq
            if len(seqs) < limit:
                return
            if backwards:
                before = seqs[-1]
            else:
                after = seqs[-1]
            limit = min(2 * limit, _MAX_SEQS)


def _never() -> bool:
    return False
