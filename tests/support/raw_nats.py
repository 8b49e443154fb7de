"""A connection to nats-server that sends any bytes: no client library stands in between.

`publication` makes the bytes of one PUB or HPUB without looking at what it is given; nats-server
splits its arguments at spaces and tabs alone. What arrives is parsed as strictly, by byte counts.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

_CONNECT_SECONDS: Final = 5.0
_ANSWER_SECONDS: Final = 10.0


class Arrived(NamedTuple):
    """One message as it arrived."""

    subject: bytes
    reply: bytes
    headers: bytes
    payload: bytes


class RawConnectionError(Exception):
    """nats-server ended the connection, or did not answer in time."""


def publication(
    subject: bytes, payload: bytes = b"", reply: bytes = b"", headers: bytes | None = None
) -> bytes:
    """Return a PUB, or with `headers` an HPUB, of exactly these bytes."""
    parts = [b"PUB" if headers is None else b"HPUB", subject]
    if reply:
        parts.append(reply)
    body = payload
    if headers is not None:
        parts.append(b"%d" % len(headers))
        body = headers + payload
    parts.append(b"%d" % len(body))
    return b" ".join(parts) + b"\r\n" + body + b"\r\n"


def published(data: bytes) -> Iterator[Arrived]:
    """Yield what each PUB and HPUB in `data` publishes, as nats-server reads it."""
    at = 0
    while at < len(data):
        end = data.index(b"\r\n", at)
        words = [word for word in data[at:end].replace(b"\t", b" ").split(b" ") if word]
        at = end + 2
        if words[0] not in (b"PUB", b"HPUB"):
            continue
        with_headers = words[0] == b"HPUB"
        size_bytes = int(words[-1])
        header_bytes = int(words[-2]) if with_headers else 0
        body = data[at : at + size_bytes]
        reply = words[2] if len(words) == (5 if with_headers else 4) else b""
        yield Arrived(words[1], reply, body[:header_bytes], body[header_bytes:])
        at += size_bytes + 2


class RawConnection(asyncio.Protocol):
    """One connection. Made by `connect`; `closed` once nats-server has ended it."""

    def __init__(self, on_message: Callable[[Arrived], None]) -> None:
        self.closed = asyncio.Event()
        #: What nats-server said in `-ERR`, and how often.
        self.errors: dict[str, int] = {}
        self.received_count = 0
        self._on_message = on_message
        self._buffer = bytearray()
        self._pongs: list[asyncio.Future[None]] = []
        self._room = asyncio.Event()
        self._room.set()
        self._transport: asyncio.Transport | None = None
        #: What nats-server says of itself first.
        self._greeting: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    @classmethod
    async def connect(
        cls,
        url: str,
        on_message: Callable[[Arrived], None],
        name: str = "raw",
        token: str | None = None,
        nkey: Path | None = None,
    ) -> RawConnection:
        """Connect to `nats://user:password@host:port`, or with a token or an nkey's file. Raises
        RawConnectionError."""
        parts = urlsplit(url)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                _, connection = await loop.create_connection(
                    lambda: cls(on_message), parts.hostname, parts.port
                )
                options = {
                    "verbose": False,
                    "pedantic": False,
                    "headers": True,
                    "no_responders": True,
                    "user": parts.username,
                    "pass": parts.password,
                    "auth_token": token,
                    "name": name,
                    "lang": "raw",
                    "version": "0",
                    "protocol": 1,
                }
                if nkey is not None:
                    options |= _signed(nkey, (await connection._greeting)["nonce"])
                connection.send(b"CONNECT " + json.dumps(options).encode() + b"\r\n")
                await connection.round_trip()
        except (OSError, TimeoutError) as error:
            raise RawConnectionError(f"no connection to {parts.hostname}: {error!r}") from error
        return connection

    def send(self, data: bytes) -> None:
        """Send any bytes."""
        if self._transport is not None and not self.closed.is_set():
            self._transport.write(data)

    async def publish(
        self, subject: bytes, payload: bytes = b"", reply: bytes = b"", headers: bytes | None = None
    ) -> None:
        """Publish, and return once nats-server has read it. Raises RawConnectionError."""
        self.send(publication(subject, payload, reply, headers))
        await self.round_trip()

    def subscribe(self, subject: bytes, number: int) -> None:
        self.send(b"SUB %s %d\r\n" % (subject, number))

    def stop_reading(self) -> None:
        """Leave what arrives in the socket from now on."""
        if self._transport is not None:
            self._transport.pause_reading()

    async def drain(self) -> None:
        """Return once the socket has room again, or the connection is over."""
        await self._room.wait()

    async def round_trip(self) -> None:
        """Return once nats-server has read what was sent. Raises RawConnectionError."""
        pong = asyncio.get_running_loop().create_future()
        self._pongs.append(pong)
        self.send(b"PING\r\n")
        if self.closed.is_set():
            raise RawConnectionError("nats-server has ended the connection")
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await pong
        except TimeoutError as error:
            raise RawConnectionError("nats-server does not answer") from error

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
        self._room.set()
        for pong in self._pongs:
            if not pong.done():
                pong.set_exception(RawConnectionError("nats-server has ended the connection"))
        self._pongs.clear()

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        at = 0
        while (end := buffer.find(b"\r\n", at)) >= 0:
            after = self._take(bytes(buffer[at:end]), end + 2)
            if after is None:
                break
            at = after
        del buffer[:at]

    def _take(self, line: bytes, body_at: int) -> int | None:
        """Take one line and its body; return where the next one is, None if this is not all
        there."""
        if line.startswith((b"MSG ", b"HMSG ")):
            words = line.split(b" ")
            with_headers = words[0] == b"HMSG"
            size_bytes = int(words[-1])
            if len(self._buffer) < body_at + size_bytes + 2:
                return None
            header_bytes = int(words[-2]) if with_headers else 0
            body = bytes(self._buffer[body_at : body_at + size_bytes])
            reply = words[3] if len(words) == (6 if with_headers else 5) else b""
            self.received_count += 1
            self._on_message(Arrived(words[1], reply, body[:header_bytes], body[header_bytes:]))
            return body_at + size_bytes + 2
        if line == b"PING":
            self.send(b"PONG\r\n")
        elif line.startswith(b"INFO "):
            if not self._greeting.done():
                self._greeting.set_result(json.loads(line[5:]))
        elif line == b"PONG":
            if self._pongs:
                pong = self._pongs.pop(0)
                if not pong.done():
                    pong.set_result(None)
        elif line.startswith(b"-ERR"):
            reason = line[5:40].decode(errors="replace").partition(" to ")[0].strip("' ")
            self.errors[reason] = self.errors.get(reason, 0) + 1
        return body_at


def _signed(nkey: Path, nonce: str) -> dict[str, str]:
    """Return how a user with an nkey answers the greeting."""
    # Only tests with tokens have it.
    import nkeys

    pair = nkeys.from_seed(bytearray(nkey.read_bytes()))
    signature = base64.urlsafe_b64encode(pair.sign(nonce.encode())).rstrip(b"=")
    return {"nkey": pair.public_key.decode(), "sig": signature.decode()}


@asynccontextmanager
async def raw_nats(port: int) -> AsyncIterator[RawConnection]:
    """Connect to nats-server on loopback around the body."""
    connection = await RawConnection.connect(f"nats://127.0.0.1:{port}", lambda message: None)
    try:
        yield connection
    finally:
        connection.close()
