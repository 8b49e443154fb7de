"""How other gateways see this one, by its own heartbeats: those that come back have reached the
others, too.

A gateway is taken for dead after DEAD_LOOKS heartbeats that are missing. So while its own ones have
come back without such a gap, nobody can have taken it for dead. After a gap, as when it was stopped
or NATS did not reach it, that is sure only from when the next heartbeat has come back; what
happened before, only an owner knows. Those that were held up on their way come back together: they
close no gap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from holdfast.gateway.jetstream.serving.live_gateways import DEAD_LOOKS, HEARTBEAT_SECONDS
from holdfast.gateway.jetstream.streams.delivery_fence import Presence
from holdfast.gateway.jetstream.wire.ports import ClientPort

#: How old the last heartbeat that has come back may be: one less than others miss before they take
#: this gateway for dead, and the rest of a look.
SURE_SECONDS: Final = (DEAD_LOOKS - 1.5) * HEARTBEAT_SECONDS
#: Heartbeats that are on their way at a time, at most.
_MOST_SAID: Final = 64


class GatewayPresence(Presence):
    """This gateway, as the others see it. `is_own` tells whether a stream hashes to it."""

    def __init__(self, client: ClientPort, is_own: Callable[[str], bool]) -> None:
        self._client = client
        self._is_own = is_own
        self._time = asyncio.get_running_loop().time
        self._said: dict[int, float] = {}
        self._number = 0
        self._since = float("inf")
        self._sure_until = float("-inf")
        client.on_reconnect(self._lost)

    def said(self) -> int:
        """A heartbeat is about to be sent: return its number."""
        self._number += 1
        self._said[self._number] = self._time()
        if len(self._said) > _MOST_SAID:
            del self._said[next(iter(self._said))]
        return self._number

    def came_back(self, number: int) -> None:
        """This heartbeat was heard by this gateway itself."""
        said_at = self._said.pop(number, None)
        if said_at is None:
            return
        now = self._time()
        if now > self._sure_until:
            # Before its first heartbeat it had no stream that could be taken from it.
            self._since = said_at if self._since == float("inf") else now
        self._sure_until = max(self._sure_until, said_at + SURE_SECONDS)

    @property
    def hears(self) -> bool:
        """Whether what NATS delivers reaches this gateway: its heartbeats come back."""
        return self._client.connected and self._time() <= self._sure_until

    def sure_since(self, stream: str) -> float:
        return self._since if self.hears and self._is_own(stream) else float("inf")

    def _lost(self) -> None:
        """The connection was lost: for others, this gateway was dead."""
        self._said.clear()
        self._sure_until = float("-inf")
