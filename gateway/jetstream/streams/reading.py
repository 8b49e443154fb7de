"""Finding a message: what STREAM.MSG.GET and direct get ask for, read from the stream's store."""

from __future__ import annotations

from holdfast.client.handles.serving import ServingStream
from holdfast.client.handles.serving_wire import ServedMessage
from holdfast.gateway.jetstream.api.requests.message_requests import GetMessage
from holdfast.gateway.jetstream.api.times import MILLISECOND
from holdfast.protocol.errors import InvalidArgumentError, TooLargeError
from holdfast.protocol.subject_filters import check_filter, check_subject_of_message


async def find(store: ServingStream, asked: GetMessage) -> ServedMessage | None:
    """Return the message that is asked for: the last of a subject, the next of one from a seq or a
    time on, the first from a time on, or the one with this seq. Subjects may have wildcards; one
    that no message can have, such as that of an object without a name, has no messages.
    """
    wanted = asked.last_by_subj or asked.next_by_subj
    if wanted and not _is_filter(wanted):
        return None
    if asked.last_by_subj:
        return await store.last(asked.last_by_subj)
    if not asked.next_by_subj and asked.start_time is None:
        return await store.get(asked.seq)
    page = await store.by_subject(
        [asked.next_by_subj] if asked.next_by_subj else [],
        start_seq=asked.seq or None,
        start_time_ms=first_ms(asked.start_time),
        limit=1,
    )
    return page.messages[0] if page.messages else None


def is_subject(text: str) -> bool:
    """Tell whether a message may have this subject, and it has no wildcard."""
    try:
        check_subject_of_message(text)
    except (InvalidArgumentError, TooLargeError):
        return False
    return True


def _is_filter(text: str) -> bool:
    try:
        check_filter(text)
    except (InvalidArgumentError, TooLargeError):
        return False
    return True


def first_ms(time_ns: int | None) -> int | None:
    """Return the first millisecond that is not before a time."""
    return None if time_ns is None else max(0, -(-time_ns // MILLISECOND))
