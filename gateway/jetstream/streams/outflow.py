"""Bulk that goes out over a connection waits here until nats-server takes more of it."""

from __future__ import annotations

import asyncio

from holdfast.gateway.jetstream.wire.ports import Port


class Outflow:
    """Who waits for one connection."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._waiting: list[asyncio.Future[None]] = []
        port.on_writable(self._wake)

    async def until_writable(self) -> None:
        """Return once the connection takes more, at once if it does."""
        while not self._port.writable:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
