"""Threads of a simulated process: real ones, of which one runs at a time, and only while the loop
waits.

What blocks in a thread, a call of the bucket above all, gives way to the loop for a while of
virtual time (`give_way`), during which everybody else goes on: other processes change the bucket
between two of its calls, and the process itself may be stopped, or die. Who gives way in a process
that has died meanwhile is unwound by an OSError, as if by a disk that is gone.

The loop's thread and these hand one baton to and fro, so runs are as repeatable as without them.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import threading
from collections.abc import Callable
from typing import Any

_current: contextvars.ContextVar[SimulatedThread | None] = contextvars.ContextVar(
    "simulated thread", default=None
)

Outcome = tuple[Any, Exception | None]


class SimulatedThread:
    """One call in a thread. `advance` it, in the loop, from where it gave way to where it does
    again."""

    def __init__(
        self,
        function: Callable[[], Any],
        ended: Callable[[Outcome], None],
        is_dead: Callable[[], bool],
    ) -> None:
        """`ended` is called in the loop with the result or error."""
        self._function = function
        self._ended = ended
        self._is_dead = is_dead
        self._loop = asyncio.get_running_loop()
        # Locks that one thread takes and another gives back: they are the baton.
        self._thread_turn = threading.Lock()
        self._loop_turn = threading.Lock()
        self._thread_turn.acquire()
        self._loop_turn.acquire()
        self._outcome: Outcome | None = None
        self._wait_seconds = 0.0
        context = contextvars.copy_context()
        # A daemon: a run that fails midway leaves it where it is.
        self._thread = threading.Thread(target=context.run, args=(self._work,), daemon=True)
        self._started = False

    def advance(self) -> None:
        """Let it go on until it gives way or ends."""
        if not self._started:
            self._started = True
            self._thread.start()
        self._thread_turn.release()
        self._loop_turn.acquire()
        if self._outcome is None:
            self._loop.call_later(self._wait_seconds, self.advance)
        else:
            self._thread.join()
            self._ended(self._outcome)

    def give_way(self, seconds: float) -> None:
        """Wait for `seconds`, in the thread. Raises OSError if its process is dead then."""
        self._wait_seconds = seconds
        self._loop_turn.release()
        self._thread_turn.acquire()
        if self._is_dead():
            raise OSError(errno.EIO, "the process is dead")

    def _work(self) -> None:
        _current.set(self)
        self._thread_turn.acquire()
        try:
            self._outcome = self._function(), None
        except Exception as error:  # noqa: BLE001 (whoever awaits it gets it)
            self._outcome = None, error
        self._loop_turn.release()


def current_thread() -> SimulatedThread | None:
    """Return the simulated thread that this is called in; None in the loop."""
    return _current.get()


class SimulatedEvent:
    """Stands where a thread waits for a `threading.Event`, with a time."""

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        self._set = True

    def wait(self, seconds: float) -> bool:
        thread = current_thread()
        assert thread is not None
        if not self._set:
            thread.give_way(seconds)
        return self._set
