"""Clients that never finish a request's head, and those that finish it late."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from holdfast.gateway.http import connections
from holdfast.gateway.http.connections import MAX_HEAD_BYTES, GuardedConnection, GuardedWebSocket
from holdfast.gateway.http.events.event_connection import EventConnection


class Wire(asyncio.Transport):
    """Where the bytes of a connection go."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.closed = asyncio.Event()
        self.protocol: asyncio.BaseProtocol | None = None
        self.reads = True
        self.unread_bytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += bytes(data)

    def close(self) -> None:
        self.closed.set()

    def abort(self) -> None:
        self.closed.set()

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def get_write_buffer_size(self) -> int:
        return self.unread_bytes

    def is_closing(self) -> bool:
        return self.closed.is_set()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self.protocol is not None
        return self.protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


def connected(app: Any, *, websocket: bool = False) -> tuple[Any, Wire, ServerState]:
    config = uvicorn.Config(app, lifespan="off", log_config=None, ws="none", loop="none")
    config.load()
    state, wire = ServerState(), Wire()
    kind: Any = GuardedWebSocket if websocket else GuardedConnection
    connection = kind(config=config, server_state=state, app_state={})
    wire.protocol = connection
    connection.connection_made(wire)
    return connection, wire, state


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("no request came")


async def test_a_head_that_comes_a_byte_at_a_time_ends_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.02)
    connection, wire, _ = connected(_nothing)
    for byte in b"GET / HTTP/1.1\r\nX":
        connection.data_received(bytes([byte]))
    async with asyncio.timeout(10):
        await wire.closed.wait()
    connection.connection_lost(None)


_CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("endless", [b"1\r\na\r\n0\r\nX: " + b"a" * 999, b"1;x=" + b"a" * 999])
async def test_trailers_and_extensions_without_an_end_close_their_connection(
    endless: bytes,
) -> None:
    connection, wire, _ = connected(_reads_everything)
    connection.data_received(_CHUNKED + endless)
    sent = 0
    while not wire.closed.is_set():
        connection.data_received(b"a" * 4096)
        sent += 4096
        assert sent <= 2 * MAX_HEAD_BYTES
    connection.connection_lost(None)


async def test_a_body_of_the_smallest_chunks_passes() -> None:
    connection, wire, _ = connected(_reads_everything)
    connection.data_received(_CHUNKED)
    for _ in range(200):
        connection.data_received(b"1\r\na\r\n" * 100)
    connection.data_received(b"0\r\n\r\n")
    async with asyncio.timeout(10.0):
        while not wire.sent:
            await asyncio.sleep(0)
    assert wire.sent.startswith(b"HTTP/1.1 200") and wire.sent.endswith(b"20000")
    connection.connection_lost(None)


async def _reads_everything(scope: Any, receive: Any, send: Any) -> None:
    size_bytes, more = 0, True
    while more:
        event = await receive()
        size_bytes += len(event.get("body", b""))
        more = event.get("more_body", False)
    body = str(size_bytes).encode()
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def test_a_reader_that_takes_nothing_loses_its_connection_and_a_slow_one_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "STALLED_SECONDS", 0.01)
    for kind in ("http", "websocket"):
        for takes in (True, False):
            connection, wire, _ = connected(_nothing, websocket=kind == "websocket")
            connection.pause_writing()
            if takes:
                connection.resume_writing()
                await asyncio.sleep(0.02)
                assert not wire.closed.is_set()
            else:
                async with asyncio.timeout(10.0):
                    await wire.closed.wait()
            connection.connection_lost(None)


async def test_pings_whose_answers_nobody_reads_end_the_websocket() -> None:
    connection, wire, _ = connected(_nothing, websocket=True)
    connection.pause_writing()
    assert not wire.reads
    wire.unread_bytes = 100_000_000
    connection.handle_ping()
    assert wire.closed.is_set()
    connection.connection_lost(None)


async def test_a_head_without_an_end_is_refused() -> None:
    connection, wire, _ = connected(_nothing)
    connection.data_received(b"GET / HTTP/1.1\r\nX: ")
    while not wire.is_closing():
        assert len(wire.sent) == 0
        connection.data_received(b"a" * 4096)
    assert wire.sent.startswith(b"HTTP/1.1 431 ")
    assert MAX_HEAD_BYTES < 1 << 20
    connection.connection_lost(None)


async def test_a_connection_that_was_taken_over_outlives_its_request_and_still_counts() -> None:
    taken: list[EventConnection] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        taken.append(scope["extensions"]["holdfast.take_over"]())

    connection, wire, state = connected(app)
    connection.data_received(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    async with asyncio.timeout(10):
        await asyncio.gather(*state.tasks)
    [follower] = taken
    assert wire.protocol is follower and state.connections == {follower}
    assert not wire.is_closing() and wire.sent.endswith(b"1\r\nx\r\n")
    follower.shutdown()
    assert wire.sent.endswith(b"1\r\nx\r\n0\r\n\r\n") and wire.is_closing()
    follower.connection_lost(None)
    assert not state.connections
