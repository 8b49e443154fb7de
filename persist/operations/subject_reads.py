"""The read operations of subjects, of counts and of gaps: arguments in, pages out.

Each call does a limited amount of work, whatever it is asked (`shared_fs/store_file/
subject_reads.py`). So a page may be short or empty, and says where the next one begins.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

from holdfast.persist.operations.arguments import integer
from holdfast.persist.operations.read_rows import ROW_BYTES, ReadBounds, filled
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.limits import MAX_INTEGER, PAGE_BYTES
from holdfast.protocol.subject_filters import EVERYTHING, Filters, check_filter, check_filters
from holdfast.shared_fs.store_file.archived_blocks import Bodies
from holdfast.shared_fs.store_file.store_file import StoreFile

#: A result, and roughly its size.
Answer = tuple[Any, int]

#: The seqs of one page of gaps: 9 bytes each.
_MAX_GAPS: Final = 32_768
#: Messages that a page of gaps looks at, and that one statement of a count counts: 5 ms each.
_MAX_SEQS: Final = 16_384
#: Such statements of one call.
_MAX_STATEMENTS: Final = 8


def get_by_subject(
    file: StoreFile | None, operation: list[Any], bodies: Bodies, bounds: ReadBounds
) -> Answer:
    """Answer GET_BY_SUBJECT."""
    _, filters, start_seq, start_time, limit, max_bytes = (operation + [None] * 6)[:6]
    wanted = _filters(filters)
    start_seq = _from("start_seq", start_seq)
    max_rows = _limit(limit, bounds.page_rows)
    page_bytes = bounds.page_bytes
    if max_bytes is not None:
        page_bytes = min(page_bytes, integer("max_bytes", max_bytes))
    if start_time is not None:
        integer("start_time", start_time)
    if file is None or max_rows <= 0:
        return [[], None], ROW_BYTES
    if start_time is not None:
        start_seq = max(start_seq, file.seq_at_time(start_time))
    if not filters:
        page = file.message_page(
            start_seq, None, max_rows=max_rows, max_bytes=page_bytes, row_bytes=ROW_BYTES
        )
        rows = filled(page.rows, bodies) if file.has_archived else page.rows
        return [rows, rows[-1][0] + 1 if page.more else None], page.size_bytes
    found = file.subject_reads.seqs(wanted, start_seq, file.meta.last_seq, max_rows, bounds.is_late)
    page = file.page_of_seqs(
        found.seqs, max_bytes=page_bytes, row_bytes=ROW_BYTES, is_late=bounds.is_late
    )
    next_seq = found.seqs[len(page.rows)] if page.more else found.next_seq
    return [page.rows, next_seq], page.size_bytes


def get_lasts(
    file: StoreFile | None, operation: list[Any], bodies: Bodies, bounds: ReadBounds
) -> Answer:
    """Answer GET_LASTS."""
    _, filters, up_to_seq, after_seq, limit = (operation + [None] * 5)[:5]
    wanted = _filters(filters)
    start_seq = min(_from("after_seq", after_seq, 0) + 1, MAX_INTEGER)
    max_rows = _limit(limit, bounds.page_rows)
    if up_to_seq is not None:
        integer("up_to_seq", up_to_seq)
    if file is None or max_rows <= 0:
        return [[], None], ROW_BYTES
    last_seq = file.meta.last_seq
    end_seq = last_seq if up_to_seq is None else min(up_to_seq, last_seq)
    found = file.subject_reads.lasts(wanted, start_seq, end_seq, max_rows, bounds.is_late)
    page = file.page_of_seqs(
        found.seqs, max_bytes=bounds.page_bytes, row_bytes=ROW_BYTES, is_late=bounds.is_late
    )
    next_seq = found.seqs[len(page.rows)] if page.more else found.next_seq
    return [page.rows, None if next_seq is None else next_seq - 1], page.size_bytes


def subjects(
    file: StoreFile | None, operation: list[Any], bodies: Bodies, bounds: ReadBounds
) -> Answer:
    """Answer SUBJECTS."""
    _, wanted, after, limit = (operation + [None] * 4)[:4]
    wanted = EVERYTHING if wanted is None else check_filter(wanted)
    if after is not None:
        after = check_filter(after)
    max_rows = _limit(limit, bounds.page_rows)
    if file is None or max_rows <= 0:
        return [[], None], ROW_BYTES
    page = file.subject_reads.page(
        wanted, after, max_rows=max_rows, max_bytes=PAGE_BYTES, is_late=bounds.is_late
    )
    return [page.rows, page.next_after], page.size_bytes


def count(
    file: StoreFile | None, operation: list[Any], bodies: Bodies, bounds: ReadBounds
) -> Answer:
    """Answer COUNT."""
    _, filters, start_seq, lasts, end_seq = (operation + [None] * 5)[:5]
    wanted = _filters(filters)
    start_seq = _from("start_seq", start_seq)
    if lasts is not None and type(lasts) is not bool:
        raise InvalidArgumentError(argument="lasts", reason="must be true or false")
    if end_seq is not None:
        integer("end_seq", end_seq)
    if file is None:
        return [0, 0, None], ROW_BYTES
    last_seq = file.meta.last_seq
    end_seq = last_seq if end_seq is None else min(end_seq, last_seq)
    if lasts:
        part = file.subject_reads.count_lasts(wanted, start_seq, end_seq, bounds.is_late)
    elif filters:
        part = file.subject_reads.count(wanted, start_seq, end_seq, bounds.is_late)
    else:
        return [*_count_all(file, start_seq, end_seq, bounds)], ROW_BYTES
    return [part.number, last_seq, part.next_seq], ROW_BYTES


def gaps(
    file: StoreFile | None, operation: list[Any], bodies: Bodies, bounds: ReadBounds
) -> Answer:
    """Answer GAPS."""
    _, start_seq, limit = (operation + [None] * 3)[:3]
    start_seq = _from("start_seq", start_seq)
    most = _limit(limit, _MAX_GAPS)
    if file is None or most <= 0:
        return [[], None], ROW_BYTES
    first_seq, last_seq = file.first_seq(), file.meta.last_seq
    start_seq = max(start_seq, first_seq)
    if start_seq > last_seq or last_seq + 1 - first_seq == file.meta.count:
        return [[], None], ROW_BYTES
    seqs = file.seqs_from(start_seq, _MAX_SEQS)
    looked_up_to = seqs[-1] if len(seqs) == _MAX_SEQS else last_seq
    found: list[int] = []
    for one, other in pairwise([start_seq - 1, *seqs, looked_up_to + 1]):
        if other > one + 1:
            found += range(one + 1, min(other, one + 2 + most - len(found)))
            if len(found) > most:
                return [found[:most], found[most]], ROW_BYTES + 9 * most
    next_seq = looked_up_to + 1 if looked_up_to < last_seq else None
    return [found, next_seq], ROW_BYTES + 9 * len(found)


def _count_all(
    file: StoreFile, start_seq: int, end_seq: int, bounds: ReadBounds
) -> tuple[int, int, int | None]:
    """Count all messages in a range, also those without a subject."""
    first_seq, last_seq, total = file.first_seq(), file.meta.last_seq, file.meta.count
    start_seq = max(start_seq, first_seq)
    if start_seq > end_seq:
        return 0, last_seq, None
    if start_seq == first_seq and end_seq == last_seq:
        return total, last_seq, None
    if last_seq + 1 - first_seq == total:
        return end_seq + 1 - start_seq, last_seq, None
    counted = statements = 0
    while start_seq <= end_seq:
        if statements == _MAX_STATEMENTS or (statements and bounds.is_late()):
            return counted, last_seq, start_seq
        upto = min(end_seq, start_seq + _MAX_SEQS - 1)
        found = file.count_messages(start_seq, upto)
        counted += found
        # A gap may be long.
        following = [upto + 1] if found else file.seqs_from(upto + 1, 1)
        start_seq = following[0] if following else end_seq + 1
        statements += 1
    return counted, last_seq, None


def _filters(filters: Any) -> Filters:
    return Filters(check_filters([] if filters is None else filters))


def _limit(limit: Any, most: int) -> int:
    return most if limit is None else min(most, integer("limit", limit))


def _from(argument: str, seq: Any, least: int = 1) -> int:
    """Return where to begin, no less than the first seq."""
    return least if seq is None else max(least, integer(argument, seq))
