"""nats-py's client, used through its public API only: for versions
that `nats_client.py` does not know.

It is slower and less safe: nats-py's parser takes control characters for spaces, so a peer
that may publish can make such a connection deaf (docs/operations.md). Clients fall back to
it; servers do not start instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from holdfast.protocol.bus.bus import BusCallback, BusMessage, BusSubscription, is_subject
from holdfast.protocol.errors import NotAllowedError

logger = logging.getLogger("holdfast.bus")

_NO_RESPONDERS: Final = "503"


class PublicClient(Client):
    """The counterpart of `nats_client.WatchedClient`."""

    def __init__(self) -> None:
        super().__init__()
        self.on_refused: Callable[[NotAllowedError], None] = lambda error: None

    @property
    def clustered(self) -> bool:
        """Whether the server has told of others."""
        return bool(self.discovered_servers)

    async def send(self, subject: str, payload: bytes, reply: str) -> None:
        """Publish."""
        await self.publish(subject, payload, reply)

    def send_now(self) -> None:
        """Does nothing: a task of nats-py sends."""

    async def listen(self, subject: str, callback: BusCallback) -> BusSubscription:
        """Call `callback` for every message on `subject`, in a task of nats-py."""
        listening = _PublicSubscription(callback)
        listening.subscription = await self.subscribe(subject, cb=listening.arrive)
        return listening

    def start_watching(self) -> None:
        """Does nothing: nats-py's pings watch the connection."""

    def stop_watching(self) -> None:
        """See `start_watching`."""

    def abort(self) -> None:
        """Does nothing: nats-py sends pending data when it closes."""


class _PublicSubscription(BusSubscription):
    subscription: Subscription

    def __init__(self, callback: BusCallback) -> None:
        self._callback: BusCallback | None = callback

    async def arrive(self, message: Msg) -> None:
        if self._callback is None or not is_subject(message.subject):
            return
        reply = message.reply if is_subject(message.reply) else ""
        status = (message.headers or {}).get("Status", "")
        missing = not message.data and status.startswith(_NO_RESPONDERS)
        try:
            self._callback(BusMessage(message.subject, message.data, reply, missing))
        except Exception:
            logger.exception("bus.callback_failed subject=%s", message.subject)

    async def unsubscribe(self) -> None:
        self._callback = None
        try:
            await self.subscription.unsubscribe()
        except (nats.errors.ConnectionClosedError, nats.errors.BadSubscriptionError):
            logger.debug("bus.already_unsubscribed")
