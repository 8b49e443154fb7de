"""Connections of HTTP clients: who sends no request in time is cut off, and nobody else."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
import websockets

from holdfast.gateway.http import connections
from holdfast.gateway.http.connections import GuardedConnection


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Accept a WebSocket, and send back what comes."""
    await receive()
    await send({"type": "websocket.accept"})
    while (event := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": event["text"]})


@asynccontextmanager
async def serving() -> AsyncIterator[int]:
    """Serve it on a port of loopback."""
    config = uvicorn.Config(
        echo, http=GuardedConnection, ws="websockets-sansio", lifespan="off", log_config=None
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        task = asyncio.create_task(server.serve(sockets=[listening]))
        yield listening.getsockname()[1]
        server.should_exit = True
        await task


async def test_a_silent_connection_is_closed_and_a_websocket_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.2)
    async with serving() as port, websockets.connect(f"ws://127.0.0.1:{port}/") as following:
        # Both began to wait at about the same time, so the first would be closed before this one.
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()
        await following.send("still here")
        assert await following.recv() == "still here"
