"""Where the commit log is synced: in a thread of its own, or, where a sync is short, in the loop.

asyncio's own pool would do, but a sync then waits behind checkpoints of store files in the same
pool, and each hand-over costs several locks and a task. Here one is a queue's put there, and one
`call_soon_threadsafe` back. Even that wakes two threads, which takes as long as a sync of a good
disk: so while syncs are short they are done at once, which answered lone writes a fifth sooner and
took a quarter more appends of a thousand callers. When they are not short in the mean, the next
ones go to the thread.

How long one took in the thread says little: it ends only when the busy loop gives up Python's lock.
So now and then one is tried in the loop, and more and more rarely while it is not short.

A disk that begins to hang during one in the loop stops the loop with it: the server is silent then,
and is fenced as one that hangs.
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
#: After so many in the thread the next is tried in the loop; after twice as many if it was not
#: short.
TRY_AFTER_SYNCS: Final = 32
TRY_AFTER_SYNCS_MAX: Final = 4096
#: What one sync counts for in the mean of those in the loop.
_WEIGHT: Final = 0.1


class SyncThread:
    """Runs functions one after the other. `stop` it in the end."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._waiting_count = 0
        #: Of syncs in the loop, in the mean.
        self._mean_seconds = 0.0
        #: In the thread, until the next is tried in the loop.
        self._left_count = self._try_after = TRY_AFTER_SYNCS
        # A daemon: a disk that never answers must not keep the process from ending.
        self._thread = threading.Thread(target=self._work, name="holdfast.sync", daemon=True)
        self._thread.start()

    @property
    def runs_in_loop(self) -> bool:
        """The next function is run in the caller's thread."""
        return self._left_count == 0 and self._waiting_count == 0

    def __call__(self, function: Callable[[], Any], /) -> asyncio.Future[Any]:
        """Return the future of what `function` returns or raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if self.runs_in_loop:
            began_at = self._clock()
            _finish(future, *_run(function))
            self._took(self._clock() - began_at)
        else:
            self._left_count = max(0, self._left_count - 1)
            self._waiting_count += 1
            self._jobs.put((function, loop, future))
        return future

    def stop(self) -> None:
        """End the thread once it has done what it was given."""
        self._jobs.put(None)

    def _took(self, seconds: float) -> None:
        """A sync in the loop took so long."""
        if self._mean_seconds:
            seconds = (1 - _WEIGHT) * self._mean_seconds + _WEIGHT * seconds
        if seconds < SHORT_SECONDS:
            self._mean_seconds = seconds
            self._try_after = TRY_AFTER_SYNCS
        else:
            self._mean_seconds = 0.0
            self._left_count = self._try_after
            self._try_after = min(TRY_AFTER_SYNCS_MAX, 2 * self._try_after)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, loop, future = job
            result, error = _run(function)
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._handed_back, future, result, error)

    def _handed_back(
        self, future: asyncio.Future[Any], result: Any, error: BaseException | None
    ) -> None:
        self._waiting_count -= 1
        _finish(future, result, error)


def _run(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return function(), None
    except BaseException as error:  # noqa: BLE001 (raised again where it is awaited)
        return None, error


def _finish(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
