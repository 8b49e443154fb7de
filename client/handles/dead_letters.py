"""Dead letters: messages that a consumer gives up, kept in a stream of their own.

The client that fetched a message moves it, so two streams with two owners need no protocol between
servers. The steps, after each of which the process may die:

    1  a fetch names the message as dead and keeps it pending, for the ack wait
        2  a copy is appended to the dead-letter stream, with a `msg_id` made from its origin
    3  `term` says that the consumer has finished it

If the process dies before 3, a later fetch names the message again. If there is a copy already, the
dead-letter stream knows its `msg_id`, which it remembers for a day. So no copy is ever missing, and
each exists only once if somebody fetches within a day.

The copy has the headers of the message, and some more that say where it came from.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple

from holdfast.client.large_values.value_reader import ValueReader
from holdfast.client.large_values.value_source import write_file
from holdfast.client.large_values.value_upload import put_file
from holdfast.client.values.values import Values
from holdfast.client.wire.link import Link
from holdfast.client.wire.operations import (
    Value,
    ack_from_wire,
    append_operation,
    message_from_wire,
    messages_from_wire,
)
from holdfast.client.wire.store_queue import StoreKey
from holdfast.protocol.errors import InvalidArgumentError, NotFoundError, TooLargeError
from holdfast.protocol.frames import (
    CONFIG,
    CONFIGURE,
    DELETE_MESSAGES,
    GET_MESSAGE,
    GET_MESSAGES,
    pack,
)
from holdfast.protocol.header_block import HeaderBlock
from holdfast.protocol.limits import MAX_DEDUPE_WINDOW_SECONDS, UPLOAD_ID_BYTES
from holdfast.protocol.messages import Ack, Headers, LargeValue, Message, V
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


class DeadLetters(Generic[V]):
    """The dead letters of one consumer, in any dead-letter stream."""

    def __init__(self, link: Link, key: StoreKey, values: Values[V], consumer: str) -> None:
        """`key` is the stream of the consumer."""
        self._link = link
        self._key = key
        self._values = values
        self._consumer = consumer
        #: Dead-letter streams that are known to remember every `msg_id` long enough.
        self._ids_kept: set[str] = set()

    async def bury(
        self,
        dead_letter: str,
        consumer_id: int,
        row: Message,
        delivery_count: int,
        reason: str,
        timeout_seconds: float | None,
    ) -> None:
        """Copy a message to the stream `dead_letter`, once."""
        stream, dead = self._key[1], self._dead_key(dead_letter)
        if dead_letter not in self._ids_kept:
            await _keep_ids_for_a_day(self._link, dead, timeout_seconds)
            self._ids_kept.add(dead_letter)
        headers = _origin_headers(row, stream, self._consumer, delivery_count, reason)
        identity = f"dead {stream} {consumer_id} {row.seq}"
        await _copy_message(self._link, self._key, dead, row, headers, identity, timeout_seconds)

    async def pages(
        self, dead_letter: str, timeout_seconds: float | None
    ) -> AsyncGenerator[list[DeadLetter[V]], None]:
        """Yield this consumer's dead letters in the stream `dead_letter`, page by page."""
        next_seq: int | None = 1
        while next_seq is not None:
            packed = pack([GET_MESSAGES, next_seq])
            (rows, next_seq), *_ = await self._link.call(
                self._dead_key(dead_letter), packed, False, 0, timeout_seconds
            )
            page: list[DeadLetter[V]] = []
            for row in messages_from_wire(rows):
                mine = row.headers.get(DEAD_CONSUMER_HEADER) == self._consumer
                if mine and row.headers.get(DEAD_STREAM_HEADER) == self._key[1]:
                    plain = row._replace(headers=_without_origin(row.headers))
                    letter = _letter_of(row, self._values.listed_message(plain))
                    if letter is not None:
                        page.append(letter)
            yield page

    async def requeue(
        self, dead_letter: str | None, letter: DeadLetter[Any], timeout_seconds: float | None
    ) -> Ack:
        """Do what `Consumer.requeue` does."""
        dead = self._dead_key(dead_letter)
        wire, *_ = await self._link.call(
            dead, pack([GET_MESSAGE, letter.message.seq]), False, 0, timeout_seconds
        )
        row = None if wire is None else message_from_wire(wire)
        if row is None or row.headers.get(DEAD_STREAM_HEADER) != self._key[1]:
            raise NotFoundError(what="dead letter", name=str(letter.message.seq))
        ack = await _copy_message(
            self._link,
            dead,
            self._key,
            row,
            _without_origin(row.headers),
            f"requeue {dead[1]} {row.seq} {row.revision}",
            timeout_seconds,
        )
        await self._link.call(dead, pack([DELETE_MESSAGES, [row.seq]]), True, 0, timeout_seconds)
        return ack

    def _dead_key(self, name: str | None) -> StoreKey:
        if name is None:
            reason = f"Consumer({self._consumer!r}) has no dead-letter stream"
            raise InvalidArgumentError(argument="dead_letter", reason=reason)
        return (self._key[0], name)


