"""A stream, for blocking code: `holdfast.client.handles.stream.Stream`, method by method."""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from typing import Any, Generic, Unpack

from holdfast.client.blocking.background import Background
from holdfast.client.blocking.blocking_consumer import Consumer
from holdfast.client.blocking.blocking_pending import PendingAck, start_write, write
from holdfast.client.blocking.blocking_rows import Rows
from holdfast.client.blocking.blocking_subscription import Subscription
from holdfast.client.blocking.blocking_transaction import StreamTransaction
from holdfast.client.blocking.blocking_value import ValueReader
from holdfast.client.handles.large_value import Source, is_large
from holdfast.client.handles.stream import Stream as AsyncStream
from holdfast.client.handles.stream import _ack
from holdfast.client.wire.operations import Value, checked_durability, packed_append
from holdfast.protocol.consumers import ConsumerInfo, ConsumerSettings
from holdfast.protocol.messages import (
    Ack,
    AnyDurability,
    Deleted,
    Head,
    Headers,
    Message,
    V,
)
from holdfast.protocol.store_config import ConfigSettings, StoreConfig


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

    def __init__(self, background: Background, stream: AsyncStream[V]) -> None:
        self.name = stream.name
        self._values = stream._values
        self._background = background
        self._stream = stream
        self._link = stream._link
        self._key = stream._key

    def __repr__(self) -> str:
        return f"Stream({self.name!r})"

    def append(
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
        """Append a message. The ack has its seq and revision.

        - `headers` maps text to text.
        - `msg_id` makes the append idempotent: if a message with this `msg_id` was stored within
          the last two minutes (or the stream's `dedupe_window_seconds`), nothing is stored, and the
          ack is that of the first time, with `duplicate` true.
        - `expected_last_seq` stores the message only if that is the stream's last seq (0: never
          written).
        - `ttl_seconds` removes the message so long after it was stored.
        - `durability` is the level that the ack waits for: "applied", "synced" or "stored"; the
          stream's own by default.

        A value above MAX_VALUE_BYTES is uploaded in chunks first; `timeout_seconds` then applies to
        each chunk.

        Raises WrongLastSeqError; LimitExceededError and RateLimitedError if the stream is
        configured with limits. After these errors nothing was stored or removed.

            ack = stream.append(b"hello", msg_id="order-17")
            print(ack.seq, ack.duplicate)
        """
        data = self._values.encoded(value)
        if is_large(data):
            return self._background.run(
                self._stream.append(
                    value,
                    headers=headers,
                    msg_id=msg_id,
                    expected_last_seq=expected_last_seq,
                    ttl_seconds=ttl_seconds,
                    durability=durability,
                    timeout_seconds=timeout_seconds,
                )
            )
        data, headers = self._values.stored(data, headers)
        packed = packed_append(data, headers, msg_id, expected_last_seq, ttl_seconds)
        level = 0 if durability is None else checked_durability(durability)
        return write(self._background, self._link, self._key, packed, level, timeout_seconds, _ack)

    def append_async(
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

        Use it for one producer that keeps many appends in flight. They are stored in the order of
        these calls. The call waits while the client has more unanswered operations than can be
        answered in time, at most MAX_WAITING_OPERATIONS and MAX_WAITING_BYTES.

        Raises TooLargeError for a value above MAX_VALUE_BYTES. Other errors are raised by the
        PendingAck.
        """
        values = self._values
        data, headers = values.stored(values.encoded(value), headers)
        packed = packed_append(data, headers, msg_id, expected_last_seq, ttl_seconds)
        level = 0 if durability is None else checked_durability(durability)
        return start_write(
            self._background, self._link, self._key, packed, level, timeout_seconds, _ack
        )

    def append_many(
        self,
        values: Sequence[V | Value | tuple[V | Value, Headers | None]],
        *,
        durability: AnyDurability | None = None,
        expected_last_seq: int | None = None,
        ttl_seconds: float | None = None,
        timeout_seconds: float | None = None,
    ) -> list[Ack]:
        """Append all of `values` or none. Return an ack for each, in order; [] if there are none.

        Each item is a value, or a pair `(value, headers)`. The messages get consecutive seqs. The
        other arguments are those of `append`.

        Raises TooLargeError unless all fit into one frame of about 1 MB and 4096 messages;
        WrongLastSeqError, LimitExceededError and RateLimitedError as `append` does, also if the
        stream cannot keep all of them.
        """
        return self._background.run(
            self._stream.append_many(
                values,
                durability=durability,
                expected_last_seq=expected_last_seq,
                ttl_seconds=ttl_seconds,
                timeout_seconds=timeout_seconds,
            )
        )

    def set(
        self,
        seq: int,
        value: V | Value,
        *,
        headers: Headers | None = None,
        ttl_seconds: float | None = None,
        durability: AnyDurability | None = None,
        timeout_seconds: float | None = None,
    ) -> Ack:
        """Replace message `seq`, even if it was deleted. At the last seq + 1 it appends.

        The ttl and the age of the message begin anew. The other arguments are those of `append`.

        Raises InvalidSeqError if `seq` is above the last seq + 1; LimitExceededError and
        RateLimitedError as `append` does.
        """
        return self._background.run(
            self._stream.set(
                seq,
                value,
                headers=headers,
                ttl_seconds=ttl_seconds,
                durability=durability,
                timeout_seconds=timeout_seconds,
            )
        )

    def set_many(
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
        return self._background.run(
            self._stream.set_many(items, durability=durability, timeout_seconds=timeout_seconds)
        )

    def get(self, seq: int, *, timeout_seconds: float | None = None) -> Message[V] | None:
        """Return message `seq`, or None if it was deleted or trimmed, or is not written yet.

        A large value is returned whole; `get_reader` and `get_file` keep only a few chunks of it in
        memory.

        Raises ValueUnreadableError if the value cannot be decompressed or decoded.
        """
        return self._background.run(self._stream.get(seq, timeout_seconds=timeout_seconds))

    def get_reader(
        self, message: int | Message[Any], *, timeout_seconds: float | None = None
    ) -> ValueReader[Message] | None:
        """Return a reader of the value of a message, or None if the message does not exist.

        `message` is a seq, or a Message that `get_all` or `subscribe` returned. `timeout_seconds`
        applies to each chunk.
        """
        reader = self._background.run(
            self._stream.get_reader(message, timeout_seconds=timeout_seconds)
        )
        return None if reader is None else ValueReader(self._background, reader)

    def get_file(
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
        return self._background.run(
            self._stream.get_file(message, path, timeout_seconds=timeout_seconds)
        )

    def put_file(
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
        """Append the content of a file, or with `seq` replace that message.

        `source` is a path, or an open binary file that is read from its position. The other
        arguments are those of `append` and `set`. `timeout_seconds` applies to each chunk.

        To resume an interrupted call within an hour, repeat it with the same content and the same
        `upload_id`, 16 bytes of your choice that you use for one value only. The call sends what is
        missing. If the value was already stored, the ack is that of the first time, with
        `duplicate` true and the durability unknown.

        Raises what `append` and `set` raise, and OSError.
        """
        return self._background.run(
            self._stream.put_file(
                source,
                seq=seq,
                headers=headers,
                msg_id=msg_id,
                expected_last_seq=expected_last_seq,
                ttl_seconds=ttl_seconds,
                durability=durability,
                upload_id=upload_id,
                timeout_seconds=timeout_seconds,
            )
        )

    def get_all(
        self,
        *,
        start_seq: int = 1,
        end_seq: int | None = None,
        start_time: datetime.datetime | int | None = None,
        last: int | None = None,
        limit: int | None = None,
        timeout_seconds: float | None = None,
    ) -> Rows[Message[V]]:
        """Yield messages in order of seq.

        - `start_seq` and `end_seq` are both inclusive. The range may begin or end below 1, where
          there are no messages.
        - `start_time` begins with the first message that was appended at or after it: int
          milliseconds since the epoch, or a datetime with a time zone.
        - `last` takes the last so many messages of that range, and `limit` the first so many of the
          rest. So `end_seq=50, last=3` yields 48 to 50.

        Pages are fetched one ahead; `timeout_seconds` applies to each. Each page is a consistent
        view, but all pages together are not: a message that is set meanwhile may appear in its old
        or its new state.

        Large values are not included: `message.large` stands for one, and `get_reader` reads it. If
        a value cannot be read, reading `message.value` raises ValueUnreadableError, and
        `message.unreadable` tells so beforehand; the iteration continues.

            for message in stream.get_all(last=10):
                print(message.seq, message.value)
        """
        pages = self._stream._pages(start_seq, end_seq, start_time, last, limit, timeout_seconds)
        return Rows(self._background, pages, self._values.listed_message)

    def delete(self, seqs: int | Sequence[int], *, timeout_seconds: float | None = None) -> Deleted:
        """Delete one message or several, at most MAX_DELETE_COUNT. Return how many of them existed.
        """
        return self._background.run(self._stream.delete(seqs, timeout_seconds=timeout_seconds))

    def delete_all(
        self, *, end_seq: int | None = None, timeout_seconds: float | None = None
    ) -> Deleted:
        """Delete every message up to and including `end_seq`, or all messages. Return how many
        existed.

        An `end_seq` below 1 deletes nothing. Seqs continue where they were; none is reused.
        """
        return self._background.run(
            self._stream.delete_all(end_seq=end_seq, timeout_seconds=timeout_seconds)
        )

    def transaction(
        self,
        *,
        expected_last_seq: int | None = None,
        durability: AnyDurability | None = None,
        timeout_seconds: float | None = None,
    ) -> StreamTransaction[V]:
        """Return a transaction. Read, append, set and delete through it; when its `with` ends, all
        writes are stored, or none.

        They are stored only if every message that was read through the transaction is unchanged
        and, with `expected_last_seq`, that is the stream's last seq. Otherwise the end raises
        WrongRevisionError or WrongLastSeqError, and you may begin again.

            with stream.transaction() as t:
                message = t.get(7)
                t.set(7, message.value + b"!")
        """
        transaction = self._stream.transaction(
            expected_last_seq=expected_last_seq,
            durability=durability,
            timeout_seconds=timeout_seconds,
        )
        return StreamTransaction(self._background, transaction)

    def head(self, *, timeout_seconds: float | None = None) -> Head:
        """Return the stream's revision, seqs and sizes. For a stream that was never written all are
        0, except `first_seq`, which is 1.
        """
        return self._background.run(self._stream.head(timeout_seconds=timeout_seconds))

    def configure(
        self, *, timeout_seconds: float | None = None, **settings: Unpack[ConfigSettings]
    ) -> StoreConfig:
        """Change the given settings and return the whole configuration. The settings are the fields
        of StoreConfig.

        Settings that you leave out stay as they are; None restores a default. With `discard` "old",
        messages that exceed new limits are removed at once, beginning with the lowest seqs.

        Raises InvalidArgumentError for an unknown setting or a wrong value.

            stream.configure(max_messages=10_000, discard="old")
        """
        return self._background.run(
            self._stream.configure(timeout_seconds=timeout_seconds, **settings)
        )

    def config(self, *, timeout_seconds: float | None = None) -> StoreConfig:
        """Return the stream's configuration."""
        return self._background.run(self._stream.config(timeout_seconds=timeout_seconds))

    def destroy(self, *, timeout_seconds: float | None = None) -> bool:
        """Remove the stream and every copy of it: its file, snapshots, quarantined files, consumers
        and configuration. Return False if it did not exist. Nothing can restore it.

        Its name is free afterwards. A later write creates a new stream, which a retry of this call
        leaves alone. Followers receive a RESET. The call needs its own NATS permission
        (docs/operations.md).

        After OperationTimeoutError the stream may or may not be removed.
        """
        return self._background.run(self._stream.destroy(timeout_seconds=timeout_seconds))

    def subscribe(
        self, *, start_seq: int | None = None, start_revision: int | None = None
    ) -> Subscription[V]:
        """Follow the stream. Return an iterator of Change: each change once, in the order of
        revisions.

        - Without arguments you get what happens from now on; *now* is when you enter the
          subscription with `with`, or ask for the first change.
        - With `start_seq` the messages from there on come first, as SET changes.
        - With `start_revision` it resumes after that revision (see `Subscription.revision`). A
          message that was set or deleted several times since then appears only with its latest
          state.

        The subscription survives reconnects and changes of owner. After a RESET change, discard
        everything you know: all messages (from `start_seq` on) follow again. A RESET comes if the
        owner no longer remembers deletes that you missed, or if the stream was deleted and created
        again.

        `with` or `close()` ends it, and so does dropping it, for example by a `break` out of `for`.

        Raises InvalidArgumentError if both arguments are given.

            for change in stream.subscribe(start_seq=1):
                if change.message is not None:
                    print(change.message.seq, change.message.value)
        """
        stream = self._stream
        subscription = self._background.do(
            lambda: stream.subscribe(start_seq=start_seq, start_revision=start_revision)
        )
        return Subscription(self._background, subscription)

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

            for delivery in stream.consumer("mailer"):
                send_mail(delivery.message.value)
                delivery.ack()
        """
        stream = self._stream
        consumer = self._background.do(
            lambda: stream.consumer(name, start_seq=start_seq, **settings)
        )
        return Consumer(self._background, consumer)

    def consumers(self, *, timeout_seconds: float | None = None) -> list[ConsumerInfo]:
        """Return the state of each consumer of this stream, in order of their names."""
        return self._background.run(self._stream.consumers(timeout_seconds=timeout_seconds))
