"""A stream: messages numbered from 1, densely, in order."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Unpack

from holdfast.client.handles.consumer import Consumer, consumer_infos
from holdfast.client.handles.destroying import destroy
from holdfast.client.handles.large_value import (
    Source,
    ValueReader,
    is_large,
    put_file,
    put_value,
    with_large_value,
    write_file,
)
from holdfast.client.handles.pending import PendingAck
from holdfast.client.handles.transaction import StreamTransaction
from holdfast.client.values.values import Values
from holdfast.client.wire import configuration
from holdfast.client.wire.link import Link
from holdfast.client.wire.operations import (
    Value,
    append_operation,
    check_count,
    check_seq,
    checked_durability,
    delete_messages_operation,
    head_from_wire,
    message_from_wire,
    messages_from_wire,
    pack_batch,
    packed_append,
    range_end,
    range_start,
    set_message_operation,
    split_value,
    time_ms,
)
from holdfast.protocol.consumers import ConsumerInfo, ConsumerSettings
from holdfast.protocol.errors import (
    InvalidArgumentError,
    MalformedFrameError,
)
from holdfast.protocol.frames import GET_MESSAGE, GET_MESSAGES, HEAD, TRIM, pack
from holdfast.protocol.messages import (
    Ack,
    AnyDurability,
    Deleted,
    Durability,
    Head,
    Headers,
    LargeValue,
    Message,
    V,
)
from holdfast.protocol.names import StoreKind, StoreName
from holdfast.protocol.store_config import ConfigSettings, StoreConfig

if TYPE_CHECKING:
    from holdfast.client.following.follower import Follower
    from holdfast.client.following.subscription import Subscription


_PACKED_HEAD = pack([HEAD])


class Stream(Generic[V]):
    """A handle on one stream of the client's tenant. Cheap: it holds a name and nothing else.

    Every method may raise OperationTimeoutError (a write may or may not be stored then),
    NoCoordinatorError, NoServerError and ConnectionFailedError (nothing was sent until the timeout),
    InvalidArgumentError and TooLargeError (before anything is sent), and StorageError when the
    server's disk failed. All of these carry their fields and a stable `code`.
    A `timeout_seconds` is at most 300: owners know a retry for twice as long.
    """

    def __init__(
        self, link: Link, follower: Follower, name: StoreName, values: Values[V]
    ) -> None:
        self.name = name
        self._values = values
        self._link = link
        self._follower = follower
        self._key = (int(StoreKind.STREAM), str(name))

    def __repr__(self) -> str:
        return f"Stream({self.name!r})"

    async def append(
        self,
        value: V | Value,
        *,
        headers: Headers | None = None,
        msg_id: str | None = None,
        expected_last_seq: int | None = None,
        ttl_seconds: float | None = None,
        durability: AnyDurability | None = None,
        timeout_seconds: float | None = None,
    ) -> Ack:
        """Append a message; return its seq and revision. A value above MAX_VALUE_BYTES is uploaded in
        chunks first, each with `timeout_seconds`.

        A `msg_id` that was stored within the last two minutes (or the stream's own
        `dedupe_window_seconds`) is not stored again: the ack is then that of the first time, with
        `duplicate` true. With `expected_last_seq` the message is stored only if that is the
        stream's last seq (0: never written); else WrongLastSeqError. `ttl_seconds` after it was
        stored the message is gone. Raises LimitExceededError and RateLimitedError where the stream
        is configured so; nothing was stored or removed then.
        """
        # Written out rather than through `Link.call`: this is the path of every message.
        link, values = self._link, self._values
        data = values.encoded(value)
        if is_large(data):
            append = self._committing(
                None, headers, msg_id, expected_last_seq, ttl_seconds, durability, timeout_seconds
            )
            return await put_value(link, self._key, data, append, timeout_seconds)
        data, headers = values.stored(data, headers)
        packed = packed_append(data, headers, msg_id, expected_last_seq, ttl_seconds)
        level = 0 if durability is None else checked_durability(durability)
        if link.full:
            await link.wait_for_room(timeout_seconds)
        answer = await link.submit(self._key, packed, True, level, timeout_seconds)
        return answer if type(answer) is Ack else _ack(*link.unwrap(answer))

    async def append_async(
        self,
        value: V | Value,
        *,
        headers: Headers | None = None,
        msg_id: str | None = None,
        expected_last_seq: int | None = None,
        ttl_seconds: float | None = None,
        durability: AnyDurability | None = None,
        timeout_seconds: float | None = None,
    ) -> PendingAck:
        """Start an `append`, with the same arguments, and return without waiting for its ack.

        For one producer that keeps many appends under way: they are stored in the order of these
        calls. Waits while so much of this client is unanswered that more would be late
        (MAX_WAITING_OPERATIONS and MAX_WAITING_BYTES at the most). At most MAX_VALUE_BYTES each:
        TooLargeError.
        """
        link, values = self._link, self._values
        data, headers = values.stored(values.encoded(value), headers)
        packed = packed_append(data, headers, msg_id, expected_last_seq, ttl_seconds)
        level = 0 if durability is None else checked_durability(durability)
        if link.full:
            await link.wait_for_room(timeout_seconds)
        pending = PendingAck(_ack)
        link.submit_for(pending, self._key, packed, True, level, timeout_seconds)
        return pending

    async def append_many(
        self,
        values: Sequence[V | Value | tuple[V | Value, Headers | None]],
        *,
        durability: AnyDurability | None = None,
        expected_last_seq: int | None = None,
        ttl_seconds: float | None = None,
        timeout_seconds: float | None = None,
    ) -> list[Ack]:
        """Append all of `values` (or `(value, headers)` pairs) or none; return an ack for each, so []
        for nothing at all.

        They get consecutive seqs. All must fit in one frame of about 1 MB and 4096 messages:
        TooLargeError. Raises WrongLastSeqError, LimitExceededError and RateLimitedError as `append`
        does, also if the stream could not keep all of them.
        """
        operations = []
        for item in values:
            value, headers = split_value(item)
            data, headers = self._values.stored(self._values.encoded(value), headers)
            operations.append(
                append_operation(data, headers, None, expected_last_seq, ttl_seconds)
            )
            expected_last_seq = None
        return await self._batch(operations, durability, timeout_seconds)

    async def set(
        self,
        seq: int,
        value: V | Value,
        *,
        headers: Headers | None = None,
        ttl_seconds: float | None = None,
        durability: AnyDurability | None = None,
        timeout_seconds: float | None = None,
    ) -> Ack:
        """Replace message `seq`, deleted ones too; at the last seq + 1 append.

        Raises InvalidSeqError beyond that. What is replaced has its ttl and age anew.
        """
        data = self._values.encoded(value)
        if is_large(data):
            replace = self._committing(
                seq, headers, None, None, ttl_seconds, durability, timeout_seconds
            )
            return await put_value(self._link, self._key, data, replace, timeout_seconds)
        data, headers = self._values.stored(data, headers)
        packed = pack(set_message_operation(seq, data, headers, ttl_seconds))
        level = checked_durability(durability)
        return _ack(*await self._link.call(self._key, packed, True, level, timeout_seconds))

    async def set_many(
        self,
        items: Sequence[tuple[int, V | Value]],
        *,
        durability: AnyDurability | None = None,
        timeout_seconds: float | None = None,
    ) -> list[Ack]:
        """Set all of the `(seq, value)` pairs or none; return an ack for each. Errors as `set`."""
        values = self._values
        operations = [
            set_message_operation(seq, *values.stored(values.encoded(value), None))
            for seq, value in items
        ]
        return await self._batch(operations, durability, timeout_seconds)

    async def get(self, seq: int, *, timeout_seconds: float | None = None) -> Message[V] | None:
        """Return message `seq`; None if it was deleted or trimmed, or is not written yet.

        A large value comes along, whole: `get_reader` and `get_file` hold a few chunks of it only.
        """
        message = await self._find(seq, timeout_seconds)
        if message is not None and message.large is not None:
            message = await with_large_value(
                message,
                lambda found: self._reader(found, timeout_seconds).read(),
                lambda: self._find(seq, timeout_seconds),
            )
        return None if message is None else self._values.message(message)

    async def get_reader(
        self, message: int | Message[Any], *, timeout_seconds: float | None = None
    ) -> ValueReader[Message] | None:
        """Return a reader of the value of a message, given by its seq or as `get_all` and
        `subscribe` gave it; None if there is no such seq. `timeout_seconds` is for each chunk."""
        if isinstance(message, Message) and message.large is None and not self._values.is_raw:
            # Its value is decoded: what is stored is asked for.
            message = message.seq
        found = message if isinstance(message, Message) else await self._find(message, timeout_seconds)
        if found is None:
            return None
        return self._reader(self._values.plain_message(found), timeout_seconds)

    async def get_file(
        self,
        message: int | Message[Any],
        path: str | os.PathLike[str],
        *,
        timeout_seconds: float | None = None,
    ) -> Message | None:
        """Write the value of a message to `path`, whole and synced or not at all, and return the
        message, a large value left out; None, and nothing is written, if there is no such seq.

        Raises what a ValueReader raises, OSError.
        """
        reader = await self.get_reader(message, timeout_seconds=timeout_seconds)
        if reader is None:
            return None
        await write_file(reader, path)
        return reader.row

    async def put_file(
        self,
        source: Source,
        *,
        seq: int | None = None,
        headers: Headers | None = None,
        msg_id: str | None = None,
        expected_last_seq: int | None = None,
        ttl_seconds: float | None = None,
        durability: AnyDurability | None = None,
        upload_id: bytes | None = None,
        timeout_seconds: float | None = None,
    ) -> Ack:
        """Append what a path or an open file gives, or with `seq` set that message; the other
        arguments are those of `append` and `set`. `timeout_seconds` is for each chunk.

        A put that is interrupted and called again with the same `upload_id` (16 bytes of your own,
        used for one value only) and the same content sends what is missing, within an hour; if it
        had been stored after all, the ack is that of the first time, with `duplicate` true and the
        durability unknown. Raises OSError too.
        """
        commit = self._committing(
            seq, headers, msg_id, expected_last_seq, ttl_seconds, durability, timeout_seconds
        )
        return await put_file(self._link, self._key, source, commit, upload_id, timeout_seconds)

    async def get_all(
        self,
        *,
        start_seq: int = 1,
        end_seq: int | None = None,
        start_time: datetime.datetime | int | None = None,
        last: int | None = None,
        limit: int | None = None,
        timeout_seconds: float | None = None,
    ) -> AsyncIterator[Message[V]]:
        """Yield messages in order of seq: `start_seq` to `end_seq`, both included, from `start_time`
        (int milliseconds since the epoch, or a datetime with a zone); of these only the `last` so
        many; and of those at most the first `limit`. So `end_seq=50, last=3` gives 48 to 50.

        A range may begin or end below 1, where there are no messages.

        Pages are fetched one ahead of the consumer. Each page is a consistent view, the whole is
        not: a message set while the iteration runs may appear in its old or its new state. Large
        values do not come along: `message.large` stands for one, and `get_reader` reads it. Reading
        the `value` of a message that cannot be read raises ValueUnreadableError there, and the
        iteration goes on; `message.unreadable` tells before. `timeout_seconds` is for each page.
        """
        pages = self._pages(start_seq, end_seq, start_time, last, limit, timeout_seconds)
        async with contextlib.aclosing(pages):
            async for page in pages:
                for message in page:
                    yield self._values.listed_message(message)

    async def delete(
        self, seqs: int | Sequence[int], *, timeout_seconds: float | None = None
    ) -> Deleted:
        """Delete one message or several (at most MAX_DELETE_COUNT), those that are there; return how
        many there were."""
        operation = delete_messages_operation(seqs)
        if not operation[1]:
            return await self._nothing_deleted(timeout_seconds)
        packed = pack(operation)
        (count, revision), *_ = await self._link.call(self._key, packed, True, 0, timeout_seconds)
        return Deleted(count, revision)

    async def delete_all(
        self, *, end_seq: int | None = None, timeout_seconds: float | None = None
    ) -> Deleted:
        """Delete every message up to and with `end_seq`, or all; return how many there were.

        Below 1 `end_seq` deletes nothing. Seqs go on where they were: none is ever used again.
        """
        end_seq = range_end("end_seq", end_seq)
        if end_seq == 0:
            return await self._nothing_deleted(timeout_seconds)
        packed = pack([TRIM, end_seq])
        (count, revision), *_ = await self._link.call(self._key, packed, True, 0, timeout_seconds)
        return Deleted(count, revision)

    def transaction(
        self,
        *,
        expected_last_seq: int | None = None,
        durability: AnyDurability | None = None,
        timeout_seconds: float | None = None,
    ) -> StreamTransaction[V]:
        """Return a transaction: `async with stream.transaction() as t:` reads, appends, sets and
        deletes by `t`, and at the end all of it is stored or nothing.

        It is stored only if every message that was read by `t` is still the same and, with
        `expected_last_seq`, that is the stream's last seq; else WrongRevisionError or
        WrongLastSeqError is raised at the end, and the caller may begin again.
        """
        transaction = StreamTransaction(
            self._link, self._key, self._values, durability, timeout_seconds
        )
        if expected_last_seq is not None:
            transaction.expect_last_seq(expected_last_seq)
        return transaction

    async def head(self, *, timeout_seconds: float | None = None) -> Head:
        """Return where the stream stands; of one never written, all is zero but first_seq."""
        wire, *_ = await self._link.call(self._key, _PACKED_HEAD, False, 0, timeout_seconds)
        return head_from_wire(wire)

    async def configure(
        self, *, timeout_seconds: float | None = None, **settings: Unpack[ConfigSettings]
    ) -> StoreConfig:
        """Change what is named (see StoreConfig) and return the whole configuration.

        What is left out stays as it is; None is the default again. With `discard` "old" the lowest
        seqs that are over new limits go at once. Raises InvalidArgumentError.
        """
        return await configuration.configure(self._link, self._key, settings, timeout_seconds)

    async def config(self, *, timeout_seconds: float | None = None) -> StoreConfig:
        """Return the stream's configuration."""
        return await configuration.config(self._link, self._key, timeout_seconds)

    async def destroy(self, *, timeout_seconds: float | None = None) -> bool:
        """Remove the stream and every copy of it: its file, snapshots, what is in quarantine, consumers and
        configuration. Return False if there was none. Nothing brings it back.

        Its name is free then: who writes to it makes a new stream, and a retry of this call leaves that
        alone. Followers are given a RESET. Needs a NATS permission of its own (docs/operations.md).
        Of a call that ends with OperationTimeoutError the stream may or may not be gone.
        """
        return await destroy(self._link, self._key, timeout_seconds)

    def subscribe(
        self, *, start_seq: int | None = None, start_revision: int | None = None
    ) -> Subscription[V]:
        """Follow the stream: an async iterator of Change, each once, in the order of revisions.

        With `start_seq`, first the messages from there on as SET changes; without, only what
        happens from now on, where *now* is when the first change is asked for or the
        subscription is entered with `async with`. With `start_revision` (see
        `Subscription.revision`) it goes on after what was seen up to there; of what was set or deleted
        several times since, the last state comes. Survives reconnects and changes of owner.

        After a RESET change, forget everything: all messages (from `start_seq`) follow anew. It comes
        when the owner no longer remembers deletes that were missed, or has fewer revisions: the
        stream was deleted and made anew. Raises InvalidArgumentError if both starts are given.

        `async with` or `aclose()` ends it; so does dropping it, as a `break` out of
        `async for change in stream.subscribe()` does.
        """
        if start_seq is not None:
            start_seq = range_start("start_seq", start_seq)
        if start_revision is not None:
            check_count("start_revision", start_revision)
            if start_seq is not None:
                reason = "start_seq and start_revision exclude each other"
                raise InvalidArgumentError(argument="start_revision", reason=reason)
        return self._follower.subscribe(
            StoreKind.STREAM,
            self.name,
            self._values,
            start_seq=start_seq,
            start_revision=start_revision,
        )

    def consumer(
        self, name: str, *, start_seq: int = 1, **settings: Unpack[ConsumerSettings]
    ) -> Consumer[V]:
        """Return a handle on a consumer of this stream: a durable cursor that workers share, a work
        queue. No round trip.

        `name` is 1 to 63 of A-Z a-z 0-9 _ -. It is made when it is first used, and begins at
        `start_seq`; one that is there goes on where it is. Settings that are named change it too:
        `ack_wait_seconds` (30) until a message that is not acknowledged is delivered again,
        `max_deliveries` (None: no limit) after which it is given up, `max_ack_pending` (1000)
        messages that may be with workers at a time, and `dead_letter` (None), the name of a stream
        that takes what is given up. Raises InvalidNameError, InvalidArgumentError.
        """
        return Consumer(
            self._link, self._follower, self._key, self._values, name, start_seq, settings
        )

    async def consumers(self, *, timeout_seconds: float | None = None) -> list[ConsumerInfo]:
        """Return where each consumer of this stream stands, in order of their names."""
        return await consumer_infos(self._link, self._key, None, timeout_seconds)

    async def _pages(
        self,
        start_seq: int,
        end_seq: int | None,
        start_time: datetime.datetime | int | None,
        last: int | None,
        limit: int | None,
        timeout_seconds: float | None,
    ) -> AsyncGenerator[list[Message], None]:
        """Yield what `get_all` does, page by page."""
        next_seq: int | None = range_start("start_seq", start_seq)
        end_seq = range_end("end_seq", end_seq)
        for argument, number in (("last", last), ("limit", limit)):
            if number is not None:
                check_count(argument, number)
        since = time_ms(start_time)
        if last == 0 or limit == 0 or end_seq == 0:
            return
        page = self._fetch(next_seq, end_seq, since, limit, last, timeout_seconds)
        while True:
            (rows, next_seq), *_ = self._link.unwrap(await page)
            if limit is not None:
                rows = rows[:limit]
                limit -= len(rows)
            more = next_seq is not None and limit != 0
            if more:
                page = self._fetch(next_seq, end_seq, since, limit, None, timeout_seconds)
            yield messages_from_wire(rows)
            if not more:
                return

    async def _nothing_deleted(self, timeout_seconds: float | None) -> Deleted:
        return Deleted(0, (await self.head(timeout_seconds=timeout_seconds)).revision)

    async def _find(self, seq: int, timeout_seconds: float | None) -> Message | None:
        packed = pack([GET_MESSAGE, check_seq("seq", seq)])
        wire, *_ = await self._link.call(self._key, packed, False, 0, timeout_seconds)
        return None if wire is None else message_from_wire(wire)

    def _reader(self, message: Message, timeout_seconds: float | None) -> ValueReader[Message]:
        what = self._values.message_name(message.seq)
        return ValueReader(self._link, self._key, message, what, timeout_seconds)

    def _committing(
        self,
        seq: int | None,
        headers: Headers | None,
        msg_id: str | None,
        expected_last_seq: int | None,
        ttl_seconds: float | None,
        durability: AnyDurability | None,
        timeout_seconds: float | None,
    ) -> Callable[[Value | LargeValue], Awaitable[Ack]]:
        """Return what makes a value, or what was uploaded, a message. Raises before anything is sent."""
        level = checked_durability(durability)

        def operation(value: Value | LargeValue) -> list[Any]:
            value, marked = self._values.stored_or_large(value, headers)
            if seq is None:
                return append_operation(value, marked, msg_id, expected_last_seq, ttl_seconds)
            return set_message_operation(seq, value, marked, ttl_seconds)

        async def commit(value: Value | LargeValue) -> Ack:
            packed = pack(operation(value))
            answer = await self._link.submit(self._key, packed, True, level, timeout_seconds)
            return answer if type(answer) is Ack else _ack(*self._link.unwrap(answer))

        operation(b"")
        return commit

    async def _batch(
        self,
        operations: list[list[object]],
        durability: AnyDurability | None,
        timeout_seconds: float | None,
    ) -> list[Ack]:
        level = checked_durability(durability)
        if not operations:
            return []
        packed = pack_batch(operations, self._link.operation_limit_bytes)
        results, time, stored = await self._link.call(
            self._key, packed, True, level, timeout_seconds
        )
        if len(results) != len(operations):
            raise MalformedFrameError(reason=f"{len(results)} results of {len(operations)}")
        return [_ack(result, time, stored) for result in results]

    def _fetch(
        self,
        start_seq: int | None,
        end_seq: int | None,
        start_time: int | None,
        limit: int | None,
        last: int | None,
        timeout_seconds: float | None,
    ) -> asyncio.Future[Any]:
        packed = pack([GET_MESSAGES, start_seq, end_seq, start_time, limit, last])
        return self._link.submit(self._key, packed, False, 0, timeout_seconds)


def _ack(result: Sequence[Any], time: int, durability: Durability) -> Ack:
    if len(result) == 2:
        return Ack(result[0], result[1], time, durability)
    seq, revision, first_time, duplicate = result[:4]
    return Ack(seq, revision, first_time, durability, duplicate)
