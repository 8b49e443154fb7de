"""How far the commit log of an incarnation has come: what is written, and what is durable."""

from __future__ import annotations

import asyncio


class LogProgress:
    """The ticks in the log of one incarnation. Only the pipeline updates it."""

    def __init__(self) -> None:
        #: The last tick in the log, and the last durable one.
        self.written_tick = 0
        self.synced_tick = 0
        #: Bytes in the log that no sync covers yet.
        self.unsynced_bytes = 0
        self._next_sync = asyncio.Event()

    @property
    def is_synced(self) -> bool:
        """True if everything written is durable."""
        return self.written_tick <= self.synced_tick

    @property
    def next_sync(self) -> asyncio.Event:
        """An event that the next sync sets."""
        return self._next_sync

    def wrote(self, tick: int, size_bytes: int) -> None:
        """Note that `tick` is in the log, which has grown by `size_bytes`."""
        self.written_tick = tick
        self.unsynced_bytes += size_bytes

    def synced(self, tick: int, size_bytes: int) -> None:
        """Note that the log is durable up to `tick`, which adds `size_bytes` durable bytes."""
        self.synced_tick = tick
        self.unsynced_bytes -= size_bytes
        self._next_sync.set()
        self._next_sync = asyncio.Event()

    async def reaches(self, tick: int) -> None:
        """Return once `tick` is durable."""
        while self.synced_tick < tick:
            await self._next_sync.wait()
