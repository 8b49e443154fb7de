"""Connections of HTTP clients, with limits on how long and how large a request's head may be, on
what surrounds its body, and on how long a client may leave an answer unread.

uvicorn limits none of these: a client that sends one byte a minute, headers or trailers without an
end, or pings whose answers it does not read, would keep its connection, or fill the memory.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from holdfast.gateway.http.events.event_connection import (
    STALLED_SECONDS,
    TAKE_OVER,
    EventConnection,
)

#: From the first byte of a request, or from the connection, to the end of its headers.
HEAD_SECONDS: Final = 20.0
MAX_HEAD_BYTES: Final = 64 * 1024
#: What may surround each byte of a chunked body: the smallest chunks take 5 bytes for one. Trailers
#: and extensions of chunks, which nobody reads, must fit too, or in MAX_HEAD_BYTES.
_FRAMING_RATIO: Final = 8
#: Above any batch of events that a follower may leave unread for a while.
_MAX_UNREAD_BYTES: Final = 4 * 1024 * 1024

_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


class ReaderWatch:
    """Ends the connection of a client that leaves what is sent to it unread for too long."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def paused(self, transport: asyncio.Transport) -> None:
        """More is unread than the buffers hold."""
        if self._timer is None:
            self._timer = self._loop.call_later(STALLED_SECONDS, transport.abort)

    def resumed(self) -> None:
        """The client reads again, or the connection is somebody else's."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class GuardedConnection(HttpToolsProtocol):
    """One connection."""

    _reading_head = True
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None
    #: Whether a body is being read; what has come of it, and what surrounded that.
    _reading_body = False
    _body_bytes = 0
    _framing_bytes = 0
    _reader: ReaderWatch | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for a request."""
        super().connection_made(cast("asyncio.Transport", transport))
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._end_waiting()
        self._end_watching()
        super().connection_lost(exc)
        self._forget_scope()

    def data_received(self, data: bytes) -> None:
        """Parse what came, and close the connection if a head gets too large."""
        was_reading_head, was_reading_body = self._reading_head, self._reading_body
        body_bytes = self._body_bytes
        super().data_received(data)
        # A WebSocket has taken the connection over, and has limits of its own.
        is_handed_over = self.transport.get_protocol() is not self
        if is_handed_over or self.transport.is_closing():
            if is_handed_over:
                self._end_watching()
            return
        if was_reading_head and self._reading_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.transport.write(_TOO_LARGE)
                self.transport.close()
                return
        if was_reading_body and self._reading_body and self._body_bytes >= body_bytes:
            self._framing_bytes += len(data) - (self._body_bytes - body_bytes)
            if self._framing_bytes > MAX_HEAD_BYTES + _FRAMING_RATIO * self._body_bytes:
                # An answer may have begun, so nothing can be said.
                self.transport.abort()
                return
        cycle: Any = self.cycle
        if self._head_timer is None and (cycle is None or cycle.response_complete):
            self._await_head()

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        scope: Any = self.scope
        scope["extensions"] = {TAKE_OVER: self.take_over}
        self._reading_head = True
        self._head_bytes = 0
        self._await_head()

    def on_headers_complete(self) -> None:
        """Serve a request."""
        self._reading_head = False
        self._reading_body = True
        self._body_bytes = self._framing_bytes = 0
        self._end_waiting()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        self._reading_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request, by the time that connections may be silent."""
        super().on_response_complete()
        self._end_waiting()

    def pause_writing(self) -> None:
        """Wait for the client, but not for ever."""
        super().pause_writing()
        if self._reader is None:
            self._reader = ReaderWatch(self.loop)
        self._reader.paused(self.transport)

    def resume_writing(self) -> None:
        """Go on: the client reads."""
        super().resume_writing()
        self._end_watching()

    def take_over(self) -> EventConnection | None:
        """Give the connection away, in the middle of a chunked answer: the request's task need not
        end the answer any more. None: it is closing."""
        cycle: Any = self.cycle
        if self.transport.is_closing() or cycle.disconnected:
            return None
        self._end_waiting()
        self._end_watching()
        self._unset_keepalive_if_required()
        self.flow.resume_reading()
        paused = self.flow.write_paused
        taken = EventConnection(self.transport, self.connections, is_paused=paused)
        self.connections.discard(self)
        self.connections.add(cast("Any", taken))
        self.transport.set_protocol(taken)
        # To the server, the client is gone.
        cycle.disconnected = True
        cycle.message_event.set()
        self.pipeline.clear()
        self.parser = cast("Any", None)
        self._forget_scope()
        return taken

    def _forget_scope(self) -> None:
        # It leads back to this connection, which would be garbage in a circle.
        scope: Any = self.scope
        if scope is not None:
            scope.pop("extensions", None)
            self.scope = cast("Any", None)

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _end_watching(self) -> None:
        if self._reader is not None:
            self._reader.resumed()

    def _end_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class GuardedWebSocket(WebSocketsSansIOProtocol):
    """One WebSocket. While its client does not read, nothing is read of the client either: each of
    its pings has an answer."""

    _reader: ReaderWatch | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        if self._reader is not None:
            self._reader.resumed()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait for the client, but not for ever."""
        super().pause_writing()
        self.transport.pause_reading()
        if self._reader is None:
            self._reader = ReaderWatch(self.loop)
        self._reader.paused(self.transport)

    def handle_ping(self) -> None:
        """Answer a ping, unless the client has left too many answers unread."""
        if self.transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
            self.transport.abort()
        super().handle_ping()

    def resume_writing(self) -> None:
        """Go on: the client reads."""
        super().resume_writing()
        if self._reader is not None:
            self._reader.resumed()
        if not self.read_paused:
            self.transport.resume_reading()
