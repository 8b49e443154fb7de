"""The hand-written part of the generated blocking API.

`blocking_api.py` reads this file as text; nothing imports it. A class here gives the bases of the
generated class and the members that follow from no rule:

- A method that the asyncio class has too is written with `self` alone and gives only the body. The
  signature and docstring are those of the asyncio method, so the body may use its parameters.
- Any other method is copied as it is.
- The imports give the names in these bodies, and the names that stand for the asyncio classes.
"""
# ruff: noqa: F401, F821, PYI036

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Generic, TypeVar

from holdfast.client.blocking.background import Background
from holdfast.client.blocking.blocking_following import Following
from holdfast.client.blocking.blocking_pending import PendingAck, start_write, write
from holdfast.client.blocking.blocking_rows import Rows
from holdfast.client.blocking.blocking_value import ValueReader
from holdfast.client.connection import Client as AsyncClient
from holdfast.client.following.pattern import PatternSubscription as AsyncPatternSubscription
from holdfast.client.following.subscription import Subscription as AsyncSubscription
from holdfast.client.handles.consumer import Consumer as AsyncConsumer
from holdfast.client.handles.consumer import Delivery as AsyncDelivery
from holdfast.client.handles.kv import KV as AsyncKV
from holdfast.client.handles.stream import Stream as AsyncStream
from holdfast.client.handles.transaction import KVTransaction as AsyncKVTransaction
from holdfast.client.handles.transaction import StreamTransaction as AsyncStreamTransaction
from holdfast.client.live.live_kv import LiveKV as AsyncLiveKV
from holdfast.client.live.live_replica import LiveReplica
from holdfast.client.live.live_stream import LiveStream as AsyncLiveStream
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.messages import Change

T = TypeVar("T")
_Wrapped = TypeVar("_Wrapped", bound=AsyncKVTransaction[Any] | AsyncStreamTransaction[Any])


class Client:
    """A connection to holdfast, for one tenant. Made by `connect`; any number of threads may use
    it.

    Subscriptions, transactions, readers and iterators are for one thread each. Everything else may
    be used from many threads at a time. In a child of `os.fork` every call raises ForkedError,
    except `close`, which leaves the connection to the parent.
    """

    def __init__(self, background: Background, client: AsyncClient) -> None:
        self._background = background
        self._client = client

    def live_kv(self):
        # The overloads of the client itself are too narrow for what is passed on here.
        make: Any = self._client.live_kv
        return LiveKV(
            self._background,
            self._background.do(
                lambda: make(name, merge=merge, codec=codec, durability=durability)
            ),
        )

    def live_stream(self):
        make: Any = self._client.live_stream
        return LiveStream(
            self._background,
            self._background.do(
                lambda: make(
                    name, start_seq=start_seq, last=last, codec=codec, durability=durability
                )
            ),
        )

    def close(self):
        if self._background.forked:
            return
        try:
            self._background.run(self._client.close())
        finally:
            self._background.closed(self._client)


class Stream(Generic[V]):
    def __init__(self, background: Background, stream: AsyncStream[V]) -> None:
        #: The name of the stream.
        self.name = stream.name
        self._values = stream._values
        self._background = background
        self._stream = stream
        self._link = stream._link
        self._key = stream._key

    def append(self):
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
                    subject=subject,
                    expected_last_subject_seq=expected_last_subject_seq,
                    expected_subject=expected_subject,
                    rollup=rollup,
                )
            )
        options = append_options(expected_last_subject_seq, expected_subject, rollup)
        data, headers = self._values.stored(data, headers)
        packed = packed_append(
            data, headers, msg_id, expected_last_seq, ttl_seconds, subject, options
        )
        level = 0 if durability is None else checked_durability(durability)
        return write(
            self._background, self._link, self._key, packed, level, timeout_seconds, ack_from_wire
        )

    def append_async(self):
        values = self._values
        options = append_options(expected_last_subject_seq, expected_subject, rollup)
        data, headers = values.stored(values.encoded(value), headers)
        packed = packed_append(
            data, headers, msg_id, expected_last_seq, ttl_seconds, subject, options
        )
        level = 0 if durability is None else checked_durability(durability)
        return start_write(
            self._background, self._link, self._key, packed, level, timeout_seconds, ack_from_wire
        )


