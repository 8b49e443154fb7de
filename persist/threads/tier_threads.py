"""Threads for what waits for the bucket, apart from those that sync files.

A bucket that is away holds up who asks it, for as long as a call tries: neither the loop nor a
checkpoint may stand behind that. Nor the end of the process: they are daemons, since whatever they
are at may be cut off at any point.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

_Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, asyncio.Future[Any]]


class TierThreads:
    """Runs functions, so many at once, in the order in which they came. `stop` it in the end."""

    def __init__(self, name: str, count: int) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._name = name
        self._count = count
        self._started = False

    def __call__(self, function: Callable[[], Any], /) -> asyncio.Future[Any]:
        """Return the future of what `function` returns or raises."""
        if not self._started:
            self._started = True
            for number in range(self._count):
                name = f"holdfast.{self._name}.{number}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._jobs.put((function, loop, future))
        return future

    def stop(self) -> None:
        """End the threads once they have done what they were given."""
        for _ in range(self._count if self._started else 0):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, loop, future = job
            if future.cancelled():
                continue
            result: Any = None
            error: BaseException | None = None
            try:
                result = function()
            except BaseException as raised:  # noqa: BLE001 (raised again where it is awaited)
                error = raised
            if not loop.is_closed():
                loop.call_soon_threadsafe(_finish, future, result, error)


def _finish(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
