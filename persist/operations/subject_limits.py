"""What limits and expiry do to the subjects of a stream: excess messages go, markers come.

Pure but for look-ups in the store's file. Invariants:

- After a tick no subject that was written in it has more messages than `max_messages_per_subject`;
  it loses its oldest ones. One turn removes at most MAX_EVICTED_ROWS. After a new limit, all
  subjects are looked through, some in each turn; and in passing after a store was opened.
- With `subject_marker_seconds`, a subject that loses its last message to age or ttl gets a marker
  in the same tick: an empty message that says so and expires itself. A marker that expires gets no
  other, and neither does a message which says itself that the subject was removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final

from holdfast.persist.store.retention import Retention
from holdfast.persist.store.store import Store
from holdfast.persist.store.subjects import MessageSubjects
from holdfast.protocol.changes import CHANGE_SET_MESSAGE
from holdfast.protocol.header_block import HeaderBlock
from holdfast.protocol.limits import MAX_EVICTED_ROWS
from holdfast.shared_fs.store_file.subject_rows import subject_bytes

#: Subjects of the file that one turn looks at after a new limit, in about 5 ms.
_LOOKED_THROUGH: Final = 4096
#: The same of a store that was opened, with each tick.
_LOOKED_THROUGH_IN_PASSING: Final = 256
_REASON: Final = "Nats-Marker-Reason"
_KV_OPERATION: Final = "KV-Operation"
_PURGED: Final = "PURGE"


def excess(store: Store, retention: Retention) -> dict[int, str]:
    """Return messages that their subjects have too many of, each seq with its subject: the first
    MAX_EVICTED_ROWS, in the order of their seqs. If there may be more, the store is due."""
    limit = retention.config.max_messages_per_subject
    if limit is None or not (retention.touched or retention.swept_to is not None):
        return {}
    index = store.subjects
    if retention.swept_to is not None and len(retention.touched) < _LOOKED_THROUGH:
        most = _LOOKED_THROUGH if retention.hurries else _LOOKED_THROUGH_IN_PASSING
        crowded, retention.swept_to = index.crowded(retention.swept_to, most, limit)
        retention.touched.update(dict.fromkeys(crowded))
    found: dict[int, str] = {}
    if len(retention.touched) <= MAX_EVICTED_ROWS:
        # Keys that are set again and again have one too many, which is known.
        known = index.known_firsts(retention.touched, limit + 1)
        if len(known) == len(retention.touched):
            found = known
            retention.touched.clear()
    touched = list(retention.touched)
    # Most have one too many, as the keys of a bucket do. One look at the file finds all of those.
    one_too_many = [each for each in touched[:MAX_EVICTED_ROWS] if index.count(each) == limit + 1]
    firsts = index.first_seqs(one_too_many) if one_too_many else {}
    for subject in touched:
        first = firsts.get(subject)
        if first is not None and len(found) < MAX_EVICTED_ROWS:
            found[first] = subject
        elif not _take_excess(index, subject, limit, found):
            break
        del retention.touched[subject]
    if retention.touched or (retention.hurries and retention.swept_to is not None):
        retention.due_at = 0
    return dict(sorted(found.items()))


def _take_excess(index: MessageSubjects, subject: str, limit: int, found: dict[int, str]) -> bool:
    """Add what a subject has too much of; return False if not all of it may go now."""
    wanted = index.count(subject) - limit
    room = MAX_EVICTED_ROWS - len(found)
    if wanted > 0:
        for seq in islice(index.seqs(subject), min(wanted, room)):
            found[seq] = subject
    return wanted <= room


def bereft(store: Store, seqs: Sequence[int]) -> list[str]:
    """Return the subjects that need a marker once these messages, which have expired, are removed.
    """
    index = store.contents.subjects
    if store.config.subject_marker_seconds is None or not index.exists:
        return []
    gone: dict[str, list[int]] = {}
    for seq in seqs:
        subject = index.subject_of(seq)
        if subject is not None:
            gone.setdefault(subject, []).append(seq)
    last_seqs = {
        subject: max(mine) for subject, mine in gone.items() if index.count(subject) == len(mine)
    }
    headers = store.contents.headers_of(last_seqs.values(), store.unwritten())
    return [subject for subject, seq in last_seqs.items() if not _is_marker(headers.get(seq))]


def mark(store: Store, subjects: Iterable[str]) -> None:
    """Append a marker for each of these subjects."""
    seconds = store.config.subject_marker_seconds
    for subject in subjects:
        assert seconds is not None
        duration_ms = max(1, round(seconds * 1000))
        fields = {_REASON: "MaxAge", "Nats-TTL": _go_duration(duration_ms)}
        block = HeaderBlock.of(fields).block
        seq, expires = store.last_seq + 1, store.time + duration_ms
        change = [CHANGE_SET_MESSAGE, seq, b"", block, None, expires, subject]
        store.set_message(seq, len(block) + subject_bytes(subject, block), change, subject)
        store.expect_expiry(expires)


def _is_marker(headers: Any) -> bool:
    if not headers:
        return False
    found = HeaderBlock(headers) if type(headers) is bytes else headers
    return _REASON in found or found.get(_KV_OPERATION) == _PURGED


def _go_duration(duration_ms: int) -> str:
    """Return a time as Go writes it: `1h0m0s`, `1m30s`, `1.5s`, `500ms`."""
    if duration_ms < 1000:
        return f"{duration_ms}ms"
    seconds, rest_ms = divmod(duration_ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{seconds}.{rest_ms:03d}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text
