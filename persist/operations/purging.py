"""Removes messages of a stream because somebody asks for it: by seq, up to a seq, by subject.

Pure but for lookups in the store's file. What an operation removes at once is bounded; a purge that
has more to do says so, and is called again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.persist.operations.arguments import (
    check_allowed,
    check_list,
    check_serving_epoch,
    integer,
    padded,
)
from holdfast.persist.store.store import Store
from holdfast.protocol.errors import InvalidArgumentError, InvalidSeqError
from holdfast.protocol.limits import MAX_DELETE_COUNT, MAX_INTEGER, MAX_PURGED_MESSAGES
from holdfast.protocol.subject_filters import check_filter, is_literal

_NO_END: Final = MAX_INTEGER


def delete_messages(store: Store, operation: list[Any]) -> list[Any]:
    """Delete messages by their seqs."""
    _, seqs, serving_epoch = padded(operation, 3)
    check_serving_epoch(store, serving_epoch)
    for seq in check_list("seqs", seqs):
        if integer("seq", seq) < 1:
            raise InvalidSeqError(seq=seq, last_seq=store.last_seq)
    if store.retention is not None:
        check_allowed(store, "delete", "sealed", "deny_delete")
    wanted = list(dict.fromkeys(seqs))
    sizes = store.contents.sizes_of(wanted)
    present = [seq for seq in wanted if seq in sizes]
    if present:
        store.delete_messages(present)
    return [len(present), store.revision]


def trim(store: Store, operation: list[Any]) -> list[Any]:
    """Delete every message up to a seq."""
    end_seq = padded(operation, 2)[1]
    if end_seq is None:
        end_seq = store.last_seq
    elif integer("end_seq", end_seq) < 0:
        raise InvalidSeqError(seq=end_seq, last_seq=store.last_seq)
    if store.retention is not None:
        check_allowed(store, "trim", "sealed", "deny_purge")
    return [_trim(store, end_seq), store.revision]


def purge(store: Store, operation: list[Any]) -> list[Any]:
    """Delete the messages that match a filter: those below a seq, or all but the last ones."""
    _, wanted, end_seq, keep, serving_epoch = padded(operation, 5)
    check_serving_epoch(store, serving_epoch)
    if end_seq is not None and integer("end_seq", end_seq) < 1:
        raise InvalidSeqError(seq=end_seq, last_seq=store.last_seq)
    if keep is not None and integer("keep", keep) < 0:
        raise InvalidArgumentError(argument="keep", reason="must be an integer of at least 0")
    if keep is not None and end_seq is not None:
        raise InvalidArgumentError(argument="keep", reason="either keep or end_seq")
    if store.retention is not None:
        check_allowed(store, "purge", "sealed", "deny_purge")
    if wanted is not None:
        check_filter(wanted)
        if not is_literal(wanted) or store.contents.subjects.count(wanted) < store.count:
            return _purge_matching(store, wanted, end_seq, keep)
        # All messages have this subject.
    if not keep:
        count = _trim(store, store.last_seq if end_seq is None else end_seq - 1)
        return [count, store.revision, False]
    excess = max(0, store.count - keep)
    limit = min(excess, MAX_PURGED_MESSAGES)
    seqs = store.contents.seqs_from(1, store.last_seq, limit) if limit else []
    count = _trim(store, seqs[-1]) if seqs else 0
    return [count, store.revision, excess > limit]


def remove_messages(
    store: Store,
    seqs: list[int],
    subjects: Mapping[int, str] | None = None,
    reason: int | None = None,
) -> None:
    """Accept the deletion of messages that all exist, in as many changes as it takes. `subjects`
    are those of the messages, where they are known; `reason` is that of the changes."""
    for start in range(0, len(seqs), MAX_DELETE_COUNT):
        store.delete_messages(seqs[start : start + MAX_DELETE_COUNT], subjects, reason)


def _trim(store: Store, end_seq: int) -> int:
    end_seq = min(end_seq, store.last_seq)
    count, size_bytes = store.sum_up_to(end_seq)
    if count:
        store.trim(end_seq, count, size_bytes)
    return count


def _purge_matching(
    store: Store, wanted: str, end_seq: int | None, keep: int | None
) -> list[Any]:
    subjects = store.subjects
    limit = MAX_PURGED_MESSAGES
    excess = None
    if keep:
        excess = max(0, subjects.count_matching(wanted) - keep)
        limit = min(limit, excess)
    seqs: list[int] = []
    more = False
    if limit:
        seqs, more = subjects.seqs_matching(wanted, end_seq or _NO_END, limit)
        remove_messages(store, seqs)
    return [len(seqs), store.revision, more if excess is None else len(seqs) < excess]
