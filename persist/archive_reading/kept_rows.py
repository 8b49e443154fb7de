"""How long rows of the archive stay in memory: a minute after the last read, ten at most.

So a server whose clients read no history has no memory for it, and an erasure leaves nothing here
for longer, as in the caches of blocks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from holdfast.persist.threads.run_in_thread import RunInThread
from holdfast.protocol.limits import CACHE_IDLE_SECONDS, CACHE_MAX_AGE_SECONDS

_LOOK_SECONDS: Final = 10.0


class KeptRows:
    """The rows that one reader of the archive has in memory. `run` it in a task."""

    def __init__(self, forget: Callable[[], None], run_in_thread: RunInThread) -> None:
        """`forget` drops them all. It may block."""
        self._forget = forget
        self._run_in_thread = run_in_thread
        #: When the first of them may have been read, and when they were used last; None if there
        #: are none.
        self._times: tuple[float, float] | None = None

    def used(self) -> None:
        """Note that the archive is read."""
        now = asyncio.get_running_loop().time()
        self._times = (now if self._times is None else self._times[0]), now

    async def run(self) -> None:
        """Forget old rows until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Forget the rows if they are old."""
        if self._times is None:
            return
        first_at, used_at = self._times
        now = asyncio.get_running_loop().time()
        if used_at <= now - CACHE_IDLE_SECONDS or first_at <= now - CACHE_MAX_AGE_SECONDS:
            # What is read from now on may be forgotten too, and is then read again.
            self._times = None
            await self._run_in_thread(self._forget)
