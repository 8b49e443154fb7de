"""Answers `/healthz`, `/readyz` and `/metrics` over HTTP, from the loop of the part itself.

    /healthz   200 while the event loop turns: whoever gets no answer may restart the process
    /readyz    200 while the part does its work; 503 and a line that says why it does not
    /metrics   what it counts, in the text format of Prometheus

Nothing is read from a disk, and no other part is asked. It is made for probes and scrapers: one
request for each connection, few connections, small requests, little time; whatever is wrong with
one is answered, or closes that connection. On loopback only requests that name a loopback address
are answered, so that no web page can read it by way of a name that it controls. There is no login:
bind it where only those can connect who may read it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ipaddress
import logging
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from typing import Final, NamedTuple

from holdfast.protocol.distribution import how_to_install
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.monitoring.counting import Statistics
from holdfast.protocol.serving.mishaps import Mishaps
from holdfast.protocol.serving.process_numbers import count_process

logger = logging.getLogger("holdfast.serving")

#: The head of a request: those of scrapers have a few hundred bytes.
MAX_HEAD_BYTES: Final = 8192
MAX_CONNECTIONS: Final = 32
#: For the whole of a request and its answer.
TIMEOUT_SECONDS: Final = 5.0
_TEXT: Final = "text/plain; charset=utf-8"


class MonitorAddress(NamedTuple):
    """Where a monitor listens; port 0 picks a free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> MonitorAddress:
        """Return the address `HOST:PORT`. Raises argparse.ArgumentTypeError."""
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65_535:
            raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:9464")
        return cls(host.strip("[]") or "127.0.0.1", int(port))


class _Answer(NamedTuple):
    status: HTTPStatus
    body: bytes
    content_type: str = _TEXT


class Monitor:
    """The monitor of one process. Without an address nobody listens."""

    def __init__(self, address: MonitorAddress | None) -> None:
        self._address = address
        self._statistics: Statistics | None = None
        #: Of other work in this process.
        self._beside: Statistics | None = None
        self._why_unready: Callable[[], str] = lambda: "it starts"
        self._connections = 0
        self._mishaps = Mishaps(logger)
        #: The port, once it listens.
        self.port = 0
        self._is_on_loopback = True

    def watch(self, statistics: Statistics, why_unready: Callable[[], str]) -> None:
        """Answer from now on with these numbers; `why_unready` returns why the part does not do its
        work, or nothing if it does."""
        count_process(statistics)
        self._statistics = statistics
        self._why_unready = why_unready

    def beside(self) -> Monitor:
        """Return the monitor of other work in this process: its numbers are told here, with those
        of this part. Whether the process is ready is for this part alone to say."""
        return _MonitorBeside(self)

    def watch_beside(self, statistics: Statistics) -> None:
        """Tell these numbers as well, in place of those of such work before it."""
        count_process(statistics)
        self._beside = statistics

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Listen while the body runs. Raises InvalidArgumentError."""
        if self._address is None:
            yield
            return
        _need_package()
        host, port = self._address
        try:
            server = await asyncio.start_server(self._serve, host, port, limit=MAX_HEAD_BYTES)
        except OSError as error:
            reason = f"cannot listen on {host}:{port}: {error.strerror or error}. Try: another port"
            raise InvalidArgumentError(argument="--monitor", reason=reason) from error
        async with server:
            bound = server.sockets[0].getsockname()
            self.port = bound[1]
            self._is_on_loopback = ipaddress.ip_address(bound[0]).is_loopback
            logger.info("monitor.listening host=%s port=%d", bound[0], self.port)
            yield

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, and close the connection."""
        if self._connections >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        self._connections += 1
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                method, answer = await self._answer(reader)
                writer.write(_encoded(answer, with_body=method != b"HEAD"))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, EOFError):
            # The peer went, or says or takes too little: there is nobody to answer.
            pass
        finally:
            self._connections -= 1
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[bytes, _Answer]:
        """Read a request; return its method and the answer. Raises EOFError."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return b"", _refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        request, *headers = head[:-4].split(b"\r\n")
        words = request.split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1.") or not words[1].startswith(b"/"):
            return b"", _refusal(HTTPStatus.BAD_REQUEST)
        method, target, _ = words
        if method not in (b"GET", b"HEAD"):
            return method, _refusal(HTTPStatus.METHOD_NOT_ALLOWED)
        hosts = [
            value.strip() for name, _, value in (each.partition(b":") for each in headers)
            if name.lower() == b"host"
        ]
        if self._is_on_loopback and not all(map(_is_own_host, hosts)):
            return method, _refusal(HTTPStatus.FORBIDDEN)
        try:
            return method, self._page(target.partition(b"?")[0])
        except Exception as error:  # noqa: BLE001 (answered to this request)
            self._mishaps.note("monitor.failed", target[:80], error)
            return method, _refusal(HTTPStatus.INTERNAL_SERVER_ERROR)

    def _page(self, path: bytes) -> _Answer:
        if path == b"/healthz":
            return _Answer(HTTPStatus.OK, b"alive\n")
        if path == b"/readyz":
            why = self._why_unready()
            if why:
                return _Answer(HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: {why}\n".encode())
            return _Answer(HTTPStatus.OK, b"ready\n")
        if path != b"/metrics":
            return _refusal(HTTPStatus.NOT_FOUND)
        if self._statistics is None:
            return _Answer(HTTPStatus.SERVICE_UNAVAILABLE, b"not ready: it starts\n")
        from holdfast.protocol.serving.exposition import CONTENT_TYPE, exposition

        return _Answer(HTTPStatus.OK, exposition(self._statistics, self._beside), CONTENT_TYPE)


class _MonitorBeside(Monitor):
    """What other work in the process of a part has for a monitor."""

    def __init__(self, of_part: Monitor) -> None:
        super().__init__(None)
        self._of_part = of_part

    def watch(self, statistics: Statistics, why_unready: Callable[[], str]) -> None:
        self._of_part.watch_beside(statistics)


def _is_own_host(host: bytes) -> bool:
    """Tell whether a `Host` names this machine itself: by an address, or as localhost."""
    name = host.decode("latin-1").rpartition(":")[0] if _has_port(host) else host.decode("latin-1")
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def _has_port(host: bytes) -> bool:
    return host.rpartition(b":")[2].isdigit() and not host.endswith(b"]")


def _refusal(status: HTTPStatus) -> _Answer:
    return _Answer(status, f"{status.phrase}\n".encode())


def _encoded(answer: _Answer, *, with_body: bool) -> bytes:
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\n"
        "Cache-Control: no-store\r\n"
        "X-Content-Type-Options: nosniff\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (answer.body if with_body else b"")


def _need_package() -> None:
    """Raise InvalidArgumentError if there is no prometheus-client."""
    try:
        # Now, and not while something else waits for the loop.
        import holdfast.protocol.serving.exposition as _  # noqa: F401
    except ModuleNotFoundError as error:
        reason = f"it needs prometheus-client. Try: {how_to_install('server')}"
        raise InvalidArgumentError(argument="--monitor", reason=reason) from error
