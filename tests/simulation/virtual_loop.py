"""An event loop whose time is virtual, and whose callbacks belong to processes that can be stopped.

Time does not pass, it jumps: when nothing is ready, the clock is set to the next timer. With nothing
scheduled either, nothing could ever happen again, and the loop raises `Deadlock`. So a sleep costs
nothing and is exact: when it is over, whatever was due before has been done, on any machine.

A callback belongs to the `Process` in whose context it was scheduled, and tasks inherit theirs. While
a process is paused, whatever becomes due for it is kept in order and runs when it is resumed: what
SIGSTOP and SIGCONT do, to the granularity of a callback.

Runs are repeatable: no wall clock, no thread, and tasks hash by the order of their making, since
asyncio keeps them in sets (a TaskGroup cancels its tasks in the order of one).
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import math
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

#: Turns of the loop in one instant after which it is a livelock: real work takes a few hundred.
_MAX_TURNS_AT_ONCE: Final = 100_000

_current: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Deadlock(RuntimeError):
    """Nothing is scheduled: what the main task waits for can never happen."""


class Livelock(RuntimeError):
    """The loop turns and turns, and time does not pass."""


class Process:
    """What is stopped and resumed together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.paused = False
        self.held: deque[asyncio.Handle] = deque()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run `work` in a task of this process."""
        context = contextvars.copy_context()
        context.run(_current.set, self)
        return asyncio.get_running_loop().create_task(work, context=context)

    def pause(self) -> None:
        """Stop, as by SIGSTOP. Idempotent."""
        self.paused = True

    def resume(self) -> None:
        """Go on. Idempotent."""
        self.paused = False
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.make_ready(self.held)
        self.held.clear()


def current_process() -> Process | None:
    """Return the process of the running callback."""
    return _current.get()


class _Task(asyncio.Task[Any]):
    def __init__(self, number: int, work: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._number = number
        super().__init__(work, **options)

    def __hash__(self) -> int:
        return self._number


class _Clock:
    """Stands where a selector would: `select` is where a loop waits."""

    def __init__(self) -> None:
        self.now = 0.0
        self._turns = 0

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Deadlock(f"nothing is scheduled at {self.now:.6f}")
        # Each turn takes an instant, so that a timer is always passed, however a sum is rounded.
        self.now = math.nextafter(self.now + timeout, math.inf)
        self._turns = 0 if timeout > 0 else self._turns + 1
        if self._turns > _MAX_TURNS_AT_ONCE:
            raise Livelock(f"time stands still at {self.now:.6f}")
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop. Give the class to `asyncio.Runner(loop_factory=...)`."""

    def __init__(self) -> None:
        super().__init__()
        self._clock = _Clock()
        self._selector = self._clock
        # A timer must not be early, not by a nanosecond: some would wait for that to pass.
        self._clock_resolution = 0.0
        numbers = itertools.count(1)
        self.set_task_factory(
            lambda loop, work, **options: _Task(next(numbers), work, loop=loop, **options)
        )

    def _process_events(self, event_list: list[Any]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        """Nobody has to be woken: there is one thread."""

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Call `func` in the next turn, for there are no threads."""
        finished: asyncio.Future[Any] = self.create_future()
        self.call_soon(self._execute, finished, func, args)
        return finished

    @staticmethod
    def _execute(
        finished: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        try:
            result = func(*args)
        except Exception as error:  # noqa: BLE001 (whoever awaits it gets it)
            if not finished.cancelled():
                finished.set_exception(error)
        else:
            if not finished.cancelled():
                finished.set_result(result)

    def time(self) -> float:
        return self._clock.now

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        if context is None:
            context = contextvars.copy_context()
        process = context.get(_current)
        if process is not None and process.paused:
            handle = asyncio.Handle(callback, args, self, context)
            process.held.append(handle)
            return handle
        return super().call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        if context is None:
            context = contextvars.copy_context()
        process = context.get(_current)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        cell: list[asyncio.TimerHandle] = []
        timer = super().call_at(when, self._fire, cell, process, callback, args, context=context)
        cell.append(timer)
        return timer

    def make_ready(self, handles: deque[asyncio.Handle]) -> None:
        """Run these in the next turn, unless they were cancelled."""
        ready: deque[asyncio.Handle] = self._ready  # type: ignore[attr-defined]
        ready.extend(handle for handle in handles if not handle.cancelled())

    def _fire(
        self,
        timer: list[asyncio.TimerHandle],
        process: Process,
        callback: Callable[..., object],
        args: tuple[Any, ...],
    ) -> None:
        if process.paused:
            # It may be cancelled yet, by what is held before it.
            context = contextvars.copy_context()
            process.held.append(
                asyncio.Handle(self._fire, (timer, process, callback, args), self, context)
            )
        elif not timer[0].cancelled():
            callback(*args)
