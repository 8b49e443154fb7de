"""What wakes the coordinator's loop: work, or the wish that it ends."""

from __future__ import annotations

import asyncio


class Wakeup:
    """Set by whoever has work for the loop; waited for by the loop alone."""

    def __init__(self) -> None:
        self._work = asyncio.Event()
        self._stop = asyncio.Event()

    @property
    def stopping(self) -> bool:
        """Tell if the coordinator is to end."""
        return self._stop.is_set()

    def set(self) -> None:
        """There is work."""
        self._work.set()

    def stop(self) -> None:
        """The coordinator is to end, for good."""
        self._stop.set()
        self._work.set()

    async def wait(self) -> None:
        """Return once there is work, or the coordinator is to end."""
        await self._work.wait()
        self._work.clear()

    async def stopped(self) -> None:
        """Return once the coordinator is to end."""
        await self._stop.wait()
