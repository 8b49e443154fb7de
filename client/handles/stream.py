"""A stream: messages numbered from 1, densely, in order."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, Generic, Literal, Unpack

from holdfast.client.chain.verifying import verify_chain
from holdfast.client.following.follower import Follower
from holdfast.client.following.subscription import Subscription, subscription_to
from holdfast.client.following.track import Wanted
from holdfast.client.handles import configuration
from holdfast.client.handles.consumer import Consumer, consumer_infos
from holdfast.client.handles.forking import StoreFork, fork
from holdfast.client.handles.message_reads import MessageReads, checked_filters
from holdfast.client.handles.owner_jobs import destroy
from holdfast.client.handles.transaction import StreamTransaction
from holdfast.client.handles.writing.pending import PendingAck
from holdfast.client.handles.writing.store_writes import StoreWrites
from holdfast.client.large_values.large_value import is_large, with_large_value
from holdfast.client.large_values.value_reader import ValueReader
from holdfast.client.large_values.value_source import Source, write_file
from holdfast.client.large_values.value_upload import put_file, put_value
from holdfast.client.values.values import Values
from holdfast.client.wire.link import Link
from holdfast.client.wire.operations import (
    PACKED_HEAD,
    Value,
    ack_from_wire,
    append_operation,
    append_options,
    check_count,
    check_seq,
    checked_durability,
    delete_messages_operation,
    expect_operation,
    head_from_wire,
    listed,
    message_from_wire,
    packed_append,
    paired,
    range_end,
    range_start,
    set_message_operation,
    split_value,
    written_fields,
)
from holdfast.protocol.chain.checking import ChainReport
from holdfast.protocol.chain.hashing import ChainLink
from holdfast.protocol.consumers import ConsumerInfo, ConsumerSettings
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.frames import GET_MESSAGE, PURGE, TRIM, pack
from holdfast.protocol.messages import (
    Ack,
    AnyDurability,
    Deleted,
    Head,
    Headers,
    LargeValue,
    Message,
    SubjectInfo,
    V,
    WrittenMessage,
)
from holdfast.protocol.names import StoreKind, StoreName
from holdfast.protocol.store_config import ConfigSettings, StoreConfig
from holdfast.protocol.subject_filters import check_filter


class Stream(Generic[V]):
    """A handle on one stream of the client's tenant: messages numbered 1, 2, 3, ... in order. It
    holds only a name, so making one is cheap.

    Every method may raise these errors, besides those that it names:

    - InvalidArgumentError and TooLargeError, before anything is sent;
    - NoCoordinatorError, NoServerError and ConnectionFailedError, if nothing could be sent before
      the timeout;
    - OperationTimeoutError, if no answer came before the timeout: a write may or may not be stored;
    - StorageError, if the server's disk failed.

    Every error has a stable `code` and its `fields`. `timeout_seconds` replaces the client's
    timeout for one call. It is at most 300, because the owner of a store recognises a retry only
    for twice as long.
    """

    def __init__(
        self, link: Link, follower: Follower, name: StoreName, values: Values[V]
    ) -> None:
        #: The name of the stream.
        self.name = name
        self._values = values
        self._link = link
        self._follower = follower
        self._key = (int(StoreKind.STREAM), str(name))
        self._reads = MessageReads(link, self._key)
        self._writes = StoreWrites(link, self._key)

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
        subject: str | None = None,
        expected_last_subject_seq: int | None = None,
        expected_subject: str | None = None,
        rollup: Literal["sub", "all"] | None = None,
    ) -> Ack:
        """Append a message. The ack has its seq and revision.

        - `headers` maps text to text, or is a HeaderBlock, which is stored byte for byte.
        - `msg_id` makes the append idempotent: if a message with this `msg_id` was stored within
          the last two minutes (or the stream's `dedupe_window_seconds`), nothing is stored, and the
          ack is that of the first time, with `duplicate` true.
        - `expected_last_seq` stores the message only if that is the stream's last seq (0: never
          written).
        - `ttl_seconds` removes the message so long after it was stored.
        - `durability` is the level that the ack waits for: "applied", "synced" or "stored"; the
          stream's own by default.
        - `subject` says what the message is about: tokens joined by dots, without wildcards.
          Messages can be read, counted, limited and removed by their subjects.
        - `expected_last_subject_seq` stores the message only if that is the seq of the last message
          with its subject (0: there is none). With `expected_subject`, a filter, that of the last
          message that matches it.
        - `rollup` removes earlier messages when this one is stored: those with its subject ("sub"),
          or all ("all").

        A value above MAX_VALUE_BYTES is uploaded in chunks first; `timeout_seconds` then applies to
        each chunk.

        Raises WrongLastSeqError; LimitExceededError and RateLimitedError if the stream is
        configured with limits; DeniedError if it is sealed. After these errors nothing was stored
        or removed.

            ack = await stream.append(b"hello", msg_id="order-17")
            print(ack.seq, ack.duplicate)
        """
        # Written out rather than through `Link.call`: this is the path of every message.
        link, values = self._link, self._values
        options = None
        if expected_last_subject_seq is not None or expected_subject is not None or rollup:
            options = append_options(expected_last_subject_seq, expected_subject, rollup)
        data = values.encoded(value)
        if is_large(data):
            append = self._committing(
                None,
                headers,
                (msg_id, expected_last_seq, ttl_seconds, subject, options),
                durability,
                timeout_seconds,
            )
            return await put_value(link, self._key, data, append, timeout_seconds)
        data, headers = values.stored(data, headers)
        packed = packed_append(
            data, headers, msg_id, expected_last_seq, ttl_seconds, subject, options
        )
        level = 0 if durability is None else checked_durability(durability)
        if link.full:
            await link.wait_for_room(timeout_seconds)
        answer = await link.submit(self._key, packed, True, level, timeout_seconds)
        return answer if type(answer) is Ack else ack_from_wire(*link.unwrap(answer))

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
        subject: str | None = None,
        expected_last_subject_seq: int | None = None,
        expected_subject: str | None = None,
        rollup: Literal["sub", "all"] | None = None,
    ) -> PendingAck:
        """Start an `append`, with the same arguments, and return without waiting for its ack.

        Use it for one producer that keeps many appends in flight. They are stored in the order of
        these calls. The call waits while the client has more unanswered operations than can be
        answered in time, at most MAX_WAITING_OPERATIONS and MAX_WAITING_BYTES.

        Raises TooLargeError for a value above MAX_VALUE_BYTES. Other errors are raised by the
        PendingAck.
        """
        link, values = self._link, self._values
        options = None
        if expected_last_subject_seq is not None or expected_subject is not None or rollup:
            options = append_options(expected_last_subject_seq, expected_subject, rollup)
        data, headers = values.stored(values.encoded(value), headers)
        packed = packed_append(
            data, headers, msg_id, expected_last_seq, ttl_seconds, subject, options
        )
        level = 0 if durability is None else checked_durability(durability)
        if link.full:
            await link.wait_for_room(timeout_seconds)
        pending = PendingAck(ack_from_wire)
        link.submit_for(pending, self._key, packed, True, level, timeout_seconds)
        return pending

    async def append_many(
        self,
        values: Sequence[
            V
            | Value
            | tuple[V | Value, Headers | None]
            | tuple[V | Value, Headers | None, str | None]
        ],
        *,
        durability: AnyDurability | None = None,
        expected_last_seq: int | None = None,
        ttl_seconds: float | None = None,
        timeout_seconds: float | None = None,
        subject: str | None = None,
        expected_last_subject_seq: int | None = None,
        expected_subject: str | None = None,
    ) -> list[Ack]:
        """Append all of `values` or none. Return an ack for each, in order; [] if there are none.

        Each item is a value, a pair `(value, headers)`, or `(value, headers, subject)`. Items
        without a subject of their own have `subject`. The messages get consecutive seqs. The other
        arguments are those of `append`; what is expected of a subject is that of the first message.

        Raises TooLargeError unless all fit into one frame of about 1 MB and 4096 messages;
        WrongLastSeqError, LimitExceededError and RateLimitedError as `append` does, also if the
        stream cannot keep all of them.
        """
        options = append_options(expected_last_subject_seq, expected_subject, None)
        operations = []
        for item in listed("values", values):
            value, headers, own_subject = split_value(item)
            data, headers = self._values.stored(self._values.encoded(value), headers)
            about = subject if own_subject is None else own_subject
            operations.append(
                append_operation(
                    data, headers, None, expected_last_seq, ttl_seconds, about, options
                )
            )
            expected_last_seq = options = None
        return await self._writes.batch(operations, durability, timeout_seconds)

    async def append_written(
        self,
        messages: Sequence[WrittenMessage[V]],
        *,
        expected_last_seq: int | None = None,
        durability: AnyDurability | None = None,
        timeout_seconds: float | None = None,
    ) -> list[Ack]:
        """Append messages that were written elsewhere before, with their times: all or none. Return
        an ack for each, in order; its time is that of the append.

        It is for copies and imports. The age of a message begins at its `time`, and reads from a
        time on find it there, so times should not decrease. A message alone may be of any size.

        Raises InvalidArgumentError for a time that is not in the past; TooLargeError unless all of
        several fit into one frame of about 1 MB and 4096 messages; and what `append` raises.

            noon = WrittenMessage(b"hello", time=1_795_255_200_000)
            await stream.append_written([noon], expected_last_seq=0)
        """
        messages = listed("messages", messages)
        for message in messages:
            if not isinstance(message, WrittenMessage):
                reason = f"must be WrittenMessages, not {message!r:.80}"
                raise InvalidArgumentError(argument="messages", reason=reason)
        if len(messages) == 1:
            [message] = messages
            data = self._values.encoded(message.value)
            append = self._committing(
                *(None, message.headers, written_fields(message, expected_last_seq)),
                *(durability, timeout_seconds),
            )
            if is_large(data):
                return [await put_value(self._link, self._key, data, append, timeout_seconds)]
            return [await append(data)]
        operations = []
        for message in messages:
            data, headers = self._values.stored(
                self._values.encoded(message.value), message.headers
            )
            fields = written_fields(message, expected_last_seq)
            operations.append(append_operation(data, headers, *fields))
            expected_last_seq = None
        return await self._writes.batch(operations, durability, timeout_seconds)

    async def set(
        self,
        seq: int,
        value: V | Value,
        *,
        headers: Headers | None = None,
        expected_revision: int | None = None,
        ttl_seconds: float | None = None,
        durability: AnyDurability | None = None,
        timeout_seconds: float | None = None,
    ) -> Ack:
        """Replace message `seq`, even if it was deleted. At the last seq + 1 it appends.

        With `expected_revision` it does so only if that is the revision of the message (0: there is
        no message `seq`). The ttl and the age of the message begin anew. The other arguments are
        those of `append`.

        Raises InvalidSeqError if `seq` is above the last seq + 1; WrongRevisionError, which carries
        the actual revision; LimitExceededError and RateLimitedError as `append` does. After these
        errors nothing was stored.

            message = await stream.get(7)
            await stream.set(7, message.value.upper(), expected_revision=message.revision)
        """
        check_seq("seq", seq)
        data = self._values.encoded(value)
        replace = self._committing(
            *(seq, headers, (None, None, ttl_seconds), durability, timeout_seconds),
            expected_revision=expected_revision,
        )
        if is_large(data):
            return await put_value(self._link, self._key, data, replace, timeout_seconds)
        return await replace(data)

    async def set_many(
        self,
        items: Sequence[tuple[int, V | Value]],
        *,
        durability: AnyDurability | None = None,
        timeout_seconds: float | None = None,
    ) -> list[Ack]:
        """Replace all of the `(seq, value)` pairs or none. Return an ack for each. Raises what
        `set` raises, and TooLargeError unless all fit into one frame of about 1 MB and 4096
        messages.
        """
        values = self._values
        operations = [
            set_message_operation(seq, *values.stored(values.encoded(value), None))
            for seq, value in paired("items", items, "a seq and a value")
        ]
        return await self._writes.batch(operations, durability, timeout_seconds)

    async def get(self, seq: int, *, timeout_seconds: float | None = None) -> Message[V] | None:
        """Return message `seq`, or None if it was deleted or trimmed, or is not written yet.

        A large value is returned whole; `get_reader` and `get_file` keep only a few chunks of it in
        memory.

        Raises ValueUnreadableError if the value cannot be decompressed or decoded.
        """
        message = await self._find(seq, timeout_seconds)
        return None if message is None else await self._whole(message, timeout_seconds)

    async def get_reader(
        self, message: int | Message[Any], *, timeout_seconds: float | None = None
    ) -> ValueReader[Message] | None:
        """Return a reader of the value of a message, or None if the message does not exist.

        `message` is a seq, or a Message that `get_all` or `subscribe` returned. `timeout_seconds`
        applies to each chunk.
        """
        if isinstance(message, Message) and message.large is None and not self._values.is_raw:
            # Its value is decoded: what is stored is asked for.
            message = message.seq
        found = (
            message if isinstance(message, Message) else await self._find(message, timeout_seconds)
        )
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
        """Write the value of a message to the file `path`. Return the message, without a large
        value; None if the message does not exist, and then nothing is written.

        The file is written completely and synced, or not at all. Raises what a ValueReader raises,
        and OSError.
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
        subject: str | None = None,
    ) -> Ack:
        """Append the content of a file, or with `seq` replace that message.

        `source` is a path, or an open binary file that is read from its position. The other
        arguments are those of `append` and `set`. `timeout_seconds` applies to each chunk.

        To resume an interrupted call within an hour, repeat it with the same content and the same
        `upload_id`, 16 bytes of your choice that you use for one value only. The call sends what is
        missing. If the value was already stored, the ack is that of the first time, with
        `duplicate` true and the durability unknown.

        Raises what `append` and `set` raise, and OSError.
        """
        commit = self._committing(
            seq,
            headers,
            (msg_id, expected_last_seq, ttl_seconds, subject),
            durability,
            timeout_seconds,
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
        subjects: str | Sequence[str] | None = None,
    ) -> AsyncIterator[Message[V]]:
        """Yield messages in order of seq.

        - `start_seq` and `end_seq` are both inclusive. The range may begin or end below 1, where
          there are no messages.
        - `start_time` begins with the first message that was appended at or after it: int
          milliseconds since the epoch, or a datetime with a time zone.
        - `last` takes the last so many messages of that range, and `limit` the first so many of the
          rest. So `end_seq=50, last=3` yields 48 to 50.
        - `subjects` leaves out messages whose subject matches none of these filters: subjects in
          which `*` stands for any one token and a last `>` for one or more. It excludes `last`.

        Pages are fetched one ahead; `timeout_seconds` applies to each. Each page is a consistent
        view, but all pages together are not: a message that is set meanwhile may appear in its old
        or its new state.

        Large values are not included: `message.large` stands for one, and `get_reader` reads it. If
        a value cannot be read, reading `message.value` raises ValueUnreadableError, and
        `message.unreadable` tells so beforehand; the iteration continues.

            async for message in stream.get_all(last=10):
                print(message.seq, message.value)
        """
        pages = self._reads.pages(
            start_seq, end_seq, start_time, last, limit, timeout_seconds, subjects
        )
        async with contextlib.aclosing(pages):
            async for page in pages:
                for message in page:
                    yield self._values.listed_message(message)

    async def get_last(
        self, subject: str, *, timeout_seconds: float | None = None
    ) -> Message[V] | None:
        """Return the last message with this subject, or the last one that matches this filter; None
        if there is none. A large value is returned as `get` does it.

        Raises ValueUnreadableError.

            temperature = await stream.get_last("room.7.temperature")
        """
        message = await self._reads.last(subject, timeout_seconds)
        return None if message is None else await self._whole(message, timeout_seconds)

    async def get_lasts(
        self,
        subjects: str | Sequence[str] = ">",
        *,
        up_to_seq: int | None = None,
        timeout_seconds: float | None = None,
    ) -> AsyncIterator[Message[V]]:
        """Yield the last message of each subject that matches, in order of seq.

        With `up_to_seq`, the stream is read as if it ended there: of each subject you get the last
        message up to this seq that still exists. Pages, large values and values that cannot be read
        are as in `get_all`.

            async for message in stream.get_lasts("room.*.temperature"):
                print(message.subject, message.value)
        """
        pages = self._reads.last_pages(subjects, up_to_seq, timeout_seconds)
        async with contextlib.aclosing(pages):
            async for page in pages:
                for message in page:
                    yield self._values.listed_message(message)

    async def subjects(
        self, subjects: str = ">", *, timeout_seconds: float | None = None
    ) -> AsyncIterator[SubjectInfo]:
        """Yield each subject that matches a filter and has messages, in order of its UTF-8 bytes.
        Pages are fetched one ahead; `timeout_seconds` applies to each.
        """
        pages = self._reads.subject_pages(subjects, timeout_seconds)
        async with contextlib.aclosing(pages):
            async for page in pages:
                for subject in page:
                    yield subject

    async def count(
        self,
        subjects: str | Sequence[str] = ">",
        *,
        start_seq: int = 1,
        timeout_seconds: float | None = None,
    ) -> int:
        """Return how many messages with a matching subject there are from `start_seq` on. For the
        number of all messages, see `head`.
        """
        return await self._reads.count(subjects, start_seq, timeout_seconds)

    async def delete(
        self, seqs: int | Sequence[int], *, timeout_seconds: float | None = None
    ) -> Deleted:
        """Delete one message or several, at most MAX_DELETE_COUNT. Return how many existed.
        """
        operation = delete_messages_operation(seqs)
        if not operation[1]:
            return await self._nothing_deleted(timeout_seconds)
        return await self._writes.delete(pack(operation), timeout_seconds)

    async def delete_all(
        self, *, end_seq: int | None = None, timeout_seconds: float | None = None
    ) -> Deleted:
        """Delete every message up to and including `end_seq`, or all messages. Return how many
        existed.

        An `end_seq` below 1 deletes nothing. Seqs continue where they were; none is reused.
        """
        end_seq = range_end("end_seq", end_seq)
        if end_seq == 0:
            return await self._nothing_deleted(timeout_seconds)
        return await self._writes.delete(pack([TRIM, end_seq]), timeout_seconds)

    async def purge(
        self,
        subject: str | None = None,
        *,
        end_seq: int | None = None,
        keep: int | None = None,
        timeout_seconds: float | None = None,
    ) -> Deleted:
        """Delete the messages with this subject, or those that match this filter; without it, of
        all. Return how many existed.

        `end_seq` deletes only messages up to and including that seq. `keep` leaves the last so many
        that match; the two exclude each other.

        It takes several operations for more than 16,384 messages, each atomic; `timeout_seconds`
        applies to each. If it is interrupted, call it again.

        Raises DeniedError if the stream is configured with `deny_purge` or `sealed`.

            await stream.purge("room.7.>", keep=1)
        """
        if subject is not None:
            check_filter(subject)
        if keep is not None and end_seq is not None:
            reason = "end_seq and keep exclude each other"
            raise InvalidArgumentError(argument="keep", reason=reason)
        end_seq = range_end("end_seq", end_seq)
        if end_seq == 0:
            return await self._nothing_deleted(timeout_seconds)
        before_seq = None if end_seq is None else end_seq + 1
        if keep is not None:
            check_count("keep", keep)
        packed = pack([PURGE, subject, before_seq, keep])
        purged, more = 0, True
        while more:
            (count, revision, more), *_ = await self._link.call(
                self._key, packed, True, 0, timeout_seconds
            )
            purged += count
        return Deleted(purged, revision)

    def transaction(
        self,
        *,
        expected_last_seq: int | None = None,
        durability: AnyDurability | None = None,
        timeout_seconds: float | None = None,
    ) -> StreamTransaction[V]:
        """Return a transaction. Read, append, set and delete through it; when its `async with`
        ends, all writes are stored, or none.

        They are stored only if every message that was read through the transaction is unchanged
        and, with `expected_last_seq`, that is the stream's last seq. Otherwise the end raises
        WrongRevisionError or WrongLastSeqError, and you may begin again.

            async with stream.transaction() as t:
                message = await t.get(7)
                t.set(7, message.value + b"!")
        """
        transaction = StreamTransaction(
            self._link, self._key, self._values, durability, timeout_seconds
        )
        if expected_last_seq is not None:
            transaction.expect_last_seq(expected_last_seq)
        return transaction

    async def head(self, *, timeout_seconds: float | None = None) -> Head:
        """Return the stream's revision, seqs and sizes. For a stream that was never written all are
        0, except `first_seq`, which is 1.
        """
        wire, *_ = await self._link.call(self._key, PACKED_HEAD, False, 0, timeout_seconds)
        return head_from_wire(wire)

    async def verify_chain(
        self, kept: Iterable[Ack | ChainLink] = (), *, timeout_seconds: float | None = None
    ) -> ChainReport:
        """Read the whole stream, compute its chain anew, and compare it with what you kept: acks,
        or a ChainLink of each seq and chain. The stream must be configured with `chain`.

        The report says up to where nothing has changed, and which of what you kept differs. What
        the owner itself tells is compared too, as if you had kept it. Pages are read one ahead;
        `timeout_seconds` applies to each.

        Raises InvalidArgumentError if the stream keeps no chain.

            report = await stream.verify_chain([ack])
            assert report.is_sound
        """

        def pages(start_seq: int, end_seq: int) -> AsyncGenerator[list[Message], None]:
            return self._reads.pages(start_seq, end_seq, None, None, None, timeout_seconds, None)

        return await verify_chain(self._link, self._key, pages, kept, timeout_seconds)

    async def configure(
        self, *, timeout_seconds: float | None = None, **settings: Unpack[ConfigSettings]
    ) -> StoreConfig:
        """Change the given settings and return the whole configuration. The settings are the fields
        of StoreConfig.

        Settings that you leave out stay as they are; None restores a default. With `discard` "old",
        messages that exceed new limits are removed at once, beginning with the lowest seqs.

        Raises InvalidArgumentError for an unknown setting or a wrong value.

            await stream.configure(max_messages=10_000, discard="old")
        """
        return await configuration.configure(self._link, self._key, settings, timeout_seconds)

    async def config(self, *, timeout_seconds: float | None = None) -> StoreConfig:
        """Return the stream's configuration."""
        return await configuration.config(self._link, self._key, timeout_seconds)

    async def fork(
        self,
        new: str,
        *,
        seq: int | None = None,
        revision: int | None = None,
        timeout_seconds: float | None = None,
    ) -> StoreFork:
        """Make `new` a stream that begins with what this one holds, and goes on by itself. With
        `seq` it has the messages up to that one, and its next message gets the number after it.
        With `revision` it is as this stream was then.

        It shares the snapshot of this stream in the bucket, and copies nothing until it changes; it
        has no consumers and cursors. It needs the right to read this stream and to write the new
        one, and servers with a bucket. See docs/forks.md.

        Raises InvalidArgumentError if `new` exists or there is no such seq, NotFoundError without
        this stream, PointNotReachedError for a revision that cannot be reached.

            await stream.fork("experiments.1", seq=1000)
        """
        point = (seq, revision)
        return await fork(self._link, self._key, new, point, timeout_seconds)

    async def destroy(self, *, timeout_seconds: float | None = None) -> bool:
        """Remove the stream: its file, snapshots, quarantined files, consumers and configuration.
        Return False if it did not exist. Nothing can restore it, but what it held stays in logs for
        a while, and in exported tables; operators can purge it there (docs/erasure.md).

        Its name is free afterwards. A later write creates a new stream, which a retry of this call
        leaves alone. Followers receive a RESET. The call needs its own NATS permission
        (docs/operations.md).

        After OperationTimeoutError the stream may or may not be removed.
        """
        return await destroy(self._link, self._key, timeout_seconds)

    def subscribe(
        self,
        *,
        start_seq: int | None = None,
        start_revision: int | None = None,
        subjects: str | Sequence[str] | None = None,
    ) -> Subscription[V]:
        """Follow the stream. Return an async iterator of Change: each change once, in the order of
        revisions.

        - Without arguments you get what happens from now on; *now* is when you enter the
          subscription with `async with`, or ask for the first change.
        - With `start_seq` the messages from there on come first, as SET changes.
        - With `start_revision` it resumes after that revision (see `Subscription.revision`). A
          message that was set or deleted several times since then appears only with its latest
          state.
        - With `subjects`, SET changes of messages whose subject matches none of these filters are
          left out. DELETE and TRIM changes are not: they may name messages of other subjects.
          Live changes are filtered by the client, so all of them come over the network.

        The subscription survives reconnects and changes of owner. After a RESET change, discard
        everything you know: all messages (from `start_seq` on) follow again. A RESET comes if the
        owner no longer remembers deletes that you missed, or if the stream was deleted and created
        again.

        `async with` or `aclose()` ends it, and so does dropping it, for example by a `break` out of
        `async for`.

        Raises InvalidArgumentError if both arguments are given.

            async for change in stream.subscribe(start_seq=1):
                if change.message is not None:
                    print(change.message.seq, change.message.value)
        """
        if start_seq is not None:
            start_seq = range_start("start_seq", start_seq)
        if start_revision is not None:
            check_count("start_revision", start_revision)
            if start_seq is not None:
                reason = "start_seq and start_revision exclude each other"
                raise InvalidArgumentError(argument="start_revision", reason=reason)
        return subscription_to(
            self._link,
            self._follower,
            self._key,
            self._values,
            Wanted(
                start_seq=start_seq,
                start_revision=start_revision,
                filters=None if subjects is None else checked_filters(subjects),
            ),
        )

    def consumer(
        self, name: str, *, start_seq: int = 1, **settings: Unpack[ConsumerSettings]
    ) -> Consumer[V]:
        """Return a handle on a consumer of this stream: a durable cursor that several workers share
        as a work queue. This makes no round trip.

        `name` is 1 to 63 characters of A-Z a-z 0-9 _ -. The consumer is created on first use and
        begins at `start_seq`; an existing consumer continues where it is. Settings that you name
        also change an existing consumer:

        - `ack_wait_seconds` (30): a message that is not acknowledged so long after its delivery is
          delivered again;
        - `max_deliveries` (None: no limit): a message that was delivered so often is given up;
        - `max_ack_pending` (1000): the most messages that workers may have at a time;
        - `dead_letter` (None): the stream that receives the messages that are given up.

        Raises InvalidNameError; InvalidArgumentError.

            async for delivery in stream.consumer("mailer"):
                await send_mail(delivery.message.value)
                await delivery.ack()
        """
        return Consumer(
            self._link, self._follower, self._key, self._values, name, start_seq, settings
        )

    async def consumers(self, *, timeout_seconds: float | None = None) -> list[ConsumerInfo]:
        """Return the state of each consumer of this stream, in order of their names."""
        return await consumer_infos(self._link, self._key, None, timeout_seconds)

    async def _whole(
        self, message: Message, timeout_seconds: float | None
    ) -> Message[V] | None:
        """Return a message as the application sees it, with its value even if that is large."""
        if message.large is None:
            return self._values.message(message)
        whole = await with_large_value(
            message,
            lambda found: self._reader(found, timeout_seconds).read(),
            lambda: self._find(message.seq, timeout_seconds),
        )
        return None if whole is None else self._values.message(whole)

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
        others: tuple[Any, ...],
        durability: AnyDurability | None,
        timeout_seconds: float | None,
        *,
        expected_revision: int | None = None,
    ) -> Callable[[Value | LargeValue], Awaitable[Ack]]:
        """Return what makes a value, or what was uploaded, a message. `others` are the arguments of
        `append_operation` from `msg_id` on. Raises before anything is sent."""
        condition = None if expected_revision is None else expect_operation(seq, expected_revision)

        def operation(value: Value | LargeValue) -> list[Any]:
            value, marked = self._values.stored_or_large(value, headers)
            if seq is None:
                return append_operation(value, marked, *others)
            return set_message_operation(seq, value, marked, others[2])

        return self._writes.committing(
            operation, durability, timeout_seconds, condition=condition
        )
