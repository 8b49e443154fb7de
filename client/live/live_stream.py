"""A live stream: a list of messages with the same content everywhere.

    async with hf.live_stream("project.42.patches", last=1000) as patches:
        patches.on_change(lambda change: print(change.kind, change.message.value))
        patches.append(b"...")              # at the end at once, sent in the background
        print(len(patches), patches[-1].value, patches.unsaved)
        await patches.save()                # returns when all of it is stored
        await patches.load(start_seq=1)     # reads the older messages too

It is a Sequence in memory, so reading never waits. An appended message shows at the end at once,
with `seq` None, and gets its seq when it is confirmed. Messages that others appended in between
then come before it, because the owner decides the order of confirmed messages. Appended messages
are stored in the order of the calls, each once, whatever is lost, restarted or away meanwhile. If
the owner rejects a message, it disappears and `on_reject` is called.

The replica follows everything that happens to the stream: messages that are replaced by
`Stream.set`, deleted, trimmed, expired and evicted. `start_seq` or `last` decides which messages
are held.

A large value (above MAX_VALUE_BYTES) is not held once it is stored, whoever wrote it: reading its
message raises LargeValueNotHeldError, and `Stream.get_reader` of `Client.stream` reads it. In
changes a LargeValue takes the place of the value.

To recognise its own messages, it adds a header to each (`live`). It hides the header from its own
readers; others see it.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar, overload

from holdfast.client.following.follower import Follower
from holdfast.client.following.subscription import Subscription, subscription_to
from holdfast.client.following.track import Wanted
from holdfast.client.handles.stream import Stream
from holdfast.client.large_values.large_value import is_large
from holdfast.client.large_values.value_upload import put_value
from holdfast.client.live.live_messages import (
    Draft,
    LiveMessages,
    MessageChange,
)
from holdfast.client.live.live_replica import (
    FLIGHT_BYTES,
    FLIGHT_SECONDS,
    FLIGHT_WRITES,
    OUTAGES,
    LiveReplica,
)
from holdfast.client.live.live_values import encoded_for_live
from holdfast.client.live.read_only import read_only
from holdfast.client.values.codec import RAW, Codec
from holdfast.client.values.values import Values, check_headers_free, decoded_or_raise
from holdfast.client.wire.link import Link
from holdfast.client.wire.operations import (
    ack_from_wire,
    append_operation,
    check_count,
    checked_durability,
    checked_map,
    checked_ttl,
    range_start,
)
from holdfast.protocol.errors import (
    BusyError,
    ConnectionFailedError,
    HoldfastError,
    InvalidArgumentError,
    LargeValueNotHeldError,
    NoCoordinatorError,
    NoServerError,
    ProtocolError,
    RateLimitedError,
    StorageFailedError,
)
from holdfast.protocol.frames import DELETE_MESSAGES, pack
from holdfast.protocol.messages import Ack, AnyDurability, Headers, LargeValue, Message
from holdfast.protocol.names import StoreKind, StoreName
from holdfast.protocol.own_headers import LIVE_HEADER

T = TypeVar("T")
V = TypeVar("V")

_PACKED_NOTHING: Final = pack([DELETE_MESSAGES, []])
#: After these errors nothing was stored. After any other outage a flight has to be searched for.
_NOT_STORED: Final = (
    RateLimitedError,
    NoCoordinatorError,
    NoServerError,
    ConnectionFailedError,
    StorageFailedError,
    BusyError,
)


Held = Message | Draft
"""What the core holds for one message."""


class LiveMessage(NamedTuple, Generic[V]):
    """One message. `seq`, `time` and `revision` are None until it is confirmed."""

    seq: int | None
    value: V
    headers: Headers
    time: int | None
    revision: int | None


class LiveStream(LiveReplica[MessageChange[Held], V], Sequence[LiveMessage[V]]):
    """A live replica of a stream: a local copy, as a list (Sequence) of LiveMessage. Made by
    `Client.live_stream`; use it with `async with`, or `open` and `aclose`.

    Reading never waits. Indices count from the oldest message that is held. An appended message
    shows at the end at once, with `seq` None, and gets its seq when it is confirmed; messages that
    others appended in between then come before it. Your messages are stored in the order of your
    calls, each once, whatever is lost or restarted meanwhile. If the owner rejects a message, it
    disappears and `on_reject` is called.

    A value above MAX_VALUE_BYTES is uploaded in the background, and not held once it is stored.

    Appending raises InvalidArgumentError and TooLargeError for what can never be stored, such as a
    value above MAX_UNSAVED_BYTES; BusyError
    if MAX_UNSAVED_WRITES messages or MAX_UNSAVED_BYTES are unsaved (`await save()` makes room);
    ConnectionFailedError if the replica is not open. Reading raises ValueUnreadableError for a
    value that another codec wrote, and LargeValueNotHeldError for a large value.

        async with hf.live_stream("project.42.patches", last=1000) as patches:
            patches.append(b"...")
            print(len(patches), patches[-1].value, patches.unsaved)
            await patches.save()
    """

    _core: LiveMessages

    def __init__(
        self,
        link: Link,
        follower: Follower,
        name: StoreName,
        codec: Codec[V],
        start_seq: int | None,
        last: int | None,
        durability: AnyDurability | None,
        registry: dict[int, LiveReplica[Any, Any]],
    ) -> None:
        if start_seq is not None and last is not None:
            raise InvalidArgumentError(argument="last", reason="cannot be combined with start_seq")
        checked_durability(durability)
        first_seq = 1 if start_seq is None else range_start("start_seq", start_seq)
        super().__init__(
            link, str(name), LiveMessages(link.entropy.randbytes(8).hex(), first_seq), registry
        )
        # Lenient: a value that cannot be decompressed is an error only when it is read.
        self._values = Values(link, str(name), RAW, lenient=True)
        self._stream = Stream(link, follower, name, self._values)
        self._follower = follower
        self._codec = codec
        self._last = None if last is None else check_count("last", last)
        self._durability = durability
        self._loading = asyncio.Lock()
        #: How many messages to send one by one, because they were refused together.
        self._single_count = 0
        #: The flight whose answer was lost, and which has to be searched for.
        self._unanswered: list[Draft] | None = None
        self._store_key = (int(StoreKind.STREAM), self.name)

    @overload
    def __getitem__(self, index: int) -> LiveMessage[V]: ...
    @overload
    def __getitem__(self, index: slice) -> list[LiveMessage[V]]: ...
    def __getitem__(self, index: int | slice) -> LiveMessage[V] | list[LiveMessage[V]]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        confirmed = self._core.messages
        if index < len(confirmed):
            return self._shown(confirmed[index])
        return self._shown(self._core.drafts[index - len(confirmed)])

    def __len__(self) -> int:
        return len(self._core.messages) + len(self._core.drafts)

    def __iter__(self) -> Iterator[LiveMessage[V]]:
        """Iterate over the present messages; the loop's body may await, and change anything."""
        held: list[Held] = [*self._core.messages, *self._core.drafts]
        return map(self._shown, held)

    def append(
        self, value: V, *, headers: Headers | None = None, ttl_seconds: float | None = None
    ) -> None:
        """Append a message. It shows at once and is stored in the background. `headers` maps text
        to text. `ttl_seconds` removes the message so long after the owner stored it.
        """
        self._check_open()
        given = checked_map(headers)
        check_headers_free(given)
        if LIVE_HEADER in given:
            raise InvalidArgumentError(argument="headers", reason=f"{LIVE_HEADER!r} is reserved")
        data = encoded_for_live(self._codec, value)
        self._core.append(data, given, checked_ttl(ttl_seconds))
        self._written()

    def find(self, seq: int) -> LiveMessage[V] | None:
        """Return message `seq`, or None if it is not held."""
        messages = self._core.messages
        at = bisect_left(messages, seq, key=lambda message: message.seq)
        if at < len(messages) and messages[at].seq == seq:
            return self._shown(messages[at])
        return None

    @property
    def start_seq(self) -> int:
        """The first seq from which messages are held."""
        return self._core.start_seq

    @property
    def unsaved(self) -> list[LiveMessage[V]]:
        """The messages that are not confirmed, in order."""
        return [self._shown(draft) for draft in self._core.drafts]

    @property
    def unsaved_count(self) -> int:
        """The number of those messages."""
        return len(self._core.drafts)

    def on_change(
        self, callback: Callable[[MessageChange[LiveMessage[V | LargeValue]]], object]
    ) -> Callable[[], None]:
        """Call `callback` with each MessageChange, including local ones. Return a function that
        ends this.

        A LargeValue takes the place of a value that is not held. The messages that exist when the
        replica is opened, and those that `load` reads, are not reported.
        """
        return self._register(self._change_callbacks, callback)

    async def load(self, start_seq: int = 1, *, timeout_seconds: float | None = None) -> None:
        """Read the older messages from `start_seq` on, and hold them too: all of them, or none if
        it raises.

        `timeout_seconds` applies to each page. Raises what any read raises.
        """
        start_seq = range_start("start_seq", start_seq)
        core = self._core
        async with self._loading:
            while start_seq < core.start_seq:
                self._check_open()
                core.begin_load()
                try:
                    found = self._stream.get_all(
                        start_seq=start_seq,
                        end_seq=core.start_seq - 1,
                        timeout_seconds=timeout_seconds,
                    )
                    core.end_load(start_seq, [message async for message in found])
                finally:
                    core.cancel_load()

    async def _subscription(self) -> Subscription[bytes]:
        if self._last is not None:
            self._core.start_seq = await self._start_of_last(self._last)
            self._last = None
        return subscription_to(
            self._link,
            self._follower,
            self._store_key,
            self._values,
            Wanted(start_seq=self._core.start_seq, marks_ready=True),
        )

    async def _start_of_last(self, count: int) -> int:
        async for message in self._stream.get_all(last=count, limit=1):
            return message.seq
        return (await self._stream.head()).last_seq + 1

    async def _send_flight(self) -> HoldfastError | None:
        if self._unanswered is not None:
            return await self._look_for(self._unanswered)
        while not self._core.drafts:
            self._work.clear()
            await self._work.wait()
        limit = 1 if self._single_count else FLIGHT_WRITES
        flight = self._core.take_flight(limit, FLIGHT_BYTES)
        self._single_count = max(0, self._single_count - 1)
        try:
            acks, large = await self._append(flight)
        except _NOT_STORED as error:
            self._core.unsent()
            return error
        except OUTAGES as error:
            self._unanswered = flight
            return error
        except ProtocolError:
            raise
        except HoldfastError as error:
            if len(flight) > 1:
                self._single_count = len(flight)
                self._core.unsent()
            else:
                self._core.rejected(error)
        else:
            self._core.stored(acks, large)
        return None

    async def _append(self, flight: list[Draft]) -> tuple[list[Ack], LargeValue | None]:
        """Store a flight. Return the acks, and what stands for its value if that is large."""
        first = flight[0]
        if not is_large(first.value):
            acks = await self._stream.append_many(
                [(draft.value, self._core.headers_of(draft)) for draft in flight],
                durability=self._durability,
                ttl_seconds=first.ttl_seconds,
                timeout_seconds=FLIGHT_SECONDS,
            )
            return acks, None
        stored: list[LargeValue] = []

        async def commit(value: LargeValue) -> Ack:
            stored.append(value)
            headers = self._core.headers_of(first)
            operation = append_operation(value, headers, None, None, first.ttl_seconds)
            level = checked_durability(self._durability)
            answer = await self._link.submit(
                self._store_key, pack(operation), True, level, FLIGHT_SECONDS
            )
            if type(answer) is Ack:
                return answer
            return ack_from_wire(*self._link.unwrap(answer))

        ack = await put_value(self._link, self._store_key, first.value, commit, FLIGHT_SECONDS)
        return [ack], stored[-1]

    async def _look_for(self, flight: list[Draft]) -> HoldfastError | None:
        """Find out whether a flight was stored whose answer was lost. Return the error of
        an outage."""
        try:
            # A write that does nothing. Once it is answered, no earlier write of this client can be
            # stored any more, even if a copy of it is still underway.
            await self._link.call(self._store_key, _PACKED_NOTHING, True)
            rows = self._stream.get_all(start_seq=flight[0].last_seq + 1)
            found = [row async for row in rows if LIVE_HEADER in row.headers]
        except OUTAGES as error:
            return error
        self._unanswered = None
        self._core.looked_for(found)
        return None

    def _shown(self, message: Held) -> LiveMessage[V]:
        if isinstance(message, Message) and message.large is not None:
            raise LargeValueNotHeldError(what=f"message {message.seq}")
        return _live(message, self._decoded(message.value))

    def _told(self, change: MessageChange[Held]) -> MessageChange[LiveMessage[V | LargeValue]]:
        kind, message, previous, origin = change
        shown = None if previous is None else self._told_message(previous)
        return MessageChange(kind, self._told_message(message), shown, origin)

    def _told_message(self, message: Held) -> LiveMessage[V | LargeValue]:
        if isinstance(message, Message) and message.large is not None:
            return _live(message, message.large)
        return _live(message, self._decoded(message.value))

    def _decoded(self, value: bytes) -> V:
        """Return a value as the application sees it: decoded and read-only."""
        shown: V = read_only(decoded_or_raise(self._codec, value))
        return shown


def _live(message: Held, value: T) -> LiveMessage[T]:
    headers = message.headers
    if isinstance(message, Draft):
        return LiveMessage(None, value, headers, None, None)
    if LIVE_HEADER in headers:
        headers = {name: text for name, text in headers.items() if name != LIVE_HEADER}
    return LiveMessage(message.seq, value, headers, message.time, message.revision)
