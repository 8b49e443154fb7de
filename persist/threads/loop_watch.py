"""A voice for a server whose event loop does not turn, which a loop cannot raise for itself.

The loop beats for itself while it turns (`heartbeats.py`). When it has not turned for
LATE_SECONDS a thread, on a connection of its own, sends the heartbeats that it owes, and they say
for how long it has not turned: so a long piece of work in the loop fences nobody, and a loop that
hangs for good is known to. Kept:

- The thread speaks only while the loop does not turn. A loop that turns and is not heard has lost
  its connection, and is to be found out.
- It is as silent as the loop would be: once it is fenced, while its disk hangs, before it is
  registered.
- A stopped process (SIGSTOP, a swapped-out host) has no thread either.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from holdfast.protocol.bus.bus import Bus
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.limits import HEARTBEAT_SECONDS

logger = logging.getLogger("holdfast.persist")

#: A loop that has not turned for so long is spoken for. Before the coordinator doubts it.
LATE_SECONDS: Final = 2 * HEARTBEAT_SECONDS
#: How often the loop says that it turns.
_TURN_SECONDS: Final = HEARTBEAT_SECONDS / 2
_CONNECT_AGAIN_SECONDS: Final = 1.0

#: Returns what to say for a loop that has not turned for so many seconds; None: nothing. Called in
#: the thread.
Words = Callable[[float], bytes | None]


class Turns:
    """When a loop last turned. `run` it in a task of that loop; read it anywhere."""

    def __init__(self, server: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._server = server
        self._clock = clock
        self._turned_at = clock()

    @property
    def late_seconds(self) -> float:
        """For how long the loop has not turned; 0 if that is not worth a word."""
        seconds = self._clock() - self._turned_at
        return seconds if seconds > LATE_SECONDS else 0.0

    def turned(self) -> None:
        """The loop turns."""
        seconds = self.late_seconds
        self._turned_at = self._clock()
        if seconds:
            logger.warning("server.loop_hung server=%s seconds=%.1f", self._server, seconds)

    async def run(self) -> None:
        while True:
            self.turned()
            await asyncio.sleep(_TURN_SECONDS)


class LoopWatch:
    """The thread. `speaking` for as long as an incarnation lives."""

    def __init__(self, connect: Callable[[], Awaitable[Bus]], subject: str) -> None:
        """`connect` returns a connection of the loop that it is awaited in."""
        self._connect = connect
        self._subject = subject

    @contextmanager
    def speaking(self, turns: Turns, words: Words) -> Iterator[None]:
        """Say `words` while the loop of `turns` does not turn."""
        ended = threading.Event()

        def live() -> None:
            with suppress(RuntimeError):
                # The interpreter ends.
                asyncio.run(self._live(turns, words, ended))

        # A daemon: it may be waiting for NATS.
        threading.Thread(target=live, name="holdfast.loop_watch", daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    async def _live(self, turns: Turns, words: Words, ended: threading.Event) -> None:
        bus: Bus | None = None
        try:
            while not ended.is_set():
                if bus is None:
                    bus = await self._connected()
                await asyncio.sleep(HEARTBEAT_SECONDS)
                if bus is not None and not ended.is_set():
                    await speak(bus, self._subject, turns, words)
        finally:
            if bus is not None:
                await bus.close()

    async def _connected(self) -> Bus | None:
        try:
            return await self._connect()
        except HoldfastError as error:
            logger.warning("server.loop_watch_away reason=%s", error)
            await asyncio.sleep(_CONNECT_AGAIN_SECONDS)
            return None


async def speak(bus: Bus, subject: str, turns: Turns, words: Words) -> bool:
    """Send what is to be said for a loop now; return if that was anything."""
    seconds = turns.late_seconds
    payload = words(seconds) if seconds else None
    if payload is None:
        return False
    await bus.publish(subject, payload)
    await bus.flush()
    return True
