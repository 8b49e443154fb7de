"""HTTP connections of a load generator: as little work for each answer and each event as can be.

They know just enough of HTTP/1.1 for the servers that are measured: one request at a time on an
`HttpConnection`, and a `FollowerConnection` that gets server-sent events for as long as it is open.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, cast

import httptools

_TIMEOUT_SECONDS: Final = 60.0
#: What an event that is measured carries: when it was sent, by the clock of this machine.
_SENT_AT: Final = re.compile(rb"at=(\d+);")


class HttpResponse(NamedTuple):
    """The status of an answer, and its body."""

    status: int
    body: bytes


class HttpConnection(asyncio.Protocol):
    """A connection that is kept, with one request at a time. Made by `connected`."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._answer: asyncio.Future[HttpResponse] | None = None

    async def ask(self, request: bytes) -> HttpResponse:
        """Send a whole request, and return the answer. Raises OSError, TimeoutError."""
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await asyncio.wait_for(self._answer, _TIMEOUT_SECONDS)

    def close(self) -> None:
        """Close it."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the request that waits."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("the server has closed"))

    def on_body(self, part: bytes) -> None:
        """Take a part of the body."""
        self._body.append(part)

    def on_message_complete(self) -> None:
        """Give out the answer."""
        body = b"".join(self._body)
        self._body.clear()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(HttpResponse(self._parser.get_status_code(), body))
        self._parser = httptools.HttpResponseParser(self)


class FollowerConnection(asyncio.Protocol):
    """Follows server-sent events. `took` gets the latency of each event, in seconds."""

    __slots__ = ("_begun", "_request", "_took", "_transport", "is_open")

    def __init__(self, request: bytes, took: Callable[[float], None]) -> None:
        self._request = request
        self._took = took
        self._begun: asyncio.Future[None] | None = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None
        self.is_open = True

    async def begun(self) -> None:
        """Return once the server has begun to answer. Raises OSError, TimeoutError."""
        if self._begun is not None:
            await asyncio.wait_for(self._begun, _TIMEOUT_SECONDS)
            self._begun = None

    def close(self) -> None:
        """Close it."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the events."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Measure what came."""
        if self._begun is not None and not self._begun.done():
            if data.startswith(b"HTTP/1.1 200"):
                self._begun.set_result(None)
            else:
                self._begun.set_exception(OSError(data[:200].decode(errors="replace")))
        now_ns = time.monotonic_ns()
        for sent_at in _SENT_AT.findall(data):
            self._took((now_ns - int(sent_at)) / 1e9)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end."""
        self.is_open = False
        if self._begun is not None and not self._begun.done():
            self._begun.set_exception(exc or ConnectionResetError("the server has closed"))


def stamped(value: bytes) -> bytes:
    """Return a value of the same size that says when it was sent."""
    stamp = b"at=%d;" % time.monotonic_ns()
    return stamp + value[len(stamp) :]


def request_bytes(
    method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> bytes:
    """Return a whole request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1"]
    lines += [f"{name}: {text}" for name, text in (headers or {}).items()]
    if body or method in ("PUT", "POST"):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


async def connected(port: int) -> HttpConnection:
    """Return a connection to a server of this machine. Raises OSError."""
    loop = asyncio.get_running_loop()
    _, protocol = await loop.create_connection(HttpConnection, "127.0.0.1", port)
    return protocol


async def following(
    port: int, request: bytes, took: Callable[[float], None]
) -> FollowerConnection:
    """Return a follower whose answer has begun. Raises OSError, TimeoutError."""
    loop = asyncio.get_running_loop()
    _, protocol = await loop.create_connection(
        lambda: FollowerConnection(request, took), "127.0.0.1", port
    )
    await protocol.begun()
    return protocol
