"""Reads a stream by the subjects of its messages, in pieces that never hold up the loop for long.

Few subjects are read by the index, which has the seqs of each subject in order. If a filter matches
many, or more than can be looked through at once, the messages are looked through by seq instead.
Either way a call looks at a limited number of subjects and messages, and stops early once `is_late`
says so. What it returns then may be empty, and says where to go on. It always gets further.

Only messages that have a subject match a filter. They are never in the archive.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from heapq import merge
from itertools import islice
from typing import Any, Final, NamedTuple

import apsw

from holdfast.protocol.limits import MIB
from holdfast.protocol.names import StoreId
from holdfast.protocol.subject_filters import Filters, is_literal, prefix_of
from holdfast.shared_fs.store_file import subject_schema as sql
from holdfast.shared_fs.store_file.sqlite_connection import integers, raises_ours
from holdfast.shared_fs.store_file.subject_rows import StoredSubjects, end_of_prefix

#: Subjects that a call looks through to find those that match: 2 ms.
_MAX_SUBJECTS: Final = 4096
#: Subjects whose seqs are merged. Beyond it, the messages are looked through, unless all of these
#: subjects together have few.
_MAX_MERGED: Final = 256
_MAX_COLLECTED: Final = 16_384
#: Messages that a call looks through one by one, and the most in one statement. The first
#: statements look at fewer, because a message with a value of a megabyte takes as long as a
#: thousand small ones: the column of its subject comes after the value.
_MAX_LOOKED_AT: Final = 16_384
#: At least so many messages, or bytes, are looked through before `is_late` counts: a call that
#: first looked up thousands of filters would be late from the beginning.
_MIN_LOOKED_AT: Final = 480
_MIN_READ_BYTES: Final = 4 * MIB
_MAX_CHUNK: Final = 1024
_FIRST_CHUNK: Final = 32
#: Subjects of a page that one statement reads.
_SUBJECTS_CHUNK: Final = 256
#: Entries of the index that a call counts: 5 ms.
_MAX_COUNTED: Final = 65_536
#: Seqs of one subject that are read at once, at first and at most.
_FIRST_SEQS: Final = 8
_MAX_SEQS: Final = 512

#: What a subject takes in a page beside its text, roughly.
_TOTALS_BYTES: Final = 32

IsLate = Callable[[], bool]


class SeqPage(NamedTuple):
    """Seqs in order. If `next_seq` is set, there may be more from there on. `looked_at` counts the
    subjects and messages that it took to find them."""

    seqs: list[int]
    next_seq: int | None
    looked_at: int


class CountedPart(NamedTuple):
    """A number of messages or subjects. If `next_seq` is set, those from there on are not counted.
    """

    number: int
    next_seq: int | None


class SubjectTotals(NamedTuple):
    """A subject with the number of its messages, its first and its last seq."""

    subject: str
    message_count: int
    first_seq: int
    last_seq: int


class SubjectPage(NamedTuple):
    """Subjects in the order of their bytes. If `next_after` is set, there may be more after it."""

    rows: list[SubjectTotals]
    next_after: str | None
    size_bytes: int


class SubjectReads:
    """The reads of one open file. Ranges of seqs include both ends."""

    def __init__(
        self, execute: Callable[..., apsw.Cursor], store: StoreId, subjects: StoredSubjects
    ) -> None:
        """`execute(statement, bindings)` returns a cursor of the file."""
        self._execute = execute
        self.store = store
        self._subjects = subjects

    @raises_ours
    def seqs(
        self, filters: Filters, start_seq: int, end_seq: int, limit: int, is_late: IsLate
    ) -> SeqPage:
        """Return the first `limit` seqs of matching messages in a range."""
        if not self._subjects.exists or start_seq > end_seq:
            return SeqPage([], None, 0)
        counts, looked_at = self._matching(filters)
        if counts is not None and len(counts) <= _MAX_MERGED:
            sources = [self._seqs_of(id_, start_seq, end_seq) for id_ in counts]
            found = list(islice(merge(*sources), limit + 1))
            return _first(found, limit, looked_at + len(counts) + len(found))
        if counts is not None and sum(counts.values()) <= _MAX_COLLECTED:
            ids = integers(counts)
            rows: Any = self._execute(sql.SELECT_SEQS_BY_INDEX, (start_seq, end_seq, ids))
            found = sorted(row[0] for row in rows)
            return _first(found, limit, looked_at + len(counts) + len(found))
        seqs: list[int] = []
        scan = _Scan(self, filters, counts, is_late)
        for chunk in scan.chunks(start_seq, end_seq):
            seqs += [seq for seq, _ in chunk]
            if len(seqs) > limit:
                return _first(seqs, limit, looked_at + scan.looked_at)
        return SeqPage(seqs, scan.next_seq, looked_at + scan.looked_at)

    @raises_ours
    def lasts(
        self, filters: Filters, start_seq: int, end_seq: int, limit: int, is_late: IsLate
    ) -> SeqPage:
        """Return the first `limit` seqs from `start_seq` on that are the last one up to `end_seq`
        of a matching subject."""
        if not self._subjects.exists or start_seq > end_seq:
            return SeqPage([], None, 0)
        counts, looked_at = self._matching(filters)
        seqs: list[int] = []
        if counts is not None:
            lasts = self._last_seqs(counts, end_seq)
            seqs = sorted(seq for seq in lasts if seq is not None and seq >= start_seq)
            return _first(seqs, limit, looked_at + len(counts))
        scan = _Scan(self, filters, counts, is_late)
        for chunk in scan.chunks(start_seq, end_seq):
            seqs += self._lasts_in(chunk, end_seq)
            if len(seqs) > limit:
                return _first(seqs, limit, looked_at + scan.looked_at)
        return SeqPage(seqs, scan.next_seq, looked_at + scan.looked_at)

    @raises_ours
    def count(
        self, filters: Filters, start_seq: int, end_seq: int, is_late: IsLate
    ) -> CountedPart:
        """Count matching messages in a range."""
        if not self._subjects.exists or start_seq > end_seq:
            return CountedPart(0, None)
        counts, _ = self._matching(filters)
        if counts is not None and len(counts) <= _MAX_MERGED:
            return self._count_by_index(counts, start_seq, end_seq)
        if counts is not None and sum(counts.values()) <= _MAX_COUNTED:
            ids = integers(counts)
            found = self._execute(sql.COUNT_BY_INDEX, (start_seq, end_seq, ids)).get
            return CountedPart(found, None)
        scan = _Scan(self, filters, counts, is_late)
        count = sum(map(len, scan.chunks(start_seq, end_seq)))
        return CountedPart(count, scan.next_seq)

    @raises_ours
    def count_lasts(
        self, filters: Filters, start_seq: int, end_seq: int, is_late: IsLate
    ) -> CountedPart:
        """Count the matching subjects whose last message up to `end_seq` is at `start_seq` or
        later."""
        page = self.lasts(filters, start_seq, end_seq, 1 << 62, is_late)
        return CountedPart(len(page.seqs), page.next_seq)

    @raises_ours
    def page(
        self, wanted: str, after: str | None, *, max_rows: int, max_bytes: int, is_late: IsLate
    ) -> SubjectPage:
        """Return the subjects after `after` that match a filter, in the order of their bytes."""
        if not self._subjects.exists:
            return SubjectPage([], None, 0)
        prefix = prefix_of(wanted)
        # In the order of UTF-8 bytes, nothing is between a text and the same with a NUL appended.
        start = prefix if after is None else max(prefix, after + "\x00")
        end = wanted + "\x00" if is_literal(wanted) else end_of_prefix(prefix)
        filters = Filters([wanted])
        rows: list[SubjectTotals] = []
        size_bytes = looked_at = 0
        while True:
            found: list[Any] = self._execute(
                sql.SELECT_SOME_SUBJECTS, (start, end, _SUBJECTS_CHUNK)
            ).fetchall()
            for id_, subject, count in found:
                if filters.matches(subject):
                    row_bytes = len(subject.encode()) + _TOTALS_BYTES
                    if rows and (len(rows) == max_rows or size_bytes + row_bytes > max_bytes):
                        return SubjectPage(rows, start[:-1], size_bytes)
                    first_seq = self._execute(sql.SELECT_FIRST_SEQ, (id_,)).get
                    last_seq = self._subjects.last_seq(id_)
                    assert last_seq is not None, "a subject without a message has no row"
                    rows.append(SubjectTotals(subject, count, first_seq, last_seq))
                    size_bytes += row_bytes
                start = subject + "\x00"
            if len(found) < _SUBJECTS_CHUNK:
                return SubjectPage(rows, None, size_bytes)
            looked_at += len(found)
            if looked_at >= _MAX_LOOKED_AT or is_late():
                return SubjectPage(rows, start[:-1], size_bytes)

    def _matching(self, filters: Filters) -> tuple[dict[int, int] | None, int]:
        """Return the ids of the subjects that match with the number of messages of each; None if
        there are too many to look through. The second is how many it looked at."""
        found: dict[int, int] = {}
        if filters.literals and not filters.is_everything:
            array = apsw.carray(tuple(filters.literals))
            known: list[Any] = self._execute(sql.SELECT_SUBJECTS_OF, (array,)).fetchall()
            found.update(known)
        left = _MAX_SUBJECTS
        for wanted in [">"] if filters.is_everything else filters.patterns:
            prefix = prefix_of(wanted)
            rows: list[Any] = self._execute(
                sql.SELECT_SOME_SUBJECTS, (prefix, end_of_prefix(prefix), left + 1)
            ).fetchall()
            left -= len(rows)
            if left < 0:
                return None, _MAX_SUBJECTS
            found |= {id_: count for id_, subject, count in rows if filters.matches(subject)}
        return found, _MAX_SUBJECTS - left

    def _seqs_of(self, id_: int, start_seq: int, end_seq: int) -> Iterator[int]:
        """Yield the seqs of a subject, some at a time."""
        after, chunk = start_seq - 1, _FIRST_SEQS
        while True:
            seqs = self._subjects.seqs(id_, after, end_seq + 1, chunk)
            yield from seqs
            if len(seqs) < chunk:
                return
            after, chunk = seqs[-1], min(2 * chunk, _MAX_SEQS)

    def _count_by_index(
        self, counts: Collection[int], start_seq: int, end_seq: int
    ) -> CountedPart:
        """Count the messages of few subjects: all of them up to where one of them has too many."""
        most = max(1, _MAX_COUNTED // max(1, len(counts)))
        cut = end_seq
        for id_ in counts:
            last: int | None = self._execute(
                sql.SELECT_SEQ_AT, (id_, start_seq, cut, most - 1)
            ).get
            cut = cut if last is None else last
        count = sum(
            self._execute(sql.COUNT_OF_SUBJECT, (id_, start_seq, cut)).get for id_ in counts
        )
        return CountedPart(count, cut + 1 if cut < end_seq else None)

    def _lasts_in(self, chunk: list[tuple[int, int]], end_seq: int) -> list[int]:
        """Return those seqs of `(seq, subject id)` after which, up to `end_seq`, no other message
        has the same subject."""
        last_of = {id_: seq for seq, id_ in chunk}
        return sorted(set(last_of.values()).intersection(self._last_seqs(last_of, end_seq)))

    def _last_seqs(self, ids: Collection[int], end_seq: int) -> Iterator[int | None]:
        """Return the last seq up to `end_seq` of each subject."""
        rows: list[Any] = self._execute(
            sql.SELECT_LAST_SEQS, (end_seq, integers(ids))
        ).fetchall()
        return (row[0] for row in rows)

    def subjects_of_ids(self, ids: Collection[int]) -> list[tuple[int, str]]:
        """Return `(id, subject)` for each of these ids."""
        found: list[Any] = self._execute(
            sql.SELECT_SUBJECTS_OF_IDS, (integers(ids),)
        ).fetchall()
        return found

    def subject_ids(
        self, start_seq: int, end_seq: int, limit: int
    ) -> list[tuple[int, int | None, int]]:
        """Return `(seq, subject id, size of the value)` of the first messages in a range. The id
        is None without a subject."""
        found: list[Any] = self._execute(
            sql.SELECT_SUBJECT_IDS, (start_seq, end_seq, limit)
        ).fetchall()
        return found


def _first(seqs: list[int], limit: int, looked_at: int) -> SeqPage:
    """Return the page of the first `limit` of these seqs."""
    return SeqPage(seqs[:limit], seqs[limit] if len(seqs) > limit else None, looked_at)


class _Scan:
    """Looks through messages by seq, as many as one call may."""

    def __init__(
        self,
        reads: SubjectReads,
        filters: Filters,
        ids: Collection[int] | None,
        is_late: IsLate,
    ) -> None:
        """`ids` are those of the matching subjects, if they are known."""
        self._reads = reads
        self._filters = filters
        self._is_late = is_late
        #: Which subjects match, by id.
        self._matches = dict.fromkeys(ids or (), True)
        self._knows_all = ids is not None
        #: Where it stopped; None at the end of the range.
        self.next_seq: int | None = None
        self.looked_at = 0

    def chunks(self, start_seq: int, end_seq: int) -> Iterator[list[tuple[int, int]]]:
        """Yield `(seq, subject id)` of matching messages, some at a time."""
        size, read_bytes = _FIRST_CHUNK, 0
        while True:
            rows = self._reads.subject_ids(start_seq, end_seq, size)
            at_end = len(rows) < size or rows[-1][0] >= end_seq
            self.next_seq = None if at_end else rows[-1][0] + 1
            matches = self._matching({id_ for _, id_, _ in rows if id_ is not None})
            self.looked_at += len(rows)
            yield [(seq, id_) for seq, id_, _ in rows if id_ is not None and id_ in matches]
            read_bytes += sum(size_bytes for _, _, size_bytes in rows)
            if self.next_seq is None or self.looked_at >= _MAX_LOOKED_AT:
                return
            worth_it = self.looked_at >= _MIN_LOOKED_AT or read_bytes >= _MIN_READ_BYTES
            if worth_it and self._is_late():
                return
            start_seq, size = self.next_seq, min(2 * size, _MAX_CHUNK)

    def _matching(self, ids: set[int]) -> set[int]:
        """Return the ids that match."""
        unknown = [] if self._knows_all else [id_ for id_ in ids if id_ not in self._matches]
        if unknown:
            for id_, subject in self._reads.subjects_of_ids(unknown):
                self._matches[id_] = self._filters.matches(subject)
        return {id_ for id_ in ids if self._matches.get(id_)}
