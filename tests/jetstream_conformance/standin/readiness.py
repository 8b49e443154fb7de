"""When a nats-server listens, and when the gateway beside it serves all streams."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

_READY_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.01
#: The event that a gateway logs once requests are answered and its streams are served.
_SERVING: Final = b"jetstream.serving"


async def until_listening(port: int) -> None:
    """Return once a nats-server greets on the port. Raises TimeoutError."""
    async with asyncio.timeout(_READY_SECONDS):
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(_POLL_SECONDS)
                continue
            try:
                if (await reader.readline()).startswith(b"INFO "):
                    return
            finally:
                writer.close()


async def until_serving(log: Path, offset: int) -> None:
    """Return once the gateway that logs there, from `offset` on, says that it serves all streams.
    Nothing asks it: tests count what it was asked. Raises TimeoutError."""
    async with asyncio.timeout(_READY_SECONDS):
        while True:
            try:
                with log.open("rb") as file:
                    file.seek(offset)
                    if _SERVING in file.read():
                        return
            except FileNotFoundError:
                pass
            await asyncio.sleep(_POLL_SECONDS)
