"""Dead letters: messages that a consumer gives up, kept in a stream of their own.

The client that fetched a message moves it, so two streams with two owners need no protocol between
servers. The steps, after each of which the process may die:

    1  a fetch names the message as dead and keeps it pending, for the ack wait
    2  a copy is appended to the dead-letter stream, with a `msg_id` made of where it came from
    3  `term` says that the consumer has finished it

If the process dies before 3, a later fetch names the message again. Before 2 nothing has happened;
after it the `msg_id` is known, because the dead-letter stream remembers it for a day. So each copy
exists once if somebody fetches within a day, and is never missing.

The headers of the copy say where it came from, besides those of the message.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple

from holdfast.client.handles.large_value import ValueReader, put_file, write_file
from holdfast.client.wire.link import Link
from holdfast.client.wire.operations import Value, append_operation
from holdfast.client.wire.store_queue import StoreKey
from holdfast.protocol.frames import CONFIG, CONFIGURE, pack
from holdfast.protocol.limits import MAX_DEDUPE_WINDOW_SECONDS, UPLOAD_ID_BYTES
from holdfast.protocol.messages import Ack, Durability, LargeValue, Message, V
from holdfast.protocol.own_headers import (
    DEAD_CONSUMER_HEADER,
    DEAD_DELIVERIES_HEADER,
    DEAD_HEADERS,
    DEAD_REASON_HEADER,
    DEAD_SEQ_HEADER,
    DEAD_STREAM_HEADER,
)

#: Why a message is dead: delivered `max_deliveries` times, or a worker said `term`.
DELIVERED: Final = "max_deliveries"
TERMINATED: Final = "term"


class DeadLetter(NamedTuple, Generic[V]):
    """A message that a consumer gave up, as it is in the dead-letter stream."""

    #: With its seq in the dead-letter stream, and the value and headers of the original.
    message: Message[V]
    #: The stream of the original.
    stream: str
    #: The seq of the original.
    seq: int
    #: The consumer that gave it up.
    consumer: str
    #: How often it was delivered.
    delivery_count: int
    #: "max_deliveries", or "term" if a worker gave it up.
    reason: str


def without_origin(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that a message had before it was dead."""
    return {name: text for name, text in headers.items() if name not in DEAD_HEADERS}


def origin_headers(
    row: Message, stream: str, consumer: str, delivery_count: int, reason: str
) -> dict[str, str]:
    """Return the headers of the copy of `row`."""
    return without_origin(row.headers) | {
        DEAD_STREAM_HEADER: stream,
        DEAD_SEQ_HEADER: str(row.seq),
        DEAD_CONSUMER_HEADER: consumer,
        DEAD_DELIVERIES_HEADER: str(delivery_count),
        DEAD_REASON_HEADER: reason,
    }


def letter_of(stored: Message, told: Message[V]) -> DeadLetter[V] | None:
    """Return the dead letter that `stored` is, None if it is none; `told` is it as applications see it."""
    headers = stored.headers
    try:
        return DeadLetter(
            told,
            headers[DEAD_STREAM_HEADER],
            int(headers[DEAD_SEQ_HEADER]),
            headers[DEAD_CONSUMER_HEADER],
            int(headers[DEAD_DELIVERIES_HEADER]),
            headers[DEAD_REASON_HEADER],
        )
    except (KeyError, ValueError):
        return None


async def keep_ids_for_a_day(link: Link, key: StoreKey, timeout_seconds: float | None) -> None:
    """Have a dead-letter stream remember every `msg_id` for a day, unless it was told how long."""
    config, *_ = await link.call(key, pack([CONFIG]), False, 0, timeout_seconds)
    if "dedupe_window_seconds" not in config:
        wanted = {"dedupe_window_seconds": MAX_DEDUPE_WINDOW_SECONDS}
        await link.call(key, pack([CONFIGURE, wanted]), True, 0, timeout_seconds)


async def copy_message(
    link: Link,
    source: StoreKey,
    target: StoreKey,
    row: Message,
    headers: Mapping[str, str],
    identity: str,
    timeout_seconds: float | None,
) -> Ack:
    """Append the message of `source` that `row` is, as it is stored, to `target`; once for each
    `identity` within the window of `target`. Raises what appending raises, OSError."""
    digest = hashlib.sha256(identity.encode())

    async def commit(value: Value | LargeValue) -> Ack:
        packed = pack(append_operation(value, headers, digest.hexdigest()))
        answer = await link.submit(target, packed, True, 0, timeout_seconds)
        return answer if type(answer) is Ack else _ack(*link.unwrap(answer))

    if row.large is None:
        return await commit(row.value)
    reader = ValueReader(link, source, row, f"message {row.seq} of {source[1]}", timeout_seconds)
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        path = Path(folder) / "value"
        await write_file(reader, path)
        upload_id = digest.digest()[:UPLOAD_ID_BYTES]
        return await put_file(link, target, path, commit, upload_id, timeout_seconds)


def _ack(result: Any, time: int, durability: Durability) -> Ack:
    return Ack(result[0], result[1], time, durability, len(result) > 2)
