"""One direction of a connection in memory: what is sent arrives later, and in order."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable

from holdfast.gateway.jetstream.wire.callbacks import call


class Pipe:
    """One direction of a connection: each thing arrives behind all that were sent before, in the
    context (`contextvars`) of whoever it arrives at."""

    def __init__(self, delay_seconds: Callable[[], float], context: contextvars.Context) -> None:
        self._delay_seconds = delay_seconds
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[float, Callable[[], None]]] = deque()
        self._timer: asyncio.Handle | None = None

    def send(self, arrive: Callable[[], None]) -> None:
        """Call `arrive` once it is due and all before it have arrived."""
        delay_seconds = self._delay_seconds()
        at = self._loop.time() + delay_seconds if delay_seconds > 0 else 0.0
        self._waiting.append((at, arrive))
        if self._timer is None:
            self._schedule()

    def empty(self) -> None:
        """Lose what has not arrived."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        at = self._waiting[0][0]
        if at > self._loop.time():
            self._timer = self._loop.call_at(at, self._arrive, context=self._context)
        else:
            self._timer = self._loop.call_soon(self._arrive, context=self._context)

    def _arrive(self) -> None:
        self._timer = None
        # What is sent meanwhile arrives in a later turn.
        for _ in range(len(self._waiting)):
            if not self._waiting or self._waiting[0][0] > self._loop.time():
                break
            call(self._waiting.popleft()[1])
        if self._waiting and self._timer is None:
            self._schedule()
