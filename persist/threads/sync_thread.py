"""Where the commit log is synced: in a thread of its own or, if syncs are short, in the loop.

With asyncio's own pool, a sync would wait behind checkpoints of store files, and each hand-over
would cost several locks and a task. Here a hand-over is one put into a queue, and one
`call_soon_threadsafe` back. Even that wakes two threads, which takes as long as a sync of a good
disk. So while syncs are short they run in the loop: that answered lone writes a fifth sooner, and
took a quarter more appends from a thousand callers. When their mean is no longer short, the next
ones go to the thread.

The duration of a sync in the thread says little, because it only ends when the busy loop gives up
Python's lock. So now and then one is tried in the loop, less and less often while they are not
short. If the disk begins to hang during a sync in the loop, the loop stops with it: the server is
silent then, and is fenced as one that hangs. While a checkpoint writes much, each sync waits for a
part of that, so they stay out of the loop, which meanwhile builds the next tick.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, Final

from holdfast.persist.threads.thread_job import ThreadJob, outcome_of, settle

#: A sync below this is short: it blocks the loop no longer than one tick does.
SHORT_SECONDS: Final = 0.001
#: After this many syncs in the thread, the next is tried in the loop. The number doubles each time
#: the try was not short.
TRY_AFTER_SYNCS: Final = 32
TRY_AFTER_SYNCS_MAX: Final = 4096
#: The weight of one sync in the mean of those in the loop.
_WEIGHT: Final = 0.1


class SyncThread:
    """Runs functions one after the other. Call `stop` at the end."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._jobs: SimpleQueue[ThreadJob | None] = SimpleQueue()
        self._waiting_count = 0
        #: How many bodies of `beside_writes` are under way.
        self._writes_count = 0
        #: The mean of the syncs in the loop.
        self._mean_seconds = 0.0
        #: How many go to the thread until the next is tried in the loop.
        self._left_count = self._try_after = TRY_AFTER_SYNCS
        # A daemon: a disk that never answers must not keep the process from ending.
        self._thread = threading.Thread(target=self._work, name="holdfast.sync", daemon=True)
        self._thread.start()

    @property
    def runs_in_loop(self) -> bool:
        """True if the next function runs in the caller's thread."""
        return self._left_count == self._waiting_count == self._writes_count == 0

    @contextmanager
    def beside_writes(self) -> Iterator[None]:
        """Run nothing in the loop while the body writes much to the same disk."""
        self._writes_count += 1
        try:
            yield
        finally:
            self._writes_count -= 1

    def __call__(self, function: Callable[[], Any], /) -> asyncio.Future[Any]:
        """Return a future with the result or exception of `function`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if self.runs_in_loop:
            began_at = self._clock()
            settle(future, *outcome_of(function))
            self._took(self._clock() - began_at)
        else:
            self._left_count = max(0, self._left_count - 1)
            self._waiting_count += 1
            self._jobs.put((function, loop, future))
        return future

    def stop(self) -> None:
        """End the thread once it has run what it was given."""
        self._jobs.put(None)

    def _took(self, seconds: float) -> None:
        """Note the duration of a sync in the loop."""
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
            result, error = outcome_of(function)
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._handed_back, future, result, error)

    def _handed_back(
        self, future: asyncio.Future[Any], result: Any, error: BaseException | None
    ) -> None:
        self._waiting_count -= 1
        settle(future, result, error)
