"""Where the commit log is synced: in a thread of its own, or, where a sync is short, in the loop.

asyncio's own pool would do, but a sync then waits behind checkpoints of store files in the same pool,
and each hand-over costs several locks and a task. Here one is a queue's put there, and one
`call_soon_threadsafe` back. Even that wakes two threads, which takes as long as a sync of a good
disk: so while syncs are short they are done at once, which answered lone writes a fifth sooner and
took a quarter more appends of a thousand callers. One that is not short, and the next ones go to
the thread again.

A disk that begins to hang during a short one stops the loop with it: the server is silent then, and
is fenced as one that hangs.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final

_Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, asyncio.Future[Any]]

#: A sync is short below this: the loop is kept from other work for no longer than by one tick.
SHORT_SECONDS: Final = 0.001
#: So many short ones in a row, before the next is done in the loop.
SHORT_SYNCS: Final = 32


class SyncThread:
    """Runs functions one after the other. `stop` it in the end."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._waiting_count = 0
        self._short_count = 0
        # A daemon: a disk that never answers must not keep the process from ending.
        self._thread = threading.Thread(target=self._work, name="holdfast.sync", daemon=True)
        self._thread.start()

    @property
    def is_short(self) -> bool:
        """The next function is run in the caller's thread."""
        return self._short_count >= SHORT_SYNCS and self._waiting_count == 0

    def __call__(self, function: Callable[[], Any], /) -> asyncio.Future[Any]:
        """Return the future of what `function` returns or raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if self.is_short:
            _finish(future, *self._run(function))
        else:
            self._waiting_count += 1
            self._jobs.put((function, loop, future))
        return future

    def stop(self) -> None:
        """End the thread once it has done what it was given."""
        self._jobs.put(None)

    def _run(self, function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        began_at = self._clock()
        error: BaseException | None = None
        result = None
        try:
            result = function()
        except BaseException as raised:  # noqa: BLE001 (raised again where it is awaited)
            error = raised
        self._short_count = self._short_count + 1 if self._clock() - began_at < SHORT_SECONDS else 0
        return result, error

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, loop, future = job
            result, error = self._run(function)
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._handed_back, future, result, error)

    def _handed_back(
        self, future: asyncio.Future[Any], result: Any, error: BaseException | None
    ) -> None:
        self._waiting_count -= 1
        _finish(future, result, error)


def _finish(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
