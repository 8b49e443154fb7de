"""Appends and sets of messages: what they expect, what they store, and what they replace.

Pure but for lookups in the store's file. The options of an append are checked before it changes
anything; in a batch, those of every member before the first of them is executed, so that they speak
of the state before the batch.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

from holdfast.persist.operations.admission import admit
from holdfast.persist.operations.arguments import (
    check_allowed,
    check_headers,
    check_msg_id,
    check_serving_epoch,
    check_time,
    check_value,
    expires_at,
    integer,
    padded,
)
from holdfast.persist.operations.purging import remove_messages
from holdfast.persist.store.store import Store
from holdfast.protocol import frames
from holdfast.protocol.changes import CHANGE_SET_MESSAGE, NEVER_EXPIRES
from holdfast.protocol.errors import (
    InvalidArgumentError,
    InvalidSeqError,
    LimitExceededError,
    TooLargeError,
    WrongLastMsgIdError,
    WrongLastSeqError,
)
from holdfast.protocol.limits import (
    MAX_COUNTER_DIGITS,
    MAX_HEADERS_BYTES,
    MAX_MSG_IDS,
    MAX_ROLLED_UP_MESSAGES,
    MAX_VALUE_BYTES,
)
from holdfast.protocol.subject_filters import check_filter, check_subject_of_message, is_literal
from holdfast.shared_fs.store_file.subject_rows import subject_bytes
from holdfast.shared_fs.store_file.subject_schema import MESSAGE_OVERHEAD_BYTES

#: Value, subject and header block of a message: together they fit in one frame.
_MAX_MESSAGE_BYTES: Final = MAX_VALUE_BYTES + MAX_HEADERS_BYTES + MESSAGE_OVERHEAD_BYTES
_COUNTER: Final = re.compile(rf"[+-]?[0-9]{{1,{MAX_COUNTER_DIGITS}}}")
_ROLLUPS: Final = ("sub", "all")


class _Options(NamedTuple):
    """What an append asks for besides its message."""

    expected_last_subject_seq: int | None = None
    expected_subject: str | None = None
    expected_last_msg_id: str | None = None
    rollup: str | None = None
    never_expires: bool = False
    incr: int | None = None
    time_ms: int | None = None


_NO_OPTIONS: Final = _Options()
#: Where an append has its subject, its serving epoch and its options.
_SUBJECT_AT: Final = 6
_SERVING_EPOCH_AT: Final = 7
_OPTIONS_AT: Final = 8


def append(store: Store, operation: list[Any]) -> list[Any]:
    """Append a message."""
    _, value, headers, msg_id, expected_last_seq, ttl_seconds = padded(operation, _SUBJECT_AT)
    subject, options = None, _NO_OPTIONS
    if len(operation) > _SUBJECT_AT:
        subject, serving_epoch, given = padded(operation, _OPTIONS_AT + 1)[_SUBJECT_AT:]
        check_serving_epoch(store, serving_epoch)
        options = _options(given)
        if subject is not None:
            _check_subject(subject, options, serving_epoch)
    if store.retention is not None and store.retention.config.sealed:
        check_allowed(store, "append", "sealed")
    if msg_id is not None:
        known = _known(store, msg_id)
        if known is not None:
            if options.incr is None:
                return [*known, True]
            return [*known, True, _total_text(_total_at(store, known[0]))]
    if expected_last_seq is not None and integer("expected_last_seq", expected_last_seq) != (
        store.last_seq
    ):
        raise WrongLastSeqError(expected=expected_last_seq, actual=store.last_seq)
    if options is not _NO_OPTIONS:
        if not store.in_batch:
            _check_expectations(store, subject, options)
        _check_options(store, subject, options, ttl_seconds)
    if subject is not None and store.retention is not None and options.rollup is None:
        _check_room_for_subject(store, subject)
    total = None
    if options.incr is not None:
        total, value = _incremented(store, subject, options.incr, value)
    seq = store.last_seq + 1
    expires = NEVER_EXPIRES if options.never_expires else expires_at(store, ttl_seconds)
    _set_message(store, seq, value, headers, msg_id, expires, subject, options.time_ms)
    revision, chain = store.revision, store.chain
    if options.rollup is not None:
        _roll_up(store, seq, subject, options.rollup)
    if total is not None:
        assert subject is not None
        store.keep_total(subject, seq, total)
    if chain is not None:
        return [seq, revision, store.time, False, _total_text(total), chain]
    return [seq, revision] if total is None else [seq, revision, None, False, _total_text(total)]


def check_batch(store: Store, members: list[Any]) -> None:
    """Check what the appends of a batch expect of the state before it."""
    for member in members:
        if member[0] == frames.APPEND and len(member) > _OPTIONS_AT:
            options = _options(member[_OPTIONS_AT])
            subject = member[_SUBJECT_AT]
            if subject is not None:
                _check_subject(subject, options, member[_SERVING_EPOCH_AT])
            _check_expectations(store, subject, options)


def set_message(store: Store, operation: list[Any]) -> list[Any]:
    """Replace a message, or append one at the next seq."""
    _, seq, value, headers, ttl_seconds = padded(operation, 5)
    if not 1 <= integer("seq", seq) <= store.last_seq + 1:
        raise InvalidSeqError(seq=seq, last_seq=store.last_seq)
    if store.retention is not None:
        check_allowed(store, "set", "sealed")
        if seq <= store.last_seq:
            check_allowed(store, "replace", "deny_delete", "chain")
    subjects = store.contents.subjects
    subject = subjects.subject_of(seq) if subjects.exists else None
    _set_message(store, seq, value, headers, None, expires_at(store, ttl_seconds), subject)
    if store.chain is not None:
        return [seq, store.revision, store.time, False, None, store.chain]
    return [seq, store.revision]


def _set_message(
    store: Store,
    seq: int,
    value: Any,
    headers: Any,
    msg_id: str | None,
    expires: int | None,
    subject: str | None,
    time_ms: int | None = None,
) -> None:
    size_bytes = check_value(store, value) + check_headers(headers)
    own_bytes = 0
    if subject is not None:
        own_bytes = subject_bytes(subject, headers)
        size_bytes += own_bytes
    if size_bytes > _MAX_MESSAGE_BYTES and type(value) is bytes and (
        subject is not None or type(headers) is bytes
    ):
        raise TooLargeError(what="message", size=size_bytes, limit=_MAX_MESSAGE_BYTES)
    if store.retention is not None:
        old_bytes = store.contents.message_bytes(seq)
        admit(store, size_bytes, old_bytes, value, headers, uncounted_bytes=own_bytes)
    change = [CHANGE_SET_MESSAGE, seq, value]
    if time_ms is not None:
        change += [headers or None, msg_id, expires, subject, time_ms]
    elif subject is not None:
        change += [headers or None, msg_id, expires, subject]
    elif expires is not None:
        change += [headers or None, msg_id, expires]
    elif msg_id is not None:
        change += [headers or None, msg_id]
    elif headers:
        change.append(headers)
    store.set_message(seq, size_bytes, change, subject)
    store.expect_expiry(expires)
    if time_ms is not None and store.retention is not None:
        store.retention.wrote(time_ms)
    if msg_id is not None:
        written = store.time if time_ms is None else time_ms
        store.remember_msg_id(msg_id, seq, store.revision, written)
    if subject is not None and store.retention is not None:
        store.retention.wrote_subject(subject)


def _check_subject(subject: Any, options: _Options, serving_epoch: Any) -> None:
    """Check the subject of an append. JetStream stores what is published to a subject that looks
    like a filter, so a gateway does."""
    literal = options.rollup == "sub" or serving_epoch is not None
    check_subject_of_message(subject, literal_wildcards=literal)


# What an append expects
def _options(given: Any) -> _Options:
    if given is None:
        return _NO_OPTIONS
    if type(given) is not dict:
        raise InvalidArgumentError(argument="options", reason="must be a map")
    for name, value in given.items():
        check = _CHECKS.get(name)
        if check is None:
            raise InvalidArgumentError(argument="options", reason=f"{name!r:.80} is unknown")
        if value is not None:
            check(name, value)
    options = _Options(**{name: value for name, value in given.items() if value is not None})
    if options.incr is not None:
        options = options._replace(incr=int(options.incr))
    return options


def _check_text(name: str, value: Any) -> None:
    if type(value) is not str:
        raise InvalidArgumentError(argument=name, reason="must be text")


def _check_true(name: str, value: Any) -> None:
    if type(value) is not bool:
        raise InvalidArgumentError(argument=name, reason="must be true or false")


def _check_rollup(name: str, value: Any) -> None:
    if value not in _ROLLUPS:
        raise InvalidArgumentError(argument=name, reason=f"must be one of {', '.join(_ROLLUPS)}")


def _check_counter(name: str, value: Any) -> None:
    _check_text(name, value)
    if _COUNTER.fullmatch(value) is None:
        reason = f"must be an integer of at most {MAX_COUNTER_DIGITS} digits"
        raise InvalidArgumentError(argument=name, reason=reason)


_CHECKS: Final = {
    "expected_last_subject_seq": integer,
    "expected_subject": lambda name, value: check_filter(value),
    "expected_last_msg_id": _check_text,
    "rollup": _check_rollup,
    "never_expires": _check_true,
    "incr": _check_counter,
    "time_ms": integer,
}


def _check_expectations(store: Store, subject: str | None, options: _Options) -> None:
    """Raise WrongLastSeqError, WrongLastMsgIdError unless the stream is as it is expected."""
    if options.expected_last_msg_id is not None:
        actual = store.last_msg_id()
        if options.expected_last_msg_id != (actual or ""):
            raise WrongLastMsgIdError(expected=options.expected_last_msg_id, actual=actual)
    if options.expected_last_subject_seq is not None:
        wanted = options.expected_subject or subject
        if wanted is None:
            reason = "expected_last_subject_seq needs a subject"
            raise InvalidArgumentError(argument="subject", reason=reason)
        last_seq = store.subjects.last_matching(wanted)
        if last_seq != options.expected_last_subject_seq:
            raise WrongLastSeqError(
                expected=options.expected_last_subject_seq, actual=last_seq, subject=wanted
            )


def _check_options(
    store: Store, subject: str | None, options: _Options, ttl_seconds: Any
) -> None:
    if options.time_ms is not None:
        check_time(store, options.time_ms)
    if options.never_expires and ttl_seconds is not None:
        reason = "a message that never expires has no ttl"
        raise InvalidArgumentError(argument="ttl_seconds", reason=reason)
    if subject is None and (options.rollup == "sub" or options.incr is not None):
        reason = "rollup of a subject, and incr, need one"
        raise InvalidArgumentError(argument="subject", reason=reason)
    if options.rollup is not None:
        check_allowed(store, "roll up", "deny_purge")
        if options.rollup == "sub" and subject is not None:
            count = store.subjects.count_matching(subject)
        else:
            # The front of a stream goes in one change, but not in a batch.
            count = store.count if store.in_batch else 0
        if count > MAX_ROLLED_UP_MESSAGES and (store.in_batch or count < store.count):
            raise TooLargeError(
                what="messages that are rolled up", size=count, limit=MAX_ROLLED_UP_MESSAGES
            )


def _check_room_for_subject(store: Store, subject: str) -> None:
    config = store.config
    limit = config.max_messages_per_subject
    if limit is not None and config.discard_new_per_subject:
        count = store.contents.subjects.count(subject) + 1
        if count > limit:
            raise LimitExceededError(what="max_messages_per_subject", limit=limit, value=count)


def _known(store: Store, msg_id: Any) -> tuple[int, int, int] | None:
    """Return `(seq, revision, time)` of the message that had this msg_id within the window."""
    check_msg_id(msg_id)
    known = store.contents.msg_id(msg_id)
    if known is not None and known[2] > store.time - store.config.dedupe_ms:
        return known
    if known is None and store.msg_id_count >= MAX_MSG_IDS:
        raise LimitExceededError(what="msg_ids", limit=MAX_MSG_IDS, value=store.msg_id_count + 1)
    return None


def _roll_up(store: Store, seq: int, subject: str | None, rollup: str) -> None:
    """Remove the earlier messages that the message `seq` stands for."""
    if rollup == "sub":
        assert subject is not None
        subjects = store.subjects
        is_whole = is_literal(subject) and subjects.count(subject) == store.count
        if store.in_batch or not is_whole:
            limit = MAX_ROLLED_UP_MESSAGES
            seqs, more = subjects.seqs_matching(subject, seq, limit)
            if more:
                raise TooLargeError(
                    what="messages that are rolled up", size=limit + 1, limit=limit
                )
            remove_messages(store, seqs)
            return
    elif store.in_batch:
        remove_messages(store, store.contents.seqs_from(1, seq - 1, MAX_ROLLED_UP_MESSAGES))
        return
    count, size_bytes = store.sum_up_to(seq - 1)
    if count:
        store.trim(seq - 1, count, size_bytes)


# Counters
def _incremented(store: Store, subject: str | None, by: int, value: Any) -> tuple[int, bytes]:
    """Return the total after an increment, and the value that says so."""
    if value not in (None, b""):
        raise InvalidArgumentError(argument="value", reason="must be empty with incr")
    assert subject is not None
    last_seq = store.contents.subjects.last_seq(subject)
    total = by
    if last_seq:
        known = store.totals.get(subject)
        before = known[1] if known is not None and known[0] == last_seq else None
        if before is None:
            before = _total_at(store, last_seq)
        if before is None:
            reason = f"message {last_seq}, the last of its subject, has no total"
            raise InvalidArgumentError(argument="incr", reason=reason)
        total += before
    text = _total_text(total)
    if text is None or len(text) > MAX_COUNTER_DIGITS:
        raise TooLargeError(what="total", size=MAX_COUNTER_DIGITS + 1, limit=MAX_COUNTER_DIGITS)
    return total, b'{"val":"%s"}' % text.encode()


def _total_at(store: Store, seq: int) -> int | None:
    """Return the total that a message has; None if it has none, or does not exist."""
    value = store.contents.message_value(seq, store.unwritten())
    if type(value) is not bytes:
        return None
    try:
        total = json.loads(value)
        text = total.get("val") if type(total) is dict else None
    except (ValueError, RecursionError):
        return None
    if type(text) is not str or _COUNTER.fullmatch(text) is None:
        return None
    return int(text)


def _total_text(total: int | None) -> str | None:
    return None if total is None else str(total)
