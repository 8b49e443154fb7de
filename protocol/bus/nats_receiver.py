"""Takes what a connection to a nats-server receives, in the turn of the loop in which it arrives.

asyncio's StreamReader would keep the bytes until a task of the reader runs, a turn later. That task
costs more than parsing a message, and a lone request passes three connections. So once a connection
is logged in, `receive` takes the place of nats-py's reader, whose protocol only hears how writing
goes on from then on.

A receiver may `rest` after a piece: it reads nothing for a while, and then takes what has gathered
in the socket at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

#: Takes a piece, and returns how many seconds to rest after it.
Take = Callable[[bytes], float]


class Receiver(asyncio.Protocol):
    """The protocol of a connection from its login on. `ended` gets the reason when it ends: None if
    the server has closed it."""

    def __init__(
        self, transport: asyncio.Transport, before: asyncio.StreamReaderProtocol, take: Take
    ) -> None:
        """`before` is the present protocol. What it has received, and its reader has not taken, is
        for the caller."""
        self._transport = transport
        self._before = before
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._resuming: asyncio.TimerHandle | None = None
        self.ended: asyncio.Future[Exception | None] = self._loop.create_future()

    def end(self, reason: Exception | None) -> None:
        """Take nothing more. Idempotent."""
        if self._resuming is not None:
            self._resuming.cancel()
            self._resuming = None
        if not self.ended.done():
            self.ended.set_result(reason)

    def data_received(self, data: bytes) -> None:
        if self.ended.done():
            return
        try:
            rest_seconds = self._take(data)
        except Exception as error:  # noqa: BLE001 (whoever waits for the end raises it)
            self.end(error)
            return
        if rest_seconds > 0 and self._resuming is None and not self._transport.is_closing():
            self._transport.pause_reading()
            self._resuming = self._loop.call_later(rest_seconds, self.end_rest)

    def eof_received(self) -> bool | None:
        self.end(None)
        return self._before.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(exc)
        self._before.connection_lost(exc)

    def pause_writing(self) -> None:
        self._before.pause_writing()

    def resume_writing(self) -> None:
        self._before.resume_writing()

    def end_rest(self) -> None:
        """Read again."""
        if self._resuming is not None:
            self._resuming.cancel()
            self._resuming = None
            if not self._transport.is_closing():
                self._transport.resume_reading()
