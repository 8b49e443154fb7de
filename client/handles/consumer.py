"""A consumer: a work queue on a stream, shared by any number of workers in any number of processes.

The owner of the stream records which worker has which message. A fetch is a write, recorded before
the worker hears of it, so the record is as durable as the messages. A message that its worker does
not acknowledge in time is delivered again to the next worker that asks: each message at least once,
and to one worker at a time.

The client does the waiting. It asks the owner when a change of the stream says that there may be
something, or when a delivery is due again. Otherwise only the rare check of every follower reaches
the owner, so a waiting worker costs the owner nothing. A fetch returns seqs, and the messages are
then read, so no value is in the log twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from types import TracebackType
from typing import Any, Final, Generic, Self

from holdfast.client.following.follower import Follower
from holdfast.client.following.queue_feed import QueueFeed
from holdfast.client.handles.acks import GatheredAcks
from holdfast.client.handles.dead_letters import DELIVERED, TERMINATED, DeadLetter, DeadLetters
from holdfast.client.values.values import Values
from holdfast.client.wire.link import Link
from holdfast.client.wire.operations import check_wait, messages_from_wire, range_start
from holdfast.client.wire.store_queue import StoreKey
from holdfast.protocol.consumers import ConsumerConfig, ConsumerInfo, ConsumerSettings, delay_ms
from holdfast.protocol.errors import (
    HoldfastError,
    InvalidArgumentError,
    MalformedFrameError,
    NotFoundError,
)
from holdfast.protocol.frames import (
    CONSUMER_CONFIGURE,
    CONSUMER_DELETE,
    CONSUMER_FETCH,
    CONSUMERS,
    GET_SEQS,
    VERB_ACK,
    VERB_IN_PROGRESS,
    VERB_NAK,
    VERB_TERM,
    pack,
)
from holdfast.protocol.limits import MAX_FETCH
from holdfast.protocol.messages import Ack, Durability, Message, V
from holdfast.protocol.names import check_consumer

logger = logging.getLogger("holdfast.client")

#: A forgotten delivery is made again, so a fetch need not wait for more than the log's sync.
_FETCH_DURABILITY: Final = int(Durability.SYNCED)


class Delivery(Generic[V]):
    """A message that this worker has until its ack wait is over.

    A large value is not included: `message.large` stands for it. Give `message` to `get_reader`
    or `get_file` of the stream to read it, and call `in_progress` if that takes longer than the
    ack wait.
    """

    __slots__ = ("_consumer", "_consumer_id", "_row", "delivery_count")

    def __init__(
        self, consumer: Consumer[V], consumer_id: int, row: Message, delivery_count: int
    ) -> None:
        self._consumer = consumer
        self._consumer_id = consumer_id
        self._row = row
        #: How often the message was delivered: 1 the first time.
        self.delivery_count = delivery_count

    def __repr__(self) -> str:
        return f"Delivery(seq={self._row.seq}, delivery_count={self.delivery_count})"

    @property
    def message(self) -> Message[V]:
        """The message. Reading its `value` may raise ValueUnreadableError; give up such a message
        with `term`.
        """
        return self._consumer._values.listed_message(self._row)

    async def ack(self) -> bool:
        """Acknowledge the message: the work is done, and the message is not delivered again.

        Return False if the message was already finished: another worker had it later and
        acknowledged it, or it was given up. Acks of one turn of the event loop travel as
        one operation.
        """
        return await self._consumer._said_of(self, VERB_ACK)

    async def nak(self, delay_seconds: float = 0) -> bool:
        """Hand the message back: it is delivered again, at once or after `delay_seconds`.

        Return False if the message was delivered again since then; nothing has changed then.
        """
        return await self._consumer._said_of(self, VERB_NAK, delay_ms(delay_seconds))

    async def in_progress(self) -> bool:
        """Ask for more time: the ack wait begins again. Return False if the message was delivered
        again since then.
        """
        return await self._consumer._said_of(self, VERB_IN_PROGRESS)

    async def term(self) -> bool:
        """Give up the message: nobody can process it, and it is not delivered again. It goes to the
        consumer's `dead_letter` stream, if there is one. Return False if the message was
        delivered again since then.
        """
        return await self._consumer._terminate(self)


class Consumer(Generic[V]):
    """A handle on one consumer of a stream: a work queue that several workers share. Made
    by `Stream.consumer`.

    Each message is delivered at least once, and to one worker at a time. The consumer is created in
    the stream on first use, with the settings of the handle. The settings of a later handle change
    it; those that it leaves out stay as they are. One handle may be used by many tasks. While it
    waits, it follows the stream: end that with `async with` or `aclose()`, or drop the handle.

    Methods raise NotFoundError once the consumer was deleted, and what methods of Stream raise.
    """

    def __init__(
        self,
        link: Link,
        follower: Follower,
        key: StoreKey,
        values: Values[V],
        name: str,
        start_seq: int,
        settings: ConsumerSettings,
    ) -> None:
        #: The name of the consumer.
        self.name = check_consumer(name)
        checked = ConsumerConfig().changed(settings).to_wire()
        self._settings = {setting: checked.get(setting) for setting in settings}
        self._start_seq = range_start("start_seq", start_seq)
        self._link = link
        self._key = key
        self._values = values
        self._id: int | None = None
        #: As it was when this handle made or changed the consumer.
        self._dead_letter: str | None = None
        self._dead = DeadLetters(link, key, values, name)
        self._configuring = asyncio.Lock()
        self._follower = follower
        self._feed = QueueFeed(link, follower.listeners, key)
        self._listening = asyncio.Lock()
        self._followed = False
        self._acks = GatheredAcks(link, key)
        follower.end_with(self, self._feed)

    def __repr__(self) -> str:
        return f"Consumer({self.name!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop following the stream; every waiting fetch returns. Idempotent.

        The consumer itself stays. Messages that were delivered and not acknowledged are delivered
        again after the ack wait.
        """
        await self._follower.ended(self._feed)

    async def fetch(
        self,
        batch: int = 1,
        *,
        max_wait_seconds: float = 5.0,
        timeout_seconds: float | None = None,
    ) -> list[Delivery[V]]:
        """Return up to `batch` messages for this worker as soon as there is one, or an empty list
        after `max_wait_seconds`. With 0 it returns what is there now.

        Messages that are due again come first, then the next ones of the stream in order. Each
        belongs to this worker for `ack_wait_seconds` after its delivery. If the call fails or is
        cancelled, the messages that it was about to return are delivered again after that time.
        `timeout_seconds` applies to each request.

        Large values are not included: `message.large` stands for one, and `Stream.get_reader`
        reads it.
        """
        if type(batch) is not int or not 1 <= batch <= MAX_FETCH:
            raise InvalidArgumentError(
                argument="batch", reason=f"must be 1 to {MAX_FETCH}, not {batch!r}"
            )
        check_wait("max_wait_seconds", max_wait_seconds)
        loop = asyncio.get_running_loop()
        end_at = loop.time() + max_wait_seconds
        id_ = await self._made(timeout_seconds)
        feed = self._feed
        if max_wait_seconds > 0:
            await self._listen()
        while True:
            if max_wait_seconds <= 0 or feed.may_have_more(loop.time()):
                found = await self._ask(id_, batch, timeout_seconds)
                if found or max_wait_seconds <= 0:
                    return found
                continue
            if feed.closed or end_at <= loop.time():
                return []
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(end_at, feed.due_at)):
                    await feed.wait()

    async def deliveries(self, batch: int = 1) -> AsyncIterator[Delivery[V]]:
        """Yield messages for this worker, one by one and without end, until `aclose`.

        With a `batch` above 1, that many are fetched at once: the ack wait of the last one runs
        while you process the first.
        """
        while not self._feed.closed:
            for delivery in await self.fetch(batch, max_wait_seconds=60.0):
                yield delivery

    def __aiter__(self) -> AsyncIterator[Delivery[V]]:
        return self.deliveries()

    async def ack(self, deliveries: Iterable[Delivery[V]]) -> list[bool]:
        """Acknowledge several deliveries in one operation. Return for each what
        `Delivery.ack` returns.
        """
        said = [self._said_of(delivery, VERB_ACK) for delivery in deliveries]
        return list(await asyncio.gather(*said))

    async def info(self, *, timeout_seconds: float | None = None) -> ConsumerInfo:
        """Return the state of the consumer. Creates the consumer if it does not exist."""
        await self._made(timeout_seconds)
        found = await consumer_infos(self._link, self._key, self.name, timeout_seconds)
        if not found:
            raise NotFoundError(what="consumer", name=self.name)
        return found[0]

    async def delete(self, *, timeout_seconds: float | None = None) -> bool:
        """Delete the consumer and its record of deliveries. Return False if it did not exist.

        The next use of a handle with this name creates a new consumer, which begins at
        its `start_seq`.
        """
        packed = pack([CONSUMER_DELETE, self.name])
        (count, _), *_ = await self._link.call(self._key, packed, True, 0, timeout_seconds)
        self._id = None
        return bool(count)

    async def dead_letters(
        self, *, timeout_seconds: float | None = None
    ) -> AsyncIterator[DeadLetter[V]]:
        """Yield the messages that this consumer gave up and its `dead_letter` stream has,
        oldest first.

        Pages are fetched as you iterate; `timeout_seconds` applies to each. Without a `dead_letter`
        stream there are none.
        """
        pages = self._dead_pages(timeout_seconds)
        async with contextlib.aclosing(pages):
            async for page in pages:
                for letter in page:
                    yield letter

    async def requeue(
        self, letter: DeadLetter[Any], *, timeout_seconds: float | None = None
    ) -> Ack:
        """Append a dead letter to its stream again, as a new message for all consumers of that
        stream, and then delete it from the dead-letter stream. Return the ack of the append.

        If the call is interrupted, repeat it: the message is appended only once within the
        stream's `dedupe_window_seconds`.

        Raises NotFoundError if the letter no longer exists.
        """
        await self._made(timeout_seconds)
        return await self._dead.requeue(self._dead_letter, letter, timeout_seconds)

    # Inside
    async def _dead_pages(
        self, timeout_seconds: float | None
    ) -> AsyncGenerator[list[DeadLetter[V]], None]:
        """Yield what `dead_letters` does, page by page."""
        await self._made(timeout_seconds)
        if self._dead_letter is not None:
            pages = self._dead.pages(self._dead_letter, timeout_seconds)
            async with contextlib.aclosing(pages):
                async for page in pages:
                    yield page

    async def _terminate(self, delivery: Delivery[V]) -> bool:
        """Do what `Delivery.term` does."""
        if self._dead_letter is not None:
            # Only the worker that has the message may move it, and it has the ack wait for that.
            if not await self._said_of(delivery, VERB_IN_PROGRESS):
                return False
            await self._dead.bury(
                self._dead_letter,
                delivery._consumer_id,
                delivery._row,
                delivery.delivery_count,
                TERMINATED,
                None,
            )
        return await self._said_of(delivery, VERB_TERM)

    async def _bury_all(
        self, dead_letter: str, id_: int, dead: list[list[int]], timeout_seconds: float | None
    ) -> None:
        """Move the messages that were delivered too often. A later fetch names again what could not
        be moved."""
        counts: dict[int, int] = {each[0]: each[1] for each in dead}
        for row in await self._read(list(counts), timeout_seconds):
            count = counts[row.seq]
            try:
                await self._dead.bury(dead_letter, id_, row, count, DELIVERED, timeout_seconds)
                await self._said_of(Delivery(self, id_, row, count), VERB_TERM)
            except (HoldfastError, OSError) as error:
                self._link.check_open()
                logger.warning(
                    "client.dead_letter_failed stream=%s seq=%d dead_letter=%s reason=%s",
                    self._key[1],
                    row.seq,
                    dead_letter,
                    error,
                )

    async def _made(self, timeout_seconds: float | None) -> int:
        """Return the consumer's id. The first call makes or changes the consumer."""
        if self._id is None:
            async with self._configuring:
                if self._id is None:
                    packed = pack([CONSUMER_CONFIGURE, self.name, self._settings, self._start_seq])
                    answer = await self._link.call(self._key, packed, True, 0, timeout_seconds)
                    self._dead_letter = answer[0][1].get("dead_letter")
                    self._id = int(answer[0][0])
        return self._id

    async def _listen(self) -> None:
        if not self._followed:
            async with self._listening:
                if not self._followed:
                    await self._feed.listen()
                    self._follower.started(self._feed)
                    self._followed = True

    async def _ask(self, id_: int, batch: int, timeout_seconds: float | None) -> list[Delivery[V]]:
        """Return what the owner delivers now."""
        feed = self._feed
        feed.asked(id_)
        try:
            (found, revision, retry_after_ms, blocked, *more), *_ = await self._link.call(
                self._key,
                pack([CONSUMER_FETCH, id_, batch]),
                True,
                _FETCH_DURABILITY,
                timeout_seconds,
            )
            dead_letter, dead = more[0] if more else (None, [])
            is_full = len(found) + len(dead) == batch
            feed.answered(revision, retry_after_ms, blocked=blocked, full=is_full)
            if dead:
                await self._bury_all(dead_letter, id_, dead, timeout_seconds)
            counts = dict(found)
            return [
                Delivery(self, id_, message, counts[message.seq])
                for message in await self._read(list(counts), timeout_seconds)
            ]
        except BaseException:
            # Other waiting tasks must not rely on an answer that did not come.
            feed.lost()
            raise

    async def _read(self, seqs: list[int], timeout_seconds: float | None) -> list[Message]:
        """Return the messages, without those that were removed since."""
        found: list[Message] = []
        while seqs:
            packed = pack([GET_SEQS, seqs])
            (rows, next_index), *_ = await self._link.call(
                self._key, packed, False, 0, timeout_seconds
            )
            found += messages_from_wire(rows)
            if next_index is None:
                break
            if next_index <= 0:
                raise MalformedFrameError(reason="a page of messages that does not advance")
            seqs = seqs[next_index:]
        return found

    def _said_of(self, delivery: Delivery[V], verb: int, delay: int = 0) -> asyncio.Future[bool]:
        return self._acks.say(
            delivery._consumer_id, delivery._row.seq, delivery.delivery_count, verb, delay
        )


async def consumer_infos(
    link: Link, key: StoreKey, name: str | None, timeout_seconds: float | None
) -> list[ConsumerInfo]:
    """Return the consumers of a stream in order of their names, or the one of this name."""
    packed = pack([CONSUMERS, name])
    wire, *_ = await link.call(key, packed, False, 0, timeout_seconds)
    return [ConsumerInfo.from_wire(each) for each in wire]
