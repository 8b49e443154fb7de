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
    """A handle on one stream of the client's tenant. Cheap: it holds a name and nothing else.

    Every method may raise OperationTimeoutError (a write may or may not be stored then),
    NoCoordinatorError, NoServerError and ConnectionFailedError (nothing was sent until the timeout),
    InvalidArgumentError and TooLargeError (before anything is sent), and StorageError when the
    server's disk failed. All of these carry their fields and a stable `code`.
    A `timeout_seconds` is at most 300: owners know a retry for twice as long.
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
        """Append a message; return its seq and revision. A value above MAX_VALUE_BYTES is uploaded in
        chunks first, each with `timeout_seconds`.

        A `msg_id` that was stored within the last two minutes (or the stream's own
        `dedupe_window_seconds`) is not stored again: the ack is then that of the first time, with
        `duplicate` true. With `expected_last_seq` the message is stored only if that is the
        stream's last seq (0: never written); else WrongLastSeqError. `ttl_seconds` after it was
        stored the message is gone. Raises LimitExceededError and RateLimitedError where the stream
        is configured so; nothing was stored or removed then.
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

        For one producer that keeps many appends under way: they are stored in the order of these
        calls. Waits while so much of this client is unanswered that more would be late
        (MAX_WAITING_OPERATIONS and MAX_WAITING_BYTES at the most). At most MAX_VALUE_BYTES each:
        TooLargeError.
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
        """Append all of `values` (or `(value, headers)` pairs) or none; return an ack for each, so []
        for nothing at all.

        They get consecutive seqs. All must fit in one frame of about 1 MB and 4096 messages:
        TooLargeError. Raises WrongLastSeqError, LimitExceededError and RateLimitedError as `append`
        does, also if the stream could not keep all of them.
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
        """Replace message `seq`, deleted ones too; at the last seq + 1 append.

        Raises InvalidSeqError beyond that. What is replaced has its ttl and age anew.
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
        """Set all of the `(seq, value)` pairs or none; return an ack for each. Errors as `set`."""
        return self._background.run(
            self._stream.set_many(items, durability=durability, timeout_seconds=timeout_seconds)
        )

    def get(self, seq: int, *, timeout_seconds: float | None = None) -> Message[V] | None:
        """Return message `seq`; None if it was deleted or trimmed, or is not written yet.

        A large value comes along, whole: `get_reader` and `get_file` hold a few chunks of it only.
        """
        return self._background.run(self._stream.get(seq, timeout_seconds=timeout_seconds))

    def get_reader(
        self, message: int | Message[Any], *, timeout_seconds: float | None = None
    ) -> ValueReader[Message] | None:
        """Return a reader of the value of a message, given by its seq or as `get_all` and
        `subscribe` gave it; None if there is no such seq. `timeout_seconds` is for each chunk.
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
        """Write the value of a message to `path`, whole and synced or not at all, and return the
        message, a large value left out; None, and nothing is written, if there is no such seq.

        Raises what a ValueReader raises, OSError.
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
        """Append what a path or an open file gives, or with `seq` set that message; the other
        arguments are those of `append` and `set`. `timeout_seconds` is for each chunk.

        A put that is interrupted and called again with the same `upload_id` (16 bytes of your own,
        used for one value only) and the same content sends what is missing, within an hour; if it
        had been stored after all, the ack is that of the first time, with `duplicate` true and the
        durability unknown. Raises OSError too.
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
        pages = self._stream._pages(start_seq, end_seq, start_time, last, limit, timeout_seconds)
        return Rows(self._background, pages, self._values.listed_message)

    def delete(self, seqs: int | Sequence[int], *, timeout_seconds: float | None = None) -> Deleted:
        """Delete one message or several (at most MAX_DELETE_COUNT), those that are there; return how
        many there were."""
        return self._background.run(self._stream.delete(seqs, timeout_seconds=timeout_seconds))

    def delete_all(
        self, *, end_seq: int | None = None, timeout_seconds: float | None = None
    ) -> Deleted:
        """Delete every message up to and with `end_seq`, or all; return how many there were.

        Below 1 `end_seq` deletes nothing. Seqs go on where they were: none is ever used again.
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
        """Return a transaction: `with stream.transaction() as t:` reads, appends, sets and
        deletes by `t`, and at the end all of it is stored or nothing.

        It is stored only if every message that was read by `t` is still the same and, with
        `expected_last_seq`, that is the stream's last seq; else WrongRevisionError or
        WrongLastSeqError is raised at the end, and the caller may begin again.
        """
        transaction = self._stream.transaction(
            expected_last_seq=expected_last_seq,
            durability=durability,
            timeout_seconds=timeout_seconds,
        )
        return StreamTransaction(self._background, transaction)

    def head(self, *, timeout_seconds: float | None = None) -> Head:
        """Return where the stream stands; of one never written, all is zero but first_seq."""
        return self._background.run(self._stream.head(timeout_seconds=timeout_seconds))

    def configure(
        self, *, timeout_seconds: float | None = None, **settings: Unpack[ConfigSettings]
    ) -> StoreConfig:
        """Change what is named (see StoreConfig) and return the whole configuration.

        What is left out stays as it is; None is the default again. With `discard` "old" the lowest
        seqs that are over new limits go at once. Raises InvalidArgumentError.
        """
        return self._background.run(
            self._stream.configure(timeout_seconds=timeout_seconds, **settings)
        )

    def config(self, *, timeout_seconds: float | None = None) -> StoreConfig:
        """Return the stream's configuration."""
        return self._background.run(self._stream.config(timeout_seconds=timeout_seconds))

    def destroy(self, *, timeout_seconds: float | None = None) -> bool:
        """Remove the stream and every copy of it: its file, snapshots, what is in quarantine, consumers and
        configuration. Return False if there was none. Nothing brings it back.

        Its name is free then: who writes to it makes a new stream, and a retry of this call leaves that
        alone. Followers are given a RESET. Needs a NATS permission of its own (docs/operations.md).
        Of a call that ends with OperationTimeoutError the stream may or may not be gone.
        """
        return self._background.run(self._stream.destroy(timeout_seconds=timeout_seconds))

    def subscribe(
        self, *, start_seq: int | None = None, start_revision: int | None = None
    ) -> Subscription[V]:
        """Follow the stream: an iterator of Change, each once, in the order of revisions.

        With `start_seq`, first the messages from there on as SET changes; without, only what
        happens from now on, where *now* is when the first change is asked for or the
        subscription is entered with `with`. With `start_revision` (see
        `Subscription.revision`) it goes on after what was seen up to there; of what was set or deleted
        several times since, the last state comes. Survives reconnects and changes of owner.

        After a RESET change, forget everything: all messages (from `start_seq`) follow anew. It comes
        when the owner no longer remembers deletes that were missed, or has fewer revisions: the
        stream was deleted and made anew. Raises InvalidArgumentError if both starts are given.

        `with` or `close()` ends it; so does dropping it, as a `break` out of
        `for change in stream.subscribe()` does.
        """
        stream = self._stream
        subscription = self._background.do(
            lambda: stream.subscribe(start_seq=start_seq, start_revision=start_revision)
        )
        return Subscription(self._background, subscription)

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
        stream = self._stream
        consumer = self._background.do(
            lambda: stream.consumer(name, start_seq=start_seq, **settings)
        )
        return Consumer(self._background, consumer)

    def consumers(self, *, timeout_seconds: float | None = None) -> list[ConsumerInfo]:
        """Return where each consumer of this stream stands, in order of their names."""
        return self._background.run(self._stream.consumers(timeout_seconds=timeout_seconds))
