"""A connection that carries server-sent events and nothing else.

A request is served by a task with a dozen objects. A follower that waits needs none of it: once its
answer has begun and it has what exists, `take_over` of `connections.py` puts this in place of the
server's protocol, and the request's task ends. Ten thousand of them take some 30 MB.

What the follower sends is ignored. What it does not take fills a buffer of the transport, which
tells `is_paused`: nobody may write then, so the buffer is bounded by one event more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableSet
from typing import Any, Final

#: The extension of a request's scope that gives its connection away.
TAKE_OVER: Final = "holdfast.take_over"
#: How long a follower may take nothing at all, with events waiting for it.
STALLED_SECONDS: Final = 60.0
_LAST_CHUNK: Final = b"0\r\n\r\n"


def framed(events: bytes) -> bytes:
    """Return events as one chunk of a chunked answer."""
    return b"%x\r\n%b\r\n" % (len(events), events)


class EventConnection(asyncio.Protocol):
    """One follower's connection. Made by `take_over`; `owner` may set what is public."""

    __slots__ = (
        "_connections", "_transport", "_waiting", "end_at", "farewell", "is_open", "is_paused",
        "on_lost", "place", "variant",
    )

    def __init__(
        self, transport: asyncio.Transport, connections: MutableSet[Any], *, is_paused: bool
    ) -> None:
        self._transport = transport
        self._connections = connections
        self._waiting: asyncio.Future[None] | None = None
        self.is_open = not transport.is_closing()
        self.is_paused = is_paused
        #: Called once when the connection is gone.
        self.on_lost: Callable[[EventConnection], None] | None = None
        #: Where the follower is, when the events shall end, and which of several forms it gets.
        self.place = 0
        self.end_at = 0.0
        self.variant: str | None = None
        #: A last event, for when the gateway stops.
        self.farewell = b""

    def write(self, frame: bytes) -> None:
        """Send what `framed` made."""
        self._transport.write(frame)

    async def drained(self) -> bool:
        """Return once it may be written again; False if it is gone, or takes nothing."""
        if self.is_paused and self.is_open:
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(STALLED_SECONDS):
                    await self._waiting
            except TimeoutError:
                self._transport.abort()
                return False
            finally:
                self._waiting = None
        return self.is_open

    def end(self) -> None:
        """End the events as an answer ends. Idempotent."""
        if self.is_open and not self._transport.is_closing():
            self._transport.write(_LAST_CHUNK)
            self._transport.close()

    def shutdown(self) -> None:
        """End because the gateway stops: the server calls it."""
        if self.is_open and not self._transport.is_closing():
            if self.farewell:
                self._transport.write(framed(self.farewell))
            self.end()

    def pause_writing(self) -> None:
        """Note that the follower does not take what was sent."""
        self.is_paused = True

    def resume_writing(self) -> None:
        """Note that it does."""
        self.is_paused = False
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the owner."""
        self.is_open = False
        self._connections.discard(self)
        self._wake()
        on_lost, self.on_lost = self.on_lost, None
        if on_lost is not None:
            on_lost(self)

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
