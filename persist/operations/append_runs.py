"""Runs of appends that are accepted at once, because nothing about one of them needs a look of its
own.

Pure. Most writes of most streams are such appends: of a value and nothing else, or as a gateway
sends them, of a value, a header block and a subject. Every function here either accepts a whole run
and does what `appending.append` would have done for each, or does nothing and returns None; then
they are executed one by one, which also finds out what is wrong with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from holdfast.persist.operations.arguments import check_headers
from holdfast.persist.store.open_stores import Arrival
from holdfast.persist.store.retention import Retention
from holdfast.persist.store.states import OpenState, Standing
from holdfast.persist.store.store import Store
from holdfast.protocol import frames
from holdfast.protocol.errors import InvalidArgumentError, TooLargeError
from holdfast.protocol.limits import MAX_HEADERS_BYTES, MAX_VALUE_BYTES
from holdfast.protocol.subject_filters import check_subject_of_message
from holdfast.shared_fs.store_file.applying import WriterOutcome
from holdfast.shared_fs.store_file.subject_rows import sizes_with_subjects, subject_bytes

_BYTES: Final = {bytes}
_TEXT: Final = {str}
_INTEGER: Final = {int}
_APPENDS: Final = {frames.APPEND}
#: A number, value, headers, three things that a run lacks, a subject and a serving epoch.
_GATEWAY_ELEMENTS: Final = 8
_OF_GATEWAY: Final = {_GATEWAY_ELEMENTS}
# As globals: see `IDLE` in `client/wire/schedule.py`.
_SERVING: Final = OpenState.SERVING
_UNWRITTEN: Final = Standing.UNWRITTEN
#: What is larger is looked at on its own.
_MAX_MESSAGE_BYTES: Final = MAX_VALUE_BYTES + MAX_HEADERS_BYTES


def append_alone(
    store: Store, arrival: Arrival, time: int, default: int, log_level: int
) -> bytes | None:
    """Do all that a tick of `time` does with a group of one plain append, the first that its writer
    waits for, and return the outcome. Return None, and change nothing, if the group needs the long
    way: new, leased, limited or encrypted stores, writers with several groups in flight, retries,
    and levels of durability other than that of the log. `default` is that of writes that ask for
    none. The caller has looked at quotas. Raises StorageError.

    If a thousand streams are written in turn, nearly every group is one. Each step of the long way
    (`TurnBuilder._execute`, `Tick.write`, `operations.execute`, `WriterState`) looks at the store
    again, whose memory is seldom in a processor's cache. So this does all of it at once: with 512
    streams to a frame, building a tick takes a third less.
    """
    _, _, writer_id, _, group, _, _, _ = arrival
    _, _, counter, first_unacked, durability, operations = group
    operation = operations[0]
    writers = store.writers
    writer = writers.known.get(writer_id)
    if (
        writer is None
        or not writer.last
        or counter != writer.last + 1
        or counter != first_unacked
        or counter < writer.first_unacked
        or store.state is not _SERVING
        or store.standing is _UNWRITTEN
        or store.retention is not None
        or store.cipher is not None
        or not store.is_stream
        or operation[0] != frames.APPEND
        or len(operation) != 2
        or type(operation[1]) is not bytes
        or len(operation[1]) > MAX_VALUE_BYTES
        or (durability or default) != log_level
    ):
        return None
    if store.mark is None:
        store.begin()
    now = time + store.lead
    if now < store.time:
        now = store.now(time)
    store.time = now
    run = store.append_message(operation[1])
    outcome = frames.encode_outcome(store.epoch, now, log_level, run)
    # The writer waits for nothing below `counter`, so it needs one outcome. `StoreWriters.admit`
    # lets such a group in however many outcomes there are: it takes no more room.
    size_bytes = len(outcome)
    writers.outcome_bytes += size_bytes - writer.size_bytes
    writer.size_bytes = size_bytes
    writer.last = writer.first_unacked = counter
    outcomes = writer.outcomes
    outcomes.clear()
    outcomes[counter] = outcome
    # Faster than the class: see `_new` in `frames.py`.
    kept = tuple.__new__(WriterOutcome, (writer_id, counter, counter, now, outcome))
    store.outcomes.append(kept)
    return outcome


def run_within_limits(
    store: Store, retention: Retention, operations: list[list[Any]]
) -> frames.Run | None:
    """Accept plain appends if no limit must check each of them. Return None if one must, or if they
    are other operations."""
    if not store.is_stream:
        return None
    if len(operations) == 1 and len(operations[0]) == _GATEWAY_ELEMENTS:
        return _one_with_subject(store, retention, operations[0])
    values = plain_values(operations)
    if values is None:
        if set(map(len, operations)) != _OF_GATEWAY:
            return None
        return _run_with_subjects(store, retention, operations)
    if not retention.takes_any(list(map(len, values))):
        return None
    run = store.append_messages(values)
    retention.wrote(store.time)
    return run


def plain_values(operations: list[list[Any]]) -> list[bytes] | None:
    """Return the values if every operation is an append of a value and nothing else, or None."""
    try:
        values = [value for number, value in operations if number == frames.APPEND]
    except ValueError:
        return None
    if len(values) != len(operations) or set(map(type, values)) != _BYTES:
        return None
    return values if max(map(len, values)) <= MAX_VALUE_BYTES else None


def _one_with_subject(
    store: Store, retention: Retention, operation: list[Any]
) -> frames.Run | None:
    """Do what `_run_with_subjects` does, for one append. To make columns of it first takes as long
    as all the rest."""
    number, value, headers, msg_id, expected_last_seq, ttl_seconds, subject, epoch = operation
    config = store.config
    if (
        number != frames.APPEND
        or msg_id is not None
        or expected_last_seq is not None
        or ttl_seconds is not None
        or type(epoch) is not int
        or epoch != config.serving_epoch
        or type(value) is not bytes
        or type(subject) is not str
        or (headers is not None and type(headers) is not bytes)
        or len(value) > MAX_VALUE_BYTES
        or config.discard_new_per_subject
    ):
        return None
    try:
        if subject not in store.contents.subjects.with_first:
            check_subject_of_message(subject, literal_wildcards=True)
        if headers is not None:
            check_headers(headers)
    except (InvalidArgumentError, TooLargeError):
        return None
    size_bytes = len(value) + len(headers or b"") + subject_bytes(subject, headers)
    if size_bytes > _MAX_MESSAGE_BYTES or not retention.takes_any([size_bytes]):
        return None
    run = store.append_with_subjects((value,), (headers,), (subject,), [size_bytes])
    retention.wrote(store.time)
    retention.wrote_subject(subject)
    return run


def _run_with_subjects(
    store: Store, retention: Retention, operations: list[list[Any]]
) -> frames.Run | None:
    """Accept appends of messages that have a subject, and perhaps headers."""
    numbers, values, headers, *lacking, subjects, epochs = zip(*operations, strict=True)
    epoch = store.config.serving_epoch
    if (
        set(numbers) != _APPENDS
        or any(each.count(None) != len(operations) for each in lacking)
        or set(map(type, epochs)) != _INTEGER
        or epochs.count(epoch) != len(operations)
        or set(map(type, values)) != _BYTES
        or set(map(type, subjects)) != _TEXT
        or max(map(len, values)) > MAX_VALUE_BYTES
        or store.config.discard_new_per_subject
    ):
        return None
    different = dict.fromkeys(subjects)
    unchecked = different.keys() - store.contents.subjects.with_first
    sizes = _sizes(unchecked, values, headers, subjects)
    if sizes is None or not retention.takes_any(sizes):
        return None
    run = store.append_with_subjects(values, headers, subjects, sizes)
    retention.wrote(store.time)
    retention.wrote_subjects(different)
    return run


def _sizes(
    unchecked: Iterable[str],
    values: Sequence[bytes],
    headers: Sequence[Any],
    subjects: Sequence[str],
) -> list[int] | None:
    """Return what each message counts; None if one of them cannot be stored. No message that is
    stored has one of the subjects `unchecked`, as far as is known."""
    try:
        for subject in unchecked:
            check_subject_of_message(subject, literal_wildcards=True)
        blocks = [block for block in headers if block is not None]
        for block in blocks:
            if type(block) is not bytes:
                return None
            check_headers(block)
    except (InvalidArgumentError, TooLargeError):
        return None
    if not blocks:
        sizes = sizes_with_subjects(values, subjects)
    else:
        sizes = [
            len(value) + len(block or b"") + subject_bytes(subject, block)
            for value, block, subject in zip(values, headers, subjects, strict=True)
        ]
    return sizes if max(sizes) <= _MAX_MESSAGE_BYTES else None
