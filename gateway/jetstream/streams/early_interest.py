"""What hears the subjects of a stream while it is being created.

Creating a stream takes its gateway some round trips. What is published meanwhile would find no
responders; it is held instead, in order, and stored once the stream is served. If no stream comes
of it, what was held is dropped, as a message is that nobody answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from holdfast.gateway.jetstream.wire.ports import (
    ClientPort,
    PortMessage,
    PortSubscription,
    Together,
)

#: What is held at most of one stream; more is dropped.
MAX_HELD_MESSAGES: Final = 1024
MAX_HELD_BYTES: Final = 1 << 20


class EarlyInterest:
    """The subscriptions of one stream to be. `begin` it, then `hand_over` or `cancel`."""

    def __init__(self, client: ClientPort, subjects: Sequence[str]) -> None:
        self.subjects = tuple(subjects)
        self._client = client
        self._subscriptions: dict[str, PortSubscription] = {}
        self._held: list[PortMessage] = []
        self._held_bytes = 0
        #: Who receives, once the stream is served.
        self._receive: Callable[[PortMessage], None] | None = None
        self._receive_together: Together | None = None

    async def begin(self) -> None:
        """Listen, without a round trip: in force before anything that this connection publishes
        from now on, such as the answer to who creates the stream. Raises HoldfastError."""
        for subject in self.subjects:
            self._subscriptions[subject] = await self._client.subscribe(
                subject, self._heard, together=self._heard_together
            )

    def hand_over(
        self, receive: Callable[[PortMessage], None], together: Together
    ) -> dict[str, PortSubscription]:
        """Have `receive` called with what was held, and both with what comes, as by `subscribe`.
        Give the subscriptions away."""
        self._receive, self._receive_together = receive, together
        held, self._held = self._held, []
        for message in held:
            receive(message)
        subscriptions, self._subscriptions = self._subscriptions, {}
        return subscriptions

    async def cancel(self) -> None:
        """Listen no more, unless it was handed over."""
        subscriptions, self._subscriptions = self._subscriptions, {}
        self._held.clear()
        for subscription in subscriptions.values():
            await subscription.unsubscribe()

    def _heard_together(self, messages: list[PortMessage]) -> bool:
        return self._receive_together is not None and self._receive_together(messages)

    def _heard(self, message: PortMessage) -> None:
        if self._receive is not None:
            self._receive(message)
            return
        size_bytes = len(message.subject) + len(message.headers) + len(message.payload)
        if (
            len(self._held) < MAX_HELD_MESSAGES
            and self._held_bytes + size_bytes <= MAX_HELD_BYTES
        ):
            self._held.append(message)
            self._held_bytes += size_bytes
