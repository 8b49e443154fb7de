"""Sends heartbeats for a server whose event loop is stuck, which the loop cannot do for itself.

The loop sends its own heartbeats while it turns (`heartbeats.py`). When it has not turned for
LATE_SECONDS, a thread with a connection of its own sends the heartbeats that are due. They say how
long the loop has been stuck. So a long piece of work in the loop does not get the server fenced,
and the coordinator knows of a loop that hangs for good. Invariants:

- The thread speaks only while the loop is stuck. A loop that turns without being heard has lost its
  connection, and that must be noticed.
- It is silent whenever the loop would be: once fenced, while the disk hangs, and
  before registration.
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
from holdfast.protocol.serving.trouble import Trouble

logger = logging.getLogger("holdfast.persist")

#: The thread speaks for a loop that has been stuck for this long: before the coordinator doubts it.
LATE_SECONDS: Final = 2 * HEARTBEAT_SECONDS
#: How often the loop reports that it turns.
_TURN_SECONDS: Final = HEARTBEAT_SECONDS / 2
_CONNECT_AGAIN_SECONDS: Final = 1.0

#: Returns the heartbeat for a loop that has been stuck for so many seconds, or None to send
#: nothing. Called in the thread.
Words = Callable[[float], bytes | None]


class Turns:
    """When a loop last turned, from the first `turned` on. `run` it in a task of that loop; read it
    in any thread."""

    def __init__(self, server: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._server = server
        self._clock = clock
        #: None before anybody watches: a server that waits for the coordinator is not stuck.
        self._turned_at: float | None = None

    @property
    def late_seconds(self) -> float:
        """How long the loop has been stuck; 0 if that is too short to report."""
        if self._turned_at is None:
            return 0.0
        seconds = self._clock() - self._turned_at
        return seconds if seconds > LATE_SECONDS else 0.0

    def turned(self) -> None:
        """Note that the loop turns."""
        seconds = self.late_seconds
        self._turned_at = self._clock()
        if seconds:
            logger.warning("server.loop_hung server=%s seconds=%.1f", self._server, seconds)

    async def run(self) -> None:
        while True:
            self.turned()
            await asyncio.sleep(_TURN_SECONDS)


class LoopWatch:
    """The thread that speaks for a loop. Use `speaking` for as long as an incarnation lives."""

    def __init__(self, connect: Callable[[], Awaitable[Bus]], subject: str) -> None:
        """`connect` returns a connection that belongs to the loop in which it is awaited."""
        self._connect = connect
        self._subject = subject
        self._away = Trouble(logger, "server.loop_watch_away")

    @contextmanager
    def speaking(self, turns: Turns, words: Words) -> Iterator[None]:
        """Send `words` while the loop of `turns` is stuck."""
        ended = threading.Event()

        def live() -> None:
            with suppress(RuntimeError):
                # The interpreter is shutting down.
                asyncio.run(self._live(turns, words, ended))

        # A daemon, because it may be waiting for NATS.
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
            bus = await self._connect()
        except HoldfastError as error:
            self._away.note("reason=%s", error)
            await asyncio.sleep(_CONNECT_AGAIN_SECONDS)
            return None
        self._away.over()
        return bus


async def speak(bus: Bus, subject: str, turns: Turns, words: Words) -> bool:
    """Send what is due for a loop now. Return whether there was anything."""
    seconds = turns.late_seconds
    payload = words(seconds) if seconds else None
    if payload is None:
        return False
    await bus.publish(subject, payload)
    await bus.flush()
    return True
