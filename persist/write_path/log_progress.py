"""How far the commit log of an incarnation has come: what is written, and what of that is
durable."""

from __future__ import annotations

import asyncio


class LogProgress:
    """The ticks in the log of one incarnation. The pipeline writes it, everybody else reads it."""

    def __init__(self) -> None:
        #: The last tick in the log, and the last one that is durable.
        self.written_tick = 0
        self.synced_tick = 0
        #: Bytes in the log that no sync covers.
        self.unsynced_bytes = 0
        self._next_sync = asyncio.Event()

    @property
    def is_synced(self) -> bool:
        """Everything written is durable."""
        return self.written_tick <= self.synced_tick

    @property
    def next_sync(self) -> asyncio.Event:
        """Set by the next sync."""
        return self._next_sync

    def wrote(self, tick: int, size_bytes: int) -> None:
        """`tick` is in the log, which has grown by so much."""
        self.written_tick = tick
        self.unsynced_bytes += size_bytes

    def synced(self, tick: int, size_bytes: int) -> None:
        """The log is durable up to `tick`: so many bytes more."""
        self.synced_tick = tick
        self.unsynced_bytes -= size_bytes
        self._next_sync.set()
        self._next_sync = asyncio.Event()

    async def reaches(self, tick: int) -> None:
        """Return once `tick` is durable."""
        while self.synced_tick < tick:
            await self._next_sync.wait()
