"""A slow proxy: passes HTTP requests on to an S3 endpoint, each after a fixed latency, and
counts them.

    python -m holdfast.bench.tiers.slow_bucket PORT LATENCY_MS FOLDER

PORT is the endpoint's port on loopback. Once the proxy listens, its own port is in FOLDER/port.
`GET /-/counts` returns the requests so far as JSON: {"<method> <prefix>": [requests, bytes of
bodies sent, seconds]}, where <prefix> is the first part of the object's key, and the seconds are
the total time from a request to the end of its answer. So the server under measurement is
unchanged, and its requests are counted where they would be charged.

It understands only what boto3 and moto use: bodies with a length, and answers with a length or in
chunks. Requests on one connection follow one another, as usual in HTTP/1.1.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

COUNTS_PATH: Final = "/-/counts"
_LIMIT_BYTES: Final = 1 << 20
_NO_BODY: Final = frozenset([b"204", b"304"])


class SlowBucket:
    """Passes on the requests of any number of connections."""

    def __init__(self, port: int, latency_seconds: float) -> None:
        self._port = port
        self._latency_seconds = latency_seconds
        self._counts: Counter[str] = Counter()
        self._sent_bytes: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until either end closes it."""
        upstream: asyncio.StreamWriter | None = None
        try:
            answers, upstream = await asyncio.open_connection(
                "127.0.0.1", self._port, limit=_LIMIT_BYTES
            )
            while await self._pass_on(reader, writer, answers, upstream):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            # The other end has closed the connection, and will make a new one.
            pass
        finally:
            for each in (writer, upstream):
                if each is not None:
                    each.close()

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answers: asyncio.StreamReader,
        upstream: asyncio.StreamWriter,
    ) -> bool:
        """Pass on one request and its answer. Return whether the connections can be used again."""
        head = await reader.readuntil(b"\r\n\r\n")
        began_at = time.monotonic()
        headers = _headers(head)
        method, target, _ = head.split(b" ", 2)
        if target == COUNTS_PATH.encode():
            writer.write(self._told())
            await writer.drain()
            return True
        if headers.get(b"expect", b"").lower() == b"100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            head = b"\r\n".join(
                line for line in head.split(b"\r\n") if not line.lower().startswith(b"expect:")
            )
        body = await reader.readexactly(int(headers.get(b"content-length", b"0")))
        what = _what(method.decode(), target.decode())
        self._counts[what] += 1
        self._sent_bytes[what] += len(body)
        await asyncio.sleep(self._latency_seconds)
        upstream.writelines((head, body))
        await upstream.drain()
        goes_on = await _copy_answer(method, answers, writer)
        self._seconds[what] += time.monotonic() - began_at
        return goes_on

    def _told(self) -> bytes:
        told = {
            what: [count, self._sent_bytes[what], self._seconds[what]]
            for what, count in self._counts.items()
        }
        body = json.dumps(told).encode()
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


async def _copy_answer(
    method: bytes, answers: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bool:
    head = await answers.readuntil(b"\r\n\r\n")
    headers = _headers(head)
    writer.write(head)
    whole = True
    if method == b"HEAD" or head.split(b" ", 2)[1] in _NO_BODY:
        pass
    elif b"content-length" in headers:
        writer.write(await answers.readexactly(int(headers[b"content-length"])))
    elif headers.get(b"transfer-encoding", b"").lower() == b"chunked":
        await _copy_chunks(answers, writer)
    else:
        writer.write(await answers.read())
        whole = False
    await writer.drain()
    return whole and headers.get(b"connection", b"").lower() != b"close"


async def _copy_chunks(answers: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        size = await answers.readuntil(b"\r\n")
        chunk = await answers.readexactly(int(size.split(b";")[0], 16) + 2)
        writer.writelines((size, chunk))
        if chunk == b"\r\n":
            return


def _headers(head: bytes) -> Mapping[bytes, bytes]:
    found = {}
    for line in head.split(b"\r\n")[1:-2]:
        name, _, value = line.partition(b":")
        found[name.strip().lower()] = value.strip()
    return found


def _what(method: str, target: str) -> str:
    """Return the name under which a request is counted. Requests for objects have the
    path /BUCKET/KEY."""
    parts = urlsplit(target)
    key = parts.path.removeprefix("/").partition("/")[2]
    if not key:
        key = parse_qs(parts.query).get("prefix", [""])[0]
        method = "LIST" if method == "GET" else method
    return f"{method} {key.partition('/')[0]}"


async def _main(port: int, latency_ms: float, folder: Path) -> None:
    bucket = SlowBucket(port, latency_ms / 1000)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    server = await asyncio.start_server(bucket.serve, "127.0.0.1", 0, limit=_LIMIT_BYTES)
    draft = folder / "port.new"
    draft.write_text(str(server.sockets[0].getsockname()[1]))
    draft.rename(folder / "port")
    async with server:
        await ended.wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main(int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])))
