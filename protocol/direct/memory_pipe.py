"""Pipes in memory: both ends are in one event loop, as those of a gateway that works in the process
of a persist server. Tests and the simulator have pipes that take their time.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Self

from holdfast.protocol.direct.door_bus import Door
from holdfast.protocol.direct.pipe import DirectPipe


class MemoryPipe(DirectPipe):
    """One end; `pair` makes both. Messages arrive in later turns of the loop, in the context
    (`contextvars`) in which their end was started."""

    is_here = True

    def __init__(self, delay_seconds: Callable[[], float] | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._delay_seconds = delay_seconds
        self._other: MemoryPipe | None = None
        self._take: Callable[[bytes], None] | None = None
        self._on_end: Callable[[], None] = lambda: None
        self._context = contextvars.copy_context()
        self._waiting: list[bytes | None] = []
        self._arrives_at = 0.0
        self._is_ended = False

    @classmethod
    def pair(
        cls, delay_seconds: Callable[[], float] | None = None
    ) -> tuple[Self, Self]:
        """`delay_seconds` says how long a message takes: without it, a turn of the loop. None
        overtakes another."""
        one, other = cls(delay_seconds), cls(delay_seconds)
        one._other, other._other = other, one
        return one, other

    @property
    def ended(self) -> bool:
        return self._is_ended

    def start(self, take: Callable[[bytes], None], ended: Callable[[], None]) -> None:
        self._take, self._on_end = take, ended
        self._context = contextvars.copy_context()
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            self._loop.call_soon(self._arrive, message)

    def change(self, take: Callable[[bytes], None], ended: Callable[[], None]) -> None:
        self._take, self._on_end = take, ended

    def send(self, *parts: bytes) -> bool:
        if self._is_ended or self._other is None:
            return False
        self._send(b"".join(parts))
        return True

    def close(self) -> None:
        if not self._is_ended:
            self._is_ended = True
            self._send(None)

    def cut(self) -> None:
        """End both ends at once, as the death of a process does; what is on its way is lost."""
        for end in (self, self._other):
            if end is not None and not end._is_ended:
                end._is_ended = True
                self._loop.call_soon(end._ended_by_cut, context=end._context)

    def _ended_by_cut(self) -> None:
        self._on_end()

    def _send(self, message: bytes | None) -> None:
        other = self._other
        assert other is not None, "it was made with its other end"
        if self._delay_seconds is None:
            self._loop.call_soon(other._arrive, message, context=other._context)
            return
        at = max(self._loop.time() + self._delay_seconds(), self._arrives_at)
        self._arrives_at = at
        self._loop.call_at(at, other._arrive, message, context=other._context)

    def _arrive(self, message: bytes | None) -> None:
        if self._take is None:
            self._waiting.append(message)
        elif self._is_ended:
            return
        elif message is None:
            self._is_ended = True
            self._on_end()
        else:
            self._take(message)


class MemoryDoor(Door):
    """A door to which `enter` brings pipes. They enter in the context in which it was opened."""

    def __init__(self) -> None:
        self._enter: Callable[[DirectPipe], None] | None = None
        self._context = contextvars.copy_context()

    @property
    def is_open(self) -> bool:
        return self._enter is not None

    def open(self, enter: Callable[[DirectPipe], None]) -> None:
        self._enter = enter
        self._context = contextvars.copy_context()

    def close(self) -> None:
        self._enter = None

    def enter(self, pipe: DirectPipe) -> bool:
        """Bring a pipe in. Return False if the door is closed."""
        if self._enter is None:
            return False
        self._context.copy().run(self._enter, pipe)
        return True
