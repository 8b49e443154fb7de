"""Threads for calls that wait for the bucket, separate from those that sync files.

While the bucket is away, a call blocks its thread for as long as it retries. Neither the loop nor a
checkpoint may queue behind that, nor may the end of the process: the threads are daemons, because
their work may be cut off at any point.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from holdfast.persist.threads.thread_job import ThreadJob, outcome_of, settle


class TierThreads:
    """Runs functions in the order in which they came, `count` at once. Call `stop` at the end."""

    def __init__(self, name: str, count: int) -> None:
        self._jobs: SimpleQueue[ThreadJob | None] = SimpleQueue()
        self._name = name
        self._count = count
        self._started = False

    def __call__(self, function: Callable[[], Any], /) -> asyncio.Future[Any]:
        """Return a future with the result or exception of `function`."""
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
        """End the threads once they have run what they were given."""
        for _ in range(self._count if self._started else 0):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, loop, future = job
            if future.cancelled():
                continue
            result, error = outcome_of(function)
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, future, result, error)