class KV(Generic[V]):
    def __init__(self, background: Background, kv: AsyncKV[V]) -> None:
        #: The name of the kv.
        self.name = kv.name
        self._values = kv._values
        self._background = background
        self._kv = kv
        self._link = kv._link
        self._key = kv._key

    def set(self):
        data = self._values.encoded(value)
        if is_large(data):
            return self._background.run(
                self._kv.set(
                    key,
                    value,
                    headers=headers,
                    expected_revision=expected_revision,
                    ttl_seconds=ttl_seconds,
                    durability=durability,
                    timeout_seconds=timeout_seconds,
                )
            )
        data, headers = self._values.stored(data, headers)
        packed = pack(set_entry_operation(key, data, headers, expected_revision, ttl_seconds))
        level = 0 if durability is None else checked_durability(durability)
        return write(
            self._background, self._link, self._key, packed, level, timeout_seconds, ack_from_wire
        )

    def set_async(self):
        values = self._values
        data, headers = values.stored(values.encoded(value), headers)
        packed = pack(set_entry_operation(key, data, headers, expected_revision, ttl_seconds))
        level = 0 if durability is None else checked_durability(durability)
        return start_write(
            self._background, self._link, self._key, packed, level, timeout_seconds, ack_from_wire
        )

    def set_many(self):
        # An application's iterable may do anything, so the calling thread iterates over it.
        pairs = items if isinstance(items, Mapping) else list(items)
        return self._background.run(
            self._kv.set_many(
                pairs,
                ttl_seconds=ttl_seconds,
                durability=durability,
                timeout_seconds=timeout_seconds,
            )
        )

    def update(self):
        background, kv = self._background, self._kv

        async def work(
            ask: Callable[[Callable[[], V | Value | None]], Awaitable[V | Value | None]],
        ) -> Ack | Deleted:
            # `function` runs in the calling thread, where it may block and use this client.
            return await kv._update(
                key,
                lambda entry: ask(lambda: function(entry)),
                headers,
                ttl_seconds,
                durability,
                timeout_seconds,
            )

        return background.run_asking(work)


class Delivery(Generic[V]):
    __slots__ = ("_background", "_delivery", "delivery_count")

    def __init__(self, background: Background, delivery: AsyncDelivery[V]) -> None:
        self._background = background
        self._delivery = delivery
        #: 1 the first time.
        self.delivery_count: int = delivery.delivery_count

    def __repr__(self):
        return repr(self._delivery)


class Consumer(Generic[V]):
    def __init__(self, background: Background, consumer: AsyncConsumer[V]) -> None:
        #: The name of the consumer.
        self.name = consumer.name
        self._background = background
        self._consumer = consumer

    def deliveries(self):
        while not self._consumer._feed.closed:
            yield from self.fetch(batch, max_wait_seconds=60.0)

    def ack(self):
        return self._background.run(self._consumer.ack([each._delivery for each in deliveries]))


class _Transaction(Generic[_Wrapped]):
    def __init__(self, background: Background, transaction: _Wrapped) -> None:
        self._background = background
        self._transaction: _Wrapped = transaction

    def __exit__(self):
        if exc_type is None:
            self._background.run(self._transaction.__aexit__(None, None, None))


class KVTransaction(_Transaction[AsyncKVTransaction[V]], Generic[V]):
    pass


class StreamTransaction(_Transaction[AsyncStreamTransaction[V]], Generic[V]):
    pass


class Subscription(Following[Change[V], AsyncSubscription[V]], Generic[V]):
    def __init__(self, background: Background, subscription: AsyncSubscription[V]) -> None:
        super().__init__(background, subscription)
        self._revision: int | None = None

    def revision(self):
        if self._held:
            return self._revision
        return self._background.do(lambda: self._subscription.revision)

    def __next__(self):
        return self._next_change()

    def __enter__(self):
        self._begin()
        return self

    def close(self):
        self._end()

    def _given(self) -> Change[V]:
        change, self._revision = self._held.popleft()
        return change

    async def _next(self) -> Change[V]:
        return await anext(self._subscription)

    def _pop(self) -> Change[V] | None:
        return self._subscription._pop()

    def _reached(self) -> int | None:
        return self._subscription.revision


class PatternSubscription(Following[StoreChange[V], AsyncPatternSubscription[V]], Generic[V]):
    def revisions(self):
        found = self._background.do(lambda: self._subscription.revisions)
        # What was taken over and not given out yet comes again.
        for (name, _), before in reversed(self._held):
            if before is None:
                found.pop(name, None)
            else:
                found[name] = before
        return found

    def __next__(self):
        return self._next_change()

    def __enter__(self):
        self._begin()
        return self

    def close(self):
        self._end()

    async def _next(self) -> StoreChange[V]:
        return await anext(self._subscription)

    def _pop(self) -> StoreChange[V] | None:
        return self._subscription._pop()

    def _reached(self) -> int | None:
        return self._subscription._feed.before


class _LiveReplica(ABC, Generic[V]):
    def __init__(self, background: Background, replica: LiveReplica[Any, V]) -> None:
        #: The name of the store.
        self.name = replica.name
        self._background = background
        self._replica = replica

    def __repr__(self):
        return repr(self._replica)

    @property
    def error(self) -> HoldfastError | None:
        """The error that ended the replica; None while it follows its store."""
        return self._replica.error

    def open(self):
        self._background.run(self._replica.open(timeout_seconds))
        return self

    def __enter__(self):
        return self.open()

    def __exit__(self):
        """Save and close. An interrupted thread does not wait for that."""
        if not self._background.forked:
            self._background.run(self._replica.__aexit__(exc_type, exc, traceback))

    def _do(self, function: Callable[[], T]) -> T:
        return self._background.do(function)

    def _ending(self, end: Callable[[], None]) -> Callable[[], None]:
        return lambda: self._do(end)


class LiveKV(_LiveReplica[V], MutableMapping[str, V]):
    def __init__(self, background: Background, replica: AsyncLiveKV[V]) -> None:
        super().__init__(background, replica)
        self._kv = replica


class LiveStream(_LiveReplica[V], Sequence[LiveMessage[V]]):
    def __init__(self, background: Background, replica: AsyncLiveStream[V]) -> None:
        super().__init__(background, replica)
        self._stream = replica
