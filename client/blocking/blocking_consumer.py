"""A consumer, for blocking code: `holdfast.client.handles.consumer`, method by method."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Generic, Self

from holdfast.client.blocking.background import Background
from holdfast.client.blocking.blocking_rows import Rows
from holdfast.client.handles.consumer import Consumer as AsyncConsumer
from holdfast.client.handles.consumer import Delivery as AsyncDelivery
from holdfast.client.handles.dead_letters import DeadLetter
from holdfast.protocol.consumers import ConsumerInfo
from holdfast.protocol.messages import Ack, Message, V


class Delivery(Generic[V]):
    """A message that this worker has until its ack wait is over.

    A large value is not included: `message.large` stands for it. Give `message` to `get_reader` or
    `get_file` of the stream to read it, and call `in_progress` if that takes longer than the ack
    wait.
    """

    __slots__ = ("_background", "_delivery", "delivery_count")

    def __init__(self, background: Background, delivery: AsyncDelivery[V]) -> None:
        self._background = background
        self._delivery = delivery
        #: 1 the first time.
        self.delivery_count: int = delivery.delivery_count

    def __repr__(self) -> str:
        return repr(self._delivery)

    @property
    def message(self) -> Message[V]:
        """The message. Reading its `value` may raise ValueUnreadableError; give up such a message
        with `term`.
        """
        return self._delivery.message

    def ack(self) -> bool:
        """Acknowledge the message: the work is done, and the message is not delivered again.

        Return False if the message was already finished: another worker had it later and
        acknowledged it, or it was given up. Acks of several threads travel as one operation.
        """
        return self._background.run(self._delivery.ack())

    def nak(self, delay_seconds: float = 0) -> bool:
        """Hand the message back: it is delivered again, at once or after `delay_seconds`.

        Return False if the message was delivered again since then; nothing has changed then.
        """
        return self._background.run(self._delivery.nak(delay_seconds))

    def in_progress(self) -> bool:
        """Ask for more time: the ack wait begins again. Return False if the message was delivered
        again since then.
        """
        return self._background.run(self._delivery.in_progress())

    def term(self) -> bool:
        """Give up the message: nobody can process it, and it is not delivered again. It goes to the
        consumer's `dead_letter` stream, if there is one. Return False if the message was
        delivered again since then.
        """
        return self._background.run(self._delivery.term())


class Consumer(Generic[V]):
    """A handle on one consumer of a stream: a work queue that several workers share. Made by
    `Stream.consumer`.

    Each message is delivered at least once, and to one worker at a time. The consumer is created in
    the stream on first use, with the settings of the handle. The settings of a later handle change
    it; those that it leaves out stay as they are. One handle may be used by many threads. While it
    waits, it follows the stream: end that with `with` or `close()`, or drop the handle.

    Methods raise NotFoundError once the consumer was deleted, and what methods of Stream raise.
    """

    def __init__(self, background: Background, consumer: AsyncConsumer[V]) -> None:
        self.name = consumer.name
        self._background = background
        self._consumer = consumer

    def __repr__(self) -> str:
        return f"Consumer({self.name!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop following the stream; every waiting fetch returns. Idempotent.

        The consumer itself stays. Messages that were delivered and not acknowledged are delivered
        again after the ack wait.
        """
        if not self._background.forked:
            self._background.run(self._consumer.aclose())

    def fetch(
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

        Large values are not included: `message.large` stands for one, and `Stream.get_reader` reads
        it.
        """
        fetch = self._consumer.fetch(
            batch, max_wait_seconds=max_wait_seconds, timeout_seconds=timeout_seconds
        )
        return [Delivery(self._background, each) for each in self._background.run(fetch)]

    def deliveries(self, batch: int = 1) -> Iterator[Delivery[V]]:
        """Yield messages for this worker, one by one and without end, until `close`.

        With a `batch` above 1, so many are fetched at once: the ack wait of the last one runs while
        you process the first.
        """
        while not self._consumer._feed.closed:
            yield from self.fetch(batch, max_wait_seconds=60.0)

    def __iter__(self) -> Iterator[Delivery[V]]:
        return self.deliveries()

    def ack(self, deliveries: Iterable[Delivery[V]]) -> list[bool]:
        """Acknowledge several deliveries in one operation. Return for each what `Delivery.ack`
        returns.
        """
        return self._background.run(self._consumer.ack([each._delivery for each in deliveries]))

    def dead_letters(self, *, timeout_seconds: float | None = None) -> Rows[DeadLetter[V]]:
        """Yield the messages that this consumer gave up and its `dead_letter` stream has, oldest
        first.

        Pages are fetched as you iterate; `timeout_seconds` applies to each. Without a `dead_letter`
        stream there are none.
        """
        return Rows(self._background, self._consumer._dead_pages(timeout_seconds))

    def requeue(self, letter: DeadLetter[Any], *, timeout_seconds: float | None = None) -> Ack:
        """Append a dead letter to its stream again, as a new message for all consumers of that
        stream, and then delete it from the dead-letter stream. Return the ack of the append.

        If the call is interrupted, repeat it: the message is appended only once within the stream's
        `dedupe_window_seconds`.

        Raises NotFoundError if the letter no longer exists.
        """
        return self._background.run(
            self._consumer.requeue(letter, timeout_seconds=timeout_seconds)
        )

    def info(self, *, timeout_seconds: float | None = None) -> ConsumerInfo:
        """Return the state of the consumer. Creates the consumer if it does not exist."""
        return self._background.run(self._consumer.info(timeout_seconds=timeout_seconds))

    def delete(self, *, timeout_seconds: float | None = None) -> bool:
        """Delete the consumer and its record of deliveries. Return False if it did not exist.

        The next use of a handle with this name creates a new consumer, which begins at its
        `start_seq`.
        """
        return self._background.run(self._consumer.delete(timeout_seconds=timeout_seconds))
