"""What arrives on a bus, collected and waited for."""

from __future__ import annotations

import asyncio

from holdfast.protocol.bus.bus import BusMessage
from holdfast.protocol.errors import ConnectionFailedError

DEADLINE_SECONDS = 10.0


class Received:
    """Collects messages, and waits for them."""

    def __init__(self) -> None:
        self.messages: list[BusMessage] = []
        self._arrived = asyncio.Event()

    def __call__(self, message: BusMessage) -> None:
        self.messages.append(message)
        self._arrived.set()

    async def first(self, count: int) -> list[BusMessage]:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while len(self.messages) < count:
                self._arrived.clear()
                await self._arrived.wait()
        return self.messages[:count]


def unknown_nats_py() -> None:
    """Stands for the check of a nats-py that is not known."""
    raise ConnectionFailedError(url="NATS", reason="this nats-py is not known")