def _without_origin(headers: Headers) -> Headers:
    """Return the headers that a message had before it was dead."""
    if isinstance(headers, HeaderBlock):
        return headers.without(DEAD_HEADERS)
    return {name: text for name, text in headers.items() if name not in DEAD_HEADERS}


def _origin_headers(
    row: Message, stream: str, consumer: str, delivery_count: int, reason: str
) -> Headers:
    """Return the headers of the copy of `row`."""
    origin = {
        DEAD_STREAM_HEADER: stream,
        DEAD_SEQ_HEADER: str(row.seq),
        DEAD_CONSUMER_HEADER: consumer,
        DEAD_DELIVERIES_HEADER: str(delivery_count),
        DEAD_REASON_HEADER: reason,
    }
    before = _without_origin(row.headers)
    if not isinstance(before, HeaderBlock):
        return {**before, **origin}
    try:
        return before.with_added(origin)
    except TooLargeError:
        # A block that is full. That the message is dead matters more than its headers.
        return HeaderBlock.of(origin)


def _letter_of(stored: Message, told: Message[V]) -> DeadLetter[V] | None:
    """Return `stored` as a dead letter, or None if it is none. `told` is the message as
    applications see it."""
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


async def _keep_ids_for_a_day(link: Link, key: StoreKey, timeout_seconds: float | None) -> None:
    """Configure a dead-letter stream to remember every `msg_id` for a day, unless it
    has a setting."""
    config, *_ = await link.call(key, pack([CONFIG]), False, 0, timeout_seconds)
    if "dedupe_window_seconds" not in config:
        wanted = {"dedupe_window_seconds": MAX_DEDUPE_WINDOW_SECONDS}
        await link.call(key, pack([CONFIGURE, wanted]), True, 0, timeout_seconds)


async def _copy_message(
    link: Link,
    source: StoreKey,
    target: StoreKey,
    row: Message,
    headers: Headers,
    identity: str,
    timeout_seconds: float | None,
) -> Ack:
    """Append `row`, a message of `source`, to `target` as it is stored, once for each `identity`
    within the dedupe window of `target`. Raises what appending raises, and OSError."""
    digest = hashlib.sha256(identity.encode())

    async def commit(value: Value | LargeValue) -> Ack:
        packed = pack(
            append_operation(value, headers, digest.hexdigest(), subject=row.subject)
        )
        answer = await link.submit(target, packed, True, 0, timeout_seconds)
        return answer if type(answer) is Ack else ack_from_wire(*link.unwrap(answer))

    if row.large is None:
        return await commit(row.value)
    reader = ValueReader(link, source, row, f"message {row.seq} of {source[1]}", timeout_seconds)
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        path = Path(folder) / "value"
        await write_file(reader, path)
        upload_id = digest.digest()[:UPLOAD_ID_BYTES]
        return await put_file(link, target, path, commit, upload_id, timeout_seconds)
