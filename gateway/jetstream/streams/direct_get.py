"""Direct get: messages as they are, as answers to requests below `$JS.API.DIRECT.GET.<stream>`.

Only a stream with `allow_direct` listens there; the answer of any other is NATS's own 503. Gets of
the last message of a subject are answered together (`last_gets`). Each other request is answered
in a task. Only so many are answered at a time, and a batch goes on when the connection has taken
what it was given.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from holdfast.client.handles.serving import ServingStream
from holdfast.client.handles.serving_wire import ServedMessage
from holdfast.gateway.jetstream.api import headers
from holdfast.gateway.jetstream.api.headers import StatusError, status_block
from holdfast.gateway.jetstream.api.limits import API_LEVEL, MAX_MULTI_LAST_SUBJECTS
from holdfast.gateway.jetstream.api.requests.message_requests import GetMessage
from holdfast.gateway.jetstream.api.times import format_ms
from holdfast.gateway.jetstream.streams.context import GatewayContext
from holdfast.gateway.jetstream.streams.last_gets import Answer as LastAnswer
from holdfast.gateway.jetstream.streams.last_gets import LastGets
from holdfast.gateway.jetstream.streams.reading import find, first_ms, is_subject
from holdfast.gateway.jetstream.wire.ports import PortMessage
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.limits import MAX_DIRECT_GETS, MIB

logger = logging.getLogger("holdfast.gateway")

_PAGE_MESSAGES: Final = 256
_UNAVAILABLE: Final = status_block(503)
_NOT_FOUND: Final = status_block(404, "Message Not Found")
_OF_BATCH: Final = ("Nats-Num-Pending", "Nats-Last-Sequence")
_NO_LIMIT: Final = 1 << 62
#: Of the messages of a `multi_last` that are counted before the first is sent. The others are read
#: once more.
_MAX_KEPT_BYTES: Final = 2 * MIB


class DirectGet:
    """The direct gets of one stream."""

    def __init__(self, stream: str, store: ServingStream, context: GatewayContext) -> None:
        self._stream = stream
        self._store = store
        self._context = context
        self._running = 0
        self._mark = f"DIRECT.GET.{stream}"
        #: The start of what every answer says.
        self._fields = headers.lines([("Nats-Stream", stream)]) + b"Nats-Subject: "
        self._lasts: LastGets[str] = LastGets(
            store, self._answer_lasts, self._other_last, self._failed
        )

    def receive(self, message: PortMessage) -> None:
        """Take a request. The callback of its subscriptions."""
        if not message.reply:
            return
        if self._running + self._lasts.count >= MAX_DIRECT_GETS:
            self._context.client.publish(message.reply, b"", headers=_UNAVAILABLE)
            return
        if not message.payload and not message.headers:
            subject = message.subject.partition(self._mark)[2][1:]
            if is_subject(subject):
                self._lasts.ask(subject, message.reply)
                return
        self._answer_soon(message.reply, lambda: self._parse(message))

    # Gets of last messages

    def _answer_lasts(self, answers: Sequence[LastAnswer[str]]) -> None:
        too_large = self._context.client.answer(
            (reply, _NOT_FOUND, b"")
            if found is None
            else (reply, self._block(found, found.headers), found.value)
            for reply, found in answers
        )
        if too_large:
            self._failed(too_large, "larger than nats-server takes")

    def _other_last(self, subject: str, reply: str) -> None:
        self._answer_soon(reply, lambda: GetMessage(last_by_subj=subject))

    def _failed(self, replies: Sequence[str], reason: object) -> None:
        # The client asks again: nothing tells it more than that nobody answers.
        logger.warning("jetstream.direct_get_failed stream=%s reason=%s", self._stream, reason)
        self._context.client.answer((reply, _UNAVAILABLE, b"") for reply in replies)

    # All others

    def _answer_soon(self, reply: str, parse: Callable[[], GetMessage]) -> None:
        self._running += 1
        self._context.spawn(self._answer(reply, parse))

    async def _answer(self, reply: str, parse: Callable[[], GetMessage]) -> None:
        try:
            asked = parse()
            if asked.multi_last:
                await self._several_lasts(reply, asked)
            elif asked.is_batch:
                await self._batch(reply, asked)
            else:
                found = await find(self._store, asked)
                if found is None:
                    raise _not_found()
                self._send(reply, found, asked)
        except StatusError as refused:
            self._context.client.publish(reply, b"", headers=refused.block)
        except HoldfastError as error:
            self._failed([reply], error)
        finally:
            self._running -= 1

    def _parse(self, message: PortMessage) -> GetMessage:
        level = headers.get(message.headers, "Nats-Required-Api-Level")
        if level is not None and not (level.isdecimal() and int(level[:9]) <= API_LEVEL):
            raise StatusError(412, "Required Api Level")
        _, _, rest = message.subject.partition(self._mark)
        if rest:
            return GetMessage.parse_direct_last(rest[1:], message.payload)
        return GetMessage.parse_direct(message.payload)

    async def _batch(self, reply: str, asked: GetMessage) -> None:
        """Answer with a number of messages from a seq or a time on, and an end."""
        store = self._store
        filters = [asked.next_by_subj] if asked.next_by_subj else []
        wanted, room = asked.batch, asked.max_bytes or _NO_LIMIT
        page = await store.by_subject(
            filters,
            start_seq=asked.seq or None,
            start_time_ms=first_ms(asked.start_time),
            limit=min(wanted, _PAGE_MESSAGES),
        )
        if not page.messages:
            raise _not_found()
        pending, _ = await store.count(filters, page.messages[0].seq)
        last = 0
        while True:
            for message in page.messages:
                pending = max(0, pending - 1)
                self._send(reply, message, asked, [pending, last])
                last = message.seq
                wanted -= 1
                room -= _size_of(message)
                if not wanted or room <= 0:
                    break
            if not wanted or room <= 0 or page.next_seq is None:
                break
            await self._context.outflow.until_writable()
            page = await store.by_subject(
                filters, start_seq=page.next_seq, limit=min(wanted, _PAGE_MESSAGES)
            )
        self._end(reply, pending, last)

    async def _several_lasts(self, reply: str, asked: GetMessage) -> None:
        """Answer with the last message of each subject, and an end."""
        up_to = asked.up_to_seq
        if asked.up_to_time is not None:
            up_to = await self._last_seq_before(first_ms(asked.up_to_time) or 0)
        elif not up_to:
            up_to = (await self._store.head()).last_seq
        #: Of those that have too many bytes to be kept, the seqs alone.
        found: list[ServedMessage | int] = []
        kept_bytes = 0
        after: int | None = max(0, asked.seq - 1)
        while after is not None and up_to:
            page = await self._store.lasts(asked.multi_last, up_to_seq=up_to, after_seq=after)
            for message in page.messages:
                kept_bytes += _size_of(message)
                found.append(message if kept_bytes <= _MAX_KEPT_BYTES else message.seq)
            after = page.next_seq
            if len(found) > MAX_MULTI_LAST_SUBJECTS:
                raise StatusError(413, "Too Many Results")
        if not found:
            raise StatusError(404, "No Results")
        pending, last, room = len(found), 0, asked.max_bytes or _NO_LIMIT
        for each in found[: asked.batch or len(found)]:
            pending -= 1
            sent = await self._store.get(each) if isinstance(each, int) else each
            if sent is None:
                # It was removed meanwhile.
                continue
            self._send(reply, sent, asked, [pending, last])
            last = sent.seq
            room -= _size_of(sent)
            if room <= 0:
                break
            await self._context.outflow.until_writable()
        self._end(reply, pending, last, up_to)

    async def _last_seq_before(self, time_ms: int) -> int:
        """Return the seq of the last message that was stored before a time."""
        page = await self._store.by_subject(start_time_ms=time_ms, limit=1)
        if page.messages:
            return page.messages[0].seq - 1
        return (await self._store.head()).last_seq

    def _send(
        self, reply: str, message: ServedMessage, asked: GetMessage, of_batch: Sequence[int] = ()
    ) -> None:
        """Send a message; of a batch with what is pending after it, and the seq before it."""
        block = self._block(message, b"" if asked.no_hdr else message.headers)
        if of_batch:
            block = headers.append(block, zip(_OF_BATCH, of_batch, strict=True))
        self._context.client.publish(reply, message.value, headers=block)

    def _block(self, message: ServedMessage, block: bytes) -> bytes:
        """Return the header block of an answer, which begins with that of the message."""
        return b"%b%b%b\r\nNats-Sequence: %d\r\nNats-Time-Stamp: %b\r\n\r\n" % (
            headers.opened(block),
            self._fields,
            message.subject.encode(),
            message.seq,
            format_ms(message.time_ms).encode(),
        )

    def _end(self, reply: str, pending: int, last: int, up_to: int | None = None) -> None:
        fields: dict[str, object] = {"Nats-Num-Pending": pending, "Nats-Last-Sequence": last}
        if up_to is not None:
            fields["Nats-UpTo-Sequence"] = up_to
        self._context.client.publish(reply, b"", headers=status_block(204, "EOB", fields))


def _not_found() -> StatusError:
    return StatusError(404, "Message Not Found")


def _size_of(message: ServedMessage) -> int:
    return len(message.subject) + len(message.headers) + len(message.value)
