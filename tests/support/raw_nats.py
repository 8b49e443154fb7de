"""A NATS client of raw bytes, which sends what no library lets through."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class RawNats:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def publish(
        self, subject: bytes, payload: bytes = b"", reply: bytes = b"", headers: bytes = b""
    ) -> None:
        """Publish, and return when the server has taken it."""
        fields = [subject, reply] if reply else [subject]
        if headers:
            fields.append(b"%d" % len(headers))
        fields.append(b"%d" % len(headers + payload))
        line = (b"HPUB " if headers else b"PUB ") + b" ".join(fields)
        await self.send(line + b"\r\n" + headers + payload + b"\r\n")

    async def send(self, data: bytes) -> None:
        """Send any bytes, and return when the server has taken them."""
        self._writer.write(data + b"PING\r\n")
        await self._writer.drain()
        while (line := await self._reader.readline()) != b"PONG\r\n":
            assert line, "nats-server has closed the connection"


@asynccontextmanager
async def raw_nats(port: int) -> AsyncIterator[RawNats]:
    """Connect around the body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        raw = RawNats(reader, writer)
        await raw.send(b'CONNECT {"verbose": false, "headers": true, "no_responders": true}\r\n')
        yield raw
    finally:
        writer.close()
