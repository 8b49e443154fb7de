"""What wakes the coordinator's loop: new work, or the request to stop."""

from __future__ import annotations

import asyncio


class Wakeup:
    """Anyone with work for the loop sets it; only the loop waits for it."""

    def __init__(self) -> None:
        self._work = asyncio.Event()
        self._stop = asyncio.Event()

    @property
    def stopping(self) -> bool:
        """Tell whether the coordinator is to stop."""
        return self._stop.is_set()

    def set(self) -> None:
        """Wake the loop: there is work."""
        self._work.set()

    def stop(self) -> None:
        """Ask the coordinator to stop, for good."""
        self._stop.set()
        self._work.set()

    async def wait(self) -> None:
        """Return once there is work or the coordinator is to stop."""
        await self._work.wait()
        self._work.clear()

    async def stopped(self) -> None:
        """Return once the coordinator is to stop."""
        await self._stop.wait()
