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
    """A message that this worker has, until its ack wait is over.

    A large value does not come along: `message.large` stands for it, and `get_reader` or `get_file` of
    the stream, given `message`, reads it. `in_progress` asks for more time meanwhile.
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
        """The message. Reading its `value` may raise ValueUnreadableError: give such work up by `term`."""
        return self._delivery.message

    def ack(self) -> bool:
        """The work is done: the message is not delivered again.

        Returns False if it was done with before: acknowledged by another worker that had it later,
        or given up. Acks of several threads travel as one operation.
        """
        return self._background.run(self._delivery.ack())

    def nak(self, delay_seconds: float = 0) -> bool:
        """Hand it back: it is delivered again, at once or after `delay_seconds`.

        Returns False if this delivery is not the current one any more; nothing has changed then.
        """
        return self._background.run(self._delivery.nak(delay_seconds))

    def in_progress(self) -> bool:
        """Ask for more time: the ack wait begins again. Returns as `nak` does."""
        return self._background.run(self._delivery.in_progress())

    def term(self) -> bool:
        """Give it up: nobody can do this work, so it is not delivered again. It goes to the consumer's
        `dead_letter` stream, if it has one. Returns as `nak` does.
        """
        return self._background.run(self._delivery.term())


class Consumer(Generic[V]):
    """A handle on one consumer of a stream; made by `Stream.consumer`. No round trip until used.

    It is made in the stream when a handle is first used, with the settings of that handle; a later
    handle's settings change it, and what it leaves out stays as it is. One handle may be used by
    many threads. While it waits, it follows the stream: end that with `with` or `close()`, or
    drop the handle.

    Methods raise NotFoundError once the consumer was deleted, and what those of Stream raise.
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
        """Stop following the stream and let every fetch return. Idempotent. The consumer stays, and
        what was delivered and not acknowledged is delivered again in its time.
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
        """Return up to `batch` messages for this worker, as soon as there is one; an empty list after
        `max_wait_seconds` (0: what there is now).

        Those that are due again come first, then the next ones of the stream in order. Each is this
        worker's for `ack_wait_seconds` from when the owner delivered it. If the call fails or is
        cancelled, what it was about to return is delivered again after that time. Large values do
        not come along: `message.large` stands for one, and `Stream.get_reader` reads it.
        `timeout_seconds` is for each request.
        """
        fetch = self._consumer.fetch(
            batch, max_wait_seconds=max_wait_seconds, timeout_seconds=timeout_seconds
        )
        return [Delivery(self._background, each) for each in self._background.run(fetch)]

    def deliveries(self, batch: int = 1) -> Iterator[Delivery[V]]:
        """Yield messages for this worker, one by one and without end, until `close`.

        With a `batch` above 1 so many are fetched at once: the ack wait of the last of them runs
        while the first is worked on.
        """
        while not self._consumer._feed.closed:
            yield from self.fetch(batch, max_wait_seconds=60.0)

    def __iter__(self) -> Iterator[Delivery[V]]:
        return self.deliveries()

    def ack(self, deliveries: Iterable[Delivery[V]]) -> list[bool]:
        """Acknowledge several deliveries in one operation; return of each what `Delivery.ack` does."""
        return self._background.run(self._consumer.ack([each._delivery for each in deliveries]))

    def dead_letters(self, *, timeout_seconds: float | None = None) -> Rows[DeadLetter[V]]:
        """Yield what this consumer gave up and its `dead_letter` stream has, the oldest first.

        Pages as `Stream.get_all`; nothing without a `dead_letter` stream.
        """
        return Rows(self._background, self._consumer._dead_pages(timeout_seconds))

    def requeue(self, letter: DeadLetter[Any], *, timeout_seconds: float | None = None) -> Ack:
        """Append a dead letter to its stream again, as a new message for all consumers of that, then
        delete it from the dead-letter stream; return the ack of the append.

        A call that is cut short may be repeated: the message is appended once within the stream's
        `dedupe_window_seconds`. Raises NotFoundError if the letter is not there any more.
        """
        return self._background.run(
            self._consumer.requeue(letter, timeout_seconds=timeout_seconds)
        )

    def info(self, *, timeout_seconds: float | None = None) -> ConsumerInfo:
        """Return where the consumer stands; it is made if there is none."""
        return self._background.run(self._consumer.info(timeout_seconds=timeout_seconds))

    def delete(self, *, timeout_seconds: float | None = None) -> bool:
        """Delete the consumer, with all that it knows of deliveries; return False if there was none.

        A new one of this name, made by a handle's next use, begins at its `start_seq` again.
        """
        return self._background.run(self._consumer.delete(timeout_seconds=timeout_seconds))
