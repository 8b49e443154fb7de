"""An event loop whose time is virtual, and whose callbacks belong to processes that can be stopped.

Time does not pass, it jumps: when nothing is ready, the clock is set to the next timer. With
nothing scheduled either, nothing could ever happen again, and the loop raises `Deadlock`. So a
sleep costs nothing and is exact: when it is over, whatever was due before has been done, on any
machine.

A callback belongs to the `Process` in whose context it was scheduled, and tasks inherit theirs.
While a process is paused, whatever becomes due for it is kept in order and runs when it is resumed:
what SIGSTOP and SIGCONT do, to the granularity of a callback.

Runs are repeatable: no wall clock, no thread, and tasks hash by the order of their making, since
asyncio keeps them in sets (a TaskGroup cancels its tasks in the order of one).
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

#: Turns of the loop in one instant after which it is a livelock: real work takes a few hundred.
_MAX_TURNS_AT_ONCE: Final = 100_000
#: Of more timers, those that were cancelled are removed before they are due.
_MANY_TIMERS: Final = 100

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

    def enter(self) -> None:
        """Let what is scheduled in the present context belong to this process."""
        _current.set(self)

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


def process_of(context: dict[str, Any]) -> Process | None:
    """Return the process of the task that an exception handler is told of. What it was may be
    found by the garbage collector, in whatever process."""
    task = context.get("future") or context.get("task")
    return task.process if isinstance(task, _Task) else None


def current_process() -> Process | None:
    """Return the process of the running callback."""
    return _current.get()


class _Task(asyncio.Task[Any]):
    def __init__(self, number: int, work: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._number = number
        context = options.get("context")
        self.process = current_process() if context is None else context.get(_current)
        super().__init__(work, **options)

    def __hash__(self) -> int:
        return self._number


class _Handle(asyncio.Handle):
    """A callback, made without asking whether the loop is in debug mode."""

    __slots__ = ()

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context,
    ) -> None:
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = context
        self._cancelled = False
        self._repr = self._source_traceback = None


class _Timer(asyncio.TimerHandle):
    """The same at a time, in a process that may be paused then."""

    __slots__ = ("process",)

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context,
    ) -> None:
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = context
        self._cancelled = False
        self._repr = self._source_traceback = None
        self._when = when
        self._scheduled = True
        self.process = context.get(_current)


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop. Give the class to `asyncio.Runner(loop_factory=...)`.

    What a turn does is written anew, because a run is millions of turns: as in `BaseEventLoop`, but
    without waiting, and its heap compares times before it compares timers.
    """

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._turns_at_once = 0
        self._ready: deque[asyncio.Handle]
        self._scheduled: list[tuple[float, asyncio.TimerHandle]]
        numbers = itertools.count(1)
        self.set_task_factory(
            lambda loop, work, **options: _Task(next(numbers), work, loop=loop, **options)
        )

    def get_debug(self) -> bool:
        return False

    def _run_once(self) -> None:
        self._drop_cancelled_timers()
        ready, scheduled = self._ready, self._scheduled
        seconds = 0.0
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            if not scheduled:
                raise Deadlock(f"nothing is scheduled at {self._now:.6f}")
            seconds = max(0.0, scheduled[0][0] - self._now)
        # Each turn takes an instant, so that a timer is always passed, however a sum is rounded.
        now = self._now = math.nextafter(self._now + seconds, math.inf)
        self._turns_at_once = 0 if seconds > 0 else self._turns_at_once + 1
        if self._turns_at_once > _MAX_TURNS_AT_ONCE:
            raise Livelock(f"time stands still at {now:.6f}")
        # A timer must not be early, not by a nanosecond: some would wait for that to pass.
        while scheduled and scheduled[0][0] < now:
            timer = heapq.heappop(scheduled)[1]
            timer._scheduled = False  # type: ignore[attr-defined]
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            if type(handle) is _Timer and handle.process is not None and handle.process.paused:
                # It may be cancelled yet, by what is held before it.
                handle.process.held.append(handle)
            else:
                handle._run()

    def _drop_cancelled_timers(self) -> None:
        scheduled = self._scheduled
        if len(scheduled) > _MANY_TIMERS and 2 * self._timer_cancelled_count > len(scheduled):
            for _, timer in scheduled:
                timer._scheduled = not timer.cancelled()
            scheduled[:] = [entry for entry in scheduled if not entry[1].cancelled()]
            heapq.heapify(scheduled)
            self._timer_cancelled_count = 0
        while scheduled and scheduled[0][1].cancelled():
            self._timer_cancelled_count -= 1
            heapq.heappop(scheduled)[1]._scheduled = False

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
        return self._now

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        if context is None:
            context = contextvars.copy_context()
        process = context.get(_current)
        handle = _Handle(callback, args, self, context)
        waiting = self._ready if process is None or not process.paused else process.held
        waiting.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        if context is None:
            # An empty context is one, though it counts as false.
            context = contextvars.copy_context()
        timer = _Timer(when, callback, args, self, context)
        heapq.heappush(self._scheduled, (when, timer))
        return timer

    def make_ready(self, handles: deque[asyncio.Handle]) -> None:
        """Run these in the next turn, unless they were cancelled."""
        self._ready.extend(handle for handle in handles if not handle.cancelled())
